//! Who is pending, in which order, and what is ready: the part under the lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use smallvec::SmallVec;

use super::Label;
use super::outcome::Outcomes;
use crate::error::{Error, Result, fail};
use crate::sync::{Arc, AtomicBool, Ordering};

pub(super) struct State<W> {
    pub(super) next: u64,
    pub(super) pending: HashMap<u64, Entry<W>>,
    /// The last pending operation of each key.
    pub(super) tails: HashMap<u64, u64>,
    pub(super) ready: BinaryHeap<(i32, Reverse<u64>)>,
    pub(super) running: usize,
    pub(super) outcomes: Outcomes,
    /// Why no operation is taken any more.
    pub(super) over: Option<Error>,
}

pub(super) struct Entry<W> {
    pub(super) label: Label,
    pub(super) keys: SmallVec<[u64; 2]>,
    /// Operations that must finish before.
    pub(super) blockers: usize,
    /// Operations that wait for this one.
    pub(super) heirs: SmallVec<[u64; 2]>,
    pub(super) priority: i32,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) phase: Phase<W>,
}

pub(super) enum Phase<W> {
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

impl<W> State<W> {
    pub(super) fn new() -> Self {
        Self {
            next: 1,
            pending: HashMap::new(),
            tails: HashMap::new(),
            ready: BinaryHeap::new(),
            running: 0,
            outcomes: Outcomes::default(),
            over: None,
        }
    }

    pub(super) fn refuse_if_over(&self) -> Result<()> {
        self.over.clone().map_or(Ok(()), Err)
    }

    pub(super) fn refuse_if_unknown(&self, sequence: u64) -> Result<()> {
        if sequence == 0 || sequence >= self.next {
            return Err(fail!(
                Ticket,
                "ticket number {sequence} has not been issued by this store"
            ));
        }
        if !self.pending.contains_key(&sequence) && !self.outcomes.knows(sequence) {
            return Err(fail!(
                Ticket,
                "ticket number {sequence} is stale: it is older than the last 65,536 operations that \
                 did not succeed, and its result is not known any more"
            ));
        }
        Ok(())
    }

    /// Adds an operation behind the last ones on its keys; gives its number and whether it is ready.
    pub(super) fn enter(
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
    pub(super) fn release(&mut self, sequence: u64) {
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
    pub(super) fn settle(&mut self, sequence: u64) {
        if self.pending.get(&sequence).is_some_and(|entry| entry.blockers == 0) {
            self.release(sequence);
        }
    }

    /// Withdraws an operation that has not begun and gives its work back, to be dropped without
    /// the lock; asks one at work to stop.
    pub(super) fn withdraw(&mut self, sequence: u64) -> Option<Phase<W>> {
        let entry = self.pending.get_mut(&sequence)?;
        entry.cancel.store(true, Ordering::SeqCst);
        if !matches!(entry.phase, Phase::Queued(_)) {
            return None;
        }
        let work = std::mem::replace(&mut entry.phase, Phase::Withdrawn);
        self.outcomes.cancel(sequence);
        self.settle(sequence);
        Some(work)
    }

    pub(super) fn is_pending(&self, sequence: u64) -> bool {
        let entry = self.pending.get(&sequence);
        entry.is_some_and(|entry| !matches!(entry.phase, Phase::Withdrawn))
    }

    pub(super) fn first_pending(&self, end: u64) -> Option<u64> {
        let with_ticket =
            |entry: &Entry<W>| matches!(entry.phase, Phase::Queued(_) | Phase::Running);
        let pending = self.pending.iter().filter(|(_, entry)| with_ticket(entry));
        pending.map(|(&sequence, _)| sequence).filter(|&sequence| sequence < end).min()
    }
}
