//! Faults (also: protocol violations): messages that no correct server sends are dropped, each with a reason.
//! Late answers, those about an earlier generation of a key, and those to ended calls are no faults.

use super::{Worker, WorkerKey};
use crate::job::Data;
use crate::message::{Awaited, Header};
use crate::peers::DropReason;

impl<D: Data> Worker<D> {
    pub(super) fn fault(&mut self, why: DropReason) {
        self.faults.push(why);
    }

    /// Whether a message answers a request that was never made.
    pub(super) fn is_unasked(&self, head: &Header) -> bool {
        head.request >= self.next_op
    }

    /// Records the members that an operation waits for.
    pub(super) fn note_awaited(&mut self, head: &Header, fields: &[u8]) {
        let Some(awaited) = Awaited::decode(fields) else {
            return self.fault(DropReason::Unreadable);
        };
        if let Some(op) = self.ops.get_mut(head.request) {
            op.awaited = Some(awaited.peers);
        }
    }

    /// Checks a value that no operation takes: a value of another key, or of a slice outside of the key, is a
    /// fault, not late.
    pub(super) fn check_late(&mut self, head: &Header, len: u64) {
        let Some(op) = self.ops.get(head.request) else { return };
        let key = self.keys.get(&head.key);
        let slices = key.and_then(WorkerKey::slices).unwrap_or_default();
        let is_inside = slices.is_empty() || slices.contains(&head.slice);
        let expected = key.map_or(0, |key| key.range(head.slice).1);
        let waits = op.unanswered.contains(head.slice) && op.wants_whole_value();
        if op.key != head.key || !is_inside || (waits && len != expected) {
            self.fault(DropReason::Misfit);
        }
    }
}
