//! Tests of one link, and of two links over a lossy transport.

use super::{
    ANSWER, CONTROL, DeliveryToken, LAST, LAST_FLAG, LONGEST_TURN, Limits, MS, ReliableStream, Time,
};
use crate::message::{Body, Message, MessageKind};
use crate::sim::{Bytes, Random, limits};

type Frames = Vec<Message<Bytes>>;

fn push(key: u64, round: u64, bytes: usize) -> Message<Bytes> {
    let mut message = Message::of_key(MessageKind::Push, key, 1, Vec::new());
    message.head.round = round;
    message.body = Body::Data(Bytes::new(&vec![0; bytes]));
    message
}

/// A message that is sent alone.
fn message(key: u64, round: u64) -> Message<Bytes> {
    push(key, round, 16 << 10)
}

/// A message that is bundled.
fn small(key: u64, round: u64) -> Message<Bytes> {
    push(key, round, 100)
}

fn token(operation: u64) -> DeliveryToken {
    DeliveryToken { operation, attempt: 0, group: 0 }
}

fn frames(link: &mut ReliableStream<Bytes>, now: Time, limits: &Limits) -> Frames {
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
        let (mut one, mut other) = (ReliableStream::new(1, 0), ReliableStream::new(2, 0));
        for round in 0..60 {
            let small = random.below(3) > 0;
            let message = push(0, round, if small { 4 } else { 16 << 10 });
            one.queue(message, 0, Some(token(round)));
        }
        let (mut got, mut delivered, mut now) = (Vec::new(), Vec::new(), 0);
        let mut wire: Vec<(bool, Message<Bytes>)> = Vec::new();
        while delivered.len() < 60 {
            now += limits.resend() / 4;
            assert!(now < 1_000 * limits.peer_timeout, "seed {seed} does not end");
            wire.extend(frames(&mut one, now, &limits).into_iter().map(|frame| (true, frame)));
            wire.extend(frames(&mut other, now, &limits).into_iter().map(|f| (false, f)));
            for _ in 0..wire.len() {
                let at = random.index(wire.len());
                let (forth, frame) = match random.below(4) {
                    0 => wire[at].clone(),
                    _ => wire.swap_remove(at),
                };
                if random.one_in(5) {
                    continue;
                }
                let to = if forth { &mut other } else { &mut one };
                let received = to.receive(frame, now, &limits, usize::MAX);
                let messages = received.next.iter().chain(&received.early);
                let messages = messages.flat_map(Message::parts);
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
fn control_messages_do_not_wait_for_the_bytes_of_data() {
    let limits = Limits { window_bytes: 20 << 10, window_frames: 4, ..limits() };
    let mut link = ReliableStream::new(1, 0);
    for key in 1..=4 {
        link.queue(message(key, 1), 0, None);
    }
    assert_eq!(frames(&mut link, 0, &limits).len(), 2, "the window is full");
    link.queue(Message::of_key(MessageKind::Ask, 9, 1, Vec::new()), CONTROL, None);
    let sent = frames(&mut link, 0, &limits);
    assert_eq!(sent.iter().map(|frame| frame.head.key).collect::<Vec<_>>(), [9]);
    for _ in 0..3 {
        link.queue(Message::new(MessageKind::Done, Vec::new()), CONTROL, None);
    }
    assert_eq!(frames(&mut link, 0, &limits).len(), 1, "so many frames may be on their way");
}

#[test]
fn urgent_messages_overtake_what_was_not_sent_and_nothing_else() {
    let limits = Limits { window_frames: 1, ..limits() };
    let mut link = ReliableStream::new(1, 0);
    link.queue(message(1, 1), 0, None);
    assert_eq!(frames(&mut link, 0, &limits).len(), 1, "one fills the window");
    link.queue(message(2, 1), 0, None);
    link.queue(Message::new(MessageKind::Done, Vec::new()), LAST, None);
    link.queue(message(3, 1), 5, None);
    link.queue(message(2, 2), 9, None);
    link.queue(Message::new(MessageKind::Ask, Vec::new()), CONTROL, None);
    let mut order = Vec::new();
    for sequence in 1..=5 {
        let mut ack = Message::new(MessageKind::Alive, Vec::new());
        ack.head.ack = sequence;
        link.receive(ack, 0, &limits, usize::MAX);
        let sent = frames(&mut link, 0, &limits).remove(0).head;
        order.push((sent.kind, sent.key, sent.round));
    }
    let push = |key, round| (MessageKind::Push, key, round);
    // A slice never overtakes one of its own key.
    let expected =
        [(MessageKind::Ask, 0, 0), push(3, 1), push(2, 1), push(2, 2), (MessageKind::Done, 0, 0)];
    assert_eq!(order, expected);
}

#[test]
fn small_messages_travel_together_up_to_a_bound_and_in_their_order() {
    let limits = limits();
    let mut link = ReliableStream::new(1, 0);
    let line: Vec<_> = (0..70).map(|round| small(round, round)).collect();
    let large = [message(70, 70), message(71, 71)];
    let alone = [small(72, 72), message(73, 73)];
    // Only four of these fit into one bundle.
    let medium = (74..80).map(|round| push(round, round, 15 << 10));
    for message in line.into_iter().chain(large).chain(alone).chain(medium) {
        let round = message.head.round;
        link.queue(message, 0, Some(token(round)));
    }
    let sent = frames(&mut link, 0, &limits);
    let sizes: Vec<_> = sent.iter().map(|frame| frame.parts().len()).collect();
    assert_eq!(sizes, [64, 6, 1, 1, 1, 1, 4, 2]);
    let rounds = sent.iter().flat_map(Message::parts).map(|part| part.head.round);
    assert!(rounds.eq(0..80));
    let bundles = sent.iter().filter(|frame| frame.head.kind == MessageKind::Bundle);
    assert_eq!(bundles.count(), 4);
    let mut ack = Message::new(MessageKind::Alive, Vec::new());
    ack.head.ack = 2;
    let delivered = link.receive(ack, 0, &limits, usize::MAX).delivered;
    assert!(delivered.into_iter().eq((0..70).map(token)), "one acknowledgement is for all of them");
}

#[test]
fn what_waits_for_an_answer_is_acknowledged_by_it() {
    let limits = limits();
    let acks = |kind: MessageKind, flags: u16| {
        let mut part = small(1, 1);
        (part.head.kind, part.head.flags) = (kind, flags);
        let mut other = ReliableStream::<Bytes>::new(2, 0);
        let mut bundle = Message::bundle(vec![part.clone(), part]);
        (bundle.head.flags, bundle.head.sequence) = (LAST_FLAG, 1);
        other.receive(bundle, 0, &limits, usize::MAX);
        frames(&mut other, 0, &limits).len()
    };
    assert_eq!([acks(MessageKind::Push, ANSWER), acks(MessageKind::Value, 0)], [0, 0]);
    assert_eq!([acks(MessageKind::Push, 0), acks(MessageKind::Pull, 0)], [1, 1]);
}

#[test]
fn values_wait_for_pushes_that_are_still_to_come() {
    for one_way_at_a_time in [false, true] {
        let limits = Limits { one_way_at_a_time, ..limits() };
        let narrow = Limits { window_frames: 2, ..limits.clone() };
        let (mut worker, mut server) = (ReliableStream::new(1, 0), ReliableStream::new(2, 0));
        let value = |key| {
            let mut value = message(key, 1);
            value.head.kind = MessageKind::Value;
            value
        };
        let sent = |link: &mut ReliableStream<Bytes>, now| -> Vec<_> {
            let sent = frames(link, now, &limits).into_iter();
            sent.filter(|frame| frame.head.sequence > 0).map(|frame| frame.head.key).collect()
        };
        (1..=3).for_each(|key| worker.queue(message(key, 1), 0, None));
        let pushes = frames(&mut worker, 0, &narrow);
        assert_eq!(pushes.len(), 2, "the window is full");
        for push in pushes {
            server.receive(push, 0, &limits, usize::MAX);
        }
        server.queue(value(1), 0, None);
        if !one_way_at_a_time {
            assert_eq!(sent(&mut server, 0), [1]);
            continue;
        }
        // Until the other side has sent all; control messages do not wait.
        let ack = frames(&mut server, limits.patience(), &limits).remove(0);
        assert_eq!(ack.head.kind, MessageKind::Alive);
        assert_eq!(server.wake_at(&limits), LONGEST_TURN);
        server.queue(Message::of_key(MessageKind::Ask, 9, 1, Vec::new()), CONTROL, None);
        assert_eq!(server.wake_at(&limits), 0);
        assert_eq!(sent(&mut server, LONGEST_TURN - 1), [9]);
        worker.receive(ack, 0, &limits, usize::MAX);
        let last = frames(&mut worker, 0, &narrow).remove(0);
        server.receive(last, LONGEST_TURN - 1, &limits, usize::MAX);
        assert_eq!(sent(&mut server, LONGEST_TURN - 1), [1]);
        // Only for a bounded time.
        let (mut more, start) = (message(4, 1), 2 * LONGEST_TURN);
        more.head.sequence = 4;
        server.receive(more, start, &limits, usize::MAX);
        server.queue(value(2), 0, None);
        assert!(sent(&mut server, start + LONGEST_TURN - 1).is_empty());
        assert_eq!(sent(&mut server, start + LONGEST_TURN), [2]);
    }
}

#[test]
fn pushes_wait_for_nobody() {
    let limits = Limits { window_frames: 1, one_way_at_a_time: true, ..limits() };
    let mut worker = ReliableStream::new(1, 0);
    let mut value = message(1, 1);
    (value.head.kind, value.head.sequence) = (MessageKind::Value, 1);
    assert_eq!(value.head.flags & LAST_FLAG, 0, "more is to come");
    worker.receive(value, 0, &limits, usize::MAX);
    worker.queue(message(2, 1), 0, None);
    assert_eq!(frames(&mut worker, 0, &limits).len(), 1);
}

#[test]
fn what_was_never_sent_cannot_be_acknowledged() {
    let limits = limits();
    let mut link = ReliableStream::new(1, 0);
    link.queue(message(1, 1), 0, Some(token(7)));
    frames(&mut link, 0, &limits);
    let mut ack = Message::new(MessageKind::Alive, Vec::new());
    ack.head.ack = 2;
    assert!(link.receive(ack.clone(), 0, &limits, usize::MAX).delivered.is_empty());
    ack.head.ack = 1;
    assert_eq!(link.receive(ack, 0, &limits, usize::MAX).delivered, [token(7)]);
}

#[test]
fn a_window_of_bytes_is_acknowledged_before_it_is_full() {
    let limits = Limits { window_frames: 1_000, window_bytes: 64, ..limits() };
    let mut link = ReliableStream::new(1, 0);
    let mut value = Message::of_key(MessageKind::Value, 1, 1, Vec::new());
    value.body = Body::Data(Bytes::new(&[0; 8]));
    for (sequence, acks) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        value.head.sequence = sequence;
        link.receive(value.clone(), 0, &limits, usize::MAX);
        assert_eq!(frames(&mut link, 0, &limits).len(), acks, "after {sequence}");
    }
}

#[test]
fn a_full_window_is_acknowledged_in_quarters_and_the_end_at_once() {
    let limits = Limits { window_frames: 8, ..limits() };
    let (mut one, mut other) = (ReliableStream::new(1, 0), ReliableStream::new(2, 0));
    (0..18).for_each(|round| one.queue(message(0, round), 0, None));
    let (mut acks, mut arrived) = (Vec::new(), 0);
    while arrived < 18 {
        let sent = frames(&mut one, 0, &limits);
        assert!(!sent.is_empty(), "it waits for nothing");
        for frame in sent {
            other.receive(frame, 0, &limits, usize::MAX);
            arrived += 1;
            for ack in frames(&mut other, 0, &limits) {
                acks.push(arrived);
                one.receive(ack, 0, &limits, usize::MAX);
            }
        }
    }
    assert_eq!(acks, [2, 4, 6, 8, 10, 12, 14, 16, 18]);
}

#[test]
fn a_slow_network_that_delivers_gets_nothing_twice() {
    let limits = Limits { window_frames: 8, ..limits() };
    let (mut one, mut other) = (ReliableStream::new(1, 0), ReliableStream::new(2, 0));
    (0..40).for_each(|round| one.queue(message(0, round), 0, None));
    let (mut wire, mut now) = (std::collections::VecDeque::new(), 0);
    for round in 0..40 {
        now += limits.resend() - 1;
        let sent = frames(&mut one, now, &limits).into_iter();
        wire.extend(sent.filter(|frame| frame.head.sequence > 0));
        let frame = wire.pop_front().unwrap();
        assert_eq!(frame.head.round, round, "nothing but the next one");
        other.receive(frame, now, &limits, usize::MAX);
        let later = now + limits.patience();
        let ack = frames(&mut other, later, &limits).remove(0);
        one.receive(ack, later, &limits, usize::MAX);
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
    let mut link = ReliableStream::<Bytes>::new(1, 0);
    assert_eq!(link.wake_at(&limits), limits.heartbeat());
    assert!(frames(&mut link, limits.heartbeat() - 1, &limits).is_empty());
    assert_eq!(frames(&mut link, limits.heartbeat(), &limits)[0].head.kind, MessageKind::Alive);
    assert!(limits.start_timeout > limits.silence());
    assert_eq!(link.silent_at(&limits), limits.start_timeout, "the time of the first contact");
    link.receive(Message::new(MessageKind::Alive, Vec::new()), 5, &limits, usize::MAX);
    assert_eq!(link.silent_at(&limits), limits.silence() + 5);
}

#[test]
fn after_a_reconnection_all_in_flight_is_sent_again_at_once_and_then_as_before() {
    let limits = limits();
    let mut link = ReliableStream::new(1, 0);
    (1..=3).for_each(|round| link.queue(message(0, round), 0, None));
    assert_eq!(frames(&mut link, 1, &limits).len(), 3);
    assert!(frames(&mut link, 2, &limits).is_empty());
    link.reconnected(2);
    assert_eq!(link.wake_at(&limits), 2);
    let sequences =
        |frames: Vec<Message<Bytes>>| frames.iter().map(|it| it.head.sequence).collect::<Vec<_>>();
    assert_eq!(sequences(frames(&mut link, 2, &limits)), [1, 2, 3]);
    // They wait for an acknowledgement again, from the first timeout on.
    assert!(frames(&mut link, 3, &limits).is_empty());
    assert_eq!(link.wake_at(&limits), 2 + limits.resend());
    assert_eq!(sequences(frames(&mut link, 2 + limits.resend(), &limits)), [1, 2, 3]);
    // With nothing in flight, what has arrived is acknowledged again.
    let mut idle = ReliableStream::<Bytes>::new(1, 0);
    idle.reconnected(5);
    assert_eq!(frames(&mut idle, 5, &limits)[0].head.kind, MessageKind::Alive);
}

#[test]
fn a_peer_that_is_heard_and_acknowledges_nothing_is_known() {
    let limits = limits();
    let half = limits.silence() / 2;
    let mut link = ReliableStream::new(1, 0);
    link.hear(half);
    assert!(!link.is_unanswered(&limits), "nothing was sent");
    link.queue(message(0, 1), 0, None);
    assert_eq!(frames(&mut link, 1, &limits).len(), 1);
    assert!(link.is_unanswered(&limits));
    let mut silent = ReliableStream::new(1, 0);
    silent.queue(message(0, 1), 0, None);
    assert_eq!(frames(&mut silent, 1, &limits).len(), 1);
    assert!(!silent.is_unanswered(&limits), "it may be gone");
}

#[test]
fn a_peer_with_too_much_in_line_is_taken_from_again_once_there_is_room() {
    let limits = limits();
    let (mut one, mut other) =
        (ReliableStream::<Bytes>::new(1, 0), ReliableStream::<Bytes>::new(2, 0));
    one.queue(Message::new(MessageKind::Ask, Vec::new()), CONTROL, None);
    other.queue(Message::new(MessageKind::Awaited, Vec::new()), CONTROL, None);
    let frames = |link: &mut ReliableStream<Bytes>, now| {
        let mut frames = Vec::new();
        link.send(now, &limits, |message, _| frames.push(message));
        frames
    };
    let asked = frames(&mut one, 0).pop().unwrap();
    let full = other.receive(asked, 0, &limits, 1);
    assert!(full.next.is_none());
    // The link's own message is sent, and acknowledges nothing.
    assert_eq!(frames(&mut other, 0).pop().unwrap().head.ack, 0);
    let again = frames(&mut one, limits.resend()).pop().unwrap();
    assert!(other.receive(again.clone(), 1, &limits, 1).next.is_some());
    assert!(other.receive(again, 1, &limits, 0).next.is_none(), "once is enough");
    assert_eq!(frames(&mut other, 1 + limits.patience()).pop().unwrap().head.ack, 1);
}

#[test]
fn what_arrives_ahead_of_a_missing_message_is_bounded_by_bytes() {
    // The least window, and one more; over a long link, what several connections have in flight.
    for (round_trip, most) in [(None, 5), (Some(100), 5), (Some(MS), 64)] {
        is_bounded(round_trip, most);
    }
}

fn is_bounded(round_trip: Option<Time>, most: usize) {
    let limits = Limits { window_frames: 1_024, ..limits() };
    let mut link = ReliableStream::<Bytes>::new(1, 0);
    if let Some(round_trip) = round_trip {
        let sent = link.window.sent(0, 0);
        link.window.measure(sent, false, round_trip);
    }
    let large = Bytes::new(&vec![0; 1 << 20]);
    let taken = (2..1_000u64).filter(|sequence| {
        let mut message = Message::of_key(MessageKind::Push, 1, 1, Vec::new());
        (message.head.sequence, message.body) = (*sequence, Body::Data(large.clone()));
        let is_new = link.is_new(*sequence, &limits);
        link.receive(message, 0, &limits, usize::MAX);
        is_new
    });
    assert_eq!(taken.count(), most, "{round_trip:?}");
    let mut first = Message::of_key(MessageKind::Push, 1, 1, Vec::new());
    (first.head.sequence, first.body) = (1, Body::Data(large));
    let received = link.receive(first, 0, &limits, usize::MAX);
    assert_eq!((received.next.is_some(), received.early.len()), (true, most));
}
