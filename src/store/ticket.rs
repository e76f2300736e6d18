//! The operations of a store that have not finished: their order per key, their results, and who
//! waits for them.
//!
//! An operation comes after the last one before it on each of its keys. One whose predecessors have
//! finished is ready; ready operations run by priority, then by age. A call without a ticket that
//! meets pending operations takes its turn in the same order, on its own thread.
//!
//! Nothing here knows what an operation does: the model checker runs this file with toy work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use smallvec::SmallVec;

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// How many failures are kept for those who ask late.
const KEPT_FAILURES: usize = 1024;

/// Bits of a ticket that number the operation; those above name the store.
const SEQUENCE_BITS: u32 = 48;

pub(crate) type KeyName = Box<dyn Fn(u64) -> String + Send + Sync>;

/// What an operation must tell about itself.
pub(crate) trait Work {
    /// Calls `visit` with each of its keys.
    fn keys(&self, visit: &mut dyn FnMut(u64));
    /// What it is, for the texts of errors.
    fn label(&self) -> Label;
}

/// An operation in a few words: `push of key 7 and 3 more`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    pub(crate) call: &'static str,
    pub(crate) first_key: u64,
    pub(crate) keys: usize,
}

pub(crate) struct Tickets<W> {
    store: u16,
    /// A key as people know it, for the texts of errors.
    key_name: KeyName,
    state: Mutex<State<W>>,
    changed: Condvar,
    /// Operations that have not finished; calls without a ticket look here first.
    pending: AtomicUsize,
}

struct State<W> {
    next: u64,
    pending: HashMap<u64, Entry<W>>,
    /// The last pending operation of each key.
    tails: HashMap<u64, u64>,
    ready: BinaryHeap<(i32, Reverse<u64>)>,
    running: usize,
    failures: VecDeque<Failure>,
    /// No failure up to this number is known any more.
    forgotten: u64,
    /// Why no operation is taken any more.
    over: Option<Error>,
}

struct Entry<W> {
    label: Label,
    keys: SmallVec<[u64; 2]>,
    /// Operations that must finish before.
    blockers: usize,
    /// Operations that wait for this one.
    heirs: SmallVec<[u64; 2]>,
    priority: i32,
    cancel: Arc<AtomicBool>,
    phase: Phase<W>,
}

enum Phase<W> {
    /// Has a ticket; runs on the pool when its predecessors have finished.
    Queued(W),
    /// Has a ticket; at work.
    Running,
    /// A call without a ticket, on its caller's thread.
    Turn,
    /// Cancelled before it began. Keeps its place until its predecessors have finished, so that
    /// those after it do not overtake them.
    Withdrawn,
}

struct Failure {
    sequence: u64,
    error: Error,
    told: bool,
}

/// An operation to run now.
pub(crate) struct Job<W> {
    pub(crate) sequence: u64,
    pub(crate) work: W,
    /// Set when somebody wants it to stop early.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// The right of a call without a ticket to touch its keys; give it back with [`Tickets::leave`].
pub(crate) struct Turn(Option<u64>);

impl<W: Work> Tickets<W> {
    pub(crate) fn new(store: u16, key_name: KeyName) -> Self {
        let state = State {
            next: 1,
            pending: HashMap::new(),
            tails: HashMap::new(),
            ready: BinaryHeap::new(),
            running: 0,
            failures: VecDeque::new(),
            forgotten: 0,
            over: None,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { store, key_name, state, changed, pending: AtomicUsize::new(0) }
    }

    /// Queues an operation; gives its ticket and whether something became ready.
    pub(crate) fn submit(&self, priority: i32, work: W) -> Result<(u64, bool)> {
        let mut state = self.state.lock();
        state.refuse_if_over()?;
        let label = work.label();
        let mut keys = SmallVec::new();
        work.keys(&mut |key| keys.push(key));
        let (sequence, ready) = state.enter(label, keys, priority, Phase::Queued(work));
        if ready {
            state.ready.push((priority, Reverse(sequence)));
        }
        self.publish(&state);
        Ok((u64::from(self.store) << SEQUENCE_BITS | sequence, ready))
    }

    /// Waits for the turn of a call without a ticket on its keys.
    ///
    /// A thread sees its own operations: those it queued before are in `pending` when it looks.
    pub(crate) fn enter(
        &self,
        label: Label,
        keys: impl Fn(&mut dyn FnMut(u64)),
        deadline: Deadline,
    ) -> Result<Turn> {
        if self.pending.load(Ordering::SeqCst) == 0 {
            return Ok(Turn(None));
        }
        let mut state = self.state.lock();
        state.refuse_if_over()?;
        let mut mine = SmallVec::<[u64; 2]>::new();
        let mut conflict = false;
        keys(&mut |key| {
            mine.push(key);
            conflict |= state.tails.contains_key(&key);
        });
        if !conflict {
            return Ok(Turn(None));
        }
        let (sequence, mut ready) = state.enter(label, mine, 0, Phase::Turn);
        self.publish(&state);
        while !ready {
            let late = self.pause(&mut state, deadline);
            let over = state.over.clone();
            ready = state.pending[&sequence].blockers == 0;
            if let (false, Some(error)) = (ready, over) {
                self.give_up(&mut state, sequence);
                return Err(error);
            }
            if late && !ready {
                let before = self.predecessor(&state, sequence);
                self.give_up(&mut state, sequence);
                return Err(fail!(
                    Timeout,
                    "{}: nothing has been applied; still waiting for {before}",
                    label.call
                ));
            }
        }
        Ok(Turn(Some(sequence)))
    }

    /// Ends a turn; gives how many operations are ready.
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
    pub(crate) fn take(&self, limit: usize) -> Option<Job<W>> {
        let mut state = self.state.lock();
        if state.running >= limit {
            return None;
        }
        while let Some((_, Reverse(sequence))) = state.ready.pop() {
            let Some(entry) = state.pending.get_mut(&sequence) else {
                continue;
            };
            match std::mem::replace(&mut entry.phase, Phase::Running) {
                Phase::Queued(work) => {
                    let cancel = Arc::clone(&entry.cancel);
                    state.running += 1;
                    return Some(Job { sequence, work, cancel });
                }
                // Cancelled meanwhile.
                other => entry.phase = other,
            }
        }
        None
    }

    /// Records the result of a job; gives how many operations are ready.
    pub(crate) fn finish(&self, sequence: u64, result: Result<()>) -> usize {
        let mut state = self.state.lock();
        state.running -= 1;
        if let Err(error) = result {
            let cancelled = error.kind() == ErrorKind::Cancelled;
            match &state.over {
                // It was the end of the store that stopped it.
                Some(over) if cancelled => {
                    let over = over.clone();
                    state.fail(sequence, over, false);
                }
                _ => state.fail(sequence, error, cancelled),
            }
        }
        state.release(sequence);
        self.publish(&state);
        self.changed.notify_all();
        state.ready.len()
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
        state.result_of(sequence)
    }

    /// Waits for all operations with a ticket that are pending now; gives the first failure that
    /// nobody has been told of.
    pub(crate) fn wait_all(&self, deadline: Deadline) -> Result<()> {
        let mut state = self.state.lock();
        let end = state.next;
        self.drain(&mut state, end, deadline, "wait_all")?;
        state.untold(end)
    }

    /// Waits for everything, then takes no more; gives the first failure nobody has been told of.
    pub(crate) fn close(&self, deadline: Deadline, why: Error) -> Result<()> {
        let mut state = self.state.lock();
        self.drain(&mut state, u64::MAX, deadline, "close")?;
        state.over.get_or_insert(why);
        state.untold(u64::MAX)
    }

    /// Ends the loan of one operation; gives how many others are ready.
    pub(crate) fn cancel(&self, ticket: u64, deadline: Deadline) -> Result<usize> {
        let sequence = self.sequence_of(ticket)?;
        let mut state = self.state.lock();
        state.refuse_if_unknown(sequence)?;
        let withdrawn = state.withdraw(sequence);
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

    /// Fails everything that has not begun, asks what is running to stop, and takes no more.
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
            if let Phase::Queued(_) = entry.phase {
                dropped.push(std::mem::replace(&mut entry.phase, Phase::Withdrawn));
                state.fail(sequence, why.clone(), false);
                state.settle(sequence);
            }
        }
        self.publish(&state);
        self.changed.notify_all();
        drop(state);
        drop(dropped);
    }

    /// Waits until nothing runs; false if the deadline came first.
    pub(crate) fn wait_idle(&self, deadline: Deadline) -> bool {
        let mut state = self.state.lock();
        while state.running > 0 {
            if self.pause(&mut state, deadline) && state.running > 0 {
                return false;
            }
        }
        true
    }

    /// Operations not finished, and failures that nobody has been told of.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        let failed = state.failures.iter().filter(|failure| !failure.told).count();
        (state.pending.len(), failed)
    }

    fn sequence_of(&self, ticket: u64) -> Result<u64> {
        if ticket >> SEQUENCE_BITS == u64::from(self.store) {
            return Ok(ticket & ((1 << SEQUENCE_BITS) - 1));
        }
        Err(fail!(Ticket, "ticket {ticket:#x} was not issued by this store"))
    }

    fn drain(
        &self,
        state: &mut MutexGuard<'_, State<W>>,
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

    /// Waits for a change; true if the deadline has passed.
    fn pause(&self, state: &mut MutexGuard<'_, State<W>>, deadline: Deadline) -> bool {
        match deadline {
            Deadline::Never => {
                self.changed.wait(state);
                false
            }
            Deadline::At(end) => self.changed.wait_until(state, end).timed_out(),
        }
    }

    /// Leaves the queue without having had a turn.
    fn give_up(&self, state: &mut State<W>, sequence: u64) {
        if let Some(entry) = state.pending.get_mut(&sequence) {
            entry.phase = Phase::Withdrawn;
        }
        state.settle(sequence);
        self.publish(state);
        self.changed.notify_all();
    }

    fn describe(&self, state: &State<W>, sequence: u64) -> String {
        let Some(entry) = state.pending.get(&sequence) else {
            return "the operation".into();
        };
        let progress = match entry.phase {
            Phase::Running | Phase::Turn => "at work",
            _ if entry.blockers > 0 => "waiting for operations before it on its keys",
            _ => "queued",
        };
        let Label { call, first_key, keys } = entry.label;
        let key = (self.key_name)(first_key);
        let more = if keys > 1 { format!(" and {} more", keys - 1) } else { String::new() };
        format!("{call} of {key}{more} ({progress})")
    }

    fn predecessor(&self, state: &State<W>, sequence: u64) -> String {
        let mut before = state.pending.iter().filter(|(_, entry)| entry.heirs.contains(&sequence));
        before.next().map_or_else(|| "its turn".into(), |(&before, _)| self.describe(state, before))
    }

    fn publish(&self, state: &State<W>) {
        self.pending.store(state.pending.len(), Ordering::SeqCst);
    }
}

impl<W> State<W> {
    fn refuse_if_over(&self) -> Result<()> {
        self.over.clone().map_or(Ok(()), Err)
    }

    fn refuse_if_unknown(&self, sequence: u64) -> Result<()> {
        if sequence == 0 || sequence >= self.next {
            return Err(fail!(
                Ticket,
                "ticket number {sequence} has not been issued by this store"
            ));
        }
        let known = self.pending.contains_key(&sequence)
            || self.failures.iter().any(|failure| failure.sequence == sequence);
        if sequence <= self.forgotten && !known {
            return Err(fail!(
                Ticket,
                "ticket number {sequence} is stale: it is older than the last {KEPT_FAILURES} \
                 failures, and its result is not known any more"
            ));
        }
        Ok(())
    }

    /// Adds an operation behind the last ones on its keys; gives its number and whether it is ready.
    fn enter(
        &mut self,
        label: Label,
        keys: SmallVec<[u64; 2]>,
        priority: i32,
        phase: Phase<W>,
    ) -> (u64, bool) {
        let sequence = self.next;
        self.next += 1;
        let mut blockers = 0;
        for &key in &keys {
            let Some(before) = self.tails.insert(key, sequence) else {
                continue;
            };
            let Some(entry) = self.pending.get_mut(&before) else {
                continue;
            };
            // One that blocks on several keys counts once; we are its newest heir.
            if entry.heirs.last() != Some(&sequence) {
                entry.heirs.push(sequence);
                blockers += 1;
            }
        }
        let cancel = Arc::new(AtomicBool::new(false));
        let heirs = SmallVec::new();
        self.pending
            .insert(sequence, Entry { label, keys, blockers, heirs, priority, cancel, phase });
        (sequence, blockers == 0)
    }

    /// Takes a finished operation out and lets those after it go on.
    fn release(&mut self, sequence: u64) {
        let mut gone: SmallVec<[u64; 4]> = SmallVec::from_slice(&[sequence]);
        while let Some(sequence) = gone.pop() {
            let Some(entry) = self.pending.remove(&sequence) else {
                continue;
            };
            for key in entry.keys {
                if self.tails.get(&key) == Some(&sequence) {
                    self.tails.remove(&key);
                }
            }
            for heir in entry.heirs {
                let Some(next) = self.pending.get_mut(&heir) else {
                    continue;
                };
                next.blockers -= 1;
                if next.blockers > 0 {
                    continue;
                }
                match next.phase {
                    Phase::Queued(_) => self.ready.push((next.priority, Reverse(heir))),
                    Phase::Withdrawn => gone.push(heir),
                    Phase::Turn | Phase::Running => {}
                }
            }
        }
    }

    /// Releases a withdrawn operation if nothing comes before it.
    fn settle(&mut self, sequence: u64) {
        if self.pending.get(&sequence).is_some_and(|entry| entry.blockers == 0) {
            self.release(sequence);
        }
    }

    /// Withdraws an operation that has not begun and gives its work back, to be dropped without
    /// the lock; asks one at work to stop.
    fn withdraw(&mut self, sequence: u64) -> Option<Phase<W>> {
        let entry = self.pending.get_mut(&sequence)?;
        entry.cancel.store(true, Ordering::SeqCst);
        if !matches!(entry.phase, Phase::Queued(_)) {
            return None;
        }
        let work = std::mem::replace(&mut entry.phase, Phase::Withdrawn);
        let call = entry.label.call;
        let error = fail!(Cancelled, "{call}: cancelled before it began; nothing has been applied");
        self.fail(sequence, error, true);
        self.settle(sequence);
        Some(work)
    }

    fn fail(&mut self, sequence: u64, error: Error, told: bool) {
        self.failures.push_back(Failure { sequence, error, told });
        // After an abort every ticket must still give its error: nothing is added any more.
        if self.failures.len() > KEPT_FAILURES && self.over.is_none() {
            let oldest = self.failures.pop_front();
            self.forgotten = oldest.map_or(self.forgotten, |it| it.sequence.max(self.forgotten));
        }
    }

    fn is_pending(&self, sequence: u64) -> bool {
        let entry = self.pending.get(&sequence);
        entry.is_some_and(|entry| !matches!(entry.phase, Phase::Withdrawn))
    }

    fn first_pending(&self, end: u64) -> Option<u64> {
        let with_ticket =
            |entry: &Entry<W>| matches!(entry.phase, Phase::Queued(_) | Phase::Running);
        let pending = self.pending.iter().filter(|(_, entry)| with_ticket(entry));
        pending.map(|(&sequence, _)| sequence).filter(|&sequence| sequence < end).min()
    }

    fn result_of(&mut self, sequence: u64) -> Result<()> {
        match self.failures.iter_mut().find(|failure| failure.sequence == sequence) {
            Some(failure) => {
                failure.told = true;
                Err(failure.error.clone())
            }
            None => Ok(()),
        }
    }

    /// The first failure below `end` that nobody has been told of; all of them count as told.
    fn untold(&mut self, end: u64) -> Result<()> {
        let mut first: Option<(u64, Error)> = None;
        let mut others = 0usize;
        for failure in self.failures.iter_mut().filter(|it| !it.told && it.sequence < end) {
            failure.told = true;
            if first.as_ref().is_none_or(|(sequence, _)| failure.sequence < *sequence) {
                first = Some((failure.sequence, failure.error.clone()));
            }
            others += 1;
        }
        match first {
            None => Ok(()),
            Some((_, error)) if others == 1 => Err(error),
            Some((_, error)) => {
                let text =
                    format!("{} (and {} more operations failed)", error.message(), others - 1);
                Err(Error::new(error.kind(), text))
            }
        }
    }
}
