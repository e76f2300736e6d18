//! What one server lets a worker send.

use foldhash::HashMap;

use super::operation::OpId;

/// A push of one slice: key, generation, round, slice.
pub(super) type PushName = (u64, u32, u64, u32);

/// Credit for what may be held out of turn at a server, and the pushes that wait without it.
#[derive(Debug)]
pub(super) struct Flow {
    free: u64,
    offered: HashMap<PushName, OpId>,
}

impl Flow {
    pub(super) fn new(credit: u64) -> Self {
        Self { free: credit, offered: HashMap::default() }
    }

    /// Takes credit for this many bytes, if there is enough.
    pub(super) fn pay(&mut self, bytes: u64) -> bool {
        match self.free.checked_sub(bytes) {
            Some(rest) => {
                self.free = rest;
                true
            }
            None => false,
        }
    }

    pub(super) fn refund(&mut self, bytes: u64, most: u64) {
        self.free = self.free.saturating_add(bytes).min(most);
    }

    pub(super) fn offer(&mut self, push: PushName, op: OpId) {
        self.offered.insert(push, op);
    }

    pub(super) fn granted(&mut self, push: PushName) -> Option<OpId> {
        self.offered.remove(&push)
    }

    pub(super) fn forget(&mut self) {
        self.offered.clear();
    }

    /// An operation sends no more.
    pub(super) fn forget_operation(&mut self, op: OpId) {
        self.offered.retain(|_, other| *other != op);
    }
}
