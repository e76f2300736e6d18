//! A reliable, ordered stream to one peer, each message once, over an engine that may lose, double,
//! delay and reorder frames.

use std::collections::{BTreeMap, VecDeque};

use super::job::{Data, Limits, MS, Time, Token};
use super::message::flags::{ANSWER, LAST as LAST_FLAG};
use super::message::{Header, Kind, MOST_BYTES, MOST_PARTS, Message};
use super::queue::{Queue, Queued};

/// Control messages overtake all data; among themselves they keep their order.
pub(super) const CONTROL: i32 = i32::MAX;
/// Behind everything that was queued before.
pub(super) const LAST: i32 = i32::MIN;

/// So long at most values wait for a peer that sends one thing behind another.
const LONGEST_TURN: Time = 50 * MS;

/// Bytes that may arrive ahead of a message that is missing, beside those of a window: the last message
/// of a window may be larger than what is left of it.
const EARLY_BYTES: u64 = 1 << 20;

/// A message that was sent and not yet acknowledged.
#[derive(Debug)]
struct Sent<D> {
    message: Message<D>,
    tokens: Vec<Token>,
    /// When to send it again.
    due: Time,
    pause: Time,
}

impl<D> Sent<D> {
    /// While acknowledgements come in, what is behind them is on its way over a slow network, and
    /// copies of it would only make that slower.
    fn due_after(&self, progress: Time) -> Time {
        self.due.max(progress + self.pause)
    }
}

/// One direction of sending and one of receiving, between one incarnation of a peer and us.
///
/// A message gets its place in the stream when it is first sent: until then more urgent ones
/// overtake it, from then on nothing does.
#[derive(Debug)]
pub(super) struct Link<D> {
    incarnation: u64,
    queue: Queue<D>,
    flight: VecDeque<Sent<D>>,
    flight_bytes: u64,
    /// Nothing in flight is to be sent again before this.
    due: Time,
    /// The sequence of the first in flight.
    first: u64,
    /// When an acknowledgement last took something out of flight.
    progress: Time,
    received: u64,
    early: BTreeMap<u64, Message<D>>,
    early_bytes: u64,
    /// When an acknowledgement must be on its way at the latest.
    ack_at: Option<Time>,
    /// What the peer knows that has arrived, and the bytes that have arrived since.
    acknowledged: u64,
    unacknowledged_bytes: u64,
    last_sent: Time,
    last_heard: Time,
    was_heard: bool,
    since: Time,
    /// Start of the current silence timeout, if that is later than the last frame of the peer.
    patient_from: Time,
    /// Values are held back until then: the peer has more to send. 0 if they are not.
    turn_ends: Time,
    /// Messages that were sent again.
    pub(super) resent: u64,
}

/// What came of a frame.
#[derive(Debug)]
pub(super) struct Received<D> {
    /// Messages that are now in order: this one, and those that had come before it.
    pub(super) next: Option<Message<D>>,
    pub(super) early: Vec<Message<D>>,
    /// Tokens of messages that the peer has.
    pub(super) delivered: Vec<Token>,
}

impl<D: Data> Link<D> {
    pub(super) fn new(incarnation: u64, now: Time) -> Self {
        Self {
            incarnation,
            queue: Queue::default(),
            flight: VecDeque::new(),
            flight_bytes: 0,
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

    /// The incarnation of the peer at the other end.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Puts a message in line. The token comes back when the peer has it.
    pub(super) fn queue(&mut self, message: Message<D>, priority: i32, token: Option<Token>) {
        self.queue.push(message, priority, token);
    }

    /// Takes a frame of this peer's incarnation. With `room` or more messages in line to the peer it takes
    /// none that is new, and acknowledges none: the peer sends it again (backpressure).
    pub(super) fn receive(
        &mut self,
        message: Message<D>,
        now: Time,
        limits: &Limits,
        room: usize,
    ) -> Received<D> {
        self.hear(now);
        let delivered = self.acknowledge(message.head.ack, now);
        let (sequence, mut next, mut early) = (message.head.sequence, None, Vec::new());
        if sequence > 0 && (sequence <= self.received || self.queue.len() < room) {
            self.owe(&message, now, limits);
            if sequence == self.received + 1 {
                self.received = sequence;
                self.follow(&message, now, limits);
                next = Some(message);
            } else if self.is_new(sequence, limits) {
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
        Received { next, early, delivered }
    }

    /// The next message, if it came too early.
    fn next_early(&mut self) -> Option<Message<D>> {
        if self.early.is_empty() { None } else { self.take_early(self.received + 1) }
    }

    fn take_early(&mut self, sequence: u64) -> Option<Message<D>> {
        let message = self.early.remove(&sequence)?;
        self.early_bytes -= message.body.len();
        Some(message)
    }

    /// Whether a message is further ahead than a peer sends without an acknowledgement. At a link of which
    /// nothing has come yet it may be of the one before, which the peer has not given up.
    pub(super) fn is_far(&self, sequence: u64, limits: &Limits) -> bool {
        self.received > 0 && sequence > self.reach(limits)
    }

    /// The last sequence that a peer may send now.
    fn reach(&self, limits: &Limits) -> u64 {
        self.received.saturating_add(limits.window_frames as u64)
    }

    /// Whether a message of this sequence has not come before, and may come now.
    pub(super) fn is_new(&self, sequence: u64, limits: &Limits) -> bool {
        let reach = self.reach(limits);
        let most = limits.window_bytes.saturating_add(EARLY_BYTES);
        let fits = sequence == self.received + 1 || self.early_bytes < most;
        fits && (self.received + 1..=reach).contains(&sequence)
            && !self.early.contains_key(&sequence)
    }

    /// Lets the peer finish, within bounds, when it says that it has more to send.
    fn follow(&mut self, message: &Message<D>, now: Time, limits: &Limits) {
        if !limits.one_way_at_a_time || message.head.flags & LAST_FLAG != 0 {
            self.turn_ends = 0;
        } else if self.turn_ends == 0 {
            self.turn_ends = now + LONGEST_TURN;
        }
    }

    /// Acknowledges at once when the sender waits for it; otherwise so that its window stays open.
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

    /// Drops what the peer has. An acknowledgement of what was never sent acknowledges nothing.
    fn acknowledge(&mut self, ack: u64, now: Time) -> Vec<Token> {
        let mut delivered = Vec::new();
        if ack >= self.first.saturating_add(self.flight.len() as u64) {
            return delivered;
        }
        while self.first <= ack {
            if let Some(sent) = self.flight.pop_front() {
                self.flight_bytes -= sent.message.body.len();
                delivered.extend(sent.tokens);
            }
            self.first += 1;
            self.progress = now;
        }
        if self.flight.is_empty() {
            self.due = Time::MAX;
        }
        delivered
    }

    /// What is to be sent now: what was not acknowledged in time, new messages while there is room
    /// in the window, or, with nothing else to say, an acknowledgement.
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
                if sent.due_after(self.progress) <= now {
                    sent.pause = (sent.pause * 2).min(limits.resend() * 4);
                    sent.due = now + sent.pause;
                    emit(&sent.message, sequence, self.flight_bytes);
                    self.resent += 1;
                    said = true;
                }
                self.due = self.due.min(sent.due_after(self.progress));
            }
        }
        while self.has_room(limits) && self.held_until() <= now {
            let Some((mut message, tokens)) = self.next() else { break };
            self.flight_bytes += message.body.len();
            // One that fills the window need not say so: each quarter of it is acknowledged.
            if self.queue.is_empty() {
                message.head.flags |= LAST_FLAG;
            }
            emit(&message, self.first + self.flight.len() as u64, self.flight_bytes);
            said = true;
            let pause = limits.resend();
            self.due = self.due.min(now + pause);
            self.flight.push_back(Sent { message, tokens, due: now + pause, pause });
        }
        let ack_due = self.ack_at.is_some_and(|at| at <= now);
        if !said && (ack_due || now >= self.last_sent + limits.heartbeat()) {
            emit(&Message::new(Kind::Alive, Vec::new()), 0, self.flight_bytes);
            said = true;
        }
        if said {
            self.ack_at = None;
            self.acknowledged = ack;
            self.unacknowledged_bytes = 0;
            self.last_sent = now;
        }
    }

    /// The next message to be sent: one, or small ones in a bundle; and the tokens of all.
    fn next(&mut self) -> Option<(Message<D>, Vec<Token>)> {
        let Queued { message, token, .. } = self.queue.pop()?;
        let mut tokens: Vec<_> = token.into_iter().collect();
        let mut bytes = message.body.len();
        if !message.is_small() {
            return Some((message, tokens));
        }
        let mut parts = vec![message];
        let fits =
            |next: &Message<D>, bytes| next.is_small() && bytes + next.body.len() <= MOST_BYTES;
        while parts.len() < MOST_PARTS
            && let Some(Queued { message, token, .. }) = self.queue.pop_if(|next| fits(next, bytes))
        {
            bytes += message.body.len();
            parts.push(message);
            tokens.extend(token);
        }
        let alone = parts.len() == 1;
        let message = if alone { parts.pop()? } else { Message::bundle(parts) };
        Some((message, tokens))
    }

    /// Control messages do not wait for the bytes of data to arrive: they let others do something.
    fn has_room(&self, limits: &Limits) -> bool {
        let light = self.flight_bytes < limits.window_bytes || self.queue.is_next(CONTROL);
        self.flight.is_empty() || (light && self.flight.len() < limits.window_frames)
    }

    /// Only values ever wait: of two that waited for each other nobody would send.
    fn held_until(&self) -> Time {
        let is_value = |first: &Message<D>| first.head.kind == Kind::Value;
        if self.queue.first().is_some_and(is_value) { self.turn_ends } else { 0 }
    }

    /// When `send` is to be called at the latest; it may have nothing to say then.
    pub(super) fn wake_at(&self, limits: &Limits) -> Time {
        let sends = !self.queue.is_empty() && self.has_room(limits);
        let next = if sends { self.held_until() } else { Time::MAX };
        let ack = self.ack_at.unwrap_or(Time::MAX);
        next.min(self.due).min(ack).min(self.last_sent + limits.heartbeat())
    }

    /// When the peer counts as silent unless a frame arrives before.
    pub(super) fn silent_at(&self, limits: &Limits) -> Time {
        self.last_heard.max(self.patient_from) + limits.silence()
    }

    /// Starts the silence timeout of the peer again.
    pub(super) fn be_patient(&mut self, now: Time) {
        self.patient_from = now;
    }

    /// Messages in line, and bytes that are not known to have arrived.
    pub(super) fn backlog(&self) -> (u64, u64) {
        (self.queue.len() as u64, self.flight_bytes)
    }

    /// Whether the peer is heard and acknowledges nothing of what is in flight, for half of the time
    /// after which a silent one is lost: large frames may not get there.
    pub(super) fn is_unanswered(&self, limits: &Limits) -> bool {
        !self.flight.is_empty() && self.last_heard >= self.progress + limits.silence() / 2
    }

    pub(super) fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// When the link was made.
    pub(super) fn since(&self) -> Time {
        self.since
    }

    /// Whether the peer was ever heard.
    pub(super) fn was_heard(&self) -> bool {
        self.was_heard
    }

    pub(super) fn hear(&mut self, now: Time) {
        self.was_heard = true;
        self.last_heard = self.last_heard.max(now);
    }

    /// This process paused for some time, which is no silence of the peer.
    pub(super) fn excuse(&mut self, time: Time) {
        self.last_heard += time;
        self.patient_from += time;
    }
}

/// Values only have to leave the window, and a push that asks for one is acknowledged by it.
fn waits_for_acknowledgement<D>(message: &Message<D>) -> bool {
    let Header { kind, flags, .. } = message.head;
    kind != Kind::Value && (kind != Kind::Push || flags & ANSWER == 0)
}

#[cfg(test)]
mod tests;
