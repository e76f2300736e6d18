//! Divided sums in every build against a scalar loop, alone and under rules.

use half::{bf16, f16};

use super::rule::{Case, Sample, Stored, Wide};
use super::{Ordered, Out, Random, TRAFFICS, is_small, isas};
use crate::kernel::{Pass, Rule, RuleTarget, SumOrder};

/// A float that a divisor is rounded to.
trait Quotient: Wide + std::ops::Div<Output = Self> {
    fn of(divisor: f64) -> Self;
}

impl Quotient for f32 {
    fn of(divisor: f64) -> Self {
        divisor as Self
    }
}

impl Quotient for f64 {
    fn of(divisor: f64) -> Self {
        divisor
    }
}

/// Divisors that are exact, that round, and that f32 rounds first.
const DIVISORS: [f64; 5] = [1.0, 32.0, 3.0, 96.1, 123_456_789.0];
const SIZES: &[usize] = &[0, 1, 15, 65, 511, 512, 513, 1500];

fn quotients<T: Stored<Wide: Quotient>>(
    ordered: &Ordered,
    inputs: &[Vec<T>],
    count: usize,
    divisor: f64,
) -> Vec<T> {
    let sum = |at: usize| {
        let wide: Vec<T::Wide> = inputs.iter().map(|input| input[at].widen()).collect();
        T::narrow(ordered.sum(wide.into_iter()) / T::Wide::of(divisor))
    };
    (0..count).map(sum).collect()
}

fn check<T: Stored<Wide: Quotient>>(random: &mut Random) {
    let sizes = if is_small() { &SIZES[..4] } else { SIZES };
    for (index, &count) in sizes.iter().enumerate() {
        for inputs in [1, 2, 3, 4, 9, 18] {
            let case = Case::<T>::new(random, inputs, count);
            for ordered in Ordered::all(random, inputs) {
                let divisor = random.pick(&DIVISORS);
                let expected = quotients(&ordered, &case.inputs, count, divisor);
                ordered.with(|order| check_sum(&case, order, divisor, &expected, index));
                for rule in [&Sample::<true> as &dyn Rule, &Sample::<false>] {
                    ordered.with(|order| check_rule(rule, &case, order, divisor, &expected));
                }
            }
        }
    }
}

fn check_sum<T: Stored>(
    case: &Case<T>,
    order: SumOrder<'_>,
    divisor: f64,
    expected: &[T],
    offset: usize,
) {
    for (isa, traffic) in isas().flat_map(|isa| TRAFFICS.map(|traffic| (isa, traffic))) {
        let mut inputs: Vec<Out<T>> =
            case.inputs.iter().map(|input| Out::new(offset + 1, input)).collect();
        // The first out is exactly an input.
        let mut second = Out::new(offset + 1, &case.value);
        let outs = [inputs[0].start(), second.start()];
        let starts: Vec<_> = inputs.iter_mut().map(|it| it.start().cast_const()).collect();
        let (dtype, count, divisor) = (T::DTYPE, expected.len(), Some(divisor));
        let pass = Pass { dtype, outs: &outs, inputs: &starts, count, traffic, order, divisor };
        // SAFETY: all arrays have `count` elements; an out is an input, or apart.
        unsafe { isa.sum(&pass) };
        let name = || format!("{} {dtype:?} {order:?} / {divisor:?}, {count}", isa.name());
        inputs[0].check(expected, false, &name);
        second.check(expected, false, &name);
    }
}

/// A rule gets the quotient as it would a value that is pushed alone.
fn check_rule<T: Stored>(
    rule: &dyn Rule,
    case: &Case<T>,
    order: SumOrder<'_>,
    divisor: f64,
    quotients: &[T],
) {
    let alone = [quotients.to_vec()];
    for isa in isas() {
        let merged = |inputs: &[Vec<T>], order, divisor| {
            let inputs: Vec<_> = inputs.iter().map(|it| it.as_ptr().cast::<u8>()).collect();
            let (mut value, mut states) = (case.value.clone(), case.states.clone());
            let mut out = case.value.clone();
            let outs = [out.as_mut_ptr().cast()];
            let (dtype, count) = (T::DTYPE, quotients.len());
            let traffic = crate::kernel::Traffic::Cached;
            let pass = Pass { dtype, outs: &outs, inputs: &inputs, count, traffic, order, divisor };
            let states_at = states.each_mut().map(|it| it.as_mut_ptr().cast());
            let target = RuleTarget::new(value.as_mut_ptr().cast(), false, states_at);
            // SAFETY: all arrays have `count` elements and are apart.
            unsafe { rule.merge(isa, &pass, &target) };
            let bits = |all: &[T]| {
                all.iter().map(|it| if it.is_nan() { u64::MAX } else { it.bits() }).collect()
            };
            let found: [Vec<u64>; 2] = [bits(&value), bits(&out)];
            found
        };
        let divided = merged(&case.inputs, order, Some(divisor));
        assert_eq!(
            divided,
            merged(&alone, SumOrder::Linear, None),
            "{} {:?}",
            isa.name(),
            T::DTYPE
        );
    }
}

#[test]
fn divided_sums_of_all_builds_are_those_of_a_scalar_loop() {
    let mut random = Random::new(70);
    check::<f32>(&mut random);
    check::<f64>(&mut random);
    check::<f16>(&mut random);
    check::<bf16>(&mut random);
}

/// 300 of a 16-bit sum would round, and 70,000 is infinite; their mean is exact.
#[test]
fn a_mean_of_equal_halves_is_exact() {
    let (value, inputs) = (f16::from_f32(1000.5), 70);
    let values = vec![[value; 3]; inputs];
    let starts: Vec<_> = values.iter().map(|it| it.as_ptr().cast::<u8>()).collect();
    let mut out = [f16::ZERO; 3];
    let outs = [out.as_mut_ptr().cast()];
    for isa in isas() {
        let (traffic, order, divisor) = (TRAFFICS[0], SumOrder::Linear, Some(70.0));
        let (dtype, count) = (crate::tensor::DType::F16, 3);
        let pass = Pass { dtype, outs: &outs, inputs: &starts, count, traffic, order, divisor };
        // SAFETY: all arrays have three elements and are apart.
        unsafe { isa.sum(&pass) };
        assert_eq!(out, [value; 3], "{}", isa.name());
    }
}
