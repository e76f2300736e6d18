//! Requests of a call to the machine, one for each key, before and after their values are made.

use super::inputs::OutgoingValue;
use crate::error::Result;
use crate::runtime::Bytes;
use kvstore_protocol::PullDependency;

/// Request for one key of a call.
pub(super) struct KeyRequest<V = OutgoingValue> {
    pub(super) key: u64,
    /// Part of the tree that a push is; 0 for none.
    pub(super) part: u64,
    /// Bits of what the round of a push is multiplied by; 0 if it is not.
    pub(super) scale: u64,
    pub(super) what: KeyOperation<V>,
}

impl KeyRequest {
    /// Bytes of the values that it sends.
    pub(super) fn bytes(&self) -> usize {
        match &self.what {
            KeyOperation::Push(value) | KeyOperation::PushPull(value) => value.bytes(),
            _ => 0,
        }
    }

    /// The request with the value that `value` makes of its draft.
    pub(super) fn make(
        self,
        mut value: impl FnMut(OutgoingValue) -> Result<Bytes>,
    ) -> Result<KeyRequest<Bytes>> {
        let Self { key, part, scale, what } = self;
        let what = match what {
            KeyOperation::Push(draft) => KeyOperation::Push(value(draft)?),
            KeyOperation::PushPull(draft) => KeyOperation::PushPull(value(draft)?),
            KeyOperation::Pull => KeyOperation::Pull,
            KeyOperation::Want(wanted, after) => KeyOperation::Want(wanted, after),
            KeyOperation::Restore(slices) => KeyOperation::Restore(slices),
        };
        Ok(KeyRequest { key, part, scale, what })
    }
}

/// Operation of a request.
pub(super) enum KeyOperation<V = OutgoingValue> {
    Push(V),
    PushPull(V),
    Pull,
    /// Queries of slices instead of a pull of the value.
    Want(Bytes, PullDependency),
    /// Slices of a checkpoint.
    Restore(Vec<Bytes>),
}
