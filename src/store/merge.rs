//! The arithmetic of one key: values into a sum, the stored value into outs; in pieces, on as many
//! threads as the store may use.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::PlannedOut;
use super::table::Slot;
use crate::error::Result;
use crate::kernel::Isa;
use crate::pool::pool;
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, DType, Lent};

/// Bytes of stored value in a piece: the unit of threads, and of stopping early.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes touched by a step below which waking a helper costs more than it gives.
const SPLIT_BYTES: usize = 4 << 20;

/// Elements that are gathered or converted at a time, so that they stay in the cache.
const BLOCK: usize = 4096;

/// How a store computes.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Memory that a thread keeps for its next piece.
#[derive(Default)]
struct Scratch {
    inputs: Vec<*const u8>,
    /// One block for each value that cannot be summed from where it is.
    blocks: Vec<Buffer>,
}

impl Team {
    /// Writes the sum of the values to `dst`, which has the slot's dtype and shape.
    pub(crate) fn sum(self, slot: &Slot, values: &[Lent], dst: &Buffer) -> Result<()> {
        let dst = Array::of(dst, slot.dtype);
        let touched = (values.len() + 1) * slot.bytes();
        self.in_pieces(slot, touched, None, |piece| self.sum_piece(slot, values, &dst, piece))
    }

    /// Copies the stored value to the outs. Stops between pieces once `cancel` is set, and says
    /// whether it came to the end.
    pub(crate) fn copy_out(
        self,
        slot: &Slot,
        stored: &Buffer,
        outs: &[PlannedOut],
        cancel: Option<&AtomicBool>,
    ) -> Result<bool> {
        let stored = Array::of(stored, slot.dtype);
        let live = outs.iter().filter(|out| !out.shadowed);
        let touched = (live.clone().count() + 1) * slot.bytes();
        self.in_pieces(slot, touched, cancel, |piece| {
            live.clone()
                .try_for_each(|out| self.copy_piece(slot, &stored, &out.lent, piece.clone()))
        })?;
        Ok(!is_set(cancel))
    }

    /// Copies a buffer of the slot's size.
    pub(crate) fn copy(self, slot: &Slot, dst: &Buffer, src: &Buffer) -> Result<()> {
        let (dst, src) = (Array::of(dst, slot.dtype), Array::of(src, slot.dtype));
        self.in_pieces(slot, 2 * slot.bytes(), None, |piece| {
            self.isa.convert_array(&dst.part(&piece), &src.part(&piece), piece.len());
            Ok(())
        })
    }

    /// Runs `work` over pieces of the slot's elements. Borders are fixed by the size alone.
    fn in_pieces(
        self,
        slot: &Slot,
        touched: usize,
        cancel: Option<&AtomicBool>,
        work: impl Fn(Range<usize>) -> Result<()> + Sync,
    ) -> Result<()> {
        let _floats = DefaultFloats::enter();
        let count = slot.count;
        let step = PIECE_BYTES / slot.dtype.size();
        let alone = self.threads == 1 || touched < SPLIT_BYTES;
        if alone && cancel.is_none() {
            return work(0..count);
        }
        let piece = |index: usize| index * step..count.min((index + 1) * step);
        let pieces = count.div_ceil(step);
        if alone {
            return (0..pieces)
                .filter(|_| !is_set(cancel))
                .try_for_each(|index| work(piece(index)));
        }
        let failure = parking_lot::Mutex::new(Ok(()));
        pool().split(self.threads - 1, pieces, &|index| {
            let _floats = DefaultFloats::enter();
            if is_set(cancel) {
                return;
            }
            if let Err(error) = work(piece(index)) {
                *failure.lock() = Err(error);
            }
        });
        failure.into_inner()
    }

    fn sum_piece(
        self,
        slot: &Slot,
        values: &[Lent],
        dst: &Array,
        piece: Range<usize>,
    ) -> Result<()> {
        let dtype = slot.dtype;
        SCRATCH.with_borrow_mut(|Scratch { inputs, blocks }| {
            if values.iter().all(|value| value.is_plain(dtype)) {
                inputs.clear();
                inputs.extend(values.iter().map(|value| value.array().part(&piece).start()));
                self.isa.sum_arrays(&dst.part(&piece), inputs, piece.len());
                return Ok(());
            }
            for block in blocks_of(piece) {
                inputs.clear();
                let mut used = 0;
                for value in values {
                    let start = if value.is_plain(dtype) {
                        value.array().part(&block).start()
                    } else {
                        self.prepare(slot, value, &block, scratch_block(blocks, &mut used)?)?
                    };
                    inputs.push(start);
                }
                self.isa.sum_arrays(&dst.part(&block), inputs, block.len());
            }
            Ok(())
        })
    }

    /// Puts a block of a value, gathered and converted to the slot's dtype, into scratch memory.
    fn prepare(
        self,
        slot: &Slot,
        value: &Lent,
        block: &Range<usize>,
        scratch: &Buffer,
    ) -> Result<*const u8> {
        let ready = Array::of(scratch, slot.dtype);
        let Some(strides) = value.strides() else {
            self.isa.convert_array(&ready, &value.array().part(block), block.len());
            return Ok(ready.start());
        };
        if value.dtype() == slot.dtype {
            ready.gather(&value.array(), &slot.shape, strides, block);
            return Ok(ready.start());
        }
        let gathered = Buffer::new(BLOCK * value.dtype().size())?;
        let gathered = Array::of(&gathered, value.dtype());
        gathered.gather(&value.array(), &slot.shape, strides, block);
        self.isa.convert_array(&ready, &gathered, block.len());
        Ok(ready.start())
    }

    fn copy_piece(
        self,
        slot: &Slot,
        stored: &Array,
        out: &Lent,
        piece: Range<usize>,
    ) -> Result<()> {
        let Some(strides) = out.strides() else {
            self.isa.convert_array(&out.array().part(&piece), &stored.part(&piece), piece.len());
            return Ok(());
        };
        if out.dtype() == slot.dtype {
            out.array().scatter(stored, &slot.shape, strides, &piece, 0);
            return Ok(());
        }
        let converted = Buffer::new(BLOCK * out.dtype().size())?;
        let converted = Array::of(&converted, out.dtype());
        for block in blocks_of(piece) {
            self.isa.convert_array(&converted, &stored.part(&block), block.len());
            out.array().scatter(&converted, &slot.shape, strides, &block, block.start);
        }
        Ok(())
    }
}

fn is_set(cancel: Option<&AtomicBool>) -> bool {
    // Relaxed: stopping a little later is as good.
    cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
}

fn blocks_of(piece: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = piece;
    (start..end).step_by(BLOCK).map(move |at| at..end.min(at + BLOCK))
}

/// The next unused block of scratch memory, big enough for any dtype.
fn scratch_block<'a>(blocks: &'a mut Vec<Buffer>, used: &mut usize) -> Result<&'a Buffer> {
    if *used == blocks.len() {
        blocks.push(Buffer::new(BLOCK * DType::F64.size())?);
    }
    *used += 1;
    Ok(&blocks[*used - 1])
}
