//! All links of one process (also: connection table), and the header fields of what it sends.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::Drain;

use super::drops::{DropCount, DropReason, Handled};
use super::job::{Data, DeliveryToken, Limits, MS, Peer, Role, Time, take_all};
use super::message::{Header, Look, Message, MessageKind};
use super::stream::{Received, ReliableStream};
use super::telemetry::ProcessCounters;

/// Maximum echoes in each `ECHO_SPAN`; an observer repeats a probe that has no answer.
const MOST_ECHOES: u32 = 32;
/// Interval of the limit on echoes.
const ECHO_SPAN: Time = 100 * MS;

/// A frame to send. The driver may lose, duplicate, delay or reorder it, but not alter it.
pub struct OutgoingFrame<D> {
    /// Address of the receiver: [`Birth::address`](crate::NodeStart::address) of a node,
    /// [`Birth::scheduler`](crate::NodeStart::scheduler), or an observer's
    /// [`Look::address`](crate::Look::address).
    pub to: Arc<str>,
    /// The message; its header is complete.
    pub message: Message<D>,
    /// Unacknowledged bytes of the link, this frame included. None for a frame outside of the streams, whose
    /// receiver need not be a member of the job.
    pub backlog: Option<u64>,
}

/// An event for logs and traces. The driver need not act on it.
#[derive(Debug)]
pub enum PeerEvent {
    /// A stream to a peer begins, at this address.
    Up(Peer, Arc<str>),
    /// The stream to a peer has ended.
    Down(Peer),
    /// Epoch of the address book that this process now has.
    Epoch(u32),
    /// A member is lost: its address, and the reason.
    Lost(Peer, String, String),
    /// The scheduler notifies a lost process, at this address, of its eviction.
    Evicted(Peer, String),
    /// This process cannot continue: the reason. [`Machine::end`](crate::Machine::end) has the failure.
    Fatal(String),
    /// A frame or a message of this kind, with this role and rank, had no effect.
    Dropped(Peer, MessageKind, DropReason),
    /// A message of a traced round was sent or received.
    Passed(TracedMessage),
    /// A comparison with the scheduler's clock, while rounds are traced.
    Clock {
        /// Request sent, by the clock of this process.
        asked: Time,
        /// Answer received, by the clock of this process.
        answered: Time,
        /// Clock of the scheduler's machine, in microseconds since 1970.
        clock: Time,
    },
}

/// Transfer of one slice of a traced round, observed at one of its two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedMessage {
    /// True for a value from a server, false for a push from a worker.
    pub is_value: bool,
    /// True if this process sent it, false if it received it.
    pub is_sent: bool,
    /// Key of the value.
    pub key: u64,
    /// Index of the slice.
    pub slice: u32,
    /// Round of the push, or last closed round of the value.
    pub round: u64,
    /// Rank of the worker.
    pub worker: u32,
    /// Rank of the server.
    pub server: u32,
    /// Number of the worker's request.
    pub request: u64,
    /// Moment of the observation.
    pub at: Time,
}

/// A message to a peer, before its link.
#[derive(Debug)]
pub(super) struct OutgoingMessage<D> {
    pub(super) to: Peer,
    pub(super) message: Message<D>,
    pub(super) priority: i32,
    /// Returned when the peer has acknowledged the message.
    pub(super) token: Option<DeliveryToken>,
}

struct PeerStream<D> {
    address: Arc<str>,
    link: ReliableStream<D>,
    /// The peer is a reader: its frames are no evidence of the network to the other members.
    reads: bool,
    /// Mask of the features that the peer takes.
    features: u64,
}

/// Classification of an incoming frame.
pub(super) enum Incoming<D> {
    /// From a linked incarnation.
    Linked(Received<D>),
    /// Frame of another job, or of an earlier incarnation of the linked peer.
    Stale,
    /// Receiver is an earlier incarnation of this process.
    Former(Peer, u64),
    /// Sender has no link, or is a later incarnation than the linked one; or a frame outside of the stream.
    Stranger(Message<D>),
}

pub(super) struct Peers<D> {
    pub(super) limits: Limits,
    pub(super) me: Peer,
    pub(super) incarnation: u64,
    pub(super) epoch: u32,
    lines: BTreeMap<Peer, PeerStream<D>>,
    /// Present names of peers that may not know them yet, by former name and incarnation.
    renamed: BTreeMap<(Peer, u64), Peer>,
    frames: Vec<OutgoingFrame<D>>,
    last_now: Time,
    /// Moment of the last frame of any linked peer; pauses of this process are added.
    any_heard: Time,
    /// Moment of the last pause of this process.
    paused: Option<Time>,
    traffic: ProcessCounters,
    /// Counts of frames and messages without an effect.
    ignored: BTreeMap<(MessageKind, DropReason), u64>,
    /// First and last traced round.
    pub(super) traced: Option<(u64, u64)>,
    news: Vec<PeerEvent>,
    /// Epoch of the last `PeerEvent::Epoch`.
    told: u32,
    /// Start of the current `ECHO_SPAN`, and echoes since.
    echoes: (Time, u32),
}

impl<D: Data> Peers<D> {
    pub(super) fn new(limits: Limits, me: Peer, incarnation: u64, now: Time) -> Self {
        let lines = BTreeMap::new();
        let (frames, traffic) = (Vec::new(), ProcessCounters::default());
        Self {
            limits,
            me,
            incarnation,
            epoch: 0,
            lines,
            renamed: BTreeMap::new(),
            frames,
            last_now: now,
            any_heard: now,
            paused: None,
            traffic,
            ignored: BTreeMap::new(),
            traced: None,
            news: Vec::new(),
            told: 0,
            echoes: (0, 0),
        }
    }

    /// Starts a new stream to a peer; an earlier one ends.
    pub(super) fn connect(&mut self, peer: Peer, incarnation: u64, address: &str, now: Time) {
        let (address, link): (Arc<str>, _) =
            (address.into(), ReliableStream::new(incarnation, now));
        self.news.push(PeerEvent::Up(peer, Arc::clone(&address)));
        self.any_heard = self.any_heard.max(now);
        self.lines.insert(peer, PeerStream { address, link, reads: false, features: 0 });
    }

    /// Has a frame sent to a peer at once: its connection is made then, and it answers.
    pub(super) fn introduce(&mut self, peer: Peer, now: Time) {
        if let Some(line) = self.lines.get_mut(&peer) {
            line.link.introduce(now);
        }
    }

    /// Marks a linked peer as a reader.
    pub(super) fn only_reads(&mut self, peer: Peer) {
        if let Some(line) = self.lines.get_mut(&peer) {
            line.reads = true;
        }
    }

    /// Notes the features that a linked incarnation of a peer takes.
    pub(super) fn note_features(&mut self, peer: Peer, incarnation: u64, features: u64) {
        let line = self.lines.get_mut(&peer);
        if let Some(line) = line.filter(|line| line.link.incarnation() == incarnation) {
            line.features = features;
        }
    }

    /// Mask of the features that a peer takes; 0 without a link.
    pub(super) fn features(&self, peer: Peer) -> u64 {
        self.lines.get(&peer).map_or(0, |line| line.features)
    }

    /// Whether a peer is linked and is no reader.
    pub(super) fn takes_part(&self, peer: Peer) -> bool {
        self.lines.get(&peer).is_some_and(|line| !line.reads)
    }

    pub(super) fn disconnect(&mut self, peer: Peer) {
        self.news.extend(self.lines.remove(&peer).map(|_| PeerEvent::Down(peer)));
    }

    /// Events since the last call.
    pub(super) fn news(&mut self) -> Vec<PeerEvent> {
        if std::mem::replace(&mut self.told, self.epoch) != self.epoch {
            self.news.push(PeerEvent::Epoch(self.epoch));
        }
        std::mem::take(&mut self.news)
    }

    /// Members have other ranks than assumed: their streams continue under the right ones, with frames under
    /// both names until they know.
    pub(super) fn rename(&mut self, names: &[(Peer, Peer)]) {
        let old: Vec<_> = names.iter().map(|(old, _)| self.lines.remove(old)).collect();
        for (line, (old, new)) in old.into_iter().zip(names) {
            debug_assert!(!self.lines.contains_key(new), "each seat has one stream: {names:?}");
            let Some(line) = line else { continue };
            if old != new {
                self.renamed.insert((*old, line.link.incarnation()), *new);
            }
            self.lines.insert(*new, line);
        }
    }

    /// The present name of the process that sends frames under this one.
    pub(super) fn present_name(&self, peer: Peer, incarnation: u64) -> Peer {
        self.renamed.get(&(peer, incarnation)).copied().unwrap_or(peer)
    }

    pub(super) fn incarnation_of(&self, peer: Peer) -> Option<u64> {
        self.lines.get(&peer).map(|line| line.link.incarnation())
    }

    /// Address and incarnation of a peer that has a link.
    pub(super) fn linked(&self, peer: Peer) -> Option<(&str, u64)> {
        self.lines.get(&peer).map(|line| (&*line.address, line.link.incarnation()))
    }

    /// The peers that have a link, and their addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (Peer, &str)> {
        self.lines.iter().map(|(peer, line)| (*peer, &*line.address))
    }

    /// When the link to a peer was made.
    pub(super) fn linked_since(&self, peer: Peer) -> Option<Time> {
        self.lines.get(&peer).map(|line| line.link.since())
    }

    /// Moment of the last frame of a peer.
    pub(super) fn heard_at(&self, peer: Peer) -> Option<Time> {
        self.lines.get(&peer).map(|line| line.link.last_heard())
    }

    /// Whether a frame of a peer, in this incarnation, has ever arrived.
    pub(super) fn has_heard(&self, peer: Peer, incarnation: u64) -> bool {
        let line = self.lines.get(&peer).filter(|line| line.link.incarnation() == incarnation);
        line.is_some_and(|line| line.link.was_heard())
    }

    /// A member whose frames arrive and that acknowledges nothing.
    pub(super) fn unanswered(&self) -> Option<Peer> {
        let mut lines = self.lines.iter();
        lines.find(|(_, line)| line.link.is_unanswered(&self.limits)).map(|(peer, _)| *peer)
    }

    /// Queues a message; one to a peer without a link is dropped.
    pub(super) fn post(&mut self, letter: OutgoingMessage<D>) {
        if let Some(line) = self.lines.get_mut(&letter.to) {
            #[cfg(feature = "wire-next")]
            line.link.queue(super::message::next_message(), letter.priority, None);
            line.link.queue(letter.message, letter.priority, letter.token);
        }
    }

    /// Sends one frame outside of any stream.
    pub(super) fn cast(&mut self, to: &str, to_incarnation: u64, message: Message<D>) {
        self.cast_into(self.limits.job, to, to_incarnation, message);
    }

    /// Sends one frame outside of any stream to a process of another job.
    pub(super) fn cast_into(
        &mut self,
        job: u64,
        to: &str,
        to_incarnation: u64,
        mut message: Message<D>,
    ) {
        message.head.to_incarnation = to_incarnation;
        stamp(&mut message.head, self.me, self.incarnation, self.epoch, job);
        #[cfg(feature = "wire-next")]
        {
            let Message { head, body } = super::message::next_message();
            let head = Header { kind: head.kind, ..message.head.clone() };
            let message = Message { head, body };
            self.frames.push(OutgoingFrame { to: to.into(), message, backlog: None });
        }
        self.frames.push(OutgoingFrame { to: to.into(), message, backlog: None });
    }

    /// Rate limit of echoes: a flood of probes costs a bounded time and memory.
    pub(super) fn may_echo(&mut self, now: Time) -> bool {
        if now >= self.echoes.0 + ECHO_SPAN {
            self.echoes = (now, 0);
        }
        self.echoes.1 += 1;
        self.echoes.1 <= MOST_ECHOES
    }

    /// Sends the answer to a Look, of any job.
    pub(super) fn answer_look(&mut self, head: &Header, look: &Look, mut answer: Message<D>) {
        answer.head.request = head.request;
        self.cast_into(head.job, &look.address, head.incarnation, answer);
    }

    /// `room` bounds the queue to the peer: beyond it new messages of its stream are refused (backpressure).
    pub(super) fn receive(&mut self, message: Message<D>, now: Time, room: usize) -> Incoming<D> {
        let head = &message.head;
        let (peer, kind) = (head.sender(), head.kind);
        if head.job != self.limits.job {
            self.note_drop(peer, kind, DropReason::OtherJob);
            return Incoming::Stale;
        }
        if ![0, self.incarnation].contains(&head.to_incarnation) {
            self.note_drop(peer, kind, DropReason::Former);
            return Incoming::Former(peer, head.incarnation);
        }
        let Some(line) = self.lines.get_mut(&peer) else { return Incoming::Stranger(message) };
        match head.incarnation.cmp(&line.link.incarnation()) {
            // An earlier incarnation that asks for the rank has not always ended.
            Ordering::Less if head.sequence == 0 && head.kind == MessageKind::Hello => {
                Incoming::Stranger(message)
            }
            Ordering::Less => {
                self.note_drop(peer, kind, DropReason::Earlier);
                Incoming::Stale
            }
            Ordering::Greater => Incoming::Stranger(message),
            // Frames outside of the stream belong to the membership.
            Ordering::Equal if head.sequence == 0 && head.kind != MessageKind::Alive => {
                line.link.hear(now);
                if !line.reads {
                    self.any_heard = self.any_heard.max(now);
                }
                Incoming::Stranger(message)
            }
            Ordering::Equal => {
                if let Some(rounds) = self.traced {
                    passages(&message, rounds, (self.me, peer), now, false, &mut self.news);
                }
                if !line.reads {
                    self.any_heard = self.any_heard.max(now);
                }
                self.traffic.messages_in += 1;
                self.traffic.bytes_in += message.frame_len();
                self.traffic.unknown_fields += skipped(&message);
                let received = line.link.receive(message, now, &self.limits, room);
                if let Some(why) = received.ignored {
                    self.note_drop(peer, kind, why);
                }
                Incoming::Linked(received)
            }
        }
    }

    /// Records an event.
    pub(super) fn note(&mut self, news: PeerEvent) {
        self.news.push(news);
    }

    /// Counts a message without an effect, and reports it.
    pub(super) fn note_drop(&mut self, peer: Peer, kind: MessageKind, why: DropReason) {
        #[cfg(feature = "wire-next")]
        if kind == MessageKind::Unknown(super::message::next::KIND)
            && why == DropReason::UnknownKind
        {
            return;
        }
        *self.ignored.entry((kind, why)).or_default() += 1;
        match why {
            DropReason::UnknownKind => self.traffic.unknown_kinds += 1,
            why if why.is_harmless() => {}
            _ => self.traffic.ignored += 1,
        }
        self.news.push(PeerEvent::Dropped(peer, kind, why));
    }

    /// Notes the reason for which a message had no effect, if there is one.
    pub(super) fn note_handled(&mut self, peer: Peer, kind: MessageKind, result: Handled) {
        if let Err(why) = result {
            self.note_drop(peer, kind, why);
        }
    }

    /// Counts of frames and messages without an effect, by kind and reason.
    pub(super) fn ignored(&self) -> Vec<DropCount> {
        let counts = self.ignored.iter();
        counts
            .map(|((kind, reason), count)| DropCount {
                kind: *kind,
                reason: *reason,
                count: *count,
            })
            .collect()
    }

    /// Whether a frame is from a linked incarnation, to this one, and no duplicate.
    pub(super) fn is_new(&self, head: &Header) -> bool {
        let ours = head.job == self.limits.job && head.to_incarnation == self.incarnation;
        let line = self.lines.get(&head.sender());
        let link = line.map(|line| &line.link).filter(|_| ours);
        link.is_some_and(|link| {
            link.incarnation() == head.incarnation && link.is_new(head.sequence, &self.limits)
        })
    }

    /// Counts a delivery that is no frame.
    pub(super) fn note_bad(&mut self) {
        self.traffic.bad_frames += 1;
    }

    /// Counters of the traffic of all links so far, with their queues and windows now.
    pub(super) fn traffic(&self) -> ProcessCounters {
        let backlogs = self.lines.values().map(|line| line.link.backlog());
        let (queued, in_flight_bytes) =
            backlogs.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        ProcessCounters { queued, in_flight_bytes, ..self.traffic }
    }

    /// Moment of the last event.
    pub(super) fn last_now(&self) -> Time {
        self.last_now
    }

    /// Detects a pause of this process, which would make every peer look silent.
    pub(super) fn notice_pause(&mut self, now: Time) {
        let gap = now.saturating_sub(self.last_now);
        // Without a link no event was due.
        if gap > self.limits.pause() && !self.lines.is_empty() {
            self.lines.values_mut().for_each(|line| line.link.excuse(gap));
            self.any_heard += gap;
            self.paused = Some(now);
        }
        self.last_now = now;
    }

    /// Peers whose silence timeout has expired; each is reported again after another timeout.
    pub(super) fn silent(&mut self, now: Time) -> Vec<Peer> {
        let mut silent = Vec::new();
        for (peer, line) in &mut self.lines {
            if now >= line.link.silent_at(&self.limits) {
                line.link.be_patient(now);
                silent.push(*peer);
            }
        }
        silent
    }

    /// A connection with an address was lost and is made again.
    pub(super) fn reconnected(&mut self, address: &str, now: Time) {
        let lines = self.lines.values_mut().filter(|line| *line.address == *address);
        lines.for_each(|line| line.link.reconnected(now));
    }

    /// Restarts the silence timeout of every peer.
    pub(super) fn be_patient(&mut self, now: Time) {
        self.lines.values_mut().for_each(|line| line.link.be_patient(now));
    }

    /// Moment of the last frame of any linked peer.
    pub(super) fn any_heard(&self) -> Time {
        self.any_heard
    }

    /// Whether frames of peers arrive, and this process did not pause lately. Then the end of a connection is
    /// the end of its peer; otherwise the transport may have closed it because of the silence.
    pub(super) fn is_attentive(&self, now: Time) -> bool {
        let paused = self.paused.is_some_and(|at| now < at + self.limits.peer_timeout);
        !paused && now <= self.any_heard + self.limits.pause()
    }

    /// Frames that are due, those to servers first: workers call servers as soon as they know the address book,
    /// and a server that does not know it drops their frames.
    pub(super) fn send(&mut self, now: Time) -> Drain<'_, OutgoingFrame<D>> {
        let (me, incarnation, epoch) = (self.me, self.incarnation, self.epoch);
        for (peer, line) in self.lines.iter_mut().rev() {
            let PeerStream { address, link, .. } = line;
            let to_incarnation = link.incarnation();
            let traffic = &mut self.traffic;
            link.send(now, &self.limits, |mut message, backlog| {
                if let Some(rounds) = self.traced {
                    passages(&message, rounds, (me, *peer), now, true, &mut self.news);
                }
                traffic.messages_out += 1;
                message.head.to_incarnation = to_incarnation;
                stamp(&mut message.head, me, incarnation, epoch, self.limits.job);
                traffic.bytes_out += message.frame_len();
                let backlog = Some(backlog);
                self.frames.push(OutgoingFrame { to: address.clone(), message, backlog });
            });
            self.traffic.resent += std::mem::take(&mut link.resent);
        }
        take_all(&mut self.frames)
    }

    /// No frames: this process has ended.
    pub(super) fn send_none(&mut self) -> Drain<'_, OutgoingFrame<D>> {
        self.frames.drain(..0)
    }

    /// Takes the memory of a list of tokens back.
    pub(super) fn give_back(&mut self, peer: Peer, tokens: Vec<DeliveryToken>) {
        if tokens.capacity() > 0
            && let Some(line) = self.lines.get_mut(&peer)
        {
            line.link.give_back(tokens);
        }
    }

    pub(super) fn wake_at(&self) -> Time {
        let wake = |line: &PeerStream<D>| {
            line.link.wake_at(&self.limits).min(line.link.silent_at(&self.limits))
        };
        self.lines.values().map(wake).min().unwrap_or(Time::MAX)
    }
}

/// Reports pushes and values of a message between two members, if their round is traced.
fn passages<D: Data>(
    message: &Message<D>,
    (first, last): (u64, u64),
    (me, other): (Peer, Peer),
    at: Time,
    is_sent: bool,
    news: &mut Vec<PeerEvent>,
) {
    let (worker, server) = if me.role == Role::Worker { (me, other) } else { (other, me) };
    let (worker, server) = (worker.rank, server.rank);
    for Message { head, .. } in message.parts() {
        let is_value = head.kind == MessageKind::Value;
        if (is_value || head.kind == MessageKind::Push) && (first..=last).contains(&head.round) {
            let Header { key, slice, round, request, .. } = *head;
            let passage =
                TracedMessage { is_value, is_sent, key, slice, round, worker, server, request, at };
            news.push(PeerEvent::Passed(passage));
        }
    }
}

fn stamp(head: &mut Header, me: Peer, incarnation: u64, epoch: u32, job: u64) {
    head.role = me.role;
    head.rank = me.rank;
    head.incarnation = incarnation;
    head.epoch = epoch;
    head.job = job;
    #[cfg(feature = "wire-next")]
    {
        head.next = super::message::next::VALUE;
    }
}

/// Extension fields of a later release in a message, or in a bundle and its messages.
fn skipped<D: Data>(message: &Message<D>) -> u64 {
    let of_parts = message.parts().iter().map(|part| u64::from(part.head.skipped)).sum();
    match message.head.kind {
        MessageKind::Bundle => u64::from(message.head.skipped) + of_parts,
        _ => of_parts,
    }
}
