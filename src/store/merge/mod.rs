//! The arithmetic of one key: values into a sum, the sum into the stored value, the result into
//! outs; in pieces, on as many threads as the store may use, and in one pass over memory wherever
//! tensors allow it.

mod step;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::plan::PlannedOut;
use super::table::Slot;
use crate::error::Result;
use crate::kernel::{Isa, Rule, Traffic};
use crate::optim::Arrays;
use crate::pool::pool;
use crate::sync::{AtomicBool as Cancel, Mutex};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, Lent, Place};

use step::{Scratch, Step};

/// Bytes of stored value in a piece: the unit of threads, and of stopping early.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes touched by a step below which waking a helper costs more than it gives.
const SPLIT_BYTES: usize = 4 << 20;

/// Size of one array from which stores go past the caches.
const STREAM_BYTES: usize = 4 << 20;

/// Bytes touched by a step beyond which loads are announced ahead: what a core's own cache holds.
const AHEAD_BYTES: usize = 1 << 20;

/// How a store computes. The floating-point state must be the default on the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
}

/// Where a step's result goes.
#[derive(Clone, Copy)]
struct Targets<'a> {
    /// Our own memory, first; None for a pull.
    stored: Option<Array>,
    outs: &'a [PlannedOut],
}

/// How a sum gets into the stored value.
#[derive(Clone, Copy)]
pub(crate) enum Merge<'a> {
    /// It replaces it.
    Assign,
    /// By an element-wise rule, which changes the arrays that it keeps for the key.
    Rule(&'a dyn Rule, &'a Arrays),
}

impl Team {
    /// Merges the sum of the values into `stored`, which has the slot's dtype and shape, and writes
    /// the result to the outs. A push is never left half done, so this does not stop early; an
    /// error means that nothing has been written.
    pub(crate) fn merge(
        self,
        slot: &Slot,
        values: &[Lent],
        merge: Merge<'_>,
        stored: &Buffer,
        outs: &[PlannedOut],
    ) -> Result<()> {
        let target = Array::of(stored, slot.dtype);
        if let ([only], [], Merge::Assign) = (values, outs, merge)
            && only.is_plain(slot.dtype)
            && slot.bytes() < AHEAD_BYTES
        {
            self.isa.convert_array(&target, &only.array(), slot.count);
            return Ok(());
        }
        let targets = Targets { stored: Some(target), outs };
        self.step(slot, values, merge, targets, None).map(|_| ())
    }

    /// Writes the sum of the values to `stored`, which has the slot's dtype and shape.
    pub(crate) fn sum(self, slot: &Slot, values: &[Lent], stored: &Buffer) -> Result<()> {
        self.merge(slot, values, Merge::Assign, stored, &[])
    }

    /// Moves the stored value, which is about to be replaced, to where a pass over it, the values and
    /// the outs goes best.
    pub(crate) fn place(slot: &Slot, values: &[Lent], stored: &mut Buffer, outs: &[PlannedOut]) {
        let outs = outs.iter().filter(|out| !out.shadowed).map(|out| &out.lent);
        if let Some(first) = outs.chain(values).find(|it| it.is_plain(slot.dtype)) {
            stored.place(first.data(), Place::Stored);
        }
    }

    /// Copies the stored value to the outs. Stops between pieces once `cancel` is set; gives
    /// whether it came to the end.
    pub(crate) fn copy_out(
        self,
        slot: &Slot,
        stored: &Buffer,
        outs: &[PlannedOut],
        cancel: Option<&Cancel>,
    ) -> Result<bool> {
        let stored = Array::of(stored, slot.dtype);
        if let [only] = outs
            && only.lent.is_plain(slot.dtype)
            && slot.bytes() < AHEAD_BYTES
        {
            if !only.shadowed {
                self.isa.convert_array(&only.lent.array(), &stored, slot.count);
            }
            return Ok(true);
        }
        let stored = [Lent::of(stored)];
        self.step(slot, &stored, Merge::Assign, Targets { stored: None, outs }, cancel)
    }

    /// Copies a buffer of the slot's size.
    pub(crate) fn copy(self, slot: &Slot, dst: &Buffer, src: &Buffer) -> Result<()> {
        self.sum(slot, &[Lent::of(Array::of(src, slot.dtype))], dst)
    }

    fn step(
        self,
        slot: &Slot,
        values: &[Lent],
        merge: Merge<'_>,
        targets: Targets<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<bool> {
        let live = targets.outs.iter().filter(|out| !out.shadowed).count();
        let kept = match merge {
            Merge::Assign => usize::from(targets.stored.is_some()),
            // Read and written.
            Merge::Rule(rule, _) => 2 + 2 * rule.states(),
        };
        let touched = (values.len() + live + kept) * slot.bytes();
        let traffic = match (slot.bytes(), touched) {
            (STREAM_BYTES.., _) => Traffic::Streaming,
            (_, AHEAD_BYTES..) => Traffic::Ahead,
            _ => Traffic::Cached,
        };
        let odd = values.iter().filter(|value| !value.is_plain(slot.dtype)).count();
        let straight = odd == 0 && targets.outs.iter().all(|out| out.lent.is_plain(slot.dtype));
        let step = Step { isa: self.isa, slot, values, merge, targets, traffic };
        let threads = if touched < SPLIT_BYTES { 1 } else { self.threads };
        if straight && traffic == Traffic::Cached {
            step.straight(&(0..slot.count));
            return Ok(true);
        }
        if straight {
            return Ok(in_pieces(slot, threads, cancel, &|piece| step.straight(&piece)));
        }
        let hands = threads.min(slot.bytes().div_ceil(PIECE_BYTES)).max(1);
        let scratch = (0..hands).map(|_| Scratch::take(odd));
        let scratch = Mutex::new(scratch.collect::<Result<SmallVec<[_; 4]>>>()?);
        let finished = in_pieces(slot, threads, cancel, &|piece| {
            // Never empty: there is one for each thread.
            let Some(mut mine) = scratch.lock().pop() else { return };
            step.in_blocks(&piece, &mut mine);
            scratch.lock().push(mine);
        });
        scratch.lock().drain(..).for_each(Scratch::give_back);
        Ok(finished)
    }
}

/// Runs `work` over pieces of the slot's elements, whose borders are fixed by the size alone. Stops
/// between pieces once `cancel` is set; gives whether it came to the end.
fn in_pieces(
    slot: &Slot,
    threads: usize,
    cancel: Option<&Cancel>,
    work: &(dyn Fn(Range<usize>) + Sync),
) -> bool {
    let count = slot.count;
    if threads == 1 && cancel.is_none() {
        work(0..count);
        return true;
    }
    let step = PIECE_BYTES / slot.dtype.size();
    let (pieces, skipped) = (count.div_ceil(step), AtomicBool::new(false));
    let run = |index: usize| {
        // Relaxed: stopping a little later is as good; the end of the split orders `skipped`.
        if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            skipped.store(true, Ordering::Relaxed);
        } else {
            work(index * step..count.min((index + 1) * step));
        }
    };
    if threads == 1 {
        (0..pieces).for_each(run);
    } else {
        pool().split(threads - 1, pieces, &|index| {
            let _floats = DefaultFloats::enter();
            run(index);
        });
    }
    !skipped.into_inner()
}
