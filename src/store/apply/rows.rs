//! Calls on rows put into effect.

use std::ops::Range;

use super::{Applier, Limits, with_default_floats};
use crate::error::Result;
use crate::optim::Optimizer;
use crate::store::counters::Tally;
use crate::store::merge::RowSums;
use crate::store::merger::Merger;
use crate::store::plan::{PlannedOut, RowLists};
use crate::store::table::{Slot, Value};
use crate::tensor::{Array, Lent};

impl Applier {
    /// Copies rows of a key to its outs.
    pub(super) fn pull_rows(
        &self,
        call: &str,
        slot: &Slot,
        (rows, outs, planned): (&RowLists, &[PlannedOut], Range<usize>),
        limits: Limits<'_>,
        tally: &mut Tally,
    ) -> Result<bool> {
        let value = self.lock_shared(call, slot, limits)?;
        for (out, index) in outs.iter().zip(planned) {
            let rows = rows.of(index, &out.lent);
            tally.add(&Tally::sum((0, 0), (1, bytes(slot, rows.ids))));
            if !out.shadowed && !self.team.copy_rows(slot, &value.buffer, &rows, limits.cancel)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Merges what is pushed to rows of a key.
    pub(super) fn push_rows(
        &self,
        call: &str,
        slot: &Slot,
        (rows, values, planned): (&RowLists, &[Lent], Range<usize>),
        merger: &Merger,
        limits: Limits<'_>,
        tally: &mut Tally,
    ) -> Result<bool> {
        let pushed = || planned.clone().zip(values).map(|(index, lent)| rows.of(index, lent));
        let total = pushed().map(|rows| bytes(slot, rows.ids)).sum();
        let mut sums = self.row_sums.lock().pop().unwrap_or_default();
        let result = with_default_floats(|| sums.prepare(self.team, slot, pushed()))
            .map_err(self.at_key(call, slot))
            .and_then(|()| self.lock(call, slot, limits))
            .and_then(|mut value| {
                tally.add(&Tally::sum((values.len(), total), (0, 0)));
                self.merge_rows(call, slot, &sums, &mut value, merger, limits, tally)
            });
        self.row_sums.lock().push(sums);
        result
    }

    #[allow(clippy::too_many_arguments, reason = "a push, its lock and its sums")]
    fn merge_rows(
        &self,
        call: &str,
        slot: &Slot,
        sums: &RowSums,
        value: &mut Value,
        merger: &Merger,
        limits: Limits<'_>,
        tally: &mut Tally,
    ) -> Result<bool> {
        match merger {
            Merger::Assign => self.team.rows(slot, sums, &value.buffer).assign(),
            Merger::Optimizer(optimizer) if optimizer.is_lazy(slot.key) => {
                self.optimize_rows(call, slot, optimizer, sums, value)?;
            }
            // They need the sum of the whole key.
            Merger::Optimizer(_) | Merger::Updater(_) => {
                let dense = self.borrow_buffer(slot)?;
                with_default_floats(|| {
                    self.team.clear(slot, &dense);
                    self.team.rows(slot, sums, &dense).assign();
                });
                let sum = [Lent::of(Array::of(&dense, slot.dtype))];
                let result = self.merge(call, slot, value, (&sum, &[]), merger, limits, tally);
                self.buffers.lock().push(dense);
                return result;
            }
        }
        Ok(true)
    }

    /// Merges the rows, and no others, by a rule of ours.
    fn optimize_rows(
        &self,
        call: &str,
        slot: &Slot,
        optimizer: &Optimizer,
        sums: &RowSums,
        value: &mut Value,
    ) -> Result<()> {
        let Value { buffer, state, .. } = value;
        let (state, arrays) =
            self.prepare(slot, optimizer, buffer, state, true).map_err(self.at_key(call, slot))?;
        let mut passes = self.team.row_passes(slot, sums, &arrays, buffer);
        optimizer.push(slot.key, state, &mut passes);
        Ok(())
    }
}

/// The size of so many rows.
fn bytes(slot: &Slot, ids: &[usize]) -> usize {
    ids.len() * slot.row_length() * slot.dtype.size()
}
