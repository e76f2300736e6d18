//! The numbers of a formula in one push, as a GPU kernel takes them.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use smallvec::SmallVec;

use super::number::{MAX_STATES, Number};
use super::rule::Formula;

/// Numbers of most formulas.
const USUAL: usize = 16;

thread_local!(static NOTED: RefCell<SmallVec<[f64; USUAL]>> = RefCell::default());

/// A number that notes constants and calculates nothing.
#[derive(Clone, Copy)]
struct Noted;

macro_rules! operators {
    ($($operator:ident::$method:ident)+) => {$(
        impl $operator for Noted {
            type Output = Self;
            fn $method(self, _: Self) -> Self {
                self
            }
        }
    )+};
}

operators!(Add::add Sub::sub Mul::mul Div::div);

impl Neg for Noted {
    type Output = Self;

    fn neg(self) -> Self {
        self
    }
}

impl Number for Noted {
    fn of(constant: f64) -> Self {
        NOTED.with_borrow_mut(|noted| noted.push(constant));
        Self
    }

    fn abs(self) -> Self {
        self
    }

    fn sqrt(self) -> Self {
        self
    }

    fn if_greater(self, _: Self, _: Self, _: Self) -> Self {
        self
    }
}

/// Appends a formula's numbers, in the order of its calls of [`Number::of`].
pub(super) fn note<F: Formula>(formula: F, constants: &mut Vec<f64>) {
    formula.step(Noted, Noted, &mut [Noted; MAX_STATES]);
    constants.extend(NOTED.with_borrow_mut(std::mem::take));
}
