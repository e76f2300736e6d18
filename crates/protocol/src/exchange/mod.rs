//! Exchanges between the workers of a job (also: collective operations, communicator): each worker sends segments to
//! others, without a server. A worker that reduces gets what all have contributed to a part of an array, and sends
//! the result.
//!
//! All workers begin the same exchanges in the same order, by which they are numbered. A small segment is sent at
//! once, for a receiver that may begin later; a large one waits for the receiver (also: rendezvous), whose memory it
//! goes to.

mod call;
mod machine;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::mem::discriminant;
use std::vec::Drain;

use crate::drops::{DropReason, Handled};
use crate::job::{Data, DeliveryToken, Failure, Limits, MS, Peer, Reason, Time, list};
use crate::message::kinds::{Begun, GivenUp, LAST_STEP, Leave, Segment};
use crate::message::{Content, Message};
use crate::peers::{OutgoingMessage, Peers};
use crate::stream::{CONTROL, LAST};
use call::ExchangeCall;
pub use plan::{ExchangePlan, ExchangeTerms};

/// Length of the pieces of a segment in bytes, but for its last one.
pub const PIECE: u64 = if cfg!(test) { 8 } else { 256 << 10 };
/// Length up to which segments do not wait for their receivers.
const EAGER: u64 = if cfg!(test) { 16 } else { 64 << 10 };
/// Maximum lead over an exchange that a receiver has begun, up to which it gets small segments.
const MOST_AHEAD: u64 = if cfg!(test) { 2 } else { 16 };
/// Maximum number of bytes of early pieces that are kept for each sender, in which its small segments fit.
const MOST_EARLY: u64 = EAGER * (MOST_AHEAD + 1);
/// Maximum number of early messages without bytes that are kept for each sender.
const MOST_WORDS: usize = 4_096;

/// Name of an exchange, equal in all its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeId {
    /// Number of the group of its workers; 0 for all workers of the job.
    pub group: u64,
    /// Number in the group, ascending from 1.
    pub number: u64,
}

/// Action for the driver, in the order in which they take effect.
#[derive(Debug)]
pub enum ExchangeAction<D> {
    /// Reduce pieces of all ranks but this one, in the order of ranks, with this worker's own, and call
    /// [`Exchanges::reduced`].
    Reduce {
        /// The exchange.
        exchange: ExchangeId,
        /// Offset of the pieces in their segments, in bytes.
        at: u64,
        /// Pieces of the other ranks.
        pieces: Vec<(u32, D)>,
    },
    /// Copy a piece to its place.
    Fill {
        /// The exchange.
        exchange: ExchangeId,
        /// Its sender.
        from: u32,
        /// Whether it is of a result, and not of a contribution.
        is_result: bool,
        /// Offset of the piece in its segment, in bytes.
        at: u64,
        /// The piece.
        data: D,
    },
    /// The exchange has ended; a later action of it is void.
    Finished {
        /// The exchange.
        exchange: ExchangeId,
        /// Its result.
        result: Result<(), Failure>,
    },
}

/// What this worker knows of another one.
#[derive(Debug, Clone, Default)]
struct OtherWorker {
    /// Number of the last exchange that it has begun, by group.
    begun: BTreeMap<u64, u64>,
    /// Why it takes part in no exchange any more.
    gone: Option<Failure>,
    /// Why it has given up an exchange that this worker had ended.
    last_failure: Option<Failure>,
    early_bytes: u64,
    /// Early messages without bytes.
    early_words: usize,
}

impl OtherWorker {
    fn begun_in(&self, group: u64) -> u64 {
        self.begun.get(&group).copied().unwrap_or(0)
    }

    fn has_begun(&self, id: ExchangeId) -> bool {
        self.begun_in(id.group) >= id.number
    }
}

/// What has arrived of exchanges that this worker has not begun.
type EarlyMessages<D> = BTreeMap<ExchangeId, VecDeque<(u32, Content<D>)>>;

/// The exchanges of one worker.
///
/// [`Exchanges::connect`] comes first. Each exchange that is begun ends with an [`ExchangeAction::Finished`], at the
/// latest at its deadline.
pub struct Exchanges<D> {
    net: Peers<D>,
    describe: fn(&ExchangeTerms) -> String,
    /// By rank, with this worker's own place.
    others: Vec<OtherWorker>,
    calls: BTreeMap<ExchangeId, ExchangeCall<D>>,
    early: EarlyMessages<D>,
    /// Number of the last exchange that this worker has begun, by group.
    last: BTreeMap<u64, u64>,
    /// The next deadline.
    wake: Time,
    actions: Vec<ExchangeAction<D>>,
    /// Workers that are silent and were never heard.
    unheard: Vec<u32>,
}

impl<D: Data> Exchanges<D> {
    /// The exchanges of the worker of this rank. `incarnation` is as in [`NodeStart`](crate::NodeStart); `describe`
    /// words terms for users.
    #[must_use]
    pub fn new(
        limits: Limits,
        rank: u32,
        incarnation: u64,
        describe: fn(&ExchangeTerms) -> String,
        now: Time,
    ) -> Self {
        debug_assert!(rank < limits.workers, "the rank of a worker of the job");
        let others = vec![OtherWorker::default(); limits.workers as usize];
        let net = Peers::new(limits, Peer::worker(rank), incarnation, now);
        let (calls, early, actions) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self {
            net,
            describe,
            others,
            calls,
            early,
            last: BTreeMap::new(),
            wake: Time::MAX,
            actions,
            unheard: Vec::new(),
        }
    }

    fn rank(&self) -> u32 {
        self.net.me.rank
    }

    /// Makes the streams to other workers: rank, incarnation and address of each. Known ones keep theirs.
    pub fn connect<'a>(&mut self, all: impl Iterator<Item = (u32, u64, &'a str)>, now: Time) {
        for (rank, incarnation, address) in all {
            let peer = Peer::worker(rank);
            let here = self.others.get(rank as usize).is_some_and(|other| other.gone.is_none());
            if rank != self.rank() && here && self.net.linked(peer).is_none() {
                self.net.connect(peer, incarnation, address, now);
                self.net.introduce(peer, now);
            }
        }
    }

    /// Workers that are silent and were never heard, since the last call: they may be late in a group, and know this
    /// one then, or be gone.
    pub fn take_unheard(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unheard)
    }

    /// A worker that was never heard is gone from the job.
    pub fn miss(&mut self, rank: u32) {
        let peer = Peer::worker(rank);
        let waited = self.net.limits.peer_timeout / MS;
        let at = self.net.linked(peer).map_or("", |(address, _)| address);
        let text = format!("{peer} at {at} was not heard for {waited} ms");
        self.lose(rank, &Failure::new(Reason::PeerLost, text));
    }

    /// Actions since the last call, for the driver to carry out.
    pub fn actions(&mut self) -> Drain<'_, ExchangeAction<D>> {
        self.actions.drain(..)
    }

    /// Begins the next exchange of a group; returns its name. One that fails at once counts too: the other workers
    /// learn why.
    pub fn begin(&mut self, group: u64, plan: ExchangePlan<D>, now: Time) -> ExchangeId {
        let last = self.last.entry(group).or_default();
        *last += 1;
        let (id, deadline) = (ExchangeId { group, number: *last }, plan.deadline);
        debug_assert!(plan.is_of(self.rank(), self.others.len()), "a plan for all ranks");
        let call = ExchangeCall::new(plan, now);
        self.calls.insert(id, call);
        self.wake = self.wake.min(deadline);
        (0..self.workers()).for_each(|rank| self.announce(id, rank));
        for (from, content) in self.early.remove(&id).unwrap_or_default() {
            let other = &mut self.others[from as usize];
            match &content {
                Content::Segment(segment) => other.early_bytes -= segment.data.len(),
                _ => other.early_words -= 1,
            }
            // After a failure the rest is void.
            let _ = self.content(from, id, content);
        }
        // What a worker has sent before it ended counts.
        let gone = self.calls.get(&id).and_then(|call| {
            let mut gone = (0u32..).zip(&self.others).filter(|(rank, _)| call.needs(*rank));
            gone.find_map(|(_, other)| other.gone.clone())
        });
        match gone {
            Some(failure) => self.fail(id, &failure),
            None => self.finish_if_complete(id),
        }
        id
    }

    /// Sends a rank its contribution, if it takes it; or tells it that this worker takes its own.
    fn announce(&mut self, id: ExchangeId, rank: u32) {
        // What is sent before both ends know the stream would wait for a retransmission.
        if !self.is_heard(rank) {
            return;
        }
        let begun = self.others[rank as usize].begun_in(id.group);
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(data) = call.to_send(rank) {
            let is_small = data.len() <= EAGER && begun + MOST_AHEAD >= id.number;
            if is_small || id.number <= begun {
                self.contribute(id, rank);
                return self.finish_if_complete(id);
            }
        }
        if call.awaits(rank) && call.begins_for(rank) {
            let begun = Begun::from((id.number, call.terms()));
            self.post(rank, id.group, begun.into(), CONTROL, None);
        }
    }

    fn last_in(&self, group: u64) -> u64 {
        self.last.get(&group).copied().unwrap_or(0)
    }

    fn workers(&self) -> u32 {
        self.net.limits.workers
    }

    /// Whether the stream to a worker is known at both ends: what is sent before would wait for a retransmission.
    fn is_heard(&self, rank: u32) -> bool {
        let peer = Peer::worker(rank);
        let incarnation = self.net.incarnation_of(peer);
        incarnation.is_some_and(|incarnation| self.net.has_heard(peer, incarnation))
    }

    fn post(
        &mut self,
        rank: u32,
        group: u64,
        mut message: Message<D>,
        priority: i32,
        token: Option<DeliveryToken>,
    ) {
        message.head.group = group;
        self.net.post(OutgoingMessage { to: Peer::worker(rank), message, priority, token });
    }

    /// Sends the contribution for a rank, if it has not been sent.
    fn contribute(&mut self, id: ExchangeId, rank: u32) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Some(data) = call.take_to_send(rank) else { return };
        self.send_pieces(id, &[rank], 0, 0, data.len(), &data);
    }

    /// Sends a part of a segment, in pieces.
    fn send_pieces(
        &mut self,
        id: ExchangeId,
        ranks: &[u32],
        step: u32,
        start: u64,
        total: u64,
        data: &D,
    ) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let (terms, is_lent) = (call.terms(), call.is_lent());
        let pieces = (0..data.len().div_ceil(PIECE)).map(|piece| piece * PIECE);
        if is_lent {
            ranks.iter().for_each(|rank| call.note_sent(*rank, pieces.clone().count()));
        }
        let token =
            is_lent.then_some(DeliveryToken { operation: id.number, attempt: 0, group: id.group });
        for at in pieces {
            let piece = data.part(at, PIECE.min(data.len() - at));
            for rank in ranks {
                let segment = Segment {
                    exchange: id.number,
                    what: terms.what,
                    root: terms.root.into(),
                    dtype: terms.dtype.into(),
                    count: terms.count,
                    step,
                    offset: start + at,
                    total,
                    answer: !is_lent,
                    data: piece.clone(),
                };
                self.post(*rank, id.group, segment.into(), 0, token);
            }
        }
    }

    /// A piece of the result is there; sends it to those that get it.
    pub fn reduced(&mut self, id: ExchangeId, at: u64, data: &D) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.note_reduced();
        let (ranks, total) = (call.result_receivers().to_vec(), call.reduced_bytes());
        self.send_pieces(id, &ranks, LAST_STEP, at, total, data);
        self.finish_if_complete(id);
    }

    /// Ends an exchange, which fails for all workers.
    pub fn give_up(&mut self, id: ExchangeId, failure: &Failure) {
        self.fail(id, failure);
    }

    /// Whether a piece is awaited: its bytes may be received to their place.
    #[must_use]
    pub fn awaits(&self, head: &crate::message::Header) -> bool {
        let id = ExchangeId { group: head.group, number: head.key };
        let call = self.calls.get(&id);
        self.net.is_new(head)
            && call.is_some_and(|call| call.fits(head.rank, head.slice, head.total))
    }

    /// Whether other workers have acknowledged everything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let traffic = self.net.traffic();
        (traffic.queued, traffic.in_flight_bytes) == (0, 0)
    }

    /// Tells all workers that this one leaves.
    pub fn leave(&mut self) {
        for rank in 0..self.workers() {
            self.post(rank, 0, Leave { back: false }.into(), LAST, None);
        }
    }

    /// Ends an exchange with a failure of this worker, and tells the others.
    fn fail(&mut self, id: ExchangeId, failure: &Failure) {
        let Some(call) = self.calls.get(&id) else { return };
        let partners: Vec<u32> = call.partners().collect();
        for rank in partners {
            let given_up = GivenUp { exchange: id.number, failure: failure.clone() };
            self.post(rank, id.group, given_up.into(), CONTROL, None);
        }
        self.finish(id, Err(failure.clone()));
    }

    fn finish(&mut self, id: ExchangeId, result: Result<(), Failure>) {
        if self.calls.remove(&id).is_some() {
            self.actions.push(ExchangeAction::Finished { exchange: id, result });
        }
    }

    fn finish_if_complete(&mut self, id: ExchangeId) {
        if self.calls.get(&id).is_some_and(ExchangeCall::is_complete) {
            self.finish(id, Ok(()));
        }
    }

    /// Takes a message of another worker, or returns the reason to drop it.
    fn message(&mut self, from: u32, message: Message<D>) -> Handled {
        let group = message.head.group;
        let content = Content::read(&message.head, message.body)?;
        let number = match &content {
            Content::Segment(segment) => segment.exchange,
            Content::Begun(begun) => begun.exchange,
            Content::GivenUp(given_up) => given_up.exchange,
            Content::Leave(_) => {
                let mut text = format!("{} has closed its store", Peer::worker(from));
                if let Some(failure) = &self.others[from as usize].last_failure {
                    let _ = write!(text, " after a failure: {failure}");
                }
                self.lose(from, &Failure::new(Reason::PeerLost, text));
                return Ok(());
            }
            _ => return Err(DropReason::Misdirected),
        };
        let id = ExchangeId { group, number };
        if !matches!(content, Content::GivenUp(_)) {
            self.note_begun(from, id);
        }
        let is_early = number > self.last_in(group);
        if is_early { self.keep(from, id, content) } else { self.content(from, id, content) }
    }

    /// A worker has begun an exchange: it takes large segments of it, and of all before.
    fn note_begun(&mut self, rank: u32, id: ExchangeId) {
        let other = &mut self.others[rank as usize];
        if other.has_begun(id) {
            return;
        }
        other.begun.insert(id.group, id.number);
        self.send_waiting(rank);
    }

    /// Sends what may be sent to a worker now.
    fn send_waiting(&mut self, rank: u32) {
        let all: Vec<ExchangeId> = self.calls.keys().copied().collect();
        all.into_iter().for_each(|id| self.announce(id, rank));
    }

    /// Keeps a message of an exchange that this worker has not begun.
    fn keep(&mut self, from: u32, id: ExchangeId, content: Content<D>) -> Handled {
        let bytes = match &content {
            Content::Segment(segment) => segment.data.len(),
            _ => 0,
        };
        let is_alike = |(sender, kept): &(u32, Content<D>)| {
            *sender == from && discriminant(kept) == discriminant(&content)
        };
        if bytes == 0 && self.early.get(&id).is_some_and(|kept| kept.iter().any(is_alike)) {
            return Err(DropReason::Duplicate);
        }
        let last = self.last_in(id.group);
        let other = &mut self.others[from as usize];
        let is_full = other.early_bytes + bytes > MOST_EARLY || other.early_words >= MOST_WORDS;
        if is_full || id.number > last + 2 * MOST_AHEAD {
            return Err(DropReason::NoRoom);
        }
        other.early_bytes += bytes;
        other.early_words += usize::from(bytes == 0);
        self.early.entry(id).or_default().push_back((from, content));
        Ok(())
    }

    fn content(&mut self, from: u32, id: ExchangeId, content: Content<D>) -> Handled {
        match content {
            Content::Segment(segment) => self.segment(from, id, segment),
            Content::Begun(begun) => self.agree(from, id, begun.terms()),
            Content::GivenUp(GivenUp { failure, .. }) => {
                let text = format!("{} has given it up: {failure}", Peer::worker(from));
                if self.calls.contains_key(&id) {
                    self.finish(id, Err(Failure::new(failure.reason, text)));
                } else {
                    self.others[from as usize].last_failure = Some(failure);
                }
                Ok(())
            }
            _ => Err(DropReason::Misdirected),
        }
    }

    /// Ends an exchange if another worker makes another one.
    fn agree(&mut self, from: u32, id: ExchangeId, theirs: ExchangeTerms) -> Handled {
        let ours = self.calls.get(&id).ok_or(DropReason::Late)?.terms();
        if ours == theirs {
            return Ok(());
        }
        let text = format!(
            "{} calls {}, {} {}; all workers make the same calls in the same order",
            Peer::worker(from),
            (self.describe)(&theirs),
            self.net.me,
            (self.describe)(&ours)
        );
        self.fail(id, &Failure::new(Reason::Differs, text));
        Ok(())
    }

    fn segment(&mut self, from: u32, id: ExchangeId, segment: Segment<D>) -> Handled {
        self.agree(from, id, segment.terms())?;
        let Some(call) = self.calls.get_mut(&id) else { return Ok(()) };
        let Segment { step, offset, total, data, .. } = segment;
        let expected = call.expects(from, step);
        if total != expected {
            let text = format!(
                "{} sends {total} bytes to {}, which expects {expected}",
                Peer::worker(from),
                self.net.me
            );
            self.fail(id, &Failure::new(Reason::Differs, text));
            return Ok(());
        }
        if offset % PIECE != 0 || data.len() != PIECE.min(total - offset) {
            return Err(DropReason::Misfit);
        }
        call.note_received(from, step, data.len());
        if step == LAST_STEP || !call.reduces() {
            let is_result = step == LAST_STEP;
            let action = ExchangeAction::Fill { exchange: id, from, is_result, at: offset, data };
            self.actions.push(action);
        } else if let Some(pieces) = call.collect(from, offset, data) {
            self.actions.push(ExchangeAction::Reduce { exchange: id, at: offset, pieces });
        }
        self.finish_if_complete(id);
        Ok(())
    }

    /// A worker takes part in no exchange any more.
    fn lose(&mut self, rank: u32, failure: &Failure) {
        let Some(other) = self.others.get_mut(rank as usize) else { return };
        if other.gone.is_some() {
            return;
        }
        other.gone = Some(failure.clone());
        let needs = |(id, call): (&ExchangeId, &ExchangeCall<D>)| call.needs(rank).then_some(*id);
        let broken: Vec<ExchangeId> = self.calls.iter().filter_map(needs).collect();
        broken.into_iter().for_each(|id| self.fail(id, failure));
        self.net.disconnect(Peer::worker(rank));
    }

    /// Ends exchanges whose time is over.
    fn expire(&mut self, now: Time) {
        if now < self.wake {
            return;
        }
        let due =
            |(id, call): (&ExchangeId, &ExchangeCall<D>)| (call.deadline <= now).then_some(*id);
        let overdue: Vec<ExchangeId> = self.calls.iter().filter_map(due).collect();
        for id in overdue {
            let Some(call) = self.calls.get(&id) else { continue };
            let missing: Vec<Peer> = call.missing(&|rank| self.others[rank as usize].has_begun(id));
            // Its caller began to wait before the call began here.
            let waited = call.deadline.saturating_sub(call.began).div_ceil(MS);
            let text = format!("not done within {waited} ms, waiting for {}", list(&missing));
            self.fail(id, &Failure::new(Reason::Timeout, text));
        }
        self.wake = self.calls.values().map(|call| call.deadline).min().unwrap_or(Time::MAX);
    }
}
