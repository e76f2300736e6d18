//! Sums written to one place or several in a single pass over memory.

use super::lanes::{Family, FloatFamily, Lanes};
use crate::tensor::{DType, LINE};

/// How a pass treats the caches. Results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Traffic {
    /// Everything fits: plain loads and stores.
    Cached,
    /// Beyond the second-level cache: loads are prefetched.
    Ahead,
    /// Beyond every cache: stores also go past them, so that no line is read to be overwritten.
    Streaming,
}

/// Prefetch distance of a load.
const AHEAD_BYTES: usize = 1024;

/// Size of an array from which it pays to begin at a line of the first out.
const LINE_UP_BYTES: usize = 2048;

/// The parts of a build: its families of every dtype, and its prefetch.
pub(super) trait Build {
    type F32: FloatFamily;
    type F64: FloatFamily;
    type F16: FloatFamily;
    type Bf16: FloatFamily;
    type I8: Family;
    type I32: Family;
    type I64: Family;

    /// Whether instances for the usual numbers of inputs and outs pay.
    const INSTANCES: bool;

    /// Prefetches the line at an address, which need not be ours.
    fn prefetch(at: *const u8);
    /// Orders streaming stores before all later accesses.
    fn fence();
}

/// The arrays of a pass.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) dtype: DType,
    /// Where the sum is written; all outs, with equal addresses modulo a cache line if it streams.
    pub(crate) outs: &'a [*mut u8],
    /// The summands, left to right.
    pub(crate) inputs: &'a [*const u8],
    pub(crate) count: usize,
    pub(crate) traffic: Traffic,
}

/// See [`super::Isa::sum`].
///
/// # Safety
/// As there; the instruction set of the build is there.
#[inline(always)]
pub(super) unsafe fn sum<B: Build>(pass: &Pass<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pass.dtype {
            // One value is copied as bytes, which keeps every bit, also those of a NaN.
            _ if pass.inputs.len() == 1 => by_outs::<B, B::I8, 1>(pass),
            DType::F32 => by_inputs::<B, B::F32>(pass),
            DType::F64 => by_inputs::<B, B::F64>(pass),
            DType::F16 => by_inputs::<B, B::F16>(pass),
            DType::BF16 => by_inputs::<B, B::Bf16>(pass),
            DType::I8 | DType::U8 => by_traffic::<B, B::I8, 0, 0>(pass),
            DType::I32 => by_traffic::<B, B::I32, 0, 0>(pass),
            DType::I64 => by_traffic::<B, B::I64, 0, 0>(pass),
        }
    }
}

/// Picks the instance for the number of inputs; 0 is any.
#[inline(always)]
unsafe fn by_inputs<B: Build, F: Family>(pass: &Pass<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pass.inputs.len() {
            _ if !B::INSTANCES => run::<B, F, 0, 0, false>(pass),
            2 => by_outs::<B, F, 2>(pass),
            4 => by_outs::<B, F, 4>(pass),
            8 => by_outs::<B, F, 8>(pass),
            _ => by_outs::<B, F, 0>(pass),
        }
    }
}

/// Picks the instance for the number of outs; 0 is any.
#[inline(always)]
unsafe fn by_outs<B: Build, F: Family, const INS: usize>(pass: &Pass<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pass.outs.len() {
            _ if !B::INSTANCES => run::<B, F, 0, 0, false>(pass),
            // The stored value is one of them; a push with 1, 4 or 8 outs has one more.
            1 => by_traffic::<B, F, INS, 1>(pass),
            2 => by_traffic::<B, F, INS, 2>(pass),
            5 => by_traffic::<B, F, INS, 5>(pass),
            9 => by_traffic::<B, F, INS, 9>(pass),
            _ => by_traffic::<B, F, INS, 0>(pass),
        }
    }
}

#[inline(always)]
unsafe fn by_traffic<B: Build, F: Family, const INS: usize, const OUTS: usize>(pass: &Pass<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        if B::INSTANCES && pass.traffic == Traffic::Streaming {
            run::<B, F, INS, OUTS, true>(pass);
            B::fence();
        } else {
            run::<B, F, INS, OUTS, false>(pass);
        }
    }
}

/// The array of pointers as a value, so that the compiler keeps them in registers: through a slice
/// it would have to read them again after every store.
#[inline(always)]
fn pointers<T: Copy, const N: usize>(all: &[T]) -> Option<[T; N]> {
    all.first_chunk::<N>().copied()
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
unsafe fn run<B: Build, F: Family, const INS: usize, const OUTS: usize, const STREAM: bool>(
    pass: &Pass<'_>,
) {
    let (Some(ins), Some(outs)) = (pointers::<_, INS>(pass.inputs), pointers::<_, OUTS>(pass.outs))
    else {
        return;
    };
    let ins: &[*const u8] = if INS == 0 { pass.inputs } else { &ins };
    let outs: &[*mut u8] = if OUTS == 0 { pass.outs } else { &outs };
    let bytes = pass.count * pass.dtype.size();
    let head = head(outs, bytes, STREAM);
    let ahead = pass.traffic != Traffic::Cached;
    // SAFETY: the caller's promise; all offsets are below `bytes`, in whole elements.
    unsafe {
        if head > 0 {
            ends::<B, F>(pass, 0, head);
        }
        let mut at = walk::<B, F::Wide, STREAM>(ins, outs, head, bytes, ahead);
        if F::Single::BYTES < F::Wide::BYTES {
            at = walk::<B, F::Single, false>(ins, outs, at, bytes, false);
        }
        if at < bytes {
            ends::<B, F>(pass, at, bytes);
        }
    }
}

/// Adds from byte `start` on, as many whole registers as fit before `end`; gives the end reached.
#[inline(always)]
unsafe fn walk<B: Build, L: Lanes, const STREAM: bool>(
    ins: &[*const u8],
    outs: &[*mut u8],
    start: usize,
    end: usize,
    ahead: bool,
) -> usize {
    let mut at = start;
    while at + L::BYTES <= end {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = L::load(ins[0].add(at));
            for input in &ins[1..] {
                sum = L::add(sum, L::load(input.add(at)));
            }
            if (STREAM || ahead) && (at - start).is_multiple_of(LINE) {
                for input in ins {
                    prefetch::<B>(input.wrapping_add(at), L::BYTES);
                }
            }
            for out in outs {
                if STREAM {
                    L::stream(out.add(at), sum);
                } else {
                    L::store(out.add(at), sum);
                }
            }
        }
        at += L::BYTES;
    }
    at
}

/// Adds the elements between two bytes.
///
/// # Safety
/// As [`sum`].
#[inline(never)]
unsafe fn ends<B: Build, F: Family>(pass: &Pass<'_>, start: usize, end: usize) {
    let (ins, outs) = (pass.inputs, pass.outs);
    // SAFETY: the caller's promise; few and one need no special instructions.
    unsafe {
        let at = walk::<B, F::Few, false>(ins, outs, start, end, false);
        walk::<B, F::One, false>(ins, outs, at, end, false);
    }
}
