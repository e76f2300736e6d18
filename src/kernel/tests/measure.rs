//! Sums of squares in every build against a scalar loop in the defined order.

use half::{bf16, f16};

use super::rule::{Case, Stored};
use super::{Number as Element, Out, Random, isas};
use crate::kernel::{
    MAX_STATES, Measure, Measuring, Meter, Number, Pass, RuleTarget, Squares, SumOrder, TILE,
    Traffic,
};

/// Writes a state, and returns a number that depends on all inputs.
#[derive(Clone, Copy)]
struct Sample;

impl Measure for Sample {
    const NAME: &'static str = "sample_measure";
    const STATES: usize = 1;
    const WITH_VALUE: bool = true;

    fn measured<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        states[0] = states[0] - gradient;
        states[0] + value * value
    }
}

/// The sum of squares in the order that never changes.
fn squares(numbers: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    numbers.iter().enumerate().for_each(|(i, number)| sums[i % 8] += number * number);
    for half in [4, 2, 1] {
        (0..half).for_each(|i| sums[i] += sums[i + half]);
    }
    sums[0]
}

/// A float that rules calculate in, and the formula in plain numbers.
trait Wide: Element + Into<f64> {
    fn of(number: f64) -> Self;
    fn measured(gradient: Self, value: Self, state: &mut Self) -> Self;
}

macro_rules! wide {
    ($($float:ident)+) => {$(impl Wide for $float {
        fn of(number: f64) -> Self {
            number as $float
        }

        fn measured(gradient: Self, value: Self, state: &mut Self) -> Self {
            *state -= gradient;
            *state + value * value
        }
    })+};
}

wide!(f32 f64);

fn check<T: Stored<Wide: Wide>>(case: &Case<T>, with_master: bool) {
    let count = case.value.len();
    let mut state = case.states[0].clone();
    let value = |i: usize| if with_master { case.master[i] } else { case.value[i].widen() };
    let measured = |(i, state): (usize, &mut T::Wide)| -> f64 {
        let sum = T::sum(case.inputs.iter().map(|input| input[i]));
        T::Wide::measured(sum.widen(), value(i), state).into()
    };
    let measured: Vec<f64> = state.iter_mut().enumerate().map(measured).collect();
    let values: Vec<f64> = (0..count).map(|i| value(i).into()).collect();
    let expected = Squares { measured: squares(&measured), value: squares(&values) };
    for isa in isas() {
        let mut inputs: Vec<Out<T>> = case.inputs.iter().map(|input| Out::new(1, input)).collect();
        let inputs: Vec<*const u8> = inputs.iter_mut().map(|it| it.start().cast_const()).collect();
        let (mut stored, mut master) = (Out::new(2, &case.value), Out::new(3, &case.master));
        let mut kept = Out::new(4, &case.states[0]);
        let at = if with_master { master.start() } else { stored.start() };
        let none = std::ptr::null_mut();
        let target = RuleTarget::new(at, with_master, [kept.start(), none, none]);
        let (traffic, order) = (Traffic::Cached, SumOrder::Linear);
        let pass = Pass {
            dtype: T::DTYPE,
            outs: &[],
            inputs: &inputs,
            count,
            traffic,
            order,
            divisor: None,
        };
        let mut found = Squares::default();
        // SAFETY: all arrays have `count` elements and are apart.
        unsafe {
            Measuring(Sample).measure(isa, &pass, &target, TILE, &mut |squares| found += squares);
        };
        let case_name = || format!("{} {:?} x {count}", isa.name(), T::DTYPE);
        let same = |a: f64, b: f64| a.is_same(b);
        assert!(same(found.measured, expected.measured), "{}: {found:?}", case_name());
        assert!(same(found.value, expected.value), "{}: {found:?}", case_name());
        kept.check(&state, false, &case_name);
        stored.check(&case.value, false, &case_name);
        master.check(&case.master, false, &case_name);
    }
}

fn check_all<T: Stored<Wide: Wide>>(random: &mut Random, with_master: bool) {
    for count in [0, 1, 7, 8, 9, 63, 64, 65, TILE - 1, TILE] {
        for inputs in 1..=3 {
            let mut case = Case::<T>::new(random, inputs, count);
            if count % 2 == 1 {
                // Without special values, which make most sums a NaN.
                let plain = |i: usize| T::narrow(wide_of::<T>(i));
                case.value = (0..count).map(plain).collect();
                case.inputs.iter_mut().for_each(|it| *it = (1..=count).map(plain).collect());
                let wide = || (0..count).map(wide_of::<T>).collect::<Vec<_>>();
                (case.master, case.states[0]) = (wide(), wide());
            }
            check(&case, with_master);
        }
    }
}

/// A number near 1 with many digits.
fn wide_of<T: Stored<Wide: Wide>>(i: usize) -> T::Wide {
    T::Wide::of(1.0 + (i * i % 97) as f64 / 97.0)
}

#[test]
fn all_builds_measure_in_one_order() {
    let mut random = Random::new(73);
    check_all::<f32>(&mut random, false);
    check_all::<f64>(&mut random, false);
    check_all::<f16>(&mut random, false);
    check_all::<bf16>(&mut random, false);
    check_all::<f16>(&mut random, true);
    check_all::<bf16>(&mut random, true);
}
