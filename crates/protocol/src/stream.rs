//! A reliable, ordered stream to one peer (also: ARQ, sliding window, session): each message once, over a
//! transport that may lose, duplicate, delay and reorder frames.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::drops::DropReason;
use super::job::{Data, DeliveryToken, Limits, MS, Time};
use super::message::flags::{ANSWER, LAST as LAST_FLAG};
use super::message::{Header, MOST_BYTES, MOST_PARTS, Message, MessageKind, SpareBundles};
use super::queue::{QueuedMessage, SendQueue};
use window::{SendWindow, Sent};

mod window;

/// Priority of control messages, above all data; they keep their order.
pub(super) const CONTROL: i32 = i32::MAX;
/// Priority behind every message in the queue.
pub(super) const LAST: i32 = i32::MIN;

/// Maximum time that values wait for a peer that has more to send.
const LONGEST_TURN: Time = 50 * MS;

/// Bytes of the reorder buffer beside those of a window: the last message of a window may be larger than
/// the rest of it.
const EARLY_BYTES: u64 = 1 << 20;
/// The same over a link with such a round trip: its window is larger, and several connections reorder as much as
/// they have in flight.
const LONG_LINK: Time = MS;
const EARLY_BYTES_OF_LONG_LINK: u64 = 60 << 20;

/// An unacknowledged message.
#[derive(Debug)]
struct InFlightMessage<D> {
    message: Message<D>,
    /// Number of its tokens.
    tokens: usize,
    /// Moment of the next retransmission.
    due: Time,
    pause: Time,
    /// None once it was sent again: an acknowledgement may be for either.
    sent: Option<Sent>,
}

impl<D> InFlightMessage<D> {
    /// While acknowledgements arrive, the messages behind them are in transit over a slow network, and
    /// retransmissions would only slow it down.
    fn retransmission_due(&self, progress: Time) -> Time {
        self.due.max(progress + self.pause)
    }
}

/// Both directions of the stream between one incarnation of a peer and this process.
///
/// A message gets its sequence when it is first sent: until then more urgent ones overtake it, from then
/// on nothing does.
#[derive(Debug)]
pub(super) struct ReliableStream<D> {
    incarnation: u64,
    queue: SendQueue<D>,
    flight: VecDeque<InFlightMessage<D>>,
    flight_bytes: u64,
    window: SendWindow,
    /// Tokens of the messages in flight, in their order.
    tokens: VecDeque<DeliveryToken>,
    /// Memory of the tokens of the last acknowledgement, and of acknowledged bundles.
    delivered: Vec<DeliveryToken>,
    bundles: SpareBundles<D>,
    /// Lower bound of the next retransmission.
    due: Time,
    /// Sequence of the first message in flight.
    first: u64,
    /// Moment of the last acknowledgement of a message in flight.
    progress: Time,
    received: u64,
    early: BTreeMap<u64, Message<D>>,
    early_bytes: u64,
    /// Moment at which an acknowledgement is due.
    ack_at: Option<Time>,
    /// Last sequence that was acknowledged to the peer, and bytes received since.
    acknowledged: u64,
    unacknowledged_bytes: u64,
    last_sent: Time,
    last_heard: Time,
    was_heard: bool,
    since: Time,
    /// Start of the silence timeout, if it is later than the last frame of the peer.
    patient_from: Time,
    /// End of the peer's turn, until which values are held back; 0 without one.
    turn_ends: Time,
    /// Retransmissions.
    pub(super) resent: u64,
}

/// Result of a frame.
#[derive(Debug)]
pub(super) struct Received<D> {
    /// The message of the frame, if it is in order.
    pub(super) next: Option<Message<D>>,
    /// Messages of the reorder buffer that are in order behind it.
    pub(super) early: Vec<Message<D>>,
    /// Tokens of messages that the peer has acknowledged.
    pub(super) delivered: Vec<DeliveryToken>,
    /// Reason for which the message, or the acknowledgement, has no effect.
    pub(super) ignored: Option<DropReason>,
}

impl<D: Data> ReliableStream<D> {
    pub(super) fn new(incarnation: u64, now: Time) -> Self {
        Self {
            incarnation,
            queue: SendQueue::default(),
            flight: VecDeque::new(),
            flight_bytes: 0,
            window: SendWindow::new(now),
            tokens: VecDeque::new(),
            delivered: Vec::new(),
            bundles: SpareBundles::default(),
            due: Time::MAX,
            first: 1,
            progress: now,
            received: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            ack_at: None,
            acknowledged: 0,
            unacknowledged_bytes: 0,
            last_sent: now,
            last_heard: now,
            was_heard: false,
            since: now,
            patient_from: now,
            turn_ends: 0,
            resent: 0,
        }
    }

    /// Incarnation of the peer.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Queues a message. The token is returned when the peer has acknowledged it.
    pub(super) fn queue(
        &mut self,
        message: Message<D>,
        priority: i32,
        token: Option<DeliveryToken>,
    ) {
        self.queue.push(message, priority, token);
    }

    /// Takes a frame of this peer's incarnation. With `room` or more messages in the queue to the peer, new
    /// messages are neither taken nor acknowledged: the peer retransmits them (backpressure).
    pub(super) fn receive(
        &mut self,
        message: Message<D>,
        now: Time,
        limits: &Limits,
        room: usize,
    ) -> Received<D> {
        let is_first = !self.was_heard;
        self.hear(now);
        let (acknowledgement, sequence) = (message.head.ack, message.head.sequence);
        if is_first && sequence == 0 {
            self.introduce(now);
        }
        let is_sent = acknowledgement < self.next_sequence();
        let delivered =
            if is_sent { self.acknowledge(acknowledgement, now, limits) } else { Vec::new() };
        let (mut next, mut early) = (None, Vec::new());
        let is_taken = sequence > 0 && (sequence <= self.received || self.queue.len() < room);
        let obstacle = match sequence {
            0 => None,
            _ if !is_taken => Some(DropReason::NoRoom),
            _ => self.obstacle(sequence, limits),
        };
        let ignored = obstacle.or((!is_sent).then_some(DropReason::Unsent));
        if is_taken {
            self.owe(&message, now, limits);
            if sequence == self.received + 1 {
                self.received = sequence;
                self.follow(&message, now, limits);
                next = Some(message);
            } else if obstacle.is_none() {
                self.early_bytes += message.body.len();
                self.early.insert(sequence, message);
            }
            if !self.early.is_empty() {
                self.take_early(self.received);
            }
            while let Some(next) = self.next_early() {
                self.received += 1;
                self.follow(&next, now, limits);
                early.push(next);
            }
        }
        Received { next, early, delivered, ignored }
    }

    /// The next message in order, from the reorder buffer.
    fn next_early(&mut self) -> Option<Message<D>> {
        if self.early.is_empty() { None } else { self.take_early(self.received + 1) }
    }

    fn take_early(&mut self, sequence: u64) -> Option<Message<D>> {
        let message = self.early.remove(&sequence)?;
        self.early_bytes -= message.body.len();
        Some(message)
    }

    /// Why a message is not kept. One beyond the send window of the peer, on a link without a
    /// received message, may belong to the link before, which the peer still has.
    fn obstacle(&self, sequence: u64, limits: &Limits) -> Option<DropReason> {
        if sequence == self.received + 1 {
            return None;
        }
        if sequence <= self.received || self.early.contains_key(&sequence) {
            return Some(DropReason::Duplicate);
        }
        if sequence > self.reach(limits) {
            return Some(if self.received > 0 { DropReason::Far } else { DropReason::NoRoom });
        }
        let is_long = self.window.round_trip().is_some_and(|it| it >= LONG_LINK);
        let beside = if is_long { EARLY_BYTES_OF_LONG_LINK } else { EARLY_BYTES };
        let most = limits.window_bytes.saturating_add(beside);
        (self.early_bytes >= most).then_some(DropReason::NoRoom)
    }

    /// Sequence of the next new message.
    fn next_sequence(&self) -> u64 {
        self.first.saturating_add(self.flight.len() as u64)
    }

    /// Last sequence of the peer's send window.
    fn reach(&self, limits: &Limits) -> u64 {
        self.received.saturating_add(limits.window_frames as u64)
    }

    /// Whether a sequence is no duplicate, and fits into the window and the reorder buffer.
    pub(super) fn is_new(&self, sequence: u64, limits: &Limits) -> bool {
        self.obstacle(sequence, limits).is_none()
    }

    /// Begins or ends the peer's turn, by the flag that it has nothing more to send.
    fn follow(&mut self, message: &Message<D>, now: Time, limits: &Limits) {
        if !limits.one_way_at_a_time || message.head.flags & LAST_FLAG != 0 {
            self.turn_ends = 0;
        } else if self.turn_ends == 0 {
            self.turn_ends = now + LONGEST_TURN;
        }
    }

    /// Schedules an acknowledgement: at once if the sender is blocked on it, else delayed, but before the
    /// sender's window is full.
    fn owe(&mut self, message: &Message<D>, now: Time, limits: &Limits) {
        let Header { flags, sequence, .. } = message.head;
        let fresh = sequence == self.received + 1;
        let few = sequence.saturating_sub(self.acknowledged) < limits.window_frames as u64 / 4;
        self.unacknowledged_bytes += message.body.len();
        let light = self.unacknowledged_bytes < limits.window_bytes / 4;
        let awaited =
            flags & LAST_FLAG != 0 && message.parts().iter().any(waits_for_acknowledgement);
        let patient = fresh && few && light && !awaited;
        let at = if patient { now + limits.patience() } else { now };
        self.ack_at = Some(self.ack_at.map_or(at, |before| before.min(at)));
    }

    /// Drops acknowledged messages.
    fn acknowledge(&mut self, ack: u64, now: Time, limits: &Limits) -> Vec<DeliveryToken> {
        let (mut delivered, mut last) = (std::mem::take(&mut self.delivered), None);
        let is_full = self.flight_bytes >= self.window.bytes(limits.window_bytes);
        while self.first <= ack {
            if let Some(frame) = self.flight.pop_front() {
                let bytes = frame.message.body.len();
                self.flight_bytes -= bytes;
                self.window.deliver(bytes, now);
                last = frame.sent;
                delivered.extend(self.tokens.drain(..frame.tokens));
                self.bundles.keep(frame.message.body);
            }
            self.first += 1;
            self.progress = now;
        }
        if let Some(sent) = last {
            self.window.measure(sent, is_full, now);
        }
        if self.flight.is_empty() {
            self.due = Time::MAX;
        }
        delivered
    }

    /// Takes the memory of a list of tokens back.
    pub(super) fn give_back(&mut self, tokens: Vec<DeliveryToken>) {
        self.delivered = tokens;
        self.delivered.clear();
    }

    /// Frames that are due: retransmissions, new messages while there is room in the window, or else an
    /// acknowledgement or a heartbeat.
    pub(super) fn send(
        &mut self,
        now: Time,
        limits: &Limits,
        mut frame: impl FnMut(Message<D>, u64),
    ) {
        let ack = self.received;
        let mut said = false;
        let mut emit = |message: &Message<D>, sequence: u64, backlog: u64| {
            let mut message = message.clone();
            message.head.sequence = sequence;
            message.head.ack = ack;
            frame(message, backlog);
        };
        if self.due <= now {
            self.due = Time::MAX;
            for (sent, sequence) in self.flight.iter_mut().zip(self.first..) {
                if sent.retransmission_due(self.progress) <= now {
                    let first = self.window.patience(limits.resend());
                    sent.pause = (sent.pause * 2).clamp(first, first * 4);
                    sent.due = now + sent.pause;
                    sent.sent = None;
                    emit(&sent.message, sequence, self.flight_bytes);
                    self.resent += 1;
                    said = true;
                }
                self.due = self.due.min(sent.retransmission_due(self.progress));
            }
        }
        while self.has_room(limits) && self.held_until() <= now {
            let Some((mut message, tokens)) = self.next() else { break };
            let sent = Some(self.window.sent(self.flight_bytes, now));
            self.flight_bytes += message.body.len();
            // A message that fills the window needs no flag: each quarter of the window is acknowledged.
            if self.queue.is_empty() {
                message.head.flags |= LAST_FLAG;
            }
            emit(&message, self.next_sequence(), self.flight_bytes);
            said = true;
            let pause = self.window.patience(limits.resend());
            self.due = self.due.min(now + pause);
            let due = now + pause;
            self.flight.push_back(InFlightMessage { message, tokens, due, pause, sent });
        }
        let ack_due = self.ack_at.is_some_and(|at| at <= now);
        if !said && (ack_due || self.is_heartbeat_due(now, limits)) {
            emit(&Message::new(MessageKind::Alive, Vec::new()), 0, self.flight_bytes);
            said = true;
        }
        if said {
            self.ack_at = None;
            self.acknowledged = ack;
            self.unacknowledged_bytes = 0;
            self.last_sent = now;
        }
    }

    /// A connection with the peer was lost: all messages in flight are due, and so is an acknowledgement.
    pub(super) fn reconnected(&mut self, now: Time) {
        for sent in &mut self.flight {
            (sent.due, sent.pause) = (now, 0);
        }
        if !self.flight.is_empty() {
            self.due = now;
        }
        self.ack_at = Some(now);
    }

    /// Sends a frame at once: the first one, or the answer to that of the peer.
    pub(super) fn introduce(&mut self, now: Time) {
        self.ack_at = Some(now);
    }

    fn is_heartbeat_due(&self, now: Time, limits: &Limits) -> bool {
        now >= self.last_sent + limits.heartbeat()
    }

    /// Next message: one, or small ones in a bundle; and the number of tokens of all.
    fn next(&mut self) -> Option<(Message<D>, usize)> {
        let known = self.tokens.len();
        let QueuedMessage { message, token, .. } = self.queue.pop()?;
        self.tokens.extend(token);
        let mut bytes = message.body.len();
        let fits =
            |next: &Message<D>, bytes| next.joins_bundle() && bytes + next.body.len() <= MOST_BYTES;
        let more = |next: &Message<D>| message.begins_bundle() && fits(next, bytes);
        let Some(mut next) = self.queue.pop_if(more) else {
            return Some((message, self.tokens.len() - known));
        };
        let mut bundle = self.bundles.take();
        let parts = Arc::make_mut(&mut bundle);
        parts.add(message);
        loop {
            bytes += next.message.body.len();
            parts.add(next.message);
            self.tokens.extend(next.token);
            if parts.messages().len() >= MOST_PARTS {
                break;
            }
            let Some(another) = self.queue.pop_if(|next| fits(next, bytes)) else { break };
            next = another;
        }
        Some((Message::of_parts(bundle), self.tokens.len() - known))
    }

    /// Control messages ignore the limit in bytes: they unblock other members.
    fn has_room(&self, limits: &Limits) -> bool {
        let most = self.window.bytes(limits.window_bytes);
        let light = self.flight_bytes < most || self.queue.is_next(CONTROL);
        self.flight.is_empty() || (light && self.flight.len() < limits.window_frames)
    }

    /// Only values wait: two peers that waited for each other would both send nothing.
    fn held_until(&self) -> Time {
        let is_value = |first: &Message<D>| first.head.kind == MessageKind::Value;
        if self.queue.first().is_some_and(is_value) { self.turn_ends } else { 0 }
    }

    /// Moment of the next `send`, at the latest; it may emit nothing.
    pub(super) fn wake_at(&self, limits: &Limits) -> Time {
        let sends = !self.queue.is_empty() && self.has_room(limits);
        let next = if sends { self.held_until() } else { Time::MAX };
        let ack = self.ack_at.unwrap_or(Time::MAX);
        next.min(self.due).min(ack).min(self.last_sent + limits.heartbeat())
    }

    /// End of the silence timeout, unless a frame arrives before. The first contact has the time of the start: a
    /// connection over a long or lossy network takes many round trips.
    pub(super) fn silent_at(&self, limits: &Limits) -> Time {
        let first = if self.was_heard { 0 } else { limits.start_timeout };
        self.last_heard.max(self.patient_from) + limits.silence().max(first)
    }

    /// Restarts the silence timeout of the peer.
    pub(super) fn be_patient(&mut self, now: Time) {
        self.patient_from = now;
    }

    /// Queued messages, and unacknowledged bytes.
    pub(super) fn backlog(&self) -> (u64, u64) {
        (self.queue.len() as u64, self.flight_bytes)
    }

    /// Whether frames of the peer arrive, but no acknowledgement of messages in flight for half of the
    /// silence timeout: the network may drop large frames.
    pub(super) fn is_unanswered(&self, limits: &Limits) -> bool {
        !self.flight.is_empty() && self.last_heard >= self.progress + limits.silence() / 2
    }

    pub(super) fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// Moment at which the link was made.
    pub(super) fn since(&self) -> Time {
        self.since
    }

    /// Whether a frame of the peer has ever arrived.
    pub(super) fn was_heard(&self) -> bool {
        self.was_heard
    }

    pub(super) fn hear(&mut self, now: Time) {
        self.was_heard = true;
        self.last_heard = self.last_heard.max(now);
    }

    /// Adds a pause of this process, which is no silence of the peer.
    pub(super) fn excuse(&mut self, time: Time) {
        self.last_heard += time;
        self.patient_from += time;
    }
}

/// The sender of a value is never blocked on its acknowledgement; a push with an answer is acknowledged by
/// the value, and a segment that was copied by what its receiver sends next.
fn waits_for_acknowledgement<D>(message: &Message<D>) -> bool {
    let Header { kind, flags, .. } = message.head;
    let has_answer = flags & ANSWER != 0;
    match kind {
        MessageKind::Value => false,
        MessageKind::Push | MessageKind::Segment => !has_answer,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
