//! The pending operations, their order, and which are ready: the data under the lock. Also called:
//! a dependency graph.

use std::cmp::Reverse;
use std::collections::hash_map::Entry as Tail;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use smallvec::SmallVec;

use super::listeners::Listeners;
use super::outcome::Outcomes;
use super::{OperationLabel, SEQUENCE_BITS};
use crate::error::{Error, Result, fail};
use crate::local::table::KeyHasher;
use crate::search;
use crate::sys::sync::{Arc, AtomicBool, Ordering};

/// A map by numbers of operations or of keys.
type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<KeyHasher>>;

pub(super) struct TicketState<W> {
    /// Number of the store, in all its tickets.
    store: u16,
    pub(super) next: u64,
    pub(super) pending: ByNumber<QueuedOperation<W>>,
    /// The end of each key's queue. The queue is a list: each link names its neighbours.
    pub(super) tails: ByNumber<QueuePosition>,
    pub(super) ready: BinaryHeap<(i32, Reverse<u64>)>,
    pub(super) running: usize,
    /// Operations that devices do.
    pub(super) handed_over: usize,
    pub(super) outcomes: Outcomes,
    pub(super) listeners: Listeners,
    /// Why the store accepts no more operations.
    pub(super) over: Option<Error>,
}

pub(super) struct QueuedOperation<W> {
    pub(super) label: OperationLabel,
    /// Its place in the queue of each of its keys.
    links: SmallVec<[QueueLink; 1]>,
    /// Keys in whose queues another operation is before it.
    pub(super) blockers: usize,
    pub(super) priority: i32,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) phase: OperationPhase<W>,
}

pub(super) enum OperationPhase<W> {
    /// Has a ticket; runs on the pool when its predecessors have finished.
    Queued(W),
    /// Has a ticket; running.
    Running,
    /// A call without a ticket, on its caller's thread.
    Turn,
}

/// One operation in the queue of one key.
struct QueueLink {
    key: u64,
    before: Option<QueuePosition>,
    after: Option<QueuePosition>,
}

/// Where a link is: with which operation, and at which index there. Without the index, taking out a
/// long operation would search the links of its neighbours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuePosition {
    sequence: u64,
    index: usize,
}

impl<W> TicketState<W> {
    pub(super) fn new(store: u16, serial: u64) -> Self {
        Self {
            store,
            next: 1,
            pending: HashMap::default(),
            tails: HashMap::default(),
            ready: BinaryHeap::new(),
            running: 0,
            handed_over: 0,
            outcomes: Outcomes::default(),
            listeners: Listeners::new(serial),
            over: None,
        }
    }

    /// The ticket of an operation.
    pub(super) fn ticket(&self, sequence: u64) -> u64 {
        u64::from(self.store) << SEQUENCE_BITS | sequence
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
        label: OperationLabel,
        keys: &[u64],
        priority: i32,
        phase: OperationPhase<W>,
    ) -> (u64, bool) {
        let sequence = self.next;
        self.next += 1;
        let mut links = SmallVec::with_capacity(keys.len());
        let mut blockers = 0;
        for &key in keys {
            search::step();
            let place = QueuePosition { sequence, index: links.len() };
            let before = match self.tails.entry(key) {
                Tail::Vacant(tail) => {
                    tail.insert(place);
                    None
                }
                // A duplicate among the keys counts once.
                Tail::Occupied(tail) if tail.get().sequence == sequence => continue,
                Tail::Occupied(mut tail) => Some(tail.insert(place)),
            };
            if let Some(link) = before.and_then(|before| self.link(before)) {
                link.after = Some(place);
                blockers += 1;
            }
            links.push(QueueLink { key, before, after: None });
        }
        let cancel = Arc::new(AtomicBool::new(false));
        self.pending
            .insert(sequence, QueuedOperation { label, links, blockers, priority, cancel, phase });
        (sequence, blockers == 0)
    }

    fn link(&mut self, place: QueuePosition) -> Option<&mut QueueLink> {
        self.pending.get_mut(&place.sequence)?.links.get_mut(place.index)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running + self.handed_over > 0
    }

    /// Takes an operation that is not finished out of the queues of its keys.
    #[cfg(feature = "cuda")]
    pub(super) fn leave_queues(&mut self, sequence: u64) {
        let Some(entry) = self.pending.get_mut(&sequence) else { return };
        let links = std::mem::take(&mut entry.links);
        links.iter().for_each(|link| self.close_gap(link));
    }

    /// Removes an operation, finished or withdrawn, from the queues of all its keys, and passes on its
    /// end: its outcome has been recorded before. In each queue its successor then follows its
    /// predecessor. A withdrawn operation delays no other, and lets none overtake.
    pub(super) fn release(&mut self, sequence: u64) -> Option<OperationPhase<W>> {
        let entry = self.pending.remove(&sequence)?;
        entry.links.iter().for_each(|link| self.close_gap(link));
        if !self.listeners.is_empty() {
            let ticket = self.ticket(sequence);
            self.listeners.tell(sequence, ticket, &mut self.outcomes);
        }
        Some(entry.phase)
    }

    fn close_gap(&mut self, gap: &QueueLink) {
        search::step();
        if let Some(before) = gap.before.and_then(|before| self.link(before)) {
            before.after = gap.after;
        }
        match (gap.before, gap.after) {
            (before, Some(after)) => {
                if let Some(link) = self.link(after) {
                    link.before = before;
                }
                if before.is_none() {
                    self.unblock(after.sequence);
                }
            }
            (Some(before), None) => _ = self.tails.insert(gap.key, before),
            (None, None) => _ = self.tails.remove(&gap.key),
        }
    }

    /// Notes that an operation is the first in the queue of one more of its keys.
    fn unblock(&mut self, sequence: u64) {
        let Some(entry) = self.pending.get_mut(&sequence) else { return };
        entry.blockers -= 1;
        if entry.blockers == 0 && matches!(entry.phase, OperationPhase::Queued(_)) {
            self.ready.push((entry.priority, Reverse(sequence)));
        }
    }

    /// Withdraws an operation that has not begun and returns its work, to be dropped without the
    /// lock; asks a running one to stop.
    pub(super) fn withdraw(
        &mut self,
        sequence: u64,
        text: impl FnOnce(OperationLabel) -> Error,
    ) -> Option<OperationPhase<W>> {
        let entry = self.pending.get_mut(&sequence)?;
        entry.cancel.store(true, Ordering::SeqCst);
        if !matches!(entry.phase, OperationPhase::Queued(_)) {
            return None;
        }
        let text = text(entry.label);
        self.outcomes.cancel(sequence, text);
        self.release(sequence)
    }

    /// An operation that must end before this one can begin.
    pub(super) fn before(&self, sequence: u64) -> Option<u64> {
        let mut links = self.pending.get(&sequence)?.links.iter();
        links.find_map(|link| link.before).map(|before| before.sequence)
    }

    pub(super) fn is_pending(&self, sequence: u64) -> bool {
        self.pending.contains_key(&sequence)
    }

    pub(super) fn first_pending(&self, end: u64) -> Option<u64> {
        let with_ticket = |entry: &QueuedOperation<W>| {
            matches!(entry.phase, OperationPhase::Queued(_) | OperationPhase::Running)
        };
        let pending = self.pending.iter().filter(|(_, entry)| with_ticket(entry));
        pending.map(|(&sequence, _)| sequence).filter(|&sequence| sequence < end).min()
    }
}
