//! Values that keep what they were.

use super::kept::{KeptCopies, KeptValue, StateChange};
use crate::error::Result;
use crate::local::table::Value;
use crate::tensor::DType;

impl Value {
    /// What it was before a transaction, if a push of it has changed it.
    pub(crate) fn kept_in(&self, transaction: u64) -> Option<&KeptValue> {
        self.kept.as_deref().filter(|kept| kept.is_of(transaction))
    }

    /// Makes room for what it is now, unless an earlier push of the transaction has. Gives the arrays that are to
    /// be copied before [`Self::note_kept`].
    pub(crate) fn keep(
        &mut self,
        (transaction, dtype, count): (u64, DType, usize),
        change: StateChange,
    ) -> Result<KeptCopies> {
        if self.kept_in(transaction).is_some() {
            return Ok(KeptCopies::new());
        }
        let kept = match &mut self.kept {
            Some(kept) => kept,
            none => none.insert(Box::new(KeptValue::new()?)),
        };
        kept.prepare((&self.buffer, dtype, count), self.state.as_ref(), change)
    }

    /// The arrays of [`Self::keep`] are copied, or will be before they change; whether that is new.
    pub(crate) fn note_kept(&mut self, transaction: u64) -> bool {
        let numbers = (self.merges, self.weighed.as_deref().copied());
        let Some(kept) = self.kept.as_deref_mut().filter(|kept| !kept.is_of(transaction)) else {
            return false;
        };
        kept.note(transaction, self.state.as_ref(), numbers);
        true
    }

    /// Makes it what it was before a transaction, if a push has changed it.
    pub(super) fn put_back(&mut self, transaction: u64) {
        let Some(kept) = self.kept.as_deref_mut().filter(|kept| kept.is_of(transaction)) else {
            return;
        };
        let (merges, weighed) = kept.exchange(&mut self.buffer, &mut self.state);
        (self.merges, self.weighed) = (merges, weighed.map(Box::new));
    }
}
