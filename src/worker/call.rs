//! One call of a worker's program: what it has lent, and what has to come before it is complete.
#![allow(unsafe_code, reason = "values arrive in the memory that callers lend")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::rows::WantedRows;
use crate::error::{Error, Result};
use crate::local::merge::Team;
use crate::local::plan::{Plan, PlannedOut};
use crate::local::table::Slot;
use crate::runtime::{Blocks, Bytes, Landing, Loan};
use crate::spans::Carried;
use crate::sys::DefaultFloats;
use crate::sys::sync::{Condvar, Mutex};
use crate::tensor::Buffer;
use kvstore_protocol::{Ended, OpId};

pub(super) struct PendingCall {
    /// The ticket's number, of a call that has one.
    pub(super) ticket: Option<u64>,
    state: Mutex<CallProgress>,
    changed: Condvar,
    /// Operations that have not ended, values that are being copied, and one for the submission.
    remaining: AtomicUsize,
    parts: Vec<PendingKey>,
    /// Of the program's call, until this one ends.
    span: Mutex<Carried>,
}

/// What one key of a call has lent.
pub(super) struct PendingKey {
    pub(super) slot: Arc<Slot>,
    /// Of its only value, from when it is about to be sent.
    loan: OnceLock<Arc<Loan>>,
    target: PullTarget,
    /// Where its outs are in the plan.
    outs: Range<usize>,
}

/// Where the value of a key arrives.
pub(super) enum PullTarget {
    Nowhere,
    /// The only out, a plain array of the key's dtype.
    Out(*mut u8),
    /// From here it goes to the outs.
    Own(Buffer),
    /// Single rows of it.
    Rows(Box<WantedRows>),
    /// Something else than the value, slice by slice, each with the last round that is in it.
    Slices(Mutex<BTreeMap<u32, (u64, Bytes)>>),
}

// SAFETY: the memory behind the pointer is lent to the call, whatever its threads.
unsafe impl Send for PullTarget {}
// SAFETY: as above; slices of a value are written to places that do not overlap.
unsafe impl Sync for PullTarget {}

struct CallProgress {
    plan: Plan,
    operations: Vec<OpId>,
    /// The first failure in the order of the keys.
    failure: Option<(usize, Error)>,
    told: Vec<u8>,
    result: Option<Result<()>>,
}

impl PendingCall {
    pub(super) fn new(ticket: Option<u64>, plan: Plan, parts: Vec<PendingKey>) -> Arc<Self> {
        let state = CallProgress {
            plan,
            operations: Vec::new(),
            failure: None,
            told: Vec::new(),
            result: None,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let (remaining, span) = (AtomicUsize::new(1), Mutex::new(Carried::current()));
        Arc::new(Self { ticket, state, changed, remaining, parts, span })
    }

    pub(super) fn part(&self, index: usize) -> &PendingKey {
        &self.parts[index]
    }

    /// One more thing has to end.
    pub(super) fn expect(&self) {
        self.remaining.fetch_add(1, Ordering::SeqCst);
    }

    /// Something has ended; true when that was the last.
    pub(super) fn settle(&self) -> bool {
        self.remaining.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(super) fn add_operation(&self, operation: OpId) {
        self.expect();
        self.state.lock().operations.push(operation);
    }

    pub(super) fn operations(&self) -> Vec<OpId> {
        self.state.lock().operations.clone()
    }

    /// Tells whoever listens that one of its operations has ended.
    pub(super) fn ended(&self, ended: &Ended, ok: bool) {
        let span = self.span.lock().clone();
        span.ended(ended, ok, self.parts.len() == 1);
    }

    /// Its span, which nobody tells anything any more.
    pub(super) fn take_span(&self) -> Carried {
        std::mem::take(&mut *self.span.lock())
    }

    /// Notes a failure of one of the keys.
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
                // SAFETY: inside the out, which is lent and has the size of the slot's value; each
                // slice has a place of its own.
                unsafe { start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
        });
    }

    /// The place of a part of a value in the only out of its key. The call does not end before
    /// `settle` was called for it.
    pub(super) fn landing(
        self: &Arc<Self>,
        part: usize,
        at: u64,
        len: usize,
        settle: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Option<Landing> {
        let PendingKey { slot, target: PullTarget::Out(start), .. } = self.parts.get(part)? else {
            return None;
        };
        let at = usize::try_from(at).ok()?;
        at.checked_add(len).filter(|end| *end <= slot.bytes())?;
        self.expect();
        let call = Arc::clone(self);
        // SAFETY: inside the out, which is lent and has the size of the slot's value; each slice has
        // a place of its own. The loan does not end before the call.
        Some(unsafe { Landing::new(start.add(at), len, move || settle(&call)) })
    }

    /// Notes what the job has decided.
    pub(super) fn tell(&self, fields: Vec<u8>) {
        self.state.lock().told = fields;
    }

    /// What the job has decided.
    pub(super) fn told(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.lock().told)
    }

    /// What has come instead of the value of a key, with the rounds that it is of.
    pub(super) fn slices(&self, part: usize) -> BTreeMap<u32, (u64, Bytes)> {
        match self.parts.get(part).map(|part| &part.target) {
            Some(PullTarget::Slices(slices)) => std::mem::take(&mut *slices.lock()),
            _ => BTreeMap::new(),
        }
    }

    /// Ends the loans and hands the values out; gives the result.
    pub(super) fn complete(&self, team: Team, blocks: &Arc<Blocks>) -> Result<()> {
        let mut state = self.state.lock();
        let mut result = state.failure.take().map_or(Ok(()), |(_, error)| Err(error));
        for loan in self.parts.iter().filter_map(|part| part.loan.get()) {
            match &result {
                Ok(()) => loan.end(),
                // What is on its way still counts.
                Err(_) => {
                    if let Err(error) = loan.copy(blocks) {
                        result = Err(error);
                    }
                }
            }
        }
        if result.is_ok() {
            let _floats = DefaultFloats::enter();
            let outs = &state.plan.outs;
            result = self.parts.iter().try_for_each(|part| part.hand_out(team, outs));
        }
        state.plan.clear();
        result
    }

    /// Wakes whoever waits for the call.
    pub(super) fn finish(&self, result: Result<()>) {
        self.state.lock().result = Some(result);
        self.changed.notify_all();
    }

    /// Waits for the result, which the machine's own deadline brings; None if this moment comes first.
    pub(super) fn wait(&self, until: Option<Instant>) -> Option<Result<()>> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = state.result.take() {
                return Some(result);
            }
            match until {
                None => self.changed.wait(&mut state),
                Some(until) if self.changed.wait_until(&mut state, until) => {
                    return state.result.take();
                }
                Some(_) => {}
            }
        }
    }
}

/// Writes what a slice has of rows to its places.
fn fill_rows(wanted: &WantedRows, slice: u32, data: &Bytes) {
    data.read(|bytes| {
        let mut rest = bytes;
        for (at, len) in wanted.places(slice) {
            let Some((part, others)) = rest.split_at_checked(len) else { return };
            rest = others;
            // SAFETY: the places are inside of the memory that was taken for these rows, and each
            // slice has places of its own.
            unsafe { wanted.start().add(at).copy_from_nonoverlapping(part.as_ptr(), len) };
        }
    });
}

impl PendingKey {
    pub(super) fn new(slot: Arc<Slot>, target: PullTarget, outs: Range<usize>) -> Self {
        Self { slot, loan: OnceLock::new(), target, outs }
    }

    /// Its value is sent from where it is, until the call has ended.
    pub(super) fn lend(&self, loan: Arc<Loan>) {
        let _ = self.loan.set(loan);
    }

    fn hand_out(&self, team: Team, outs: &[PlannedOut]) -> Result<()> {
        match &self.target {
            PullTarget::Own(buffer) => {
                team.copy_out(&self.slot, buffer, &outs[self.outs.clone()], None).map(|_| ())
            }
            PullTarget::Rows(wanted) => wanted.hand_out(team, &outs[self.outs.clone()]),
            PullTarget::Out(_) | PullTarget::Nowhere | PullTarget::Slices(_) => Ok(()),
        }
    }
}
