//! Steps that keep what they change: each piece is measured and copied before it is merged, while it is in the
//! caches.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::step::{MergeScratch, MergeStep};
use super::{MergeRun, Team, in_pieces};
use crate::kernel::{Isa, Pass, SQUARES_BLOCK, SumOrder, Traffic};
use crate::local::transaction::kept::KeptCopy;
use crate::pool::Help;

/// Elements of a piece, whose arrays fit into a second-level cache together. Whole blocks of squares.
const PIECE: usize = 8 * SQUARES_BLOCK;

/// What a step keeps of a key.
pub(crate) struct Keeper<'a> {
    pub(crate) copies: &'a [KeptCopy],
    /// A place for the squares of each block of the sum, if it is measured.
    pub(crate) sums: Option<&'a [AtomicU64]>,
}

impl Keeper<'_> {
    fn keep(&self, step: &MergeStep<'_>, piece: &Range<usize>, scratch: Option<&MergeScratch>) {
        if let Some(sums) = self.sums {
            step.square_blocks(piece, scratch, sums);
        }
        for copy in self.copies {
            keep(step.isa, copy, piece);
        }
    }
}

/// Copies a piece of an array, past the caches if it is a whole one: only a rollback reads what is kept.
fn keep(isa: Isa, (from, to, _): &KeptCopy, piece: &Range<usize>) {
    let traffic = if piece.len() < PIECE { Traffic::Cached } else { Traffic::Streaming };
    let (inputs, outs) = (&[from.part(piece).start()], &[to.part(piece).start_mut()]);
    let (dtype, count, order) = (from.dtype(), piece.len(), SumOrder::Linear);
    isa.sum_planned(&Pass { dtype, outs, inputs, count, traffic, order, divisor: None });
}

impl MergeRun<'_> {
    /// Merges the whole key, and keeps what it was.
    pub(super) fn whole_kept(&self, step: &MergeStep<'_>, keeper: &Keeper<'_>) -> bool {
        let work = |piece: Range<usize>| {
            self.with_scratch(|scratch| {
                keeper.keep(step, &piece, scratch);
                Self::piece(step, &piece, scratch);
            });
        };
        in_pieces(step.slot.count, PIECE, self.threads, None, &work)
    }
}

impl Team<'_> {
    /// Copies arrays to where they are kept.
    pub(crate) fn keep(self, copies: &[KeptCopy]) {
        for copy in copies {
            let &(from, _, count) = copy;
            let bytes = 2 * count * from.dtype().size();
            let help = Help::ask(self.threads - 1, bytes);
            in_pieces(count, PIECE, 1 + help.helpers, None, &|piece| {
                keep(self.isa, copy, &piece);
            });
        }
    }
}
