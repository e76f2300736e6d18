//! Processes of a later release (also: forward compatibility): in half of the jobs some processes send extension
//! fields and kinds of messages that no process knows. The others skip and drop them, and all results are as
//! without.
//!
//! The bytes are written here as docs/internals/wire.md has them, without the encoder.

use super::Bytes;
use super::cluster::Machine;
use crate::job::Peer;
use crate::message::{Body, Message, MessageKind};
use crate::stream::CONTROL;
use crate::testing::Random;

const HEADER: usize = 140;
const ENTRY: usize = 76;
const BUNDLE: u8 = 32;
/// Offsets in a header, of the length of the fields in an entry, and of the codes of kinds in both.
const BUNDLED_FIELDS_AT: usize = 64;
const BUNDLED_AT: usize = 72;
const PAYLOAD_AT: usize = 116;
const FIELDS_AT: usize = 128;
const PAYLOAD_SUM_AT: usize = 132;
const HEADER_SUM_AT: usize = 136;
const ENTRY_FIELDS_AT: usize = 74;
const KIND_AT: usize = 6;

/// The later release: what its processes send in addition.
#[derive(Debug)]
pub(super) struct Later {
    seed: u64,
    random: Random,
}

impl Later {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, random: Random::new(seed ^ 0x1a7e) }
    }

    /// Whether the process at an address is of the later release: about half of them in every other job.
    fn is(&self, address: &str) -> bool {
        let own =
            address.bytes().fold(self.seed, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte));
        self.seed % 2 == 1 && Random::new(own).one_in(2)
    }

    /// Queues messages of unknown kinds, at times among small data, where they are bundled.
    pub(super) fn speak(&mut self, address: &str, machine: &mut Machine) {
        if !self.is(address) || !self.random.one_in(6) {
            return;
        }
        let is_unknown = |code: &u8| MessageKind::ALL.iter().all(|kind| kind.code() != *code);
        let codes: Vec<u8> = (33..=63).filter(is_unknown).collect();
        let code = codes[self.random.index(codes.len())];
        let mut message = Message::new(MessageKind::Unknown(code), vec![7; self.random.index(40)]);
        message.head.request = self.random.next();
        let peer = [Peer::SCHEDULER, Peer::server(0), Peer::worker(0)][self.random.index(3)];
        let priority = if self.random.one_in(2) { CONTROL } else { 0 };
        match machine {
            Machine::Scheduler(scheduler) => scheduler.say(peer, message),
            Machine::Node(node) => node.say_at(peer, message, priority),
        }
    }

    /// The frame as the process sends it: with fields, if it is of the later release.
    pub(super) fn frame(&mut self, address: &str, frame: Vec<u8>) -> Vec<u8> {
        if self.is(address) { with_fields(&frame, || some(&mut self.random)) } else { frame }
    }
}

/// Up to three fields that no process knows.
fn some(random: &mut Random) -> Vec<u8> {
    let field = |random: &mut Random| {
        let (number, len) = (13 + random.below(242), random.below(20));
        let value = (0..len).map(|_| random.below(256));
        [number, len].into_iter().chain(value).map(|it| u8::try_from(it).unwrap()).collect()
    };
    (0..random.below(4)).flat_map(|_| -> Vec<u8> { field(random) }).collect()
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

fn put(bytes: &mut [u8], at: usize, len: usize, number: usize) {
    bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
}

/// A frame with further fields, which `fields` gives for it and for each message of a bundle.
pub(crate) fn with_fields(frame: &[u8], mut fields: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    let mut head = frame[..HEADER].to_vec();
    let (own, rest) = frame[HEADER..].split_at(number(&head, FIELDS_AT, 2));
    let (own, mut payload) = ([own, &fields()].concat(), rest.to_vec());
    if head[KIND_AT] == BUNDLE {
        let table = number(&head, BUNDLED_AT, 8) * ENTRY;
        let (mut of_parts, mut end) = (Vec::new(), table);
        for entry in payload[..table].chunks_exact_mut(ENTRY) {
            let start = end;
            end += number(entry, ENTRY_FIELDS_AT, 2);
            let of_part = [&rest[start..end], &fields()].concat();
            put(entry, ENTRY_FIELDS_AT, 2, of_part.len());
            of_parts.extend(of_part);
        }
        put(&mut head, BUNDLED_FIELDS_AT, 8, of_parts.len());
        payload.splice(table..end, of_parts.iter().copied());
        put(&mut head, PAYLOAD_AT, 8, payload.len());
        let sum = crc32c::crc32c(&payload[..table + of_parts.len()]);
        head[PAYLOAD_SUM_AT..HEADER_SUM_AT].copy_from_slice(&sum.to_le_bytes());
    }
    put(&mut head, FIELDS_AT, 2, own.len());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..HEADER_SUM_AT]), &own);
    head[HEADER_SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    [head, own, payload].concat()
}

/// Fields of later releases in a message, or in all messages of a bundle.
pub(super) fn skipped(message: &Message<Bytes>) -> u64 {
    let parts = matches!(message.body, Body::Parts(_)).then(|| message.parts());
    let heads = parts.into_iter().flatten().map(|part| &part.head).chain([&message.head]);
    heads.map(|head| u64::from(head.skipped)).sum()
}
