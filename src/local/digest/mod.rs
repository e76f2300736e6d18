//! Digests of the keys of a local store.

use std::sync::Arc;

use super::Local;
use super::apply::CallLimits;
use super::checkpoint::check_byte_order;
use super::merger::Merger;
use super::table::{Slot, Value};
use crate::digest::{KeyDigest, RunDigest};
use crate::error::Result;
use crate::key::Key;
use crate::optim::Optimizer;
use crate::tensor::Buffer;

impl Local {
    /// Digests of keys, after the operations that this thread has started; each as it is between two pushes.
    pub(crate) fn digest(self: &Arc<Self>, keys: &[Key]) -> Result<Vec<KeyDigest>> {
        check_byte_order("digest")?;
        let scene = self.keys.scene("digest");
        let slot = |&key: &Key| self.keys.table.get(key).ok_or_else(|| scene.unknown(key));
        let slots = keys.iter().map(slot).collect::<Result<Vec<_>>>()?;
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        self.in_turn("digest", keys, &patience, || {
            slots.iter().map(|slot| self.digest_of(slot, limits)).collect()
        })
    }

    fn digest_of(&self, slot: &Slot, limits: CallLimits<'_>) -> Result<KeyDigest> {
        let merger = self.handling.read().merger.clone();
        let value = self.applier.lock_shared("digest", slot, limits)?;
        let copies = self.copies("digest", slot, &value, limits)?;
        let is_elsewhere = !copies.is_empty();
        let (stored, states) = match copies.split_first() {
            Some((stored, states)) => (stored, states),
            None => (&value.buffer, &[][..]),
        };
        let state = match &merger {
            Merger::Optimizer(optimizer) if is_elsewhere => {
                let is_kept = optimizer.kept(value.state.as_ref()).is_some();
                RunDigest::joined(states.iter().filter(|_| is_kept).map(digest_of_buffer))
            }
            merger => RunDigest::joined(state_runs(optimizer_of(merger), &value)),
        };
        let value_sum = RunDigest::of(&stored.bytes()[..slot.bytes()]).sum;
        Ok(KeyDigest { round: value.merges, value: value_sum, state: state.sum })
    }
}

fn digest_of_buffer(buffer: &Buffer) -> RunDigest {
    RunDigest::of(buffer.bytes())
}

/// The rule of a merger.
pub(crate) fn optimizer_of(merger: &Merger) -> Option<&Optimizer> {
    match merger {
        Merger::Optimizer(optimizer) => Some(optimizer),
        Merger::Assign | Merger::Updater(_) => None,
    }
}

/// Digests of the arrays of a key's state in host memory: the states of the rule, then the master. State of an
/// earlier rule counts as none.
pub(crate) fn state_runs<'a>(
    optimizer: Option<&Optimizer>,
    value: &'a Value,
) -> impl Iterator<Item = RunDigest> + use<'a> {
    let is_kept = optimizer.is_some_and(|it| it.kept(value.state.as_ref()).is_some());
    let state = value.state.as_ref().filter(|_| is_kept);
    state.into_iter().flat_map(|state| state.buffers()).map(digest_of_buffer)
}
