//! Memory of the calls of one thread, from one call to the next. Also called: object pool, free list.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::call::{PendingCall, PendingKey};
use super::group::WorkerGroup;
use super::inputs::SpareLoans;
use super::requests::KeyRequest;
use super::rows::RowMemory;
use crate::local::plan::Plan;
use crate::runtime::{BlockPool, Bytes, Loan};
use crate::sys::kept;
use crate::tensor::Lent;

/// Maximum number of calls that are kept: one, and some that a thread of the transport has not dropped yet.
const MOST_CALLS: usize = 4;
/// Maximum number of keys of a call whose memory is kept: that of a longer list is freed.
const MOST_KEYS: usize = 16_384;

#[derive(Default)]
pub(super) struct CallMemory {
    /// Calls that have ended.
    calls: Vec<Arc<PendingCall>>,
    /// Plans, and lists of parts, of former calls.
    plans: Vec<Plan>,
    lists: Vec<Vec<PendingKey>>,
    pub(super) values: Vec<Lent>,
    pub(super) parts: Vec<PendingKey>,
    pub(super) requests: VecDeque<KeyRequest>,
    /// Requests of one batch.
    pub(super) made: Vec<KeyRequest<Bytes>>,
    /// Loans of one batch.
    pub(super) lent: Vec<Arc<Loan>>,
    pub(super) loans: SpareLoans,
    pub(super) rows: RowMemory,
}

thread_local! {
    static MEMORY: Cell<Option<Box<CallMemory>>> = const { Cell::new(None) };
}

impl CallMemory {
    /// The memory of this thread.
    pub(super) fn take() -> Box<Self> {
        kept::take(&MEMORY)
    }

    /// Keeps the memory for the next call.
    pub(super) fn leave(mut self: Box<Self>) {
        self.requests.clear();
        self.made.clear();
        self.lent.clear();
        self.rows.shrink();
        if self.requests.capacity().max(self.parts.capacity()) <= MOST_KEYS {
            kept::keep(&MEMORY, self);
        }
    }

    /// An empty plan.
    pub(super) fn plan(&mut self, blocks: &BlockPool) -> Plan {
        self.take_apart(blocks);
        self.parts = self.lists.pop().unwrap_or_default();
        let mut plan = self.plans.pop().unwrap_or_default();
        plan.clear();
        plan.values = std::mem::take(&mut self.values);
        plan.values.clear();
        plan
    }

    /// A call in the memory of one that has ended, if there is one.
    pub(super) fn begin(
        &mut self,
        group: Option<Arc<WorkerGroup>>,
        ticket: Option<u64>,
        plan: Plan,
        parts: Vec<PendingKey>,
    ) -> Arc<PendingCall> {
        for at in 0..self.calls.len() {
            if let Some(call) = Arc::get_mut(&mut self.calls[at]) {
                call.again(group, ticket, plan, parts);
                return self.calls.swap_remove(at);
            }
        }
        PendingCall::new(group, ticket, plan, parts)
    }

    /// Keeps the memory of a call that has ended.
    pub(super) fn keep(&mut self, call: Arc<PendingCall>, blocks: &BlockPool) {
        if self.calls.len() < MOST_CALLS {
            self.calls.push(call);
            self.take_apart(blocks);
        }
    }

    /// Takes the lists of calls that have no other owner any more.
    fn take_apart(&mut self, blocks: &BlockPool) {
        for call in self.calls.iter_mut().filter_map(Arc::get_mut) {
            let (plan, mut parts) = call.take_apart();
            if parts.capacity() == 0 {
                continue;
            }
            self.loans.keep(call.take_loans(), MOST_KEYS);
            let rows = parts.iter_mut().filter_map(PendingKey::take_rows);
            rows.for_each(|rows| self.rows.keep(rows, blocks));
            parts.clear();
            self.plans.push(plan);
            self.lists.push(parts);
        }
        self.plans.truncate(MOST_CALLS);
        self.lists.truncate(MOST_CALLS);
    }
}
