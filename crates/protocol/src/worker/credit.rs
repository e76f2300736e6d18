//! Credit of a worker at each server (also: flow control).

use foldhash::HashMap;

use super::operation::OpId;

/// Name of a push of one slice: key, generation, round, slice.
pub(super) type SlicePush = (u64, u32, u64, u32);

/// Credit for pushes that a server may hold out of turn, and the offered pushes that wait without it.
#[derive(Debug)]
pub(super) struct FlowControl {
    free: u64,
    /// The whole credit.
    most: u64,
    offered: HashMap<SlicePush, OpId>,
}

impl FlowControl {
    pub(super) fn new(credit: u64) -> Self {
        Self { free: credit, most: credit, offered: HashMap::default() }
    }

    /// Spends credit of this many bytes, if there is enough.
    pub(super) fn pay(&mut self, bytes: u64) -> bool {
        match self.free.checked_sub(bytes) {
            Some(rest) => {
                self.free = rest;
                true
            }
            None => false,
        }
    }

    /// Takes credit back from the server; false if it is more than was spent.
    pub(super) fn refund(&mut self, bytes: u64) -> bool {
        let is_spent = bytes <= self.most - self.free;
        self.free += if is_spent { bytes } else { 0 };
        debug_assert!(self.free <= self.most, "no credit is made");
        is_spent
    }

    pub(super) fn offer(&mut self, push: SlicePush, op: OpId) {
        self.offered.insert(push, op);
    }

    pub(super) fn granted(&mut self, push: SlicePush) -> Option<OpId> {
        self.offered.remove(&push)
    }

    pub(super) fn forget(&mut self) {
        self.offered.clear();
    }

    /// Drops the offers of an operation.
    pub(super) fn forget_operation(&mut self, op: OpId) {
        self.offered.retain(|_, other| *other != op);
    }
}
