//! The arithmetic of one key: values into a sum, the sum or the stored value into outs; in pieces,
//! on as many threads as the store may use, and in one pass over memory wherever tensors allow it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::plan::PlannedOut;
use super::table::Slot;
use crate::error::Result;
use crate::kernel::{Isa, Pass, Traffic};
use crate::pool::pool;
use crate::sync::{AtomicBool as Cancel, Mutex};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, DType, Lent};

/// Bytes of stored value in a piece: the unit of threads, and of stopping early.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes touched by a step below which waking a helper costs more than it gives.
const SPLIT_BYTES: usize = 4 << 20;

/// Size of one array from which stores go past the caches.
const STREAM_BYTES: usize = 8 << 20;

/// Bytes touched by a step beyond which loads are announced ahead: what a core's own cache holds.
const AHEAD_BYTES: usize = 1 << 20;

/// Elements that are gathered, converted or copied again at a time, so that they stay in the cache.
const BLOCK: usize = 4096;

/// A cache line: streaming stores to several outs need equal places in it.
const LINE: usize = 64;

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

/// The addresses of a pass, without an allocation for up to 16.
type Addresses<T> = SmallVec<[T; 16]>;

/// Memory for values that cannot be summed from where they are: one block for each, and one to
/// gather into before a conversion. Made before the first byte is written, so that a lack of memory
/// leaves no half a result.
struct Scratch {
    blocks: Vec<Buffer>,
    gathered: Buffer,
}

impl Scratch {
    fn new(odd_values: usize) -> Result<Self> {
        let block = || Buffer::new(BLOCK * DType::F64.size());
        let blocks = (0..odd_values).map(|_| block()).collect::<Result<_>>()?;
        Ok(Self { blocks, gathered: block()? })
    }
}

impl Team {
    /// Writes the sum of the values to `stored`, which has the slot's dtype and shape, and to the
    /// outs. A push is never left half done, so this does not stop early.
    pub(crate) fn sum(
        self,
        slot: &Slot,
        values: &[Lent],
        stored: &Buffer,
        outs: &[PlannedOut],
    ) -> Result<()> {
        let target = Array::of(stored, slot.dtype);
        if let ([only], []) = (values, outs)
            && only.is_plain(slot.dtype)
            && slot.bytes() < AHEAD_BYTES
        {
            self.isa.convert_array(&target, &only.array(), slot.count);
            return Ok(());
        }
        let targets = Targets { stored: Some(target), outs };
        self.step(slot, values, targets, None).map(|_| ())
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
        self.step(slot, &stored, Targets { stored: None, outs }, cancel)
    }

    /// Copies a buffer of the slot's size.
    pub(crate) fn copy(self, slot: &Slot, dst: &Buffer, src: &Buffer) -> Result<()> {
        self.sum(slot, &[Lent::of(Array::of(src, slot.dtype))], dst, &[])
    }

    fn step(
        self,
        slot: &Slot,
        values: &[Lent],
        targets: Targets<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<bool> {
        let live = targets.outs.iter().filter(|out| !out.shadowed).count();
        let arrays = values.len() + live + usize::from(targets.stored.is_some());
        let touched = arrays * slot.bytes();
        let traffic = match (slot.bytes(), touched) {
            (STREAM_BYTES.., _) => Traffic::Streaming,
            (_, AHEAD_BYTES..) => Traffic::Ahead,
            _ => Traffic::Cached,
        };
        let odd = values.iter().filter(|value| !value.is_plain(slot.dtype)).count();
        let straight = odd == 0 && targets.outs.iter().all(|out| out.lent.is_plain(slot.dtype));
        let step = Step { isa: self.isa, slot, values, targets, traffic };
        let threads = if touched < SPLIT_BYTES { 1 } else { self.threads };
        if straight && traffic == Traffic::Cached {
            step.straight(&(0..slot.count));
            return Ok(true);
        }
        if straight {
            return Ok(in_pieces(slot, threads, cancel, &|piece| step.straight(&piece)));
        }
        let hands = threads.min(slot.bytes().div_ceil(PIECE_BYTES)).max(1);
        let scratch = (0..hands).map(|_| Scratch::new(odd)).collect::<Result<Vec<_>>>()?;
        let scratch = Mutex::new(scratch);
        Ok(in_pieces(slot, threads, cancel, &|piece| {
            // Never empty: there is one for each thread.
            let Some(mut mine) = scratch.lock().pop() else { return };
            step.in_blocks(&piece, &mut mine);
            scratch.lock().push(mine);
        }))
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

/// What every piece of a step has in common.
struct Step<'a> {
    isa: Isa,
    slot: &'a Slot,
    values: &'a [Lent],
    targets: Targets<'a>,
    traffic: Traffic,
}

impl Step<'_> {
    fn live_outs(&self) -> impl Iterator<Item = &Lent> {
        self.targets.outs.iter().filter(|out| !out.shadowed).map(|out| &out.lent)
    }

    /// A piece of a step whose tensors are all plain arrays of the slot's dtype.
    fn straight(&self, piece: &Range<usize>) {
        let (mut inputs, mut outs) = self.addresses(piece);
        let streams = self.traffic == Traffic::Streaming;
        if streams && outs.iter().any(|out| out.addr() % LINE != outs[0].addr() % LINE) {
            self.in_tiles(&mut inputs, &mut outs, piece.len());
        } else if !outs.is_empty() {
            self.pass(&inputs, &outs, piece.len(), self.traffic);
        }
    }

    /// Where a piece of each value and of each target begins.
    fn addresses(&self, piece: &Range<usize>) -> (Addresses<*const u8>, Addresses<*mut u8>) {
        let inputs = self.values.iter().map(|value| value.array().part(piece).start());
        let stored = self.targets.stored.iter().map(|it| it.part(piece).start_mut());
        let outs = self.live_outs().map(|out| out.array().part(piece).start_mut());
        (inputs.collect(), stored.chain(outs).collect())
    }

    /// Streams to outs that lie differently in their cache lines: tile by tile, so that all but the
    /// first read what is in the cache.
    fn in_tiles(&self, inputs: &mut [*const u8], outs: &mut [*mut u8], count: usize) {
        let size = self.slot.dtype.size();
        for start in (0..count).step_by(BLOCK) {
            let len = BLOCK.min(count - start);
            let first = outs[0];
            let mut source: *const u8 = first;
            let mut rest = &*outs;
            if let ([only], None) = (&*inputs, self.targets.stored) {
                source = *only;
            } else {
                self.pass(inputs, &[first], len, Traffic::Ahead);
                rest = &outs[1..];
            }
            for &out in rest {
                self.pass(&[source], &[out], len, Traffic::Streaming);
            }
            for at in inputs.iter_mut() {
                *at = at.wrapping_add(len * size);
            }
            for at in outs.iter_mut() {
                *at = at.wrapping_add(len * size);
            }
        }
    }

    fn pass(&self, inputs: &[*const u8], outs: &[*mut u8], count: usize, traffic: Traffic) {
        let dtype = self.slot.dtype;
        self.isa.sum_planned(&Pass { dtype, outs, inputs, count, traffic });
    }

    /// A piece of a step with tensors of other dtypes or with strides.
    fn in_blocks(&self, piece: &Range<usize>, scratch: &mut Scratch) {
        let (dtype, mut start) = (self.slot.dtype, piece.start);
        let mut inputs = Vec::with_capacity(self.values.len());
        while start < piece.end {
            let block = start..piece.end.min(start + BLOCK);
            inputs.clear();
            let mut free = scratch.blocks.iter();
            for value in self.values {
                let part = if value.is_plain(dtype) {
                    value.array().part(&block)
                } else {
                    // As many blocks as values that need one.
                    let Some(ready) = free.next() else { return };
                    self.prepare(value, &block, Array::of(ready, dtype), &scratch.gathered)
                };
                inputs.push(part.start());
            }
            if let Some(stored) = self.targets.stored {
                let stored = stored.part(&block);
                self.pass(&inputs, &[stored.start_mut()], block.len(), Traffic::Cached);
                self.deliver(&stored, &block, &scratch.gathered);
            } else {
                self.deliver(&self.values[0].array().part(&block), &block, &scratch.gathered);
            }
            start = block.end;
        }
    }

    /// A block of a value, gathered and converted to the slot's dtype, in `ready`.
    fn prepare(
        &self,
        value: &Lent,
        block: &Range<usize>,
        ready: Array,
        gathered: &Buffer,
    ) -> Array {
        let Some(strides) = value.strides() else {
            self.isa.convert_array(&ready, &value.array().part(block), block.len());
            return ready;
        };
        if value.dtype() == self.slot.dtype {
            ready.gather(&value.array(), &self.slot.shape, strides, block);
            return ready;
        }
        let gathered = Array::of(gathered, value.dtype());
        gathered.gather(&value.array(), &self.slot.shape, strides, block);
        self.isa.convert_array(&ready, &gathered, block.len());
        ready
    }

    /// Copies a block of the result to every out.
    fn deliver(&self, result: &Array, block: &Range<usize>, converted: &Buffer) {
        for out in self.live_outs() {
            let Some(strides) = out.strides() else {
                self.isa.convert_array(&out.array().part(block), result, block.len());
                continue;
            };
            let mut source = *result;
            if out.dtype() != self.slot.dtype {
                source = Array::of(converted, out.dtype());
                self.isa.convert_array(&source, result, block.len());
            }
            out.array().scatter(&source, &self.slot.shape, strides, block);
        }
    }
}
