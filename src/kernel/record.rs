//! Formulas as lists of operations, from which the sources of GPU kernels are generated. Also
//! called: tracing, symbolic execution.
//!
//! A formula is run once over a [`Number`] that records what is asked of it.

use std::any::type_name;
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::number::{MAX_STATES, Number};
use super::rule::Formula;

/// How a formula is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Merge,
    Measure { with_value: bool },
}

/// One operation; operands are indices of earlier operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Sum,
    Value,
    State(usize),
    Constant(usize),
    Binary(&'static str, usize, usize),
    Unary(&'static str, usize),
    IfGreater([usize; 4]),
}

#[derive(Debug, Clone, Default)]
struct Tape {
    operations: Vec<Operation>,
    constants: Vec<f64>,
}

thread_local!(static TAPE: RefCell<Tape> = RefCell::default());

/// A number known by the operation that makes it.
#[derive(Clone, Copy)]
struct Recorded(usize);

impl Recorded {
    fn new(operation: Operation) -> Self {
        TAPE.with_borrow_mut(|tape| {
            tape.operations.push(operation);
            Self(tape.operations.len() - 1)
        })
    }
}

macro_rules! operators {
    ($($operator:ident::$method:ident)+) => {$(
        impl $operator for Recorded {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                Self::new(Operation::Binary(stringify!($method), self.0, other.0))
            }
        }
    )+};
}

operators!(Add::add Sub::sub Mul::mul Div::div);

impl Neg for Recorded {
    type Output = Self;

    fn neg(self) -> Self {
        Self::new(Operation::Unary("negative", self.0))
    }
}

impl Number for Recorded {
    fn of(constant: f64) -> Self {
        let index = TAPE.with_borrow_mut(|tape| {
            tape.constants.push(constant);
            tape.constants.len() - 1
        });
        Self::new(Operation::Constant(index))
    }

    fn abs(self) -> Self {
        Self::new(Operation::Unary("magnitude", self.0))
    }

    fn sqrt(self) -> Self {
        Self::new(Operation::Unary("root", self.0))
    }

    fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self {
        Self::new(Operation::IfGreater([self.0, other.0, then.0, otherwise.0]))
    }
}

/// A formula with the numbers of one push.
#[derive(Debug, Clone)]
pub(crate) struct Recording {
    pub(crate) name: &'static str,
    /// The Rust type of the formula.
    pub(crate) formula: &'static str,
    pub(crate) usage: Use,
    pub(crate) states: usize,
    /// Its numbers, in the order of its calls of [`Number::of`].
    pub(crate) constants: Vec<f64>,
    operations: Vec<Operation>,
    /// The operations that make the new states, then the result.
    results: Vec<usize>,
}

impl Recording {
    /// Runs a formula once.
    pub(super) fn of<F: Formula>(formula: F, usage: Use) -> Self {
        TAPE.take();
        let sum = Recorded::new(Operation::Sum);
        let value = Recorded::new(Operation::Value);
        let mut states: [_; MAX_STATES] =
            std::array::from_fn(|index| Recorded::new(Operation::State(index)));
        let result = formula.step(sum, value, &mut states);
        let results = states[..F::STATES].iter().chain([&result]).map(|it| it.0).collect();
        let Tape { operations, constants } = TAPE.take();
        let formula = type_name::<F>();
        Self { name: F::NAME, formula, usage, states: F::STATES, constants, operations, results }
    }

    /// Whether both are one formula, with any numbers.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
            && self.formula == other.formula
            && self.usage == other.usage
            && self.states == other.states
            && self.operations == other.operations
            && self.results == other.results
    }

    /// The formula as a structure of C++ with a function over any type of numbers.
    pub(crate) fn cpp(&self) -> String {
        let (name, states, constants) = (self.name, self.states, self.constants.len());
        let mut lines = vec![
            format!("struct {name} {{"),
            format!("  static const int STATES = {states}, CONSTANTS = {constants};"),
        ];
        if let Use::Measure { with_value } = self.usage {
            lines.push(format!("  static const bool WITH_VALUE = {with_value};"));
        }
        let head =
            "template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s)";
        lines.push(format!("  {head} {{"));
        for (index, operation) in self.steps() {
            let of = |function: &str, operands: &[usize]| -> String {
                let operands: Vec<_> = operands.iter().map(|&it| self.operand(it)).collect();
                format!("{function}({})", operands.join(", "))
            };
            let call = match *operation {
                Operation::Binary(function, a, b) => of(function, &[a, b]),
                Operation::Unary(function, a) => of(function, &[a]),
                Operation::IfGreater(all) => of("if_greater", &all),
                _ => unreachable!("an operand is no step"),
            };
            lines.push(format!("    const T {} = {call};", self.operand(index)));
        }
        lines.extend(self.cpp_results());
        lines.join("\n") + "\n  }\n};\n"
    }

    /// The lines that store the states and return the result.
    fn cpp_results(&self) -> Vec<String> {
        let is_state = |index: usize| matches!(self.operations[index], Operation::State(_));
        let (&result, kept) = self.results.split_last().expect("there is a result");
        assert!(!is_state(result), "{}: the result is a state, which is stored before", self.name);
        let mut lines = Vec::new();
        for (state, &from) in kept.iter().enumerate() {
            if self.operations[from] != Operation::State(state) {
                assert!(!is_state(from), "{}: a state becomes another one", self.name);
                lines.push(format!("    s[{state}] = {};", self.operand(from)));
            }
        }
        lines.push(format!("    return {};", self.operand(result)));
        lines
    }

    /// The operations that calculate, by index.
    fn steps(&self) -> impl Iterator<Item = (usize, &Operation)> {
        self.operations.iter().enumerate().filter(|(_, operation)| {
            matches!(
                operation,
                Operation::Binary(..) | Operation::Unary(..) | Operation::IfGreater(_)
            )
        })
    }

    /// What C++ calls the result of an operation.
    fn operand(&self, index: usize) -> String {
        match self.operations[index] {
            Operation::Sum => "sum".into(),
            Operation::Value => "value".into(),
            Operation::State(state) => {
                assert!(state < self.states, "{} has no state {state}", self.name);
                format!("s[{state}]")
            }
            Operation::Constant(constant) => format!("c[{constant}]"),
            _ => format!("v{}", self.steps().take_while(|&(step, _)| step < index).count()),
        }
    }
}
