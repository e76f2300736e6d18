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
        sums.resize_with(slot.count.div_ceil(SQUARES_BLOCK), AtomicU64::default);
        let sums = &**sums;
        let finished = in_pieces(slot.count, PIECE, run.threads, cancel, &|piece| {
            run.with_scratch(|scratch| {
                for block in cut(&piece, SQUARES_BLOCK) {
                    let sum = run.step.squares(&block, scratch);
                    // Relaxed: the end of the split orders it.
                    sums[block.start / SQUARES_BLOCK].store(sum.to_bits(), Ordering::Relaxed);
                }
            });
        });
        let sum = |sum: &AtomicU64| f64::from_bits(sum.load(Ordering::Relaxed));
        Ok(finished.then(|| sums.iter().map(sum).fold(0.0, |all, sum| all + sum)))
    }
}

impl MergeStep<'_> {
    /// The sum of the squares of a block.
    fn squares(&self, block: &Range<usize>, scratch: Option<&MergeScratch>) -> f64 {
        let inputs = self.inputs(block, scratch);
        let Self { order, divisor, traffic, .. } = *self;
        let (dtype, outs, inputs, count) = (self.slot.dtype, &[][..], &*inputs, block.len());
        self.isa.squares_planned(&Pass { dtype, outs, inputs, count, traffic, order, divisor })
    }
}
