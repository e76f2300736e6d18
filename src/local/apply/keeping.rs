//! Pushes in a transaction, which keep what they change.

use super::{Applier, KeyPush};
use crate::error::Result;
use crate::local::merge::Team;
use crate::local::merge::keeper::Keeper;
use crate::local::merge::squares::{block_sums, total};
use crate::local::merger::Handling;
use crate::local::table::{Slot, Value};
use crate::local::transaction::kept::StateChange;
use crate::local::transaction::share::Transaction;
use crate::optim::Optimizer;

/// The transaction of a push of one key.
#[derive(Clone, Copy)]
pub(crate) struct Keeping<'a> {
    transaction: &'a Transaction,
    /// What the gradient is multiplied by before it is measured, if it is.
    rescale: Option<f64>,
}

impl<'a> Keeping<'a> {
    pub(super) fn of(handling: &'a Handling, slot: &Slot) -> Option<Self> {
        let transaction = handling.transaction.as_deref()?;
        let rescale = handling.clipping.and_then(|_| handling.rescale_of(slot.key, slot.dtype));
        Some(Self { transaction, rescale })
    }

    /// Notes that a push changes a key whose arrays are kept.
    fn note(&self, slot: &Slot, value: &mut Value) {
        if value.note_kept(self.transaction.number()) {
            self.transaction.note(slot.key);
        }
    }

    /// Notes the squares of the sum of a push.
    fn note_squares(&self, value: &mut Value, squares: f64) {
        if let (Some(rescale), Some(kept)) = (self.rescale, &mut value.kept) {
            kept.add_squares(rescale * rescale * squares);
        }
    }
}

impl Applier {
    /// Measures a push in a transaction, and keeps what its key is before the push changes it. An error means that
    /// the key has not changed.
    pub(super) fn keep(
        &self,
        push: &KeyPush<'_>,
        value: &mut Value,
        change: StateChange,
    ) -> Result<()> {
        let Some(keeping) = push.keeping else { return Ok(()) };
        let (slot, team) = (push.slot, self.team_of(push));
        let key = (keeping.transaction.number(), slot.dtype, slot.count);
        let copies = value.keep(key, change).map_err(|error| self.at(push, &error))?;
        let mut squares = 0.0;
        if let (Some(_), Some(kept)) = (keeping.rescale, &mut value.kept) {
            let measured = team.squares(slot, push.values, None, &mut kept.sums);
            squares = measured.map_err(|error| self.at(push, &error))?.unwrap_or_default();
        }
        team.keep(&copies);
        keeping.note(slot, value);
        keeping.note_squares(value, squares);
        Ok(())
    }

    /// What the next push by a rule does to the state of a key.
    pub(super) fn change_of(optimizer: &Optimizer, value: &Value) -> StateChange {
        let has_state = optimizer.has_state(value.state.as_ref());
        if has_state { StateChange::Changed } else { StateChange::Made }
    }

    /// Merges the values by a rule of ours in a transaction, and fills the outs in its last pass. A rule that goes
    /// element by element keeps and measures in that pass.
    pub(super) fn optimize_kept(
        &self,
        push: &KeyPush<'_>,
        optimizer: &Optimizer,
        value: &mut Value,
        keeping: Keeping<'_>,
    ) -> Result<bool> {
        let &KeyPush { slot, values, outs, .. } = push;
        let change = Self::change_of(optimizer, value);
        let (_, arrays) = self
            .prepare(slot, optimizer, &value.buffer, &mut value.state, false)
            .map_err(|error| self.at(push, &error))?;
        if !optimizer.is_elementwise() || push.digester.is_some() {
            self.keep(push, value, change)?;
            return self.optimize(push, optimizer, value, None);
        }
        let key = (keeping.transaction.number(), slot.dtype, slot.count);
        let copies = value.keep(key, change).map_err(|error| self.at(push, &error))?;
        let mut sums = value.kept.as_mut().map(|kept| std::mem::take(&mut kept.sums));
        let measured = sums.as_mut().filter(|_| keeping.rescale.is_some());
        let measured = measured.map(|sums| block_sums(sums, slot.count));
        let keeper = Keeper { copies: &copies, sums: measured };
        let team = Team { keeper: Some(&keeper), ..self.team_of(push) };
        let result =
            team.passes(slot, values, &arrays, &value.buffer, outs, None).map(|mut passes| {
                keeping.note(slot, value);
                if let Some(state) = &mut value.state {
                    optimizer.push(slot.key, push.scale, state, &mut passes);
                }
            });
        if let (Ok(()), Some(sums)) = (&result, measured) {
            keeping.note_squares(value, total(sums));
        }
        if let (Some(kept), Some(sums)) = (&mut value.kept, sums) {
            kept.sums = sums;
        }
        result.map(|()| true).map_err(|error| self.at(push, &error))
    }
}
