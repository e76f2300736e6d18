//! Frames and fields: encoded ones are decoded, all other bytes are refused, and none causes a panic.

use super::Terms;
use super::facts::MOST_REPORT;
use super::failed;
use super::fields::Field;
use super::header::{BadFrame, HEADER, Header, MessageKind, VERSION, decode, encode};
use super::{Body, Book, Hello, KeySpec, MemberState, Message, Placement, Proposal, Standing};
use super::{JobView, Look, MemberReport};
use crate::job::{Failure, Limits, MS, Peer, Reason, Role, naming};
use crate::job::{LONGEST_MS, SumOrder};
use crate::sim::{Bytes, Random, limits, read_frame, with_fields, write_frame};
use crate::telemetry::{
    BUCKETS, CallKind, MOST_NAME, MOST_PEERS, MOST_REASON, MOST_TRANSPORTS, MOST_WAITING,
    ProcessCounters, ProcessStats, StragglerDelay, TransportUse, WaitingCall,
};
use crate::testing::parse;

const MOST: u64 = 1 << 20;

fn any_header(random: &mut Random) -> Header {
    let kinds = MessageKind::ALL.len() as u64;
    let short = |random: &mut Random| u16::try_from(random.below(65_536)).unwrap();
    Header {
        kind: MessageKind::ALL[usize::try_from(random.below(kinds)).unwrap()],
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
        weight: random.next(),
        part: random.next(),
        scale: random.next(),
        ..Header::default()
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
        let (mut head, payload) = (any_header(&mut random), some_bytes(&mut random, 100));
        if head.kind == MessageKind::Bundle {
            head.kind = MessageKind::Push;
        }
        let mut bytes = Vec::new();
        encode(&head, &payload, &mut bytes);
        // Two bytes of the header are reserved: receivers ignore them, checksums cover them.
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

fn any_part(random: &mut Random) -> Message<Bytes> {
    let kinds = [MessageKind::Push, MessageKind::Pull, MessageKind::Value];
    let kind = kinds[random.index(3)];
    let bytes = some_bytes(random, 40);
    let (fields, data) = (Body::Fields(bytes.clone()), Body::Data(Bytes::new(&bytes)));
    let head = Header { kind, ..any_header(random) };
    Message { head, body: if kind.carries_data(bytes.len()) { data } else { fields } }
}

fn content(message: &Message<Bytes>) -> &[u8] {
    match &message.body {
        Body::Data(data) => data.bytes(),
        _ => message.fields(),
    }
}

#[test]
fn a_bundle_has_the_fields_of_its_parts_and_is_otherwise_of_its_frame() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let parts: Vec<_> = (0..=random.below(64)).map(|_| any_part(&mut random)).collect();
        let mut bundle = Message::bundle(parts.clone());
        let of_frame = Header { kind: MessageKind::Bundle, ..any_header(&mut random) };
        bundle.head = Header { total: bundle.head.total, offset: bundle.head.offset, ..of_frame };
        let read = read_frame(&write_frame(&bundle)).unwrap();
        assert_eq!((&read.head, read.parts().len()), (&bundle.head, parts.len()), "seed {seed}");
        for (read, part) in read.parts().iter().zip(&parts) {
            let of_part = &part.head;
            let expected = Header {
                kind: of_part.kind,
                key: of_part.key,
                round: of_part.round,
                offset: of_part.offset,
                total: of_part.total,
                request: of_part.request,
                setting: of_part.setting,
                generation: of_part.generation,
                slice: of_part.slice,
                priority: of_part.priority,
                flags: of_part.flags,
                codec: of_part.codec,
                weight: of_part.weight,
                part: of_part.part,
                scale: of_part.scale,
                ..bundle.head.clone()
            };
            assert_eq!((&read.head, content(read)), (&expected, content(part)), "seed {seed}");
        }
    }
}

/// The kinds that docs/internals/wire.md has in bundles.
const BUNDLED: [MessageKind; 12] = [
    MessageKind::Push,
    MessageKind::Pull,
    MessageKind::Value,
    MessageKind::Offer,
    MessageKind::Grant,
    MessageKind::Declare,
    MessageKind::Place,
    MessageKind::Describe,
    MessageKind::Init,
    MessageKind::Ready,
    MessageKind::Remove,
    MessageKind::Removed,
];

#[test]
fn a_bundle_that_is_not_what_it_says_is_refused() {
    let mut random = Random::new(3);
    let parts: Vec<_> = (0..3).map(|_| any_part(&mut random)).collect();
    let frame = write_frame(&Message::bundle(parts.clone()));
    for at in 0..frame.len() {
        let mut changed = frame.clone();
        changed[at] ^= 1 << random.below(8);
        assert!(read_frame(&changed).is_err(), "byte {at}");
    }
    // With right checksums: too many parts, more parts than payloads, other kinds, other lengths.
    let (head, payload, _) = decode(&frame, MOST).unwrap();
    let refused = |head: &Header, payload: &[u8]| {
        let mut bytes = Vec::new();
        encode(head, payload, &mut bytes);
        read_frame(&bytes).is_err()
    };
    assert!(!refused(&head, payload));
    for total in [0, 2, 4, 65, u64::MAX] {
        assert!(refused(&Header { total, ..head.clone() }, payload), "{total} parts");
    }
    assert!(refused(&head, &payload[..payload.len() - 1]));
    assert!(refused(&head, &[payload, &[0]].concat()));
    // Offsets of the kind and the length of the second part.
    let (kind_at, length_at) = (76 + 68, 76 + 60);
    for kind in MessageKind::ALL {
        let mut changed = payload.to_vec();
        changed[kind_at] = kind.code();
        let allowed = BUNDLED.contains(kind);
        assert_eq!(refused(&head, &changed), !allowed, "{kind:?}");
    }
    let mut changed = payload.to_vec();
    changed[length_at + 3] = 0xff;
    assert!(refused(&head, &changed), "a length that no frame has");
    let many = Message::bundle((0..65).map(|_| any_part(&mut random)).collect());
    assert!(read_frame(&write_frame(&many)).is_err());
}

#[test]
fn sizes_are_checked_before_anything_is_taken() {
    let mut bytes = Vec::new();
    encode(&Header::default(), &[0; 64], &mut bytes);
    assert_eq!(decode(&bytes, 63).unwrap_err(), BadFrame::Length(64));
    // A length beyond any memory, with a right checksum.
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
    assert_eq!(Vec::<Peer>::decode(&u32::MAX.to_le_bytes()), None);
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

fn page() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/wire.md");
    std::fs::read_to_string(page).unwrap()
}

#[test]
fn every_kind_is_documented_with_its_code() {
    let page = page();
    let table = page.split("\n### Kinds\n").nth(1).and_then(|rest| rest.split("\n#").next());
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        Some((cells.next()?.parse::<u8>().ok()?, cells.next()?.to_owned()))
    };
    let documented: Vec<_> = table.expect("the table").lines().filter_map(row).collect();
    let kinds = MessageKind::ALL.iter().map(|kind| (kind.code(), format!("{kind:?}")));
    assert_eq!(documented, kinds.collect::<Vec<_>>());
}

#[test]
fn the_documented_version_is_this_one() {
    let page = page();
    for text in [format!("implements version {VERSION}."), format!("| version | {VERSION} |")] {
        assert!(page.contains(&text), "docs/internals/wire.md lacks {text:?}");
    }
}

/// The example of docs/internals/wire.md, byte for byte.
#[test]
fn the_format_is_the_documented_one() {
    let head = Header {
        kind: MessageKind::Push,
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
        ..Header::default()
    };
    let mut bytes = Vec::new();
    encode(&head, &[0x3f, 0x80], &mut bytes);
    let bytes = with_fields(&bytes, || field(1, &16u64.to_le_bytes()));
    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let documented = page();
    let example = documented.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next());
    let words: Vec<_> = example.expect("the example").split_whitespace().collect();
    assert_eq!(
        words,
        hex,
        "{}",
        hex.chunks(16).map(|row| row.join(" ") + "\n").collect::<String>()
    );
}

fn any_facts(random: &mut Random, full: bool) -> ProcessStats {
    let mut facts = ProcessStats { age: random.next(), ..ProcessStats::default() };
    facts.counters.held_bytes = random.next();
    facts.counters.bytes_in = random.next();
    facts.counters.resent = random.next();
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
        facts.waiting.push(WaitingCall {
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
    facts.late =
        (0..count).map(|_| StragglerDelay { rank: 3, rounds: random.next(), time: 5 }).collect();
    let count = most(random, MOST_TRANSPORTS);
    for _ in 0..count {
        let peers = most(random, MOST_PEERS);
        facts.transports.push(TransportUse {
            transport: "t".repeat(if full { MOST_NAME } else { 3 }),
            others: "o".repeat(if full { MOST_REASON } else { 9 }),
            count: u32::try_from(random.below(1 << 20)).unwrap(),
            peers: (0..peers).map(|rank| Peer::server(u32::try_from(rank).unwrap())).collect(),
        });
    }
    facts
}

fn any_seen(random: &mut Random) -> JobView {
    let sight = |report| MemberReport {
        peer: Peer::server(1),
        state: MemberState::Lost,
        address: "h:1".into(),
        heard: Some(7),
        report,
    };
    let report = Some((3, any_facts(random, false)));
    JobView {
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
    assert_eq!(ProcessStats::decode(&bytes), Some(facts.clone()));
    // Entries beyond the maximum are left out.
    let mut more = facts.clone();
    more.waiting.push(more.waiting[0].clone());
    more.waiting[0].name += "m";
    more.late.push(more.late[0]);
    more.transports.push(more.transports[0].clone());
    more.transports[0].others += "m";
    assert_eq!(ProcessStats::decode(&more.encode()), Some(facts));
}

#[test]
fn the_counters_of_a_report_have_numbers_and_those_of_a_later_release_are_skipped() {
    let mut bytes = 1u64.to_le_bytes().to_vec();
    let counters = [(2u8, 3u64), (14, 15), (200, 7), (3, 4)];
    bytes.extend_from_slice(&4u32.to_le_bytes());
    for (number, value) in counters {
        bytes.push(number);
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 3 * 12 + 8 + 4 + 4]);
    let facts = ProcessStats::decode(&bytes).unwrap();
    let expected =
        ProcessCounters { rounds: 3, held_bytes: 15, bytes_in: 4, ..ProcessCounters::default() };
    assert_eq!((facts.age, facts.counters), (1, expected));
    // A process that has no list of transports sends none.
    assert_eq!(facts.transports, []);
    assert_eq!(ProcessStats::decode(&facts.encode()), Some(facts));
    let numbers: Vec<_> = ProcessCounters::table().map(|counter| counter.number).collect();
    let mut unique = numbers.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), numbers.len(), "{numbers:?}");
}

#[test]
fn a_waiting_call_of_a_later_release_is_left_out() {
    let mut facts = any_facts(&mut Random::new(2), true);
    let bytes = facts.encode();
    // The first waiting call begins behind its list and its own length.
    let call = (facts.waiting[0].call as u8, facts.waiting[0].key);
    let front = [&[call.0, 1][..], &call.1.to_le_bytes()].concat();
    let at = bytes.windows(front.len()).position(|window| window == front).unwrap();
    let mut later = bytes.clone();
    later[at] = 99;
    facts.waiting.remove(0);
    assert_eq!(ProcessStats::decode(&later), Some(facts));
}

#[test]
fn what_is_seen_is_read_as_it_was_written_or_refused() {
    let mut random = Random::new(9);
    for _ in 0..300 {
        let seen = any_seen(&mut random);
        let mut bytes = seen.encode();
        assert_eq!(JobView::decode(&bytes), Some(seen.clone()));
        let at = random.index(bytes.len());
        bytes[at] = u8::try_from(random.below(256)).unwrap();
        let read = JobView::decode(&bytes);
        assert!(read.is_none_or(|it| JobView::decode(&it.encode()) == Some(it)));
        assert_eq!(JobView::decode(&seen.encode()[..at]), None);
    }
    let look = Look { address: "a:1".into(), skip: 64 };
    assert_eq!(Look::decode(&look.encode(0)), Some(look.clone()));
    assert_eq!(Look::decode(&look.encode(5_000)), Some(look));
}

fn fields() -> Vec<Vec<u8>> {
    let peer = Peer::worker(2);
    let member = Standing {
        peer,
        incarnation: 9,
        state: MemberState::Lost,
        reads: true,
        address: "tcp/h:1".into(),
        features: 5,
        cause: "ended by signal 9, said kvstore run".into(),
        exchange: crate::message::ExchangeAddress::default(),
    };
    let terms = Some(limits().terms().into());
    let book = Book { epoch: 4, terms, features: 6, members: vec![member] };
    let spec = KeySpec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![3, 5], whole: false };
    let hello = Hello {
        workers: 2,
        servers: 1,
        book: book.clone(),
        features: 7,
        launch: 1 << 99,
        ..Hello::default()
    };
    let place = Placement { spec: spec.clone(), slice_bytes: 32, servers: vec![0, 1] };
    let failure = Failure::new(Reason::PeerLost, "worker 2 is lost");
    assert_eq!(Book::decode(&book.encode()), Some(book.clone()));
    assert_eq!(Hello::decode(&hello.encode()), Some(hello.clone()));
    assert_eq!(Placement::decode(&place.encode()), Some(place.clone()));
    assert_eq!(failed::decode(&failed::encode(&failure), 0), Some(failure.clone()));
    assert_eq!(Field::decode(&(peer, 7u64).encode()), Some((peer, 7u64)));
    let proposal = Proposal::Key(0x1234, Some(spec));
    assert_eq!(Proposal::decode_key(&proposal.encode()), Some(proposal.clone()));
    let peers = vec![peer, Peer::server(1)];
    assert_eq!(Vec::<Peer>::decode(&peers.encode()), Some(peers.clone()));
    vec![
        book.encode(),
        hello.encode(),
        place.encode(),
        proposal.encode(),
        peers.encode(),
        failed::encode(&failure),
        (peer, 7u64).encode(),
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
            good[random.index(good.len())].clone()
        };
        if !bytes.is_empty() {
            let at = random.index(bytes.len());
            bytes[at] = u8::try_from(random.below(256)).unwrap();
            bytes.truncate(bytes.len() - usize::from(random.one_in(4)));
        }
        parse(&bytes);
        assert!(decode(&bytes, MOST).is_err());
    }
}

#[test]
fn a_place_whose_slices_do_not_make_up_its_key_is_refused() {
    let spec = KeySpec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![100], whole: false };
    let place = |servers| Placement { spec: spec.clone(), slice_bytes: 64, servers };
    assert!(Placement::decode(&place(vec![0; 7]).encode()).is_some());
    assert!(Placement::decode(&place(vec![0; 6]).encode()).is_none());
    let huge =
        Placement { spec: KeySpec { shape: vec![u64::MAX, 2], ..spec.clone() }, ..place(vec![0]) };
    assert!(Placement::decode(&huge.encode()).is_none());
}

#[test]
fn a_hello_says_each_peer_timeout_that_can_be_set_and_no_longer_one() {
    for (ms, taken) in [(LONGEST_MS, true), (LONGEST_MS + 1, false), (u64::MAX / MS, false)] {
        let terms = Limits { peer_timeout: ms * MS, ..limits() }.terms();
        let hello = Hello { terms: Some(terms.into()), ..Hello::default() };
        assert_eq!(Hello::decode(&hello.encode()).is_some(), taken, "{ms} in a hello");
    }
}

#[test]
fn the_text_of_a_failed_call_names_the_key_of_the_header() {
    let key = 1 << 63 | 0x12;
    let text = naming("init: ", key, " exists already, not key 7 or key 0x12");
    let failure = Failure { reason: Reason::KeyExists, text };
    let bytes = failed::encode(&failure);
    assert!(String::from_utf8_lossy(&bytes).contains("init: key 0x8000000000000012 exists"));
    let read = failed::decode(&bytes, key).unwrap();
    assert_eq!(read, failure);
    let named = read.text(|_| "key \"w\"".into());
    assert_eq!(named, "init: key \"w\" exists already, not key 7 or key 0x12");
}

/// Number, length and value of a field, as in docs/internals/wire.md.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number, u8::try_from(value.len()).unwrap()], value].concat()
}

#[test]
fn extension_fields_of_a_later_release_are_skipped_and_counted() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let plain = match random.below(2) {
            0 => Message::bundle((0..=random.below(64)).map(|_| any_part(&mut random)).collect()),
            _ => any_part(&mut random),
        };
        let mut count = 0;
        let frame = with_fields(&write_frame(&plain), || {
            count += 2;
            [field(200, &random.next().to_le_bytes()), field(13, &[])].concat()
        });
        let read = read_frame(&frame).unwrap();
        let of_parts: u16 = read.parts().iter().map(|part| part.head.skipped).sum();
        let is_bundle = plain.head.kind == MessageKind::Bundle;
        assert_eq!(of_parts + if is_bundle { read.head.skipped } else { 0 }, count, "seed {seed}");
        for (read, part) in read.parts().iter().zip(plain.parts()) {
            let (head, of_part) = (&read.head, &part.head);
            assert_eq!(
                (head.kind, head.key, head.round),
                (of_part.kind, of_part.key, of_part.round)
            );
            assert_eq!(content(read), content(part), "seed {seed}");
        }
        for at in 0..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 1 << random.below(8);
            assert!(read_frame(&changed).is_err(), "byte {at}");
        }
    }
}

#[test]
fn extension_fields_that_do_not_make_up_their_length_are_refused() {
    let part = |seed| {
        let mut part = any_part(&mut Random::new(seed));
        (part.head.weight, part.head.part, part.head.scale) = (0, 0, 0);
        part
    };
    let plain = write_frame(&part(5));
    let bundle = write_frame(&Message::bundle(vec![part(6)]));
    let good = [field(200, &[1, 2, 3]), field(7, &[])].concat();
    let cut = |end: usize| good[..end].to_vec();
    for frame in [&plain, &bundle] {
        for end in 0..=good.len() {
            let fits = [0, 5, 7].contains(&end);
            assert_eq!(read_frame(&with_fields(frame, || cut(end))).is_ok(), fits, "{end} bytes");
        }
        let long = |bytes: usize| with_fields(frame, || field(9, &[]).repeat(bytes / 2));
        assert!(read_frame(&long(256)).is_ok());
        assert_eq!(read_frame(&long(258)).unwrap_err(), BadFrame::Extensions(258));
    }
    // The fields of one message are too long for it alone.
    let parts = (0..2).map(|_| part(6)).collect();
    let mut lengths = [0, 258, 0].into_iter();
    let frame = with_fields(&write_frame(&Message::bundle(parts)), || {
        field(9, &[]).repeat(lengths.next().unwrap() / 2)
    });
    assert_eq!(read_frame(&frame).unwrap_err(), BadFrame::Extensions(258));
}

#[test]
fn kinds_of_a_later_release_are_read_as_unknown_up_to_63() {
    let mut frame = write_frame(&Message::<Bytes>::new(MessageKind::Alive, Vec::new()));
    for code in 0..=255 {
        frame[6] = code;
        let sum = crc32c::crc32c(&frame[..HEADER - 4]);
        frame[HEADER - 4..HEADER].copy_from_slice(&sum.to_le_bytes());
        let known = MessageKind::ALL.iter().find(|kind| kind.code() == code).copied();
        match decode(&frame, MOST) {
            Ok((head, ..)) => {
                assert_eq!(head.kind, known.unwrap_or(MessageKind::Unknown(code)));
                assert_eq!((head.kind.code(), code < 64), (code, true));
            }
            Err(bad) => assert_eq!((bad, code > 63), (BadFrame::Kind(code), true)),
        }
    }
}

/// Decodes a payload, and encodes it again.
type Again = fn(&[u8]) -> Option<Vec<u8>>;

#[test]
fn bytes_behind_the_fields_of_a_payload_are_those_of_a_later_release() {
    for good in fields() {
        let (longer, again) = ([&good[..], &[1, 2, 3, 4]].concat(), good);
        let readers: [Again; 8] = [
            |bytes| Book::decode(bytes).map(|it| it.encode()),
            |bytes| Hello::decode(bytes).map(|it| it.encode()),
            |bytes| Placement::decode(bytes).map(|it| it.encode()),
            |bytes| Proposal::decode_key(bytes).map(|it| it.encode()),
            |bytes| Vec::<Peer>::decode(bytes).map(|it| it.encode()),
            |bytes| failed::decode(bytes, 0).map(|it| failed::encode(&it)),
            |bytes| ProcessStats::decode(bytes).map(|it| it.encode()),
            |bytes| JobView::decode(bytes).map(|it| it.encode()),
        ];
        for read in readers {
            if read(&again).as_ref() == Some(&again) {
                assert_eq!(read(&longer).as_ref(), Some(&again));
            }
        }
    }
    // A member of the book with one more number, which shifts no other member.
    let peers = [Peer::worker(0), Peer::server(3)];
    let member = |peer| Standing {
        peer,
        incarnation: 4,
        state: MemberState::Here,
        reads: false,
        address: "h:1".into(),
        features: 1,
        cause: "gone".into(),
        exchange: crate::message::ExchangeAddress::default(),
    };
    let book = Book { members: peers.map(member).into(), ..Book::default() };
    let mut bytes = Book::default().encode();
    let end = bytes.len() - 4;
    bytes[end..].copy_from_slice(&2u32.to_le_bytes());
    for member in &book.members {
        let own = member.encode();
        bytes.extend_from_slice(&u32::try_from(own.len() - 4 + 9).unwrap().to_le_bytes());
        bytes.extend_from_slice(&own[4..]);
        bytes.extend_from_slice(&[9; 9]);
    }
    assert_eq!(Book::decode(&bytes), Some(book));
}

#[test]
fn terms_are_names_and_values_and_those_of_a_later_release_are_kept() {
    let known = limits().terms();
    let encode = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        pairs.collect::<Vec<_>>().encode()
    };
    let all = [
        ("max_rounds_ahead", "1"),
        ("quorum", "3"),
        ("sum_order", "linear"),
        ("type", "dist_sync"),
        ("staleness", "none"),
        ("on_worker_loss", "fail"),
        ("slice_bytes", "16"),
        ("hold_bytes", "1048576"),
        ("peer_timeout_ms", "5000"),
    ];
    let read = |pairs: &[(&str, &str)]| Option::<Terms>::decode(&encode(pairs));
    let terms = Terms { known, others: vec![("quorum".into(), "3".into())] };
    assert_eq!(read(&all), Some(Some(terms.clone())));
    assert_eq!(Option::<Terms>::decode(&Some(terms.clone()).encode()), Some(Some(terms.clone())));
    assert_eq!(read(&[]), Some(None));
    // One that is missing, there twice, or has another form.
    for at in 0..all.len() {
        let mut fewer = all.to_vec();
        let (name, _) = fewer.remove(at);
        let is_optional = ["quorum", "sum_order"].contains(&name);
        assert_eq!(read(&fewer).is_some(), is_optional, "without {name}");
        fewer.extend([(name, "odd"), (name, "odd")]);
        assert_eq!(read(&fewer), None, "{name} twice");
        fewer.pop();
        assert_eq!(read(&fewer).is_some(), name == "quorum", "an odd {name}");
    }
    let by_tree = all.map(|(name, value)| (name, if name == "sum_order" { "tree" } else { value }));
    let terms_by_tree = read(&by_tree).unwrap().unwrap();
    assert_eq!(terms_by_tree.known.sum_order, SumOrder::Tree);
    let differs = Some(("sum_order".into(), "linear".into(), "tree".into()));
    assert_eq!(terms.difference(&terms_by_tree), differs);
    let long = "n".repeat(65);
    assert_eq!(read(&[&all[..], &[(&*long, "")]].concat()), None);
    let names: Vec<_> = (0..64).map(|number| format!("name {number}")).collect();
    let many: Vec<_> = all.into_iter().chain(names.iter().map(|name| (&**name, "1"))).collect();
    assert_eq!((read(&many[..64]).is_some(), read(&many)), (true, None));
    let other = |pairs: &[(&str, &str)]| Terms {
        known,
        others: pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
    };
    assert_eq!(terms.difference(&other(&[("quorum", "3"), ("more", "1")])), None);
    assert_eq!(terms.difference(&other(&[])), None);
    let differs = Some(("quorum".into(), "3".into(), "2".into()));
    assert_eq!(terms.difference(&other(&[("more", "1"), ("quorum", "2")])), differs);
}
