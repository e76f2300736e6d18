//! Pending call of a worker's program (also called: future, request state): the memory that it has lent, and
//! the events that complete it.
#![allow(unsafe_code, reason = "values arrive in the memory that callers lend")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Drain;

use super::group::WorkerGroup;
use super::outcome::{CallOutcome, end_loans};
use super::rows::WantedRows;
use crate::error::{Error, Result};
use crate::local::Local;
use crate::local::merge::Team;
use crate::local::plan::Plan;
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes, Loan};
use crate::spans::Carried;
use crate::sys::DefaultFloats;
use crate::sys::sync::Mutex;
use crate::tensor::Buffer;
use crate::trace::Tracer;
use crate::transport::{POLLED, ReceiveGate, ReceiveTarget, Receiver};
use kvstore_protocol::{Ended, OpId};

/// Maximum number of keys of a call whose caller polls.
const POLLED_KEYS: usize = 64;

pub(super) struct PendingCall {
    /// Number of the ticket, for a call that has one.
    pub(super) ticket: Option<u64>,
    /// The group of a call of a group's store.
    group: Option<Arc<WorkerGroup>>,
    state: Mutex<CallProgress>,
    outcome: CallOutcome,
    /// Outstanding events: unfinished operations, values being copied by actions, and one for the submission.
    remaining: AtomicUsize,
    parts: Vec<PendingKey>,
    /// Open while values may be received to outs.
    gate: ReceiveGate,
    /// Span of the program's call, until the call ends, and whether there is one.
    span: Mutex<Carried>,
    has_span: bool,
}

/// One key of a call, and the memory lent for it.
pub(super) struct PendingKey {
    pub(super) slot: Arc<Slot>,
    target: PullTarget,
    /// Range of its outs in the plan.
    outs: Range<usize>,
}

/// Destination of a pulled value.
pub(super) enum PullTarget {
    Nowhere,
    /// The only out, a plain array of the key's dtype.
    Out(*mut u8),
    /// A buffer, from which the value is copied to the outs.
    Own(Buffer),
    /// Single rows of the value.
    Rows(Box<WantedRows>),
    /// Answers to queries instead of the value, by slice, each with the last round in it.
    Slices(Mutex<BTreeMap<u32, (u64, Bytes)>>),
}

// SAFETY: the memory behind the pointer is lent to the call, whatever its threads.
unsafe impl Send for PullTarget {}
// SAFETY: the memory behind the pointer is lent to the call; slices are written to disjoint ranges.
unsafe impl Sync for PullTarget {}

#[derive(Default)]
struct CallProgress {
    plan: Plan,
    operations: Vec<OpId>,
    /// Loans of values that are sent from the caller's memory.
    loans: Vec<Arc<Loan>>,
    /// First failure in the order of the keys.
    failure: Option<(usize, Error)>,
    told: Vec<u8>,
}

impl PendingCall {
    pub(super) fn new(
        group: Option<Arc<WorkerGroup>>,
        ticket: Option<u64>,
        plan: Plan,
        parts: Vec<PendingKey>,
    ) -> Arc<Self> {
        let (state, outcome) = (Mutex::default(), CallOutcome::new());
        let (remaining, span) = (AtomicUsize::new(1), Mutex::default());
        let gate = ReceiveGate::default();
        let (none, has_span) = (Vec::new(), false);
        let mut call =
            Self { ticket, group, state, outcome, remaining, parts: none, gate, span, has_span };
        call.begin(ticket, plan, parts);
        Arc::new(call)
    }

    /// Begins the next call in the memory of one that has ended.
    pub(super) fn again(
        &mut self,
        group: Option<Arc<WorkerGroup>>,
        ticket: Option<u64>,
        plan: Plan,
        parts: Vec<PendingKey>,
    ) {
        self.group = group;
        self.gate.open();
        self.begin(ticket, plan, parts);
    }

    fn begin(&mut self, ticket: Option<u64>, plan: Plan, parts: Vec<PendingKey>) {
        let state = self.state.get_mut();
        let CallProgress { mut operations, mut loans, .. } = std::mem::take(state);
        operations.clear();
        loans.clear();
        *state = CallProgress { plan, operations, loans, ..CallProgress::default() };
        self.outcome.clear();
        (self.ticket, self.parts) = (ticket, parts);
        *self.remaining.get_mut() = 1;
        let span = Carried::current();
        self.has_span = span.is_some();
        *self.span.get_mut() = span;
    }

    /// Takes the plan and the parts of a call that has ended, for their memory.
    pub(super) fn take_apart(&mut self) -> (Plan, Vec<PendingKey>) {
        self.group = None;
        (std::mem::take(&mut self.state.get_mut().plan), std::mem::take(&mut self.parts))
    }

    /// The loans of a call that has ended, for their memory.
    pub(super) fn take_loans(&mut self) -> Drain<'_, Arc<Loan>> {
        self.state.get_mut().loans.drain(..)
    }

    /// Whether the caller polls for the result: what it waits for is small.
    pub(super) fn is_small(&self) -> bool {
        let bytes = |part: &PendingKey| match part.target {
            PullTarget::Rows(_) => 0,
            _ => part.slot.bytes(),
        };
        self.parts.len() <= POLLED_KEYS && self.parts.iter().map(bytes).sum::<usize>() <= POLLED
    }

    /// Calls `work` with the store of the call; not if it is gone.
    pub(super) fn with_local<T>(
        &self,
        of_job: &Arc<Local>,
        work: impl FnOnce(&Arc<Local>) -> T,
    ) -> Option<T> {
        WorkerGroup::with_local(self.group.as_ref(), of_job, work)
    }

    pub(super) fn part(&self, index: usize) -> &PendingKey {
        &self.parts[index]
    }

    /// Adds an outstanding event.
    pub(super) fn expect(&self) {
        self.remaining.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes some outstanding events; true if they are the last.
    pub(super) fn settle(&self, events: usize) -> bool {
        self.remaining.fetch_sub(events, Ordering::SeqCst) == events
    }

    /// Adds operations, each of which is an outstanding event.
    pub(super) fn add_operations(&self, operations: &[(OpId, usize)]) {
        self.remaining.fetch_add(operations.len(), Ordering::SeqCst);
        let added = operations.iter().map(|(operation, _)| *operation);
        self.state.lock().operations.extend(added);
    }

    /// Adds loans: frames refer to the caller's memory until the call has ended.
    pub(super) fn lend(&self, loans: &mut Vec<Arc<Loan>>) {
        if !loans.is_empty() {
            self.state.lock().loans.append(loans);
        }
    }

    pub(super) fn operations(&self) -> Vec<OpId> {
        self.state.lock().operations.clone()
    }

    /// Reports the end of an operation.
    pub(super) fn ended(&self, ended: &Ended, ok: bool, tracer: &Tracer) {
        let span = if self.has_span { self.span.lock().clone() } else { Carried::default() };
        tracer.ended(&span, ended, ok, self.parts.len() == 1);
    }

    /// Takes its span: the call reports no further event.
    pub(super) fn take_span(&self) -> Carried {
        std::mem::take(&mut *self.span.lock())
    }

    /// Records the failure of a key.
    pub(super) fn fail(&self, part: usize, error: Error) {
        let mut state = self.state.lock();
        if state.failure.as_ref().is_none_or(|(first, _)| part < *first) {
            state.failure = Some((part, error));
        }
    }

    /// Writes a slice of a value to its place.
    pub(super) fn fill(&self, part: usize, (slice, round): (u32, u64), at: u64, data: Bytes) {
        let Some(PendingKey { slot, target, .. }) = self.parts.get(part) else { return };
        let start = match target {
            PullTarget::Nowhere => return,
            PullTarget::Out(start) => *start,
            PullTarget::Own(buffer) => buffer.as_ptr(),
            PullTarget::Rows(wanted) => return fill_rows(wanted, slice, &data),
            PullTarget::Slices(slices) => {
                slices.lock().insert(slice, (round, data));
                return;
            }
        };
        let Ok(at) = usize::try_from(at) else { return };
        data.read(|bytes| {
            if at.checked_add(bytes.len()).is_some_and(|end| end <= slot.bytes()) {
                // SAFETY: inside the out, which is lent and has the size of the slot's value; slices are
                // disjoint.
                unsafe { start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
        });
    }

    /// Destination of a part of a value in the only out of its key (also called: scatter), until the call ends.
    pub(super) fn landing(
        self: &Arc<Self>,
        part: usize,
        at: u64,
        len: usize,
    ) -> Option<ReceiveTarget> {
        let PendingKey { slot, target: PullTarget::Out(start), .. } = self.parts.get(part)? else {
            return None;
        };
        let at = usize::try_from(at).ok()?;
        at.checked_add(len).filter(|end| *end <= slot.bytes())?;
        let call = Arc::clone(self) as Arc<dyn Receiver>;
        // SAFETY: inside the out, which is lent and has the size of the slot's value; slices are disjoint.
        // The call closes the gate before the loan ends.
        Some(unsafe { ReceiveTarget::new(start.add(at), len, call) })
    }

    /// Records the decision of the job.
    pub(super) fn tell(&self, fields: Vec<u8>) {
        self.state.lock().told = fields;
    }

    /// Decision of the job.
    pub(super) fn told(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.lock().told)
    }

    /// Answers to the queries for a key, by slice, each with its round.
    pub(super) fn slices(&self, part: usize) -> BTreeMap<u32, (u64, Bytes)> {
        match self.parts.get(part).map(|part| &part.target) {
            Some(PullTarget::Slices(slices)) => std::mem::take(&mut *slices.lock()),
            _ => BTreeMap::new(),
        }
    }

    /// Ends the loans and copies values to the outs; gives the result.
    pub(super) fn complete(&self, team: Team, blocks: &Arc<BlockPool>) -> Result<()> {
        self.gate.close();
        let mut state = self.state.lock();
        let failure = state.failure.take().map_or(Ok(()), |(_, error)| Err(error));
        let mut result = end_loans(&state.loans, failure, blocks);
        if result.is_ok() {
            let _floats = DefaultFloats::enter();
            let plan = &state.plan;
            result = self.parts.iter().try_for_each(|part| part.hand_out(team, plan));
        }
        state.plan.clear();
        result
    }

    pub(super) fn outcome(&self) -> &CallOutcome {
        &self.outcome
    }
}

impl Receiver for PendingCall {
    fn gate(&self) -> &ReceiveGate {
        &self.gate
    }
}

/// Writes rows of a slice to their place.
fn fill_rows(wanted: &WantedRows, slice: u32, data: &Bytes) {
    data.read(|bytes| {
        let place = wanted.place(slice);
        let Some(rows) = bytes.get(..place.len()) else { return };
        // SAFETY: the place is inside of the memory allocated for these rows; slices are disjoint.
        unsafe {
            wanted.start().add(place.start).copy_from_nonoverlapping(rows.as_ptr(), rows.len());
        }
    });
}

impl PendingKey {
    pub(super) fn new(slot: Arc<Slot>, target: PullTarget, outs: Range<usize>) -> Self {
        Self { slot, target, outs }
    }

    /// The rows of a call that has ended, for their memory.
    pub(super) fn take_rows(&mut self) -> Option<Box<WantedRows>> {
        match std::mem::replace(&mut self.target, PullTarget::Nowhere) {
            PullTarget::Rows(wanted) => Some(wanted),
            _ => None,
        }
    }

    fn hand_out(&self, team: Team, plan: &Plan) -> Result<()> {
        let outs = self.outs.clone();
        match &self.target {
            PullTarget::Own(buffer) => {
                team.copy_out(&self.slot, buffer, &plan.outs[outs], None).map(|_| ())
            }
            PullTarget::Rows(wanted) => wanted.hand_out(team, plan, outs),
            PullTarget::Out(_) | PullTarget::Nowhere | PullTarget::Slices(_) => Ok(()),
        }
    }
}
