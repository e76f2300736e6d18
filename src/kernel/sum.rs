//! Sums written to one place or several in a single pass over memory.

mod extreme;
mod observer;
mod order;
mod partial;

use std::ptr::{null, null_mut};

pub(crate) use extreme::{Extreme, extreme};
pub(crate) use observer::{DigestScope, MOST_DIGESTED, PassDigests};
pub(super) use observer::{Observed, Observer, Observes, Unobserved};
pub(crate) use order::SumOrder;
pub(super) use order::{Adding, EitherOfFew, Joined, LeftToRight, TreeOfFew, dense_joins};
pub(crate) use partial::{PartialSums, Position};

use super::lanes::{Family, FloatFamily, Lanes, WideOf};
use crate::tensor::{DType, LINE};

/// How a pass treats the caches. Results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Plain loads and stores, which the processor prefetches well enough within its caches.
    Cached,
    /// Loads are prefetched.
    Ahead,
    /// Stores go past the caches, so that no line is read to be overwritten.
    Streaming,
    /// Both: nothing of the pass is in a cache.
    Far,
}

impl Traffic {
    pub(crate) fn streams(self) -> bool {
        matches!(self, Self::Streaming | Self::Far)
    }

    pub(super) fn looks_ahead(self) -> bool {
        matches!(self, Self::Ahead | Self::Far)
    }

    /// The same with plain stores.
    pub(crate) fn stored(self) -> Self {
        if self.looks_ahead() { Self::Ahead } else { Self::Cached }
    }
}

/// Prefetch distance of a load.
const AHEAD_BYTES: usize = 1024;

/// Size of an array from which it pays to begin at a line of the first out.
const LINE_UP_BYTES: usize = 2048;

/// The parts of a build: its families of every dtype, and its prefetch.
pub(super) trait Build {
    type F32: FloatFamily;
    /// One cache line at a time, for what has no instances.
    type F32Line: FloatFamily;
    type F64: FloatFamily;
    type F16: FloatFamily;
    type Bf16: FloatFamily;
    type I8: Family;
    type I16: Family;
    type I32: Family;
    type I64: Family;

    /// Whether instances for the usual numbers of inputs and outs pay.
    const INSTANCES: bool;

    /// Prefetches the line at an address, which need not be ours.
    fn prefetch(at: *const u8);
    /// Orders streaming stores before all later accesses.
    fn fence();
    /// Runs a closure in a function of its own, which instances share.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn apart<T>(work: impl FnOnce() -> T) -> T;
}

/// The arrays of a pass.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) dtype: DType,
    /// Where the sum is written; all outs, with equal addresses modulo a cache line if it streams.
    pub(crate) outs: &'a [*mut u8],
    /// The summands, in order.
    pub(crate) inputs: &'a [*const u8],
    pub(crate) count: usize,
    pub(crate) traffic: Traffic,
    pub(crate) order: SumOrder<'a>,
    /// What the sum of floats is divided by, before it is rounded to the dtype.
    pub(crate) divisor: Option<f64>,
}

/// See [`super::Isa::sum`].
///
/// # Safety
/// As there; the instruction set of the build is there.
#[inline(always)]
pub(super) unsafe fn sum<B: Build>(pass: &Pass<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pass.order {
            // One value is copied as bytes, which keeps every bit, also those of a NaN.
            _ if pass.inputs.len() == 1 => by_outs::<B, B::I8, _, 1>(pass, LeftToRight),
            // Integers wrap to the same bits in every order.
            _ if !pass.dtype.is_float() => by_integer::<B>(pass),
            order if order.is_linear(pass.inputs.len()) => by_float::<B, _>(pass, LeftToRight),
            SumOrder::Joins(joins) => by_float::<B, _>(pass, Joined(joins)),
            _ => by_float::<B, _>(pass, TreeOfFew),
        }
    }
}

/// Copies one input, or adds f32 up, left to right, and has an observer see the result.
///
/// # Safety
/// As [`sum`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn sum_observed<B: Build, O>(pass: &Pass<'_>, observer: &mut O)
where
    O: Observes<WideOf<B::I8>> + Observes<WideOf<B::F32>>,
{
    let adding = LeftToRight;
    // SAFETY: the caller's promise.
    unsafe {
        match (pass.inputs.len(), pass.outs.len()) {
            // One input has the digest of the value.
            (1, 1) if !O::ALL => instance::<B, B::I8, _, _, 1, 1>(pass, adding, observer),
            (1, 2) if !O::ALL => instance::<B, B::I8, _, _, 1, 2>(pass, adding, observer),
            (1, _) if !O::ALL => any::<B, B::I8, _, _>(pass, adding, observer),
            (4, 1) => instance::<B, B::F32, _, _, 4, 1>(pass, adding, observer),
            (4, 2) => instance::<B, B::F32, _, _, 4, 2>(pass, adding, observer),
            _ => any::<B, B::F32, _, _>(pass, adding, observer),
        }
    }
}

/// Signed and unsigned integers of a size wrap to the same bits.
#[inline(always)]
unsafe fn by_integer<B: Build>(pass: &Pass<'_>) {
    let none = &mut Unobserved;
    // SAFETY: the caller's promise.
    unsafe {
        match pass.dtype {
            DType::I8 | DType::U8 => any::<B, B::I8, _, _>(pass, LeftToRight, none),
            DType::I16 | DType::U16 => any::<B, B::I16, _, _>(pass, LeftToRight, none),
            DType::I32 | DType::U32 => any::<B, B::I32, _, _>(pass, LeftToRight, none),
            DType::I64 | DType::U64 => any::<B, B::I64, _, _>(pass, LeftToRight, none),
            // Never: plans refuse more than one value of an opaque dtype.
            _ => {}
        }
    }
}

#[inline(always)]
unsafe fn by_float<B: Build, A: Adding>(pass: &Pass<'_>, adding: A) {
    // SAFETY: the caller's promise.
    unsafe {
        match pass.dtype {
            DType::F32 => by_outs::<B, B::F32, A, 4>(pass, adding),
            DType::F16 => by_outs::<B, B::F16, A, 4>(pass, adding),
            DType::BF16 => by_outs::<B, B::Bf16, A, 4>(pass, adding),
            _ => any::<B, B::F64, A, _>(pass, adding, &mut Unobserved),
        }
    }
}

/// Picks the instance for the number of outs, if there are `INS` inputs. The stored value is one of
/// the outs: a push with 1 or 4 has one more.
#[inline(always)]
unsafe fn by_outs<B: Build, F: Family, A: Adding, const INS: usize>(pass: &Pass<'_>, adding: A) {
    let none = &mut Unobserved;
    // SAFETY: the caller's promise.
    unsafe {
        match (B::INSTANCES && A::INSTANCES && pass.inputs.len() == INS, pass.outs.len()) {
            (true, 1) => instance::<B, F, A, _, INS, 1>(pass, adding, none),
            (true, 2) => instance::<B, F, A, _, INS, 2>(pass, adding, none),
            (true, 5) => instance::<B, F, A, _, INS, 5>(pass, adding, none),
            _ => any::<B, F, A, _>(pass, adding, none),
        }
    }
}

/// So many inputs and outs.
#[inline(always)]
unsafe fn instance<B: Build, F: Family, A: Adding, O, const INS: usize, const OUTS: usize>(
    pass: &Pass<'_>,
    adding: A,
    observer: &mut O,
) where
    O: Observes<WideOf<F>>,
{
    let outs = <[_; OUTS]>::try_from(pass.outs);
    if let (Ok(inputs), Ok(outs)) = (<[_; INS]>::try_from(pass.inputs), outs) {
        // SAFETY: the caller's promise.
        unsafe { by_traffic::<B, F, A, O>(pass, adding, inputs, outs, observer) }
    }
}

/// Any number of inputs and outs.
#[inline(always)]
unsafe fn any<B: Build, F: Family, A: Adding, O>(pass: &Pass<'_>, adding: A, observer: &mut O)
where
    O: Observes<WideOf<F>>,
{
    // SAFETY: the caller's promise.
    unsafe {
        let outs = Pointers::of(pass.outs, null_mut());
        if let Some((inputs, outs)) = Pointers::of(pass.inputs, null()).zip(outs) {
            by_traffic::<B, F, A, O>(pass, adding, inputs, outs, observer);
        } else {
            rest::<B, F, A>(pass, adding, 0);
            let bytes = pass.count * pass.dtype.size();
            observer.passed(observed_of(pass.inputs, pass.outs), 0..bytes);
        }
    }
}

#[inline(always)]
unsafe fn by_traffic<B: Build, F: Family, A: Adding, O: Observes<WideOf<F>>>(
    pass: &Pass<'_>,
    adding: A,
    inputs: impl AsRef<[*const u8]>,
    outs: impl AsRef<[*mut u8]>,
    observer: &mut O,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if B::INSTANCES && pass.traffic.streams() {
            run::<B, F, A, O, true>(pass, adding, inputs.as_ref(), outs.as_ref(), observer);
            B::fence();
        } else {
            run::<B, F, A, O, false>(pass, adding, inputs.as_ref(), outs.as_ref(), observer);
        }
    }
}

/// Most pointers of [`Pointers`]: the stored value, and 16 outs.
const MOST_POINTERS: usize = 17;

/// A few pointers as a value, out of reach of stores: through a slice the compiler would have to
/// read them again after every store.
pub(super) struct Pointers<T> {
    all: [T; MOST_POINTERS],
    count: usize,
}

impl<T: Copy> Pointers<T> {
    /// None if there are more. `none` fills the places without a pointer.
    #[inline(always)]
    pub(super) fn of(pointers: &[T], none: T) -> Option<Self> {
        let (mut all, count) = ([none; MOST_POINTERS], pointers.len());
        all.get_mut(..count)?.copy_from_slice(pointers);
        Some(Self { all, count })
    }
}

impl<T> AsRef<[T]> for Pointers<T> {
    #[inline(always)]
    fn as_ref(&self) -> &[T] {
        // Written so that it cannot panic.
        &self.all[..self.count.min(MOST_POINTERS)]
    }
}

/// Bytes before the first out's next line, if the pass should begin there. Streaming stores need
/// whole lines, and plain stores across a line border take twice as long.
#[inline(always)]
pub(super) fn head(outs: &[*mut u8], bytes: usize, streams: bool) -> usize {
    match outs {
        [first, ..] if streams || bytes >= LINE_UP_BYTES => {
            (first.addr().wrapping_neg() % LINE).min(bytes)
        }
        _ => 0,
    }
}

/// Prefetches what follows so many bytes of a load after [`AHEAD_BYTES`].
#[inline(always)]
pub(super) fn prefetch<B: Build>(load: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        B::prefetch(load.wrapping_add(AHEAD_BYTES + line));
    }
}

#[inline(always)]
unsafe fn run<B: Build, F: Family, A: Adding, O: Observes<WideOf<F>>, const STREAM: bool>(
    pass: &Pass<'_>,
    adding: A,
    ins: &[*const u8],
    outs: &[*mut u8],
    observer: &mut O,
) {
    let bytes = pass.count * pass.dtype.size();
    let head = head(outs, bytes, STREAM);
    let ahead = pass.traffic.looks_ahead();
    // SAFETY: the caller's promise; all offsets are below `bytes`, in whole elements.
    unsafe {
        if head > 0 {
            ends::<B, F, A>(pass, adding, 0, head);
            observer.passed(observed_of(ins, outs), 0..head);
        }
        let (arrays, span, mut seen) = ((ins, outs), (head, bytes), observer.begin());
        let at = walk::<B, F::Wide, A, O, STREAM>(adding, arrays, span, ahead, &mut seen);
        observer.end(seen);
        if at < bytes {
            rest::<B, F, A>(pass, adding, at);
            observer.passed(observed_of(ins, outs), at..bytes);
        }
    }
}

/// The first out is the stored value.
#[inline(always)]
fn observed_of<'a>(inputs: &'a [*const u8], outs: &[*mut u8]) -> Observed<'a> {
    Observed { inputs, value: outs[0], states: &[] }
}

/// [`walk`] in the caches, without an observer.
#[inline(always)]
unsafe fn unseen<B: Build, L: Lanes, A: Adding>(
    adding: A,
    arrays: (&[*const u8], &[*mut u8]),
    span: (usize, usize),
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { walk::<B, L, A, Unobserved, false>(adding, arrays, span, false, &mut ()) }
}

/// Adds from byte `start` on, as many whole registers as fit before `end`; gives the end reached.
#[inline(always)]
unsafe fn walk<B: Build, L: Lanes, A: Adding, O: Observes<L::Register>, const STREAM: bool>(
    adding: A,
    (ins, outs): (&[*const u8], &[*mut u8]),
    (start, end): (usize, usize),
    ahead: bool,
    seen: &mut O::Registers,
) -> usize {
    let mut at = start;
    while at + L::BYTES <= end {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = adding.add_up::<L>(ins, at);
            if ahead && (at - start).is_multiple_of(LINE) {
                for input in ins {
                    prefetch::<B>(input.wrapping_add(at), L::BYTES);
                }
            }
            if O::ALL {
                for (place, input) in ins.iter().enumerate() {
                    O::input(seen, place, L::load(input.add(at)));
                }
            }
            for out in outs {
                if STREAM {
                    L::stream(out.add(at), sum);
                } else {
                    L::store(out.add(at), sum);
                }
            }
            O::value(seen, sum);
        }
        at += L::BYTES;
    }
    at
}

/// Adds the elements from a byte on, a register at a time.
///
/// # Safety
/// As [`sum`].
#[inline(always)]
unsafe fn rest<B: Build, F: Family, A: Adding>(pass: &Pass<'_>, adding: A, start: usize) {
    let bytes = pass.count * pass.dtype.size();
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = start;
        if F::Single::BYTES < F::Wide::BYTES && at + F::Single::BYTES <= bytes {
            let arrays = (pass.inputs, pass.outs);
            at = B::apart(|| unseen::<B, F::Single, A>(adding, arrays, (start, bytes)));
        }
        if at < bytes {
            ends::<B, F, A>(pass, adding, at, bytes);
        }
    }
}

/// Adds the elements between two bytes.
///
/// # Safety
/// As [`sum`].
#[inline(never)]
unsafe fn ends<B: Build, F: Family, A: Adding>(
    pass: &Pass<'_>,
    adding: A,
    start: usize,
    end: usize,
) {
    let arrays = (pass.inputs, pass.outs);
    // SAFETY: the caller's promise; few and one need no special instructions.
    unsafe {
        let at = unseen::<B, F::Few, A>(adding, arrays, (start, end));
        unseen::<B, F::One, A>(adding, arrays, (at, end));
    }
}
