//! Element-wise rules: how a sum is merged into a stored value, in the same pass over memory that
//! adds the values up and fills the outs.

mod summed;

use std::ptr::{null, null_mut};

use super::Isa;
use super::lanes::{FloatFamily, FloatLanes, Lanes, WideOf};
use super::number::{MAX_STATES, Number, Operand};
use super::portable::Portable;
#[cfg(test)]
use super::record::Recording;
use super::sum::{
    Adding, Build, DigestScope, EitherOfFew, LeftToRight, Observed, Observes, Pass, PassDigests,
    Pointers, TreeOfFew, Unobserved, head, prefetch,
};
use crate::tensor::{DType, LINE};

pub(super) use summed::merge as merge_summed;

/// The arithmetic of a rule, with the numbers of one push.
///
/// f16 and bf16 are calculated in f32, f64 in f64.
pub(crate) trait Formula: Copy + Send + Sync {
    /// Its name among all formulas and measures, of lower-case letters, digits and underscores: GPU
    /// kernels are generated under it.
    const NAME: &'static str;

    /// Arrays of state that it keeps: of the value's shape, f64 for an f64 value, else f32.
    const STATES: usize;

    /// Whether it has instances of its own: for the usual numbers of f32 values and outs, and for
    /// f16 and bf16.
    const FUSED: bool = false;

    /// Whether it has loops with stores past the caches.
    const STREAMS: bool = Self::FUSED;

    /// Whether it only measures, see [`super::Measure`]: its results are written to the target's
    /// `measured`, and the value is unchanged.
    const MEASURES: bool = false;

    /// Whether one that measures measures the value too.
    const WITH_VALUE: bool = false;

    /// Gives the new value; the first [`Formula::STATES`] states are kept.
    fn step<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N;
}

/// The arrays that a rule changes.
#[derive(Clone, Copy)]
pub(crate) struct RuleTarget {
    /// The value: of the pass's dtype, or f32 if `master`.
    pub(crate) value: *mut u8,
    /// Whether the pass is of f16 or bf16 and the value is its f32 master. The rounded value then
    /// goes to the outs, of which the stored value is one.
    pub(crate) master: bool,
    /// As many as the formula has states; the others are unused.
    pub(crate) states: [*mut u8; MAX_STATES],
    /// Output of a formula that measures, and the value; unrounded, like states.
    pub(crate) measured: [*mut u8; 2],
}

impl RuleTarget {
    pub(crate) fn new(value: *mut u8, master: bool, states: [*mut u8; MAX_STATES]) -> Self {
        Self { value, master, states, measured: [std::ptr::null_mut(); 2] }
    }
}

/// What GPU kernels of a formula whose type has been erased are called, and take.
pub(crate) trait KernelFormula: Send + Sync {
    /// The name of its GPU kernels, without the type of the elements.
    #[cfg(feature = "cuda")]
    fn name(&self) -> &'static str;

    /// Appends the formula's numbers, as its GPU kernels take them.
    #[cfg(feature = "cuda")]
    fn constants(&self, constants: &mut Vec<f64>);

    /// The operations of the formula.
    #[cfg(test)]
    fn record(&self) -> Recording;
}

/// A formula whose type has been erased.
pub(crate) trait Rule: KernelFormula {
    /// Adds the inputs of a pass up as [`Isa::sum`] does, merges the sum into the target, and
    /// writes the new value to the pass's outs, of which there may be none.
    ///
    /// # Safety
    /// As for [`Isa::sum`]; the dtype is a float; the target's arrays have `count` aligned elements
    /// that overlap nothing else.
    unsafe fn merge(&self, isa: Isa, pass: &Pass<'_>, target: &RuleTarget);

    /// Whether [`Rule::merge_digested`] has loops for passes of this kind.
    fn digests(&self, isa: Isa, pass: &Pass<'_>, scope: DigestScope) -> bool;

    /// Merges, and continues the digests of a scope.
    ///
    /// # Safety
    /// As for [`Rule::merge`]; [`Rule::digests`], and the target has no master.
    unsafe fn merge_digested(
        &self,
        pass: &Pass<'_>,
        target: &RuleTarget,
        digests: (&mut PassDigests, DigestScope),
    );
}

/// Whether a kernel can have this name.
pub(super) const fn is_kernel_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut valid = !bytes.is_empty();
    let mut index = 0;
    while index < bytes.len() {
        valid &= matches!(bytes[index], b'a'..=b'z' | b'_')
            || index > 0 && bytes[index].is_ascii_digit();
        index += 1;
    }
    valid
}

/// Whether [`merge`] makes the sum of a pass.
pub(super) fn has_loops(pass: &Pass<'_>) -> bool {
    pass.divisor.is_none() && pass.order.is_in_registers(pass.inputs.len())
}

/// See [`Rule::merge`].
///
/// # Safety
/// As there; the instruction set of the build is there, and [`has_loops`].
#[inline(always)]
pub(super) unsafe fn merge<B: Build, F: Formula>(formula: F, pass: &Pass<'_>, target: &RuleTarget) {
    let by_tree = !pass.order.is_linear(pass.inputs.len());
    let (either, none) = (EitherOfFew { by_tree }, &mut Unobserved);
    // SAFETY: the caller's promise.
    unsafe {
        match pass.dtype {
            DType::F32 if B::INSTANCES && F::FUSED && by_tree => {
                by_numbers::<B, B::F32, TreeOfFew, F>(formula, TreeOfFew, pass, target);
            }
            DType::F32 if B::INSTANCES && F::FUSED => {
                by_numbers::<B, B::F32, LeftToRight, F>(formula, LeftToRight, pass, target);
            }
            DType::F32 => {
                any::<B, B::F32Line, Rounded, _, F, _>(formula, either, pass, target, none);
            }
            DType::F64 => any::<B, B::F64, Rounded, _, F, _>(formula, either, pass, target, none),
            DType::F16 if F::FUSED => by_value::<B, B::F16, F>(formula, either, pass, target),
            DType::BF16 if F::FUSED => by_value::<B, B::Bf16, F>(formula, either, pass, target),
            // Never: only floats have rules, and halves are widened for those without instances.
            _ => {}
        }
    }
}

/// Picks the instance for the numbers of inputs and outs.
#[inline(always)]
unsafe fn by_numbers<B: Build, D: FloatFamily, A: Adding, F: Formula>(
    formula: F,
    adding: A,
    pass: &Pass<'_>,
    target: &RuleTarget,
) {
    let none = &mut Unobserved;
    // SAFETY: the caller's promise.
    unsafe {
        match (pass.inputs.len(), pass.outs.len()) {
            (1, _) if A::LEAST > 1 => {}
            (1, 0) => instance::<B, D, A, F, _, 1, 0>(formula, adding, pass, target, none),
            (1, 1) => instance::<B, D, A, F, _, 1, 1>(formula, adding, pass, target, none),
            (1, 4) => instance::<B, D, A, F, _, 1, 4>(formula, adding, pass, target, none),
            (4, 0) => instance::<B, D, A, F, _, 4, 0>(formula, adding, pass, target, none),
            (4, 1) => instance::<B, D, A, F, _, 4, 1>(formula, adding, pass, target, none),
            (4, 4) => instance::<B, D, A, F, _, 4, 4>(formula, adding, pass, target, none),
            _ => any::<B, D, Rounded, A, F, _>(formula, adding, pass, target, none),
        }
    }
}

/// Merges f32, left to right, and has an observer see the new value.
///
/// # Safety
/// As [`merge`]; the target has no master.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn merge_observed<B: Build, F: Formula, O>(
    formula: F,
    pass: &Pass<'_>,
    target: &RuleTarget,
    observer: &mut O,
) where
    O: Observes<WideOf<B::F32>>,
{
    let adding = LeftToRight;
    // SAFETY: the caller's promise.
    unsafe {
        match (pass.inputs.len(), pass.outs.len()) {
            (1, 0) => {
                instance::<B, B::F32, _, F, _, 1, 0>(formula, adding, pass, target, observer);
            }
            _ => any::<B, B::F32, Rounded, _, F, _>(formula, adding, pass, target, observer),
        }
    }
}

/// So many inputs and outs.
#[inline(always)]
unsafe fn instance<
    B: Build,
    D: FloatFamily,
    A: Adding,
    F: Formula,
    O: Observes<WideOf<D>>,
    const INS: usize,
    const OUTS: usize,
>(
    formula: F,
    adding: A,
    pass: &Pass<'_>,
    target: &RuleTarget,
    observer: &mut O,
) {
    let outs = <[_; OUTS]>::try_from(pass.outs);
    if let (Ok(inputs), Ok(outs)) = (<[_; INS]>::try_from(pass.inputs), outs) {
        // SAFETY: the caller's promise.
        unsafe {
            by_traffic::<B, D, Rounded, A, F, O>(
                formula, adding, pass, target, inputs, outs, observer,
            );
        }
    }
}

/// Any number of inputs and outs.
#[inline(always)]
unsafe fn any<
    B: Build,
    D: FloatFamily,
    K: ValuePrecision,
    A: Adding,
    F: Formula,
    O: Observes<WideOf<D>>,
>(
    formula: F,
    adding: A,
    pass: &Pass<'_>,
    target: &RuleTarget,
    observer: &mut O,
) {
    if !B::INSTANCES {
        let (inputs, outs) = (pass.inputs, pass.outs);
        // SAFETY: the caller's promise.
        return unsafe {
            by_traffic::<B, D, K, A, F, O>(formula, adding, pass, target, inputs, outs, observer);
        };
    }
    let outs = Pointers::of(pass.outs, null_mut());
    // SAFETY: the caller's promise.
    unsafe {
        if let Some((inputs, outs)) = Pointers::of(pass.inputs, null()).zip(outs) {
            by_traffic::<B, D, K, A, F, O>(formula, adding, pass, target, inputs, outs, observer);
        } else {
            rest::<B, D, K, A, F>(formula, adding, pass, target, 0);
            let bytes = pass.count * pass.dtype.size();
            observer.passed(observed_of::<F>(pass.inputs, target), 0..bytes);
        }
    }
}

/// Any number of inputs and outs of f16 or bf16 in either order, with or without a master.
#[inline(always)]
unsafe fn by_value<B: Build, D: FloatFamily, F: Formula>(
    formula: F,
    adding: EitherOfFew,
    pass: &Pass<'_>,
    target: &RuleTarget,
) {
    let none = &mut Unobserved;
    // SAFETY: the caller's promise.
    unsafe {
        if target.master {
            any::<B, D, Unrounded, _, F, _>(formula, adding, pass, target, none);
        } else {
            any::<B, D, Rounded, _, F, _>(formula, adding, pass, target, none);
        }
    }
}

/// How the value is kept: as lanes of the pass's dtype, or of full precision.
trait ValuePrecision {
    type Lanes<L: FloatLanes>: Lanes<Register = L::Register>;
}

struct Rounded;
struct Unrounded;

impl ValuePrecision for Rounded {
    type Lanes<L: FloatLanes> = L;
}

impl ValuePrecision for Unrounded {
    type Lanes<L: FloatLanes> = L::Full;
}

#[inline(always)]
unsafe fn by_traffic<
    B: Build,
    D: FloatFamily,
    K: ValuePrecision,
    A: Adding,
    F: Formula,
    O: Observes<WideOf<D>>,
>(
    formula: F,
    adding: A,
    pass: &Pass<'_>,
    target: &RuleTarget,
    inputs: impl AsRef<[*const u8]>,
    outs: impl AsRef<[*mut u8]>,
    observer: &mut O,
) {
    let (inputs, outs) = (inputs.as_ref(), outs.as_ref());
    let arrays = (inputs, outs, target);
    let bytes = pass.count * pass.dtype.size();
    let may_stream = B::INSTANCES && F::STREAMS;
    let streams = may_stream && pass.traffic.streams() && !outs.is_empty();
    let head = head(outs, bytes, streams);
    // SAFETY: the caller's promise; all offsets are below `bytes`, in whole elements.
    unsafe {
        if head > 0 {
            ends::<D::Few, D::One, K, A, F>(formula, adding, pass, target, (0, head));
            observer.passed(observed_of::<F>(inputs, target), 0..head);
        }
        let (span, ahead) = ((head, bytes), pass.traffic.looks_ahead());
        let mut registers = observer.begin();
        let seen = &mut registers;
        let at = if streams {
            let at =
                walk::<B, D::Wide, K, A, F, O, true>(formula, adding, arrays, span, ahead, seen);
            B::fence();
            at
        } else {
            walk::<B, D::Wide, K, A, F, O, false>(formula, adding, arrays, span, ahead, seen)
        };
        observer.end(registers);
        if at < bytes {
            rest::<B, D, K, A, F>(formula, adding, pass, target, at);
            observer.passed(observed_of::<F>(inputs, target), at..bytes);
        }
    }
}

/// Merges the elements from a byte on, a register at a time.
///
/// # Safety
/// As [`merge`].
#[inline(always)]
unsafe fn rest<B: Build, D: FloatFamily, K: ValuePrecision, A: Adding, F: Formula>(
    formula: F,
    adding: A,
    pass: &Pass<'_>,
    target: &RuleTarget,
    start: usize,
) {
    let bytes = pass.count * pass.dtype.size();
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = start;
        if D::Single::BYTES < D::Wide::BYTES && at + D::Single::BYTES <= bytes {
            let (arrays, span) = ((pass.inputs, pass.outs, target), (at, bytes));
            at = B::apart(|| unseen::<B, D::Single, K, A, F>(formula, adding, arrays, span));
        }
        if at < bytes {
            ends::<D::Few, D::One, K, A, F>(formula, adding, pass, target, (at, bytes));
        }
    }
}

/// Merges the elements between two bytes.
///
/// # Safety
/// As [`merge`].
#[inline(never)]
unsafe fn ends<Few: FloatLanes, One: FloatLanes, K: ValuePrecision, A: Adding, F: Formula>(
    formula: F,
    adding: A,
    pass: &Pass<'_>,
    target: &RuleTarget,
    (start, end): (usize, usize),
) {
    let (arrays, span) = ((pass.inputs, pass.outs, target), (start, end));
    // SAFETY: the caller's promise; few and one need no special instructions.
    unsafe {
        let at = unseen::<Portable, Few, K, A, F>(formula, adding, arrays, span);
        unseen::<Portable, One, K, A, F>(formula, adding, arrays, (at, end));
    }
}

/// The arrays of a pass that has no master.
#[inline(always)]
fn observed_of<'a, F: Formula>(inputs: &'a [*const u8], target: &'a RuleTarget) -> Observed<'a> {
    Observed { inputs, value: target.value, states: &target.states[..F::STATES] }
}

/// The arrays of a loop.
type Arrays<'a> = (&'a [*const u8], &'a [*mut u8], &'a RuleTarget);

/// [`walk`] in the caches, without an observer.
#[inline(always)]
unsafe fn unseen<B: Build, L: FloatLanes, K: ValuePrecision, A: Adding, F: Formula>(
    formula: F,
    adding: A,
    arrays: Arrays<'_>,
    span: (usize, usize),
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        walk::<B, L, K, A, F, Unobserved, false>(formula, adding, arrays, span, false, &mut ())
    }
}

/// Merges as many whole registers as fit between two bytes of the pass; gives the end reached.
#[inline(always)]
unsafe fn walk<B: Build, L, K, A, F, O, const STREAM: bool>(
    formula: F,
    adding: A,
    (inputs, outs, target): Arrays<'_>,
    (start, end): (usize, usize),
    ahead: bool,
    seen: &mut O::Registers,
) -> usize
where
    L: FloatLanes,
    K: ValuePrecision,
    A: Adding,
    F: Formula,
    O: Observes<L::Register>,
{
    let RuleTarget { value, states, measured, .. } = *target;
    let mut at = start;
    while at + L::BYTES <= end {
        // Unrounded elements take at least as much memory.
        let value_at = at * (K::Lanes::<L>::BYTES / L::BYTES);
        let state_at = at * (L::Full::BYTES / L::BYTES);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = adding.add_up::<L>(inputs, at);
            if inputs.len() > 1 {
                sum = L::round(sum);
            }
            let old = K::Lanes::<L>::load(value.add(value_at));
            // Written out: the compiler would keep an array that loops fill in memory.
            let load = |place: usize| {
                let is_kept = place < F::STATES;
                Operand(if is_kept { L::Full::load(states[place].add(state_at)) } else { old })
            };
            let mut kept: [_; MAX_STATES] = [load(0), load(1), load(2)];
            if ahead && (at - start).is_multiple_of(LINE) {
                for input in inputs {
                    prefetch::<B>(input.wrapping_add(at), L::BYTES);
                }
                prefetch::<B>(value.wrapping_add(value_at), K::Lanes::<L>::BYTES);
                for state in &states[..F::STATES] {
                    prefetch::<B>(state.wrapping_add(state_at), L::Full::BYTES);
                }
            }
            if O::ALL {
                for (place, input) in inputs.iter().enumerate() {
                    O::input(seen, place, L::load(input.add(at)));
                }
            }
            let new = formula.step(Operand(sum), Operand(old), &mut kept).0;
            let mut store = |place: usize| {
                if place < F::STATES {
                    L::Full::store(states[place].add(state_at), kept[place].0);
                    O::state(seen, place, kept[place].0);
                }
            };
            store(0);
            store(1);
            store(2);
            if F::MEASURES {
                L::Full::store(measured[0].add(state_at), new);
                L::Full::store(measured[1].add(state_at), old);
            } else {
                K::Lanes::<L>::store(value.add(value_at), new);
                O::value(seen, new);
                for out in outs {
                    if STREAM {
                        L::stream(out.add(at), new);
                    } else {
                        L::store(out.add(at), new);
                    }
                }
            }
        }
        at += L::BYTES;
    }
    at
}
