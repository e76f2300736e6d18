//! A reliable, ordered stream to one peer, each message once, over an engine that may lose, double,
//! delay and reorder frames.

use std::collections::{BTreeMap, VecDeque};

use super::common::{Data, Limits, Time, Token};
use super::queue::{Queue, Queued};
use super::wire::flags::{ANSWER, LAST as LAST_FLAG};
use super::wire::{Header, Kind, Message};

/// Control messages overtake all data; among themselves they keep their order.
pub(super) const CONTROL: i32 = i32::MAX;
/// Behind everything that was queued before.
pub(super) const LAST: i32 = i32::MIN;

/// A message that was sent and not yet acknowledged.
#[derive(Debug)]
struct Sent<D> {
    message: Message<D>,
    token: Option<Token>,
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
    /// When an acknowledgement must be on its way at the latest.
    ack_at: Option<Time>,
    /// What the peer knows that has arrived, and the bytes that have arrived since.
    acknowledged: u64,
    unacknowledged_bytes: u64,
    last_sent: Time,
    last_heard: Time,
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
            ack_at: None,
            acknowledged: 0,
            unacknowledged_bytes: 0,
            last_sent: now,
            last_heard: now,
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

    /// Takes a frame of this peer's incarnation.
    pub(super) fn receive(
        &mut self,
        message: Message<D>,
        now: Time,
        limits: &Limits,
    ) -> Received<D> {
        self.last_heard = self.last_heard.max(now);
        let delivered = self.acknowledge(message.head.ack, now);
        let (sequence, mut next, mut early) = (message.head.sequence, None, Vec::new());
        if sequence > 0 {
            self.owe(&message, now, limits);
            if sequence == self.received + 1 {
                self.received = sequence;
                next = Some(message);
            } else if self.is_new(sequence, limits) {
                self.early.insert(sequence, message);
            }
            if !self.early.is_empty() {
                self.early.remove(&self.received);
            }
            while let Some(next) = self.next_early() {
                self.received += 1;
                early.push(next);
            }
        }
        Received { next, early, delivered }
    }

    /// The next message, if it came too early.
    fn next_early(&mut self) -> Option<Message<D>> {
        if self.early.is_empty() {
            return None;
        }
        self.early.remove(&(self.received + 1))
    }

    /// Whether a message of this sequence has not come before, and may come now.
    pub(super) fn is_new(&self, sequence: u64, limits: &Limits) -> bool {
        let reach = self.received.saturating_add(limits.window_frames as u64);
        sequence > self.received && sequence <= reach && !self.early.contains_key(&sequence)
    }

    /// Acknowledges at once when the sender waits for it; otherwise so that its window stays open.
    fn owe(&mut self, message: &Message<D>, now: Time, limits: &Limits) {
        let Header { kind, flags, sequence, .. } = message.head;
        let answered = kind == Kind::Push && flags & ANSWER != 0;
        let fresh = sequence == self.received + 1;
        let few = sequence.saturating_sub(self.acknowledged) < limits.window_frames as u64 / 4;
        self.unacknowledged_bytes += message.body.len();
        let light = self.unacknowledged_bytes < limits.window_bytes / 4;
        // Values only have to leave the window, and a push that asks for one is acknowledged by it.
        let awaited = flags & LAST_FLAG != 0 && kind != Kind::Value && !answered;
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
                delivered.extend(sent.token);
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
        while self.has_room(limits) {
            let Some(Queued { mut message, token, .. }) = self.queue.pop() else { break };
            self.flight_bytes += message.body.len();
            // One that fills the window need not say so: each quarter of it is acknowledged.
            if self.queue.is_empty() {
                message.head.flags |= LAST_FLAG;
            }
            emit(&message, self.first + self.flight.len() as u64, self.flight_bytes);
            said = true;
            let pause = limits.resend();
            self.due = self.due.min(now + pause);
            self.flight.push_back(Sent { message, token, due: now + pause, pause });
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

    fn has_room(&self, limits: &Limits) -> bool {
        self.flight.is_empty()
            || (self.flight.len() < limits.window_frames && self.flight_bytes < limits.window_bytes)
    }

    /// When `send` is to be called at the latest; it may have nothing to say then.
    pub(super) fn wake_at(&self, limits: &Limits) -> Time {
        if !self.queue.is_empty() && self.has_room(limits) {
            return 0;
        }
        let ack = self.ack_at.unwrap_or(Time::MAX);
        self.due.min(ack).min(self.last_sent + limits.heartbeat())
    }

    /// When the peer counts as lost unless it is heard before.
    pub(super) fn silent_at(&self, limits: &Limits) -> Time {
        self.last_heard + limits.silence()
    }

    /// Messages in line, and bytes that are not known to have arrived.
    pub(super) fn backlog(&self) -> (u64, u64) {
        (self.queue.len() as u64, self.flight_bytes)
    }

    pub(super) fn last_heard(&self) -> Time {
        self.last_heard
    }

    pub(super) fn hear(&mut self, now: Time) {
        self.last_heard = self.last_heard.max(now);
    }

    /// We were away for some time ourselves: the peer is not to blame for that.
    pub(super) fn excuse(&mut self, time: Time) {
        self.last_heard += time;
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTROL, LAST, Limits, Link, Time, Token};
    use crate::cluster::sim::{Bytes, Random, limits};
    use crate::cluster::wire::{Body, Kind, Message};

    type Frames = Vec<Message<Bytes>>;

    fn message(key: u64, round: u64) -> Message<Bytes> {
        let mut message = Message::of_key(Kind::Push, key, 1, Vec::new());
        message.head.round = round;
        message.body = Body::Data(Bytes::new(&[]));
        message
    }

    fn token(operation: u64) -> Token {
        Token { operation, attempt: 0 }
    }

    fn frames(link: &mut Link<Bytes>, now: Time, limits: &Limits) -> Frames {
        let mut frames = Vec::new();
        link.send(now, limits, |frame, _| frames.push(frame));
        frames
    }

    #[test]
    fn a_stream_arrives_whole_in_order_and_once_over_any_engine() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let window_frames = usize::try_from(1 + random.below(9)).unwrap();
            let limits = Limits { window_frames, ..limits() };
            let (mut one, mut other) = (Link::new(1, 0), Link::new(2, 0));
            (0..60).for_each(|round| one.queue(message(0, round), 0, Some(token(round))));
            let (mut got, mut delivered, mut now) = (Vec::new(), Vec::new(), 0);
            let mut wire: Vec<(bool, Message<Bytes>)> = Vec::new();
            while delivered.len() < 60 {
                now += limits.resend() / 4;
                assert!(now < 1_000 * limits.peer_timeout, "seed {seed} does not end");
                wire.extend(frames(&mut one, now, &limits).into_iter().map(|frame| (true, frame)));
                wire.extend(frames(&mut other, now, &limits).into_iter().map(|f| (false, f)));
                for _ in 0..wire.len() {
                    let at = usize::try_from(random.below(wire.len() as u64)).unwrap();
                    let (forth, frame) = match random.below(4) {
                        0 => wire[at].clone(),
                        _ => wire.swap_remove(at),
                    };
                    if random.below(5) == 0 {
                        continue;
                    }
                    let to = if forth { &mut other } else { &mut one };
                    let received = to.receive(frame, now, &limits);
                    let messages = received.next.iter().chain(&received.early);
                    got.extend(messages.map(|message| message.head.round));
                    delivered.extend(received.delivered.iter().map(|token| token.operation));
                    assert!(other.early.len() < limits.window_frames, "bounded memory");
                    if wire.is_empty() {
                        break;
                    }
                }
            }
            assert_eq!(got, (0..60).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(delivered, (0..60).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn urgent_messages_overtake_what_was_not_sent_and_nothing_else() {
        let limits = Limits { window_frames: 1, ..limits() };
        let mut link = Link::new(1, 0);
        link.queue(message(1, 1), 0, None);
        assert_eq!(frames(&mut link, 0, &limits).len(), 1, "one fills the window");
        link.queue(message(2, 1), 0, None);
        link.queue(Message::new(Kind::Done, Vec::new()), LAST, None);
        link.queue(message(3, 1), 5, None);
        link.queue(message(2, 2), 9, None);
        link.queue(Message::new(Kind::Ask, Vec::new()), CONTROL, None);
        let mut order = Vec::new();
        for sequence in 1..=5 {
            let mut ack = Message::new(Kind::Alive, Vec::new());
            ack.head.ack = sequence;
            link.receive(ack, 0, &limits);
            let sent = frames(&mut link, 0, &limits).remove(0).head;
            order.push((sent.kind, sent.key, sent.round));
        }
        let push = |key, round| (Kind::Push, key, round);
        // A slice never overtakes one of its own key.
        let expected = [(Kind::Ask, 0, 0), push(3, 1), push(2, 1), push(2, 2), (Kind::Done, 0, 0)];
        assert_eq!(order, expected);
    }

    #[test]
    fn what_was_never_sent_cannot_be_acknowledged() {
        let limits = limits();
        let mut link = Link::new(1, 0);
        link.queue(message(1, 1), 0, Some(token(7)));
        frames(&mut link, 0, &limits);
        let mut ack = Message::new(Kind::Alive, Vec::new());
        ack.head.ack = 2;
        assert!(link.receive(ack.clone(), 0, &limits).delivered.is_empty());
        ack.head.ack = 1;
        assert_eq!(link.receive(ack, 0, &limits).delivered, [token(7)]);
    }

    #[test]
    fn a_window_of_bytes_is_acknowledged_before_it_is_full() {
        let limits = Limits { window_frames: 1_000, window_bytes: 64, ..limits() };
        let mut link = Link::new(1, 0);
        let mut value = Message::of_key(Kind::Value, 1, 1, Vec::new());
        value.body = Body::Data(Bytes::new(&[0; 8]));
        for (sequence, acks) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
            value.head.sequence = sequence;
            link.receive(value.clone(), 0, &limits);
            assert_eq!(frames(&mut link, 0, &limits).len(), acks, "after {sequence}");
        }
    }

    #[test]
    fn a_full_window_is_acknowledged_in_quarters_and_the_end_at_once() {
        let limits = Limits { window_frames: 8, ..limits() };
        let (mut one, mut other) = (Link::new(1, 0), Link::new(2, 0));
        (0..18).for_each(|round| one.queue(message(0, round), 0, None));
        let (mut acks, mut arrived) = (Vec::new(), 0);
        while arrived < 18 {
            let sent = frames(&mut one, 0, &limits);
            assert!(!sent.is_empty(), "it waits for nothing");
            for frame in sent {
                other.receive(frame, 0, &limits);
                arrived += 1;
                for ack in frames(&mut other, 0, &limits) {
                    acks.push(arrived);
                    one.receive(ack, 0, &limits);
                }
            }
        }
        assert_eq!(acks, [2, 4, 6, 8, 10, 12, 14, 16, 18]);
    }

    #[test]
    fn a_slow_network_that_delivers_gets_nothing_twice() {
        let limits = Limits { window_frames: 8, ..limits() };
        let (mut one, mut other) = (Link::new(1, 0), Link::new(2, 0));
        (0..40).for_each(|round| one.queue(message(0, round), 0, None));
        let (mut wire, mut now) = (std::collections::VecDeque::new(), 0);
        for round in 0..40 {
            now += limits.resend() - 1;
            let sent = frames(&mut one, now, &limits).into_iter();
            wire.extend(sent.filter(|frame| frame.head.sequence > 0));
            let frame = wire.pop_front().unwrap();
            assert_eq!(frame.head.round, round, "nothing but the next one");
            other.receive(frame, now, &limits);
            let later = now + limits.patience();
            let ack = frames(&mut other, later, &limits).remove(0);
            one.receive(ack, later, &limits);
        }
        assert!(wire.is_empty());
        now += limits.patience();
        one.queue(message(0, 40), 0, None);
        assert_eq!(frames(&mut one, now, &limits).len(), 1);
        now += limits.resend();
        assert_eq!(one.wake_at(&limits), now, "without progress it is sent again");
        assert_eq!(frames(&mut one, now, &limits).len(), 1);
    }

    #[test]
    fn a_link_shows_signs_of_life_and_notices_silence() {
        let limits = limits();
        let mut link = Link::<Bytes>::new(1, 0);
        assert_eq!(link.wake_at(&limits), limits.heartbeat());
        assert!(frames(&mut link, limits.heartbeat() - 1, &limits).is_empty());
        assert_eq!(frames(&mut link, limits.heartbeat(), &limits)[0].head.kind, Kind::Alive);
        assert_eq!(link.silent_at(&limits), limits.silence());
        link.receive(Message::new(Kind::Alive, Vec::new()), 5, &limits);
        assert_eq!(link.silent_at(&limits), limits.silence() + 5);
    }
}
