//! Sums of squares over intermediate results of a rule, in one fixed order; and rules that use them
//! row by row. Also called: norms, reductions.

use std::mem::MaybeUninit;
use std::ops::AddAssign;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::loops::Loop;
use super::number::{MAX_STATES, Number};
use super::rule::{Formula, KernelFormula, Rule, RuleTarget};
use super::sum::Pass;
use super::{Isa, SQUARES_BLOCK, TILE};
use crate::tensor::DType;

/// Arithmetic whose results are measured instead of kept: the first pass of rules with norms.
pub(crate) trait Measure: Copy + Send + Sync {
    /// As [`Formula::NAME`].
    const NAME: &'static str;

    /// As [`Formula::STATES`].
    const STATES: usize;

    /// Whether the value is measured too.
    const WITH_VALUE: bool;

    /// Returns the number to be measured; states are stored, the value is unchanged.
    fn measured<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N;
}

/// Sums of squares.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Squares {
    /// Sum over the results of a measure.
    pub(crate) measured: f64,
    /// Sum over the value, if that is measured too.
    pub(crate) value: f64,
}

impl AddAssign for Squares {
    fn add_assign(&mut self, other: Self) {
        self.measured += other.measured;
        self.value += other.value;
    }
}

/// A measure whose type has been erased.
pub(crate) trait Meter: KernelFormula {
    /// Measures a pass of at most [`TILE`] elements, without outs, in parts of so many elements;
    /// passes the sums of each part to `take`, in order.
    ///
    /// # Safety
    /// As for [`Rule::merge`].
    unsafe fn measure(
        &self,
        isa: Isa,
        pass: &Pass<'_>,
        target: &RuleTarget,
        part: usize,
        take: &mut dyn FnMut(Squares),
    );

    /// Whether the value is measured too.
    #[cfg(feature = "cuda")]
    fn with_value(&self) -> bool;
}

/// A measure as the kernels run it.
#[derive(Clone, Copy)]
pub(crate) struct Measuring<M>(pub(crate) M);

impl<M: Measure> Meter for Measuring<M> {
    unsafe fn measure(
        &self,
        isa: Isa,
        pass: &Pass<'_>,
        target: &RuleTarget,
        part: usize,
        take: &mut dyn FnMut(Squares),
    ) {
        // SAFETY: the caller's promise.
        unsafe { measure_by(self, Self::WITH_VALUE, isa, pass, target, part, take) }
    }

    #[cfg(feature = "cuda")]
    fn with_value(&self) -> bool {
        Self::WITH_VALUE
    }
}

impl<M: Measure> Formula for Measuring<M> {
    const NAME: &'static str = M::NAME;
    const STATES: usize = M::STATES;
    const MEASURES: bool = true;
    const WITH_VALUE: bool = M::WITH_VALUE;

    #[inline(always)]
    fn step<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        self.0.measured(gradient, value, states)
    }
}

/// See [`Meter::measure`].
///
/// # Safety
/// As there; the rule measures.
unsafe fn measure_by(
    rule: &dyn Rule,
    with_value: bool,
    isa: Isa,
    pass: &Pass<'_>,
    target: &RuleTarget,
    part: usize,
    take: &mut dyn FnMut(Squares),
) {
    assert!(pass.count <= TILE, "a measure has room for one tile");
    let mut room = [[MaybeUninit::<f64>::uninit(); TILE]; 2];
    let measured = room.each_mut().map(|array| array.as_mut_ptr().cast::<u8>());
    // SAFETY: the caller's promise.
    unsafe { rule.merge(isa, pass, &RuleTarget { measured, ..*target }) };
    let full = pass.dtype.full();
    for start in (0..pass.count).step_by(part) {
        let count = part.min(pass.count - start);
        let squares = |array: *mut u8| {
            // SAFETY: the rule has written `pass.count` elements of either array.
            unsafe { sum_of_squares(isa, full, array.add(start * full.size()), count) }
        };
        let value = if with_value { squares(measured[1]) } else { 0.0 };
        take(Squares { measured: squares(measured[0]), value });
    }
}

/// A number for each part of a pass.
#[derive(Clone, Copy)]
pub(crate) struct PartNumbers<'a> {
    pub(crate) numbers: &'a [f64],
    /// Elements of a part.
    pub(crate) length: usize,
}

/// Runs a rule on a pass of at most [`TILE`] elements. The rule finds the number of an element's
/// part in its first state, which is read-only.
///
/// # Safety
/// As for [`Rule::merge`].
#[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(super) unsafe fn merge_parts(
    rule: &dyn Rule,
    isa: Isa,
    pass: &Pass<'_>,
    target: &RuleTarget,
    parts: PartNumbers<'_>,
) {
    assert!(pass.count <= TILE, "there is room for one tile");
    let mut room = [0.0f64; TILE];
    let start = room.as_mut_ptr();
    if pass.dtype.full() == DType::F64 {
        fill(&mut room, parts, |number| number);
    } else {
        // SAFETY: half of the room; any bits are an f32.
        fill(unsafe { from_raw_parts_mut(start.cast::<f32>(), TILE) }, parts, |it| it as f32);
    }
    let mut states = target.states;
    states[0] = start.cast();
    // SAFETY: the caller's promise.
    unsafe { rule.merge(isa, pass, &RuleTarget { states, ..*target }) };
}

fn fill<T: Copy>(room: &mut [T], parts: PartNumbers<'_>, round: impl Fn(f64) -> T) {
    for (part, &number) in room.chunks_mut(parts.length).zip(parts.numbers) {
        part.fill(round(number));
    }
}

/// The sum of the squares of the sum of a pass's inputs, as [`Isa::sum`] writes it: f16 and bf16 rounded. The
/// pass has at most [`SQUARES_BLOCK`] elements; its outs are not used.
///
/// # Safety
/// As for [`Isa::sum`]; the dtype is a float.
pub(super) unsafe fn squares_of_sum(isa: Isa, pass: &Pass<'_>) -> f64 {
    assert!(pass.count <= SQUARES_BLOCK, "there is room for one block");
    let (dtype, full, count) = (pass.dtype, pass.dtype.full(), pass.count);
    let mut room = [MaybeUninit::<f64>::uninit(); SQUARES_BLOCK];
    let start = room.as_mut_ptr().cast::<u8>();
    // Behind the place of the elements in full precision, if they are not that themselves.
    let sum = if dtype == full { start } else { start.wrapping_add(count * full.size()) };
    // SAFETY: the caller's promise; f64, and f32 beside halves, have room for the elements.
    unsafe {
        let sum = match pass.inputs {
            [only] if pass.divisor.is_none() => *only,
            _ => {
                isa.sum(&Pass { outs: &[sum], traffic: pass.traffic.stored(), ..*pass });
                sum.cast_const()
            }
        };
        if dtype == full {
            return sum_of_squares(isa, full, sum, count);
        }
        isa.convert((full, start), (dtype, sum), count);
        sum_of_squares(isa, full, start, count)
    }
}

/// The sum of the squares of f32 or f64.
///
/// # Safety
/// There are so many aligned elements.
unsafe fn sum_of_squares(isa: Isa, full: DType, from: *const u8, count: usize) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match full {
            DType::F64 => isa.run(SumOfSquares(from_raw_parts(from.cast::<f64>(), count))),
            _ => isa.run(SumOfSquares(from_raw_parts(from.cast::<f32>(), count))),
        }
    }
}

/// Eight sums in f64, of every eighth number each, then those in pairs: an order that registers of
/// any width can keep.
struct SumOfSquares<'a, T>(&'a [T]);

impl<T: Copy + Into<f64>> Loop for SumOfSquares<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut sums = [0.0; 8];
        let (chunks, rest) = self.0.as_chunks::<8>();
        for chunk in chunks {
            for (sum, &number) in sums.iter_mut().zip(chunk) {
                let number: f64 = number.into();
                *sum += number * number;
            }
        }
        for (sum, &number) in sums.iter_mut().zip(rest) {
            let number: f64 = number.into();
            *sum += number * number;
        }
        for half in [4, 2, 1] {
            let (low, high) = sums.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        }
        sums[0]
    }
}
