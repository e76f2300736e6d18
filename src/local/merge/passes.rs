//! The passes of a rule over one key.

use std::ops::Range;

use super::step::{MergeScratch, MergeStep, cut};
use super::{Merge, MergeRun, PIECE_BYTES, in_pieces};
use crate::kernel::{PartNumbers, Rule, Squares, TILE, Traffic};
use crate::optim::{KeyRule, NORM_BLOCK, Passes, RowRule, StateArrays};

/// A push of one key under a rule, ready to be made.
pub(crate) struct KeyPasses<'a> {
    pub(super) run: MergeRun<'a>,
    pub(super) arrays: &'a StateArrays,
}

impl Passes for KeyPasses<'_> {
    fn merge(&mut self, rule: &dyn Rule) {
        self.run.whole(Merge::Rule(rule, self.arrays), None);
    }

    fn merge_key(&mut self, key: &dyn KeyRule) {
        let (run, arrays, meter) = (&self.run, self.arrays, key.meter());
        let count = run.step.slot.count;
        in_pieces(count, NORM_BLOCK, run.threads, None, &|block| {
            run.with_scratch(|scratch| {
                let mut sums = Squares::default();
                let mut add = |squares| sums += squares;
                run.step.measure((meter, arrays), &block, scratch, TILE, &mut add);
                arrays.sums(block.start / NORM_BLOCK).put(sums);
            });
        });
        let mut squares = Squares::default();
        (0..count.div_ceil(NORM_BLOCK)).for_each(|block| squares += arrays.sums(block).take());
        let number = key.norm().number(squares, &mut 0.0);
        key.merge(number, &mut |rule| self.merge(rule));
    }

    fn has_rows(&self) -> bool {
        self.arrays.rows.is_some()
    }

    fn merge_rows(&mut self, rows: &dyn RowRule) {
        let Some(count) = self.arrays.rows else { return };
        let length = self.run.step.slot.count / count;
        let size = (PIECE_BYTES / self.run.step.slot.dtype.size() / length).max(1);
        in_pieces(count, size, self.run.threads, None, &|piece| {
            self.run.with_scratch(|scratch| {
                // As many whole rows as fit into a tile, or one.
                for some in cut(&piece, (TILE / length).max(1)) {
                    self.run.step.merge_rows((rows, self.arrays), &some, length, scratch);
                }
            });
        });
    }
}

impl MergeStep<'_> {
    /// Merges a few rows: measures them, then passes over them again while they are in the cache.
    pub(super) fn merge_rows(
        &self,
        (rows, arrays): (&dyn RowRule, &StateArrays),
        some: &Range<usize>,
        length: usize,
        scratch: Option<&MergeScratch>,
    ) {
        let range = some.start * length..some.end * length;
        let mut sums = [0.0; TILE];
        let mut parts = 0;
        self.measure((rows.meter(), arrays), &range, scratch, length, &mut |part| {
            // Parts are rows, or tiles of the only one.
            sums[parts % some.len()] += part.measured;
            parts += 1;
        });
        let numbers = &mut sums[..some.len()];
        for (row, number) in some.clone().zip(&mut *numbers) {
            let place = arrays.row(row);
            let mut state = place.number(0);
            let squares = Squares { measured: mean(*number, length), value: 0.0 };
            *number = rows.norm().number(squares, &mut state);
            place.set_number(0, state);
        }
        let parts = PartNumbers { numbers, length: length.min(TILE) };
        let (merge, traffic) = (Merge::Parts(rows.rule(), arrays, parts), Traffic::Cached);
        let step = MergeStep { merge, traffic, ..*self };
        cut(&range, TILE).for_each(|tile| MergeRun::piece(&step, &tile, scratch));
    }
}

#[allow(clippy::cast_precision_loss, reason = "far beyond the elements that a row can have")]
fn mean(sum: f64, count: usize) -> f64 {
    sum / count as f64
}
