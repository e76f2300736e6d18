//! Sums of squares of the sum of a key's values. Its blocks begin where slices of a key may begin, so that they
//! are those of a key that is on several servers.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::step::{MergeScratch, MergeStep, cut};
use super::{KeptArrays, PIECE_BYTES, Targets, Team, in_pieces};
use crate::codec;
use crate::error::Result;
use crate::kernel::{Pass, SQUARES_BLOCK};
use crate::local::table::Slot;
use crate::sys::sync::AtomicBool as Cancel;
use crate::tensor::{DType, Lent};

/// Elements of a piece: whole blocks.
const PIECE: usize = PIECE_BYTES / DType::F32.size();

const _: () = assert!(PIECE.is_multiple_of(SQUARES_BLOCK));
const _: () = assert!(codec::BLOCK.is_multiple_of(SQUARES_BLOCK), "slices begin at blocks");

impl Team<'_> {
    /// The sum of the squares of the sum of a key's values, as a rule gets it; None if `cancel` is set meanwhile.
    /// `sums` is memory for the sums of blocks, which are added from the first to the last.
    pub(crate) fn squares(
        self,
        slot: &Slot,
        values: &[Lent],
        cancel: Option<&Cancel>,
        sums: &mut Vec<AtomicU64>,
    ) -> Result<Option<f64>> {
        let (targets, kept) =
            (Targets { stored: None, outs: &[] }, KeptArrays { count: 0, changed: 0 });
        let run = self.run(slot, values, targets, kept)?;
        let sums = block_sums(sums, slot.count);
        let finished = in_pieces(slot.count, PIECE, run.threads, cancel, &|piece| {
            run.with_scratch(|scratch| run.step.square_blocks(&piece, scratch, sums));
        });
        Ok(finished.then(|| total(sums)))
    }
}

/// A place for the squares of each block of so many elements.
pub(crate) fn block_sums(sums: &mut Vec<AtomicU64>, count: usize) -> &[AtomicU64] {
    sums.resize_with(count.div_ceil(SQUARES_BLOCK), AtomicU64::default);
    sums
}

/// The sum of all blocks, from the first to the last.
pub(crate) fn total(sums: &[AtomicU64]) -> f64 {
    // Relaxed: the end of the split orders it.
    sums.iter().fold(0.0, |all, sum| all + f64::from_bits(sum.load(Ordering::Relaxed)))
}

impl MergeStep<'_> {
    /// Notes the squares of the blocks of a piece, which begins with one, in their places.
    pub(super) fn square_blocks(
        &self,
        piece: &Range<usize>,
        scratch: Option<&MergeScratch>,
        sums: &[AtomicU64],
    ) {
        for block in cut(piece, SQUARES_BLOCK) {
            let sum = self.squares(&block, scratch);
            // Relaxed: the end of the split orders it.
            sums[block.start / SQUARES_BLOCK].store(sum.to_bits(), Ordering::Relaxed);
        }
    }

    /// The sum of the squares of a block.
    fn squares(&self, block: &Range<usize>, scratch: Option<&MergeScratch>) -> f64 {
        let inputs = self.inputs(block, scratch);
        let Self { order, divisor, traffic, .. } = *self;
        let (dtype, outs, inputs, count) = (self.slot.dtype, &[][..], &*inputs, block.len());
        self.isa.squares_planned(&Pass { dtype, outs, inputs, count, traffic, order, divisor })
    }
}
