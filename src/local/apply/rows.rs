//! Executes calls on rows.

use std::ops::Range;

use super::{Applier, KeyPush, with_default_floats};
use crate::error::Result;
#[cfg(feature = "dist")]
use crate::kernel::SumOrder;
use crate::local::counters::CallTally;
use crate::local::digest::DigestedPush;
use crate::local::merge::RowSums;
#[cfg(feature = "dist")]
use crate::local::merge::Team;
use crate::local::merger::{Handling, Merger};
#[cfg(feature = "dist")]
use crate::local::plan::RowsOf;
use crate::local::plan::{RowLists, refuse_rows};
use crate::local::table::{Slot, Value};
use crate::local::transaction::kept::StateChange;
use crate::optim::Optimizer;
use crate::sys::DefaultFloats;
#[cfg(feature = "dist")]
use crate::tensor::Buffer;
use crate::tensor::{Array, Lent};

impl Applier {
    /// Copies rows of a key to its outs, whose places in the plan are given.
    pub(super) fn pull_rows(
        &self,
        pull: &KeyPush<'_>,
        rows: &RowLists,
        places: Range<usize>,
        tally: &mut CallTally,
    ) -> Result<bool> {
        let &KeyPush { call, slot, outs, limits, .. } = pull;
        let value = self.lock_shared(call, slot, limits)?;
        self.check_here(call, slot, &value)?;
        for (out, place) in outs.iter().zip(places) {
            let rows = rows.of(place, &out.lent);
            tally.add(&CallTally::sum((0, 0), (1, bytes(slot, rows.ids))));
            if !out.shadowed && !self.team.copy_rows(slot, &value.buffer, &rows, limits.cancel)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses a value that has moved to a device since the call was planned.
    fn check_here(&self, call: &str, slot: &Slot, value: &Value) -> Result<()> {
        match slot.device() {
            Some(device) if !value.is_here() => Err(refuse_rows(call, &self.names, slot, device)),
            _ => Ok(()),
        }
    }

    /// Merges values, whose places in the plan are given, into rows of a key. No codec is involved.
    pub(super) fn push_rows(
        &self,
        push: &KeyPush<'_>,
        rows: &RowLists,
        places: Range<usize>,
        handling: &Handling,
        tally: &mut CallTally,
    ) -> Result<bool> {
        let &KeyPush { call, slot, values, limits, .. } = push;
        let pushed = || places.clone().zip(values).map(|(place, lent)| rows.of(place, lent));
        let total = pushed().map(|rows| bytes(slot, rows.ids)).sum();
        let positions = 0u64..;
        let mut sums = self.row_sums.lock().pop().unwrap_or_default();
        let result = with_default_floats(|| sums.prepare(self.team, slot, positions.zip(pushed())))
            .map_err(|error| self.at(push, &error))
            .and_then(|()| self.lock(call, slot, limits))
            .and_then(|mut value| {
                self.check_here(call, slot, &value)?;
                tally.add(&CallTally::sum((values.len(), total), (0, 0)));
                let merger = handling.merger_of(slot.key);
                let by_updater = matches!(merger, Merger::Updater(_));
                tally.updater_calls += u64::from(by_updater);
                let _floats = (handling.has_updater() && !by_updater).then(DefaultFloats::enter);
                self.keep_for_rows(push, &mut value, merger)?;
                let finished = self.merge_rows(push, &sums, &mut value, merger)?;
                value.merges += 1;
                value.note_weight(handling.divisor);
                self.log_round(push, handling, &value, DigestedPush::default());
                Ok(finished)
            });
        self.row_sums.lock().push(sums);
        result
    }

    /// Merges pushed rows, whose sums are in an order, into a locked key.
    #[cfg(feature = "dist")]
    pub(crate) fn merge_pushed_rows<'a>(
        &self,
        push: &KeyPush<'_>,
        order: SumOrder<'static>,
        pushed: impl Iterator<Item = (u64, RowsOf<'a>)>,
        value: &mut Value,
        merger: &Merger,
    ) -> Result<bool> {
        let mut sums = self.row_sums.lock().pop().unwrap_or_default();
        let team = Team { order, ..self.team };
        let result = with_default_floats(|| sums.prepare(team, push.slot, pushed))
            .and_then(|()| self.merge_rows(push, &sums, value, merger));
        self.row_sums.lock().push(sums);
        result
    }

    /// Gives the rows of a key that are pushed, ascending, and their sums as a team makes them, one after the other,
    /// in memory that `take` gives.
    #[cfg(feature = "dist")]
    pub(crate) fn sum_pushed_rows<'a>(
        &self,
        team: Team,
        slot: &Slot,
        pushed: impl Iterator<Item = (u64, RowsOf<'a>)>,
        rows: &mut Vec<usize>,
        take: impl FnOnce(usize) -> Result<Buffer>,
    ) -> Result<Buffer> {
        let mut sums = self.row_sums.lock().pop().unwrap_or_default();
        let result = with_default_floats(|| {
            sums.prepare(team, slot, pushed)?;
            let buffer = take(sums.bytes((slot, slot.dtype)).max(1))?;
            sums.compact(team, (slot, slot.dtype), rows, &buffer);
            Ok(buffer)
        });
        self.row_sums.lock().push(sums);
        result
    }

    /// Keeps what a key is before rows of it change in a transaction.
    fn keep_for_rows(&self, push: &KeyPush<'_>, value: &mut Value, merger: &Merger) -> Result<()> {
        let (Some(_), Some(optimizer)) = (push.keeping, merger.optimizer()) else {
            return with_default_floats(|| self.keep(push, value, StateChange::None));
        };
        let change = Self::change_of(optimizer, value);
        let scattered = optimizer.is_lazy(push.slot.key);
        let prepared =
            self.prepare(push.slot, optimizer, &value.buffer, &mut value.state, scattered);
        prepared.map_err(|error| self.at(push, &error))?;
        with_default_floats(|| self.keep(push, value, change))
    }

    fn merge_rows(
        &self,
        push: &KeyPush<'_>,
        sums: &RowSums,
        value: &mut Value,
        merger: &Merger,
    ) -> Result<bool> {
        let slot = push.slot;
        let team = self.team.divided_by(push.divisor);
        match merger {
            Merger::Assign => team.rows(slot, sums, &value.buffer).assign(),
            Merger::Optimizer(optimizer) if optimizer.is_lazy(slot.key) => {
                self.optimize_rows(push, optimizer, sums, value)?;
            }
            // Updaters and dense rules need the sum of the whole key.
            Merger::Optimizer(_) | Merger::Updater(_) => {
                let dense = self.borrow_buffer(slot)?;
                with_default_floats(|| {
                    self.team.clear(slot, &dense);
                    team.rows(slot, sums, &dense).assign();
                });
                let sum = [Lent::of(Array::of(&dense, slot.dtype))];
                let divided = KeyPush { values: &sum, divisor: None, ..*push };
                let result = self.merge(&divided, merger, value, None);
                self.buffers.lock().push(dense);
                return result;
            }
        }
        Ok(true)
    }

    /// Merges the pushed rows alone by a rule of ours.
    fn optimize_rows(
        &self,
        push: &KeyPush<'_>,
        optimizer: &Optimizer,
        sums: &RowSums,
        value: &mut Value,
    ) -> Result<()> {
        let (slot, Value { buffer, state, .. }) = (push.slot, value);
        let prepared = self.prepare(slot, optimizer, buffer, state, true);
        let (state, arrays) = prepared.map_err(|error| self.at(push, &error))?;
        let team = self.team.divided_by(push.divisor);
        let mut passes = team.row_passes(slot, sums, &arrays, buffer);
        optimizer.push(slot.key, push.scale, state, &mut passes);
        Ok(())
    }
}

/// The size of so many rows.
fn bytes(slot: &Slot, ids: &[usize]) -> usize {
    ids.len() * slot.row_length() * slot.dtype.size()
}
