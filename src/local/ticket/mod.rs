//! The unfinished operations of a store: their order per key, their results, and their waiters.
//! Also called: futures, completion handles, a dependency engine.
//!
//! Each key has a queue of the operations that use it. An operation that is the first in the queues
//! of all its keys is ready; ready operations run by priority, then by age. A call without a ticket
//! behind pending operations takes its turn in this order, on its own thread. An operation that is
//! withdrawn before it begins (cancelled, or timed out) leaves all queues at once.
//!
//! Nothing here knows what an operation does: the model checker runs this file with toy work.

use std::cmp::Reverse;

mod calls;
mod done;
mod listeners;
pub(crate) mod outcome;
pub(crate) mod state;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

use smallvec::SmallVec;

pub(crate) use calls::DoneCallback;
use state::{OperationPhase, TicketState};

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::sys::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// Bits of a ticket that number the operation; those above name the store.
const SEQUENCE_BITS: u32 = 48;

pub(crate) type KeyNamer = Box<dyn Fn(u64) -> String + Send + Sync>;

/// The operation's properties that the queues need.
pub(crate) trait TicketWork {
    /// Calls `visit` with each of its keys.
    fn keys(&self, visit: &mut dyn FnMut(u64));
    /// Its name, for the texts of errors.
    fn label(&self) -> OperationLabel;
}

/// An operation in a few words: `push of key 7 and 3 more`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationLabel {
    pub(crate) call: &'static str,
    pub(crate) first_key: u64,
    pub(crate) keys: usize,
}

pub(crate) struct Tickets<W> {
    /// Number of the store, in all its tickets.
    store: u16,
    /// A key as error texts show it.
    key_name: KeyNamer,
    state: Mutex<TicketState<W>>,
    changed: Condvar,
    /// Operations that have not finished; calls without a ticket look here first.
    pending: AtomicUsize,
}

/// An operation to run now.
pub(crate) struct ReadyOperation<W> {
    pub(crate) sequence: u64,
    pub(crate) work: W,
    /// Set when the operation is to stop early.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// The right of a call without a ticket to touch its keys; return it with [`Tickets::leave`].
pub(crate) struct Turn(Option<u64>);

/// A call without a ticket that has not had its turn, and is out of the queues.
pub(crate) struct NoTurn {
    pub(crate) error: Error,
    /// How many operations are ready: some may have waited for this call.
    pub(crate) ready: usize,
}

impl<W: TicketWork> Tickets<W> {
    /// For the store with this number in its tickets, and this serial number.
    pub(crate) fn new(store: u16, serial: u64, key_name: KeyNamer) -> Self {
        let (state, changed) = (Mutex::new(TicketState::new(store, serial)), Condvar::new());
        Self { store, key_name, state, changed, pending: AtomicUsize::new(0) }
    }

    /// Queues an operation; gives its ticket and whether something became ready.
    pub(crate) fn submit(&self, priority: i32, work: W) -> Result<(u64, bool)> {
        let mut state = self.state.lock();
        state.refuse_if_over()?;
        let label = work.label();
        let mut keys = SmallVec::<[u64; 2]>::new();
        work.keys(&mut |key| keys.push(key));
        let (sequence, ready) = state.enter(label, &keys, priority, OperationPhase::Queued(work));
        if ready {
            state.ready.push((priority, Reverse(sequence)));
        }
        self.publish(&state);
        Ok((state.ticket(sequence), ready))
    }

    /// Registers an operation that is at work elsewhere; gives its ticket, and its number for
    /// [`Tickets::finish`].
    pub(crate) fn begin(&self, label: OperationLabel) -> Result<(u64, u64)> {
        let mut state = self.state.lock();
        state.refuse_if_over()?;
        let (sequence, _) = state.enter(label, &[], 0, OperationPhase::Running);
        state.running += 1;
        self.publish(&state);
        Ok((state.ticket(sequence), sequence))
    }

    /// Takes back an operation that did not begin, and whose ticket was never returned to a caller.
    #[cfg(feature = "dist")]
    pub(crate) fn retract(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.running -= 1;
        state.release(sequence);
        self.publish(&state);
        self.changed.notify_all();
    }

    /// The number of an operation of this store.
    #[cfg(feature = "dist")]
    pub(crate) fn number(ticket: u64) -> u64 {
        ticket & ((1 << SEQUENCE_BITS) - 1)
    }

    /// The turn of a call without a ticket, if no operation is pending.
    pub(crate) fn turn_at_once(&self) -> Option<Turn> {
        (self.pending.load(Ordering::SeqCst) == 0).then_some(Turn(None))
    }

    /// Waits for the turn of a call without a ticket on its keys.
    ///
    /// A thread sees its own operations: those it queued before are in `pending` when it looks.
    pub(crate) fn enter(
        &self,
        label: OperationLabel,
        keys: impl Fn(&mut dyn FnMut(u64)),
        deadline: Deadline,
    ) -> std::result::Result<Turn, NoTurn> {
        if let Some(turn) = self.turn_at_once() {
            return Ok(turn);
        }
        let mut state = self.state.lock();
        state.refuse_if_over().map_err(|error| NoTurn { error, ready: 0 })?;
        let mut mine = SmallVec::<[u64; 2]>::new();
        let mut conflict = false;
        keys(&mut |key| {
            mine.push(key);
            conflict |= state.tails.contains_key(&key);
        });
        if !conflict {
            return Ok(Turn(None));
        }
        let (sequence, mut ready) = state.enter(label, &mine, 0, OperationPhase::Turn);
        self.publish(&state);
        while !ready {
            let late = self.pause(&mut state, deadline);
            let over = state.over.clone();
            ready = state.pending[&sequence].blockers == 0;
            let error = match over {
                Some(over) if !ready => over,
                None if late && !ready => {
                    let before = self.predecessor(&state, sequence);
                    let call = label.call;
                    fail!(Timeout, "{call}: nothing has been applied; still waiting for {before}")
                }
                _ => continue,
            };
            let ready = self.give_up(&mut state, sequence);
            return Err(NoTurn { error, ready });
        }
        Ok(Turn(Some(sequence)))
    }

    /// Ends a turn; returns how many operations are ready.
    #[allow(clippy::needless_pass_by_value, reason = "a turn ends once")]
    pub(crate) fn leave(&self, turn: Turn) -> usize {
        let Some(sequence) = turn.0 else { return 0 };
        let mut state = self.state.lock();
        state.release(sequence);
        self.publish(&state);
        self.changed.notify_all();
        state.ready.len()
    }

    /// Takes the most urgent operation that is ready, unless `limit` are running already.
    pub(crate) fn take(&self, limit: usize) -> Option<ReadyOperation<W>> {
        let mut state = self.state.lock();
        if state.running >= limit {
            return None;
        }
        while let Some((_, Reverse(sequence))) = state.ready.pop() {
            // A withdrawn operation is no longer there.
            let Some(entry) = state.pending.get_mut(&sequence) else {
                continue;
            };
            if let OperationPhase::Queued(work) =
                std::mem::replace(&mut entry.phase, OperationPhase::Running)
            {
                let cancel = Arc::clone(&entry.cancel);
                state.running += 1;
                return Some(ReadyOperation { sequence, work, cancel });
            }
        }
        None
    }

    /// Records the result of a job; gives how many operations are ready.
    pub(crate) fn finish(&self, sequence: u64, result: Result<()>) -> usize {
        let mut state = self.state.lock();
        state.running -= 1;
        self.end(&mut state, sequence, result)
    }

    /// Hands a running operation over to devices: those behind it on its keys may run, and come behind
    /// it there. It ends by [`Tickets::finish_there`]. Gives how many operations are ready.
    #[cfg(feature = "cuda")]
    pub(crate) fn hand_over(&self, sequence: u64) -> usize {
        let mut state = self.state.lock();
        state.running -= 1;
        state.handed_over += 1;
        state.leave_queues(sequence);
        self.changed.notify_all();
        state.ready.len()
    }

    /// As [`Tickets::finish`], of an operation that has been handed over.
    #[cfg(feature = "cuda")]
    pub(crate) fn finish_there(&self, sequence: u64, result: Result<()>) -> usize {
        let mut state = self.state.lock();
        state.handed_over -= 1;
        self.end(&mut state, sequence, result)
    }

    /// Ends an operation with its result.
    fn end(&self, state: &mut TicketState<W>, sequence: u64, result: Result<()>) -> usize {
        if let Err(error) = result {
            match &state.over {
                _ if error.kind() != ErrorKind::Cancelled => state.outcomes.fail(sequence, error),
                // The end of the store stopped it.
                Some(over) => {
                    let over = over.clone();
                    state.outcomes.fail(sequence, over);
                }
                None => state.outcomes.cancel(sequence, error),
            }
        }
        state.release(sequence);
        self.publish(state);
        self.changed.notify_all();
        state.ready.len()
    }

    /// Whether an operation of this store has not ended.
    pub(crate) fn is_pending(&self, ticket: u64) -> bool {
        self.sequence_of(ticket).is_ok_and(|sequence| self.state.lock().is_pending(sequence))
    }

    /// Waits for the result of one operation.
    pub(crate) fn wait(&self, ticket: u64, deadline: Deadline) -> Result<()> {
        let sequence = self.sequence_of(ticket)?;
        let mut state = self.state.lock();
        state.refuse_if_unknown(sequence)?;
        while state.is_pending(sequence) {
            if self.pause(&mut state, deadline) && state.is_pending(sequence) {
                let what = self.describe(&state, sequence);
                return Err(fail!(Timeout, "wait: {what} is not done yet; it goes on"));
            }
        }
        state.outcomes.result(sequence)
    }

    /// Waits for all operations with a ticket that are pending now; returns the first failure that
    /// was not yet reported.
    pub(crate) fn wait_all(&self, deadline: Deadline) -> Result<()> {
        let mut state = self.state.lock();
        let end = state.next;
        self.drain(&mut state, end, deadline, "wait_all")?;
        state.outcomes.untold(end)
    }

    /// Waits for everything, callbacks included, then accepts no more; returns the first unreported
    /// failure.
    pub(crate) fn close(&self, deadline: Deadline, why: Error) -> Result<()> {
        let mut state = self.state.lock();
        self.drain(&mut state, u64::MAX, deadline, "close")?;
        // Callbacks may have queued operations when they have returned.
        while !state.listeners.calls.is_idle() {
            self.wait_calls(&mut state, deadline)?;
            self.drain(&mut state, u64::MAX, deadline, "close")?;
        }
        state.over.get_or_insert(why);
        state.outcomes.untold(u64::MAX)
    }

    /// Ends the loan of one operation; gives how many others are ready.
    pub(crate) fn cancel(&self, ticket: u64, deadline: Deadline) -> Result<usize> {
        let sequence = self.sequence_of(ticket)?;
        let mut state = self.state.lock();
        state.refuse_if_unknown(sequence)?;
        let withdrawn = state.withdraw(sequence, |label| {
            let what = self.name(label);
            fail!(Cancelled, "{what} was cancelled before it began; nothing has changed")
        });
        if withdrawn.is_some() {
            self.publish(&state);
            self.changed.notify_all();
        }
        while state.is_pending(sequence) {
            if self.pause(&mut state, deadline) && state.is_pending(sequence) {
                let what = self.describe(&state, sequence);
                return Err(fail!(
                    Timeout,
                    "cancel: {what} is still at work; its buffers stay lent"
                ));
            }
        }
        let ready = state.ready.len();
        drop(state);
        // Outside the lock: it may run the user's drop function.
        drop(withdrawn);
        Ok(ready)
    }

    /// Fails all operations that have not begun, asks running ones to stop, and accepts no more.
    pub(crate) fn abort(&self, why: &Error) {
        let mut state = self.state.lock();
        state.over.get_or_insert_with(|| why.clone());
        let mut sequences: Vec<u64> = state.pending.keys().copied().collect();
        sequences.sort_unstable();
        let mut dropped = Vec::new();
        for sequence in sequences {
            let Some(entry) = state.pending.get_mut(&sequence) else {
                continue;
            };
            entry.cancel.store(true, Ordering::SeqCst);
            if let OperationPhase::Queued(_) = entry.phase {
                state.outcomes.fail(sequence, why.clone());
                dropped.push(state.release(sequence));
            }
        }
        self.publish(&state);
        self.changed.notify_all();
        drop(state);
        drop(dropped);
    }

    /// Waits until no operation is at work, here or on a device; false if the deadline passed first.
    pub(crate) fn wait_idle(&self, deadline: Deadline) -> bool {
        let mut state = self.state.lock();
        while state.is_busy() {
            if self.pause(&mut state, deadline) && state.is_busy() {
                return false;
            }
        }
        true
    }

    /// Operations not finished, and failures that were not yet reported.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.pending.len(), state.outcomes.count_untold())
    }

    fn sequence_of(&self, ticket: u64) -> Result<u64> {
        if ticket >> SEQUENCE_BITS == u64::from(self.store) {
            return Ok(ticket & ((1 << SEQUENCE_BITS) - 1));
        }
        Err(fail!(Ticket, "ticket {ticket:#x} was not issued by this store"))
    }

    fn drain<'a>(
        &'a self,
        state: &mut MutexGuard<'a, TicketState<W>>,
        end: u64,
        deadline: Deadline,
        call: &str,
    ) -> Result<()> {
        while let Some(first) = state.first_pending(end) {
            if self.pause(state, deadline) && state.is_pending(first) {
                let what = self.describe(state, first);
                return Err(fail!(Timeout, "{call}: {what} is not done yet; it goes on"));
            }
        }
        Ok(())
    }

    /// Waits for a change; true if the deadline has passed, or this thread was interrupted.
    fn pause<'a>(&'a self, state: &mut MutexGuard<'a, TicketState<W>>, deadline: Deadline) -> bool {
        self.changed.pause(&self.state, state, deadline)
    }

    /// Leaves the queues without a turn; returns how many operations are ready.
    fn give_up(&self, state: &mut TicketState<W>, sequence: u64) -> usize {
        state.release(sequence);
        self.publish(state);
        self.changed.notify_all();
        state.ready.len()
    }

    fn describe(&self, state: &TicketState<W>, sequence: u64) -> String {
        let Some(entry) = state.pending.get(&sequence) else {
            return "the operation".into();
        };
        let progress = match entry.phase {
            _ if entry.blockers > 0 => "waiting for operations before it on its keys",
            OperationPhase::Running | OperationPhase::Turn => "at work",
            OperationPhase::Queued(_) => "queued",
        };
        format!("{} ({progress})", self.name(entry.label))
    }

    fn name(&self, OperationLabel { call, first_key, keys }: OperationLabel) -> String {
        let key = (self.key_name)(first_key);
        let more = if keys > 1 { format!(" and {} more", keys - 1) } else { String::new() };
        format!("{call} of {key}{more}")
    }

    fn predecessor(&self, state: &TicketState<W>, sequence: u64) -> String {
        let before = state.before(sequence);
        before.map_or_else(|| "its turn".into(), |before| self.describe(state, before))
    }

    fn publish(&self, state: &TicketState<W>) {
        self.pending.store(state.pending.len(), Ordering::SeqCst);
    }
}
