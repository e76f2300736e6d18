//! Tests of the encoding of messages, and of the number of open paths.

use super::*;
use crate::runtime::buffers::{BlockPool, Loan};
use crate::runtime::inbox::read_all;
use crate::transport::{Exchange, Inbox, Piece};
use kvstore_checksum::CopySums;
use kvstore_protocol::testing::encode;
use kvstore_protocol::{Data, Header, MessageKind, Role};

const MEMBERS: usize = 4;

struct Deaf;

impl Inbox for Deaf {
    fn arrived(&self, _: &str, _: usize, _: &mut dyn Iterator<Item = Piece<'_>>) {}

    fn down(&self, _: &str) {}
}

/// Inbox that keeps the received bytes.
#[derive(Default)]
struct Keeper(Mutex<Vec<u8>>);

impl Inbox for Keeper {
    fn arrived(&self, _: &str, _: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        pieces.for_each(|piece| self.0.lock().extend(piece.to_vec()));
    }

    fn down(&self, _: &str) {}
}

fn sums_of(bytes: &[u8]) -> CopySums {
    CopySums { crc32c: kvstore_checksum::crc32c(bytes), crc64: None }
}

#[test]
fn frames_are_the_same_wherever_their_values_lie() {
    let blocks: Arc<BlockPool> = Arc::default();
    let value: Vec<u8> = (0..251).cycle().take(3 * LENT).collect();
    let block = || blocks.join(&[&value]).unwrap();
    let (mut summed, whole) = (block(), Bytes::of_block(block()));
    summed.has_sums(sums_of(&value));
    let summed = Bytes::of_block(summed);
    let parts = [(0, value.len()), (1, LENT), (LENT, LENT - 1), (7, 0)];
    let (mut batch, mut expected) = (Vec::new(), Vec::new());
    for (at, len) in parts {
        for data in [&summed, &whole] {
            let head = Header { kind: MessageKind::Value, key: at as u64, ..Header::default() };
            encode(&head, &value[at..at + len], &mut expected);
            batch.push(Message { head, body: Body::Data(data.part(at as u64, len as u64)) });
        }
    }
    assert!(sent(&batch) == expected);
}

/// A queue that is not called.
fn no_queue() -> Weak<dyn SendQueue> {
    Weak::<PeerPath>::new()
}

/// Encoded bytes of messages.
fn sent(batch: &[Message<Bytes>]) -> Vec<u8> {
    let exchange: Arc<Exchange> = Arc::default();
    let keeper = Arc::new(Keeper::default());
    let inbox: Arc<dyn Inbox> = keeper.clone();
    let _there = exchange.join("there", &inbox);
    let deaf: Arc<dyn Inbox> = Arc::new(Deaf);
    let line = exchange.join("here", &deaf).line("there", no_queue());
    PeerPath::send(line, batch);
    std::mem::take(&mut *keeper.0.lock())
}

#[test]
fn a_bundle_is_read_as_it_was_written_or_not_at_all() {
    let blocks: Arc<BlockPool> = Arc::default();
    let value: Vec<u8> = (0..251).cycle().take(300).collect();
    let mut block = blocks.join(&[&value]).unwrap();
    block.has_sums(sums_of(&value));
    let block = Bytes::of_block(block);
    let loan = Arc::new(Loan::of_static(&[3; 300]));
    let lent = Bytes::of_loan(Arc::clone(&loan), 300);
    let head = |kind, number: u16| Header {
        kind,
        role: Role::Worker,
        rank: 3,
        key: u64::MAX - u64::from(number),
        generation: u32::from(number) + 1,
        slice: 1 << 20 | u32::from(number),
        round: 1 << 40 | u64::from(number),
        offset: 5 * u64::from(number),
        total: 6,
        request: 7 << 33,
        setting: 8 << 50,
        priority: -9,
        flags: number,
        codec: number + 10,
        ..Header::default()
    };
    let message = |kind, number, body| Message { head: head(kind, number), body };
    let parts = vec![
        message(MessageKind::Value, 0, Body::Data(block.part(0, 300))),
        message(MessageKind::Push, 1, Body::Data(lent.part(7, 200))),
        message(MessageKind::Pull, 2, Body::Fields(vec![1, 2, 3])),
        message(MessageKind::Push, 3, Body::Data(block.part(5, 0))),
        message(MessageKind::Pull, 4, Body::Fields(Vec::new())),
    ];
    is_read_as_written(parts, &blocks);
    let values =
        (0..5).map(|at| message(MessageKind::Value, at, Body::Data(block.part(at.into(), 90))));
    is_read_as_written(values.collect(), &blocks);
    let parts = vec![message(MessageKind::Push, 1, Body::Data(lent)); 2];
    Loan::end(&loan);
    assert!(sent(&[Message::bundle(parts)]).is_empty(), "nobody needs it, so it has arrived");
}

fn is_read_as_written(parts: Vec<Message<Bytes>>, blocks: &Arc<BlockPool>) {
    let mut bundle = Message::bundle(parts);
    (bundle.head.role, bundle.head.rank) = (Role::Worker, 3);
    let bytes = sent(std::slice::from_ref(&bundle));
    assert_eq!(bytes.len() as u64, bundle.frame_len());
    for size in [1, 2, 75, 76, 141, bytes.len()] {
        let (read, broken) =
            read_all(bytes.len(), &mut bytes.chunks(size).map(Piece::from), blocks, false);
        assert_eq!((read.len(), broken), (1, None), "in pieces of {size}");
        assert_eq!(read[0].head, bundle.head);
        assert_eq!(read[0].parts().len(), bundle.parts().len());
        for (read, sent) in read[0].parts().iter().zip(bundle.parts()) {
            assert_eq!(read.head, sent.head);
            assert_eq!(content(read), content(sent));
        }
    }
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 0x10;
        let (read, broken) =
            read_all(altered.len(), &mut altered.chunks(99).map(Piece::from), blocks, false);
        assert!(read.is_empty() && broken.is_some(), "altered at {at}");
        let (read, broken) =
            read_all(at, &mut bytes[..at].chunks(99).map(Piece::from), blocks, false);
        assert!(read.is_empty() && (at == 0 || broken.is_some()), "cut at {at}");
    }
}

fn content(message: &Message<Bytes>) -> Vec<u8> {
    match &message.body {
        Body::Fields(fields) => fields.clone(),
        Body::Data(data) => data.read(<[u8]>::to_vec).unwrap(),
        Body::Parts(_) => panic!("a bundle in a bundle"),
    }
}

/// Sender with memory for some bytes, of which it sends none.
struct Memory {
    room: usize,
    beyond: SendMode,
    line: Box<dyn Sender>,
}

impl Sender for Memory {
    fn is_ready(&mut self) -> bool {
        true
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn room_for(&mut self, len: usize) -> SendMode {
        if len <= self.room { SendMode::Memory } else { self.beyond }
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        self.room = self.room.saturating_sub(room);
        self.line.parcel(room, lent)
    }

    fn send(&mut self, _: SendBuffer) {}

    fn call_back(&mut self) {}
}

/// Of this many bytes, in messages of `size`, the number that cannot be sent without blocking.
fn left_after_sending(bytes: usize, size: usize, room: usize, beyond: SendMode) -> usize {
    let exchange: Arc<Exchange> = Arc::default();
    let deaf: Arc<dyn Inbox> = Arc::new(Deaf);
    let line = exchange.join("here", &deaf).line("there", no_queue());
    let way = outbox().new_way(&"there".into(), |_| Box::new(Memory { room, beyond, line }));
    let mut state = way.state.lock();
    let blocks: Arc<BlockPool> = Arc::default();
    let value = Bytes::of_block(blocks.join(&[&vec![1; size]]).unwrap());
    for backlog in (size..=bytes).step_by(size) {
        let message = Message { head: Header::default(), body: Body::Data(value.clone()) };
        state.post(OutgoingFrame { to: "there".into(), message, backlog: Some(backlog as u64) });
    }
    while state.can_send_at_once() {
        let batch = state.batch();
        let line = state.line.take().unwrap();
        state.line = Some(PeerPath::send(line, &batch));
    }
    length(state.bytes)
}

#[test]
fn whoever_has_something_to_send_waits_for_nobody() {
    let (kib, mib, calm) = (1 << 10, 1 << 20, length(CALM));
    // Without memory the peer may have to receive first.
    assert_eq!(left_after_sending(calm / 2, 4 * kib, 0, SendMode::Unknown), 0);
    assert!(left_after_sending(2 * calm, 4 * kib, 0, SendMode::Unknown) >= 2 * calm);
    assert!(left_after_sending(2 * mib, 2 * mib, mib, SendMode::Unknown) >= 2 * mib);
    assert!(left_after_sending(2 * mib, 64 * kib, 0, SendMode::System) >= 2 * mib);
    if has_few_processors() {
        for size in [4 * kib, mib] {
            assert_eq!(left_after_sending(4 * mib, size, 8 * mib, SendMode::Unknown), 0);
            let left = left_after_sending(4 * mib, size, 2 * mib, SendMode::Unknown);
            assert!((2 * mib..=3 * mib + mib / 2).contains(&left), "{left}");
        }
        assert_eq!(left_after_sending(2 * mib, 4 * kib, 0, SendMode::System), 0);
    }
}

fn outbox() -> Outbox {
    let (exchange, inbox): (_, Arc<dyn Inbox>) = (Arc::new(Exchange::default()), Arc::new(Deaf));
    Outbox::new(exchange.join("here", &inbox), MEMBERS, Arc::new(|_| {}))
}

/// Posts a message to an address; its paths are not flushed.
fn post(outbox: &Outbox, to: &str) -> PeerPaths {
    let mut ways = PeerPaths::new();
    let message = Message::new(MessageKind::Alive, Vec::new());
    let backlog = to.starts_with("member").then_some(0);
    let frame = OutgoingFrame { to: to.into(), message, backlog };
    outbox.post(std::iter::once(frame), &mut ways);
    ways
}

fn answer(outbox: &Outbox, to: &str) -> usize {
    post(outbox, to).iter().map(|way| way.flush()).count()
}

fn member(at: usize) -> String {
    format!("member {at}")
}

/// Path to a member, which must be open.
fn way_of_member(outbox: &Outbox, at: usize) -> Arc<PeerPath> {
    let way = Arc::clone(&outbox.ways.lock()[member(at).as_str()]);
    assert!(!way.state.lock().closed);
    way
}

#[test]
fn strangers_come_and_go_and_members_stay() {
    let outbox = outbox();
    (0..MEMBERS).for_each(|at| _ = answer(&outbox, &member(at)));
    let ways = || (0..MEMBERS).map(|at| way_of_member(&outbox, at));
    let before: Vec<_> = ways().collect();
    for number in 0..1_000 {
        assert_eq!(answer(&outbox, &format!("stranger {number}")), 1);
        assert!(outbox.ways.lock().len() <= MEMBERS + MOST_WAYS);
    }
    assert!(before.iter().zip(ways()).all(|(before, now)| Arc::ptr_eq(before, &now)));
    outbox.forget("stranger 999");
    assert!(!outbox.ways.lock().contains_key("stranger 999"));
}

#[test]
fn strangers_that_take_nothing_are_not_answered_beyond_a_bound() {
    let outbox = outbox();
    let most = MOST_WAYS + MOST_BUSY;
    let said = |number| post(&outbox, &format!("stranger {number}")).len();
    assert_eq!((0..1_000).map(said).sum::<usize>(), most);
    assert_eq!(outbox.ways.lock().len(), most);
    // An idle path makes room for another.
    assert_eq!(answer(&outbox, "stranger 0"), 1);
    assert_eq!(said(2_000), 1);
    assert_eq!(outbox.ways.lock().len(), most);
    // A process that becomes a member meanwhile is still sent its messages.
    assert_eq!(said(3_000), 0);
    assert_eq!((0..MEMBERS).map(|at| answer(&outbox, &member(at))).sum::<usize>(), MEMBERS);
}

#[test]
fn members_in_the_place_of_others_leave_no_ways_behind() {
    let outbox = outbox();
    for at in 0..1_000 {
        assert_eq!(answer(&outbox, &member(at)), 1);
        answer(&outbox, &format!("stranger {at}"));
        assert!(outbox.ways.lock().len() <= MEMBERS + MOST_WAYS);
    }
    (1_000 - MEMBERS..1_000).for_each(|at| _ = way_of_member(&outbox, at));
}
