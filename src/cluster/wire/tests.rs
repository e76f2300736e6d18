//! Frames and fields: what is written is read, and nothing else is; no bytes are a danger.

use super::header::{BadFrame, HEADER, Header, Kind, decode, encode};
use super::{Awaited, Book, Declare, Hello, Place, Spec, Standing, State, accused, failed};
use super::{Look, MOST_REPORT, Seen, Sight};
use crate::cluster::common::{Failure, Peer, Reason, Role};
use crate::cluster::facts::{
    BUCKETS, CallKind, Facts, Late, MOST_NAME, MOST_PEERS, MOST_WAITING, Waiting,
};
use crate::cluster::sim::{Random, limits};

const MOST: u64 = 1 << 20;

fn any_header(random: &mut Random) -> Header {
    let kinds = Kind::ALL.len() as u64;
    let short = |random: &mut Random| u16::try_from(random.below(65_536)).unwrap();
    Header {
        kind: Kind::ALL[usize::try_from(random.below(kinds)).unwrap()],
        role: Role::from_code(u8::try_from(random.below(3)).unwrap()).unwrap(),
        rank: u32::try_from(random.next() >> 32).unwrap(),
        job: random.next(),
        incarnation: random.next(),
        to_incarnation: random.next(),
        epoch: u32::try_from(random.next() >> 32).unwrap(),
        sequence: random.next(),
        ack: random.next(),
        key: random.next(),
        generation: u32::try_from(random.next() >> 32).unwrap(),
        slice: u32::try_from(random.next() >> 32).unwrap(),
        round: random.next(),
        offset: random.next(),
        total: random.next(),
        request: random.next(),
        setting: random.next(),
        priority: i32::try_from(random.below(200)).unwrap() - 100,
        flags: short(random),
        codec: short(random),
        replicas: match random.below(17) {
            0 => None,
            count => Some((0..count).map(|i| u32::try_from(i * 7).unwrap()).collect()),
        },
    }
}

fn some_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    (0..random.below(most)).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
}

#[test]
fn frames_travel_together_and_come_out_as_they_went_in() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let frames: Vec<_> =
            (0..3).map(|_| (any_header(&mut random), some_bytes(&mut random, 300))).collect();
        let mut bytes = Vec::new();
        frames.iter().for_each(|(head, payload)| encode(head, payload, &mut bytes));
        let mut rest = &bytes[..];
        for (head, payload) in &frames {
            let (got, body, after) = decode(rest, MOST).unwrap();
            assert_eq!((&got, body), (head, &payload[..]), "seed {seed}");
            rest = after;
        }
        assert!(rest.is_empty());
    }
}

#[test]
fn a_frame_with_one_changed_byte_is_refused() {
    let mut random = Random::new(1);
    for _ in 0..20 {
        let (head, payload) = (any_header(&mut random), some_bytes(&mut random, 100));
        let mut bytes = Vec::new();
        encode(&head, &payload, &mut bytes);
        // Two bytes of the header are reserved: receivers ignore them, checksums do not.
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << random.below(8);
            assert!(decode(&changed, MOST).is_err(), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], MOST).is_err(), "the first {len} bytes");
        }
    }
}

#[test]
fn sizes_are_checked_before_anything_is_taken() {
    let mut bytes = Vec::new();
    encode(&Header::default(), &[0; 64], &mut bytes);
    assert_eq!(decode(&bytes, 63).unwrap_err(), BadFrame::Length(64));
    // A length that no memory has, under a right checksum.
    let end = HEADER - 4;
    let at = end - 4 - 8 - 8;
    bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..end]);
    bytes[end..HEADER].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode(&bytes, MOST).unwrap_err(), BadFrame::Length(u64::MAX));
    assert_eq!(decode(&bytes, u64::MAX).unwrap_err(), BadFrame::Short);
    // Lists that claim four billion items.
    let mut list = 7u32.to_le_bytes().to_vec();
    list.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Book::decode(&list), None);
    assert_eq!(Awaited::decode(&u32::MAX.to_le_bytes()), None);
}

#[test]
fn another_version_is_told_apart_from_nonsense() {
    let mut bytes = Vec::new();
    encode(&Header::default(), &[], &mut bytes);
    bytes[4] = 9;
    assert_eq!(decode(&bytes, MOST).unwrap_err(), BadFrame::Version(9));
    bytes[0] = 0;
    assert_eq!(decode(&bytes, MOST).unwrap_err(), BadFrame::Magic);
    assert_eq!(decode(&[], MOST).unwrap_err(), BadFrame::Short);
}

/// The example of docs/wire.md, byte for byte.
#[test]
fn the_format_is_the_documented_one() {
    let head = Header {
        kind: Kind::Push,
        role: Role::Worker,
        rank: 3,
        job: 1,
        incarnation: 2,
        to_incarnation: 4,
        epoch: 5,
        sequence: 6,
        ack: 7,
        key: 8,
        generation: 9,
        slice: 10,
        round: 11,
        offset: 12,
        total: 13,
        request: 14,
        setting: 15,
        priority: -1,
        flags: 2,
        codec: 0,
        replicas: Some([1].into()),
    };
    let mut bytes = Vec::new();
    encode(&head, &[0x3f, 0x80], &mut bytes);
    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/wire.md");
    let documented = std::fs::read_to_string(page).unwrap();
    let example = documented.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next());
    let words: Vec<_> = example.expect("the example").split_whitespace().collect();
    assert_eq!(
        words,
        hex,
        "{}",
        hex.chunks(16).map(|row| row.join(" ") + "\n").collect::<String>()
    );
}

fn any_facts(random: &mut Random, full: bool) -> Facts {
    let mut facts = Facts { age: random.next(), held_bytes: random.next(), ..Facts::default() };
    facts.traffic.bytes_in = random.next();
    facts.traffic.resent = random.next();
    for histogram in [&mut facts.push, &mut facts.pull, &mut facts.pushpull] {
        histogram.sum = random.next();
        let used = if full { BUCKETS as u64 } else { random.below(9) };
        for at in 0..used {
            histogram.counts[usize::try_from(at).unwrap()] = 1 + random.below(1 << 40);
        }
    }
    let most = |random: &mut Random, most: usize| {
        if full { most as u64 } else { random.below(most as u64 + 1) }
    };
    let count = most(random, MOST_WAITING);
    for at in 0..count {
        let peers = most(random, MOST_PEERS);
        facts.waiting.push(Waiting {
            call: CallKind::from_code(u8::try_from(at % 11).unwrap()).unwrap(),
            started: at % 2 == 0,
            key: random.next(),
            name: "n".repeat(if full { MOST_NAME } else { 3 }),
            round: random.next(),
            age: random.next(),
            awaited: (0..peers).map(|rank| Peer::worker(u32::try_from(rank).unwrap())).collect(),
        });
    }
    let count = most(random, MOST_PEERS);
    facts.late = (0..count).map(|_| Late { rank: 3, rounds: random.next(), time: 5 }).collect();
    facts
}

fn any_seen(random: &mut Random) -> Seen {
    let sight = |report| Sight {
        peer: Peer::server(1),
        state: State::Lost,
        address: "h:1".into(),
        heard: Some(7),
        report,
    };
    let report = Some((3, any_facts(random, false)));
    Seen {
        clock: random.next(),
        job: random.next(),
        workers: 2,
        servers: 1,
        epoch: 3,
        terms: Some(limits().terms()),
        facts: any_facts(random, false),
        members: 9,
        sights: vec![sight(report), sight(None)],
    }
}

#[test]
fn the_longest_report_is_short_enough_to_be_kept() {
    let facts = any_facts(&mut Random::new(1), true);
    let bytes = facts.encode();
    assert!(bytes.len() <= MOST_REPORT, "{}", bytes.len());
    assert_eq!(Facts::decode(&bytes), Some(facts.clone()));
    // More than there may be is left out.
    let mut more = facts.clone();
    more.waiting.push(more.waiting[0].clone());
    more.waiting[0].name += "m";
    more.late.push(more.late[0]);
    assert_eq!(Facts::decode(&more.encode()), Some(facts));
}

#[test]
fn what_is_seen_is_read_as_it_was_written_or_refused() {
    let mut random = Random::new(9);
    for _ in 0..300 {
        let seen = any_seen(&mut random);
        let mut bytes = seen.encode();
        assert_eq!(Seen::decode(&bytes), Some(seen.clone()));
        let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
        bytes[at] = u8::try_from(random.below(256)).unwrap();
        assert!(Seen::decode(&bytes).is_none_or(|it| it.encode().len() == bytes.len()));
        assert_eq!(Seen::decode(&bytes[..at]), None);
    }
    let look = Look { address: "a:1".into(), skip: 64 };
    assert_eq!(Look::decode(&look.encode(0)), Some(look.clone()));
    assert_eq!(Look::decode(&look.encode(5_000)), Some(look));
}

fn fields() -> Vec<Vec<u8>> {
    let peer = Peer::worker(2);
    let member = Standing { peer, incarnation: 9, state: State::Lost, address: "tcp/h:1".into() };
    let book = Book { epoch: 4, terms: Some(limits().terms()), members: vec![member] };
    let spec = Spec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![3, 5], whole: false };
    let hello =
        Hello { workers: 2, servers: 1, book: book.clone(), done: true, ..Hello::default() };
    let place = Place { spec: spec.clone(), slice_bytes: 32, servers: vec![0, 1] };
    let failure = Failure::new(Reason::PeerLost, "worker 2 is lost");
    assert_eq!(Book::decode(&book.encode()), Some(book.clone()));
    assert_eq!(Hello::decode(&hello.encode()), Some(hello.clone()));
    assert_eq!(Place::decode(&place.encode()), Some(place.clone()));
    assert_eq!(failed::decode(&failed::encode(&failure)), Some(failure.clone()));
    assert_eq!(accused::decode(&accused::encode(peer, 7)), Some((peer, 7)));
    let declare = Declare { spec: Some(spec) };
    assert_eq!(Declare::decode(&declare.encode()), Some(declare.clone()));
    let awaited = Awaited { peers: vec![peer, Peer::server(1)] };
    assert_eq!(Awaited::decode(&awaited.encode()), Some(awaited.clone()));
    vec![
        book.encode(),
        hello.encode(),
        place.encode(),
        declare.encode(),
        awaited.encode(),
        failed::encode(&failure),
        accused::encode(peer, 7),
        any_facts(&mut Random::new(4), false).encode(),
        any_seen(&mut Random::new(5)).encode(),
    ]
}

#[test]
fn fields_of_any_bytes_are_read_or_refused() {
    let good = fields();
    let mut random = Random::new(3);
    for round in 0..20_000 {
        let mut bytes = if round % 2 == 0 {
            some_bytes(&mut random, 80)
        } else {
            good[usize::try_from(random.below(good.len() as u64)).unwrap()].clone()
        };
        if !bytes.is_empty() {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(random.below(256)).unwrap();
            bytes.truncate(bytes.len() - usize::from(random.below(4) == 0));
        }
        // Whatever is read is written back as it was.
        for again in [
            Book::decode(&bytes).map(|read| read.encode()),
            Place::decode(&bytes).map(|read| read.encode()),
            Awaited::decode(&bytes).map(|read| read.encode()),
            failed::decode(&bytes).map(|read| failed::encode(&read)),
            Facts::decode(&bytes).map(|read| read.encode()),
            Seen::decode(&bytes).map(|read| read.encode()),
        ] {
            assert!(again.is_none_or(|again| again.len() == bytes.len()));
        }
        let _ = (
            Look::decode(&bytes),
            Hello::decode(&bytes),
            Declare::decode(&bytes),
            accused::decode(&bytes),
        );
        assert!(decode(&bytes, MOST).is_err());
    }
}

#[test]
fn a_place_whose_slices_do_not_make_up_its_key_is_refused() {
    let spec = Spec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![100], whole: false };
    let place = |servers| Place { spec: spec.clone(), slice_bytes: 64, servers };
    assert!(Place::decode(&place(vec![0; 7]).encode()).is_some());
    assert!(Place::decode(&place(vec![0; 6]).encode()).is_none());
    let huge = Place { spec: Spec { shape: vec![u64::MAX, 2], ..spec.clone() }, ..place(vec![0]) };
    assert!(Place::decode(&huge.encode()).is_none());
}
