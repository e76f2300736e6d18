//! Entry points of the targets in `fuzz/`: every parser of bytes from outside the process. Also called: fuzz
//! harness.
//!
//! Compiled only under `cargo fuzz`, and in tests, which replay earlier inputs.
#![allow(missing_docs, reason = "it is no part of the library")]

#[cfg(test)]
#[path = "../../tests/common/corpus.rs"]
mod corpus;
mod talk;

use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::checkpoint::{FileHeader, FileReader, Inspection};
use crate::codec::{Codec, Origin};
use crate::config::Config;
use crate::credentials::{Identity, read_file};
use crate::kernel::Isa;
use crate::metrics::target;
use crate::optim::Optimizer;
use crate::runtime::read_all;
use crate::store::{Store, read_setting};
use crate::transport::{self, Piece, who_and_address};
use kvstore_checksum;
use kvstore_protocol::testing::parse;
use kvstore_protocol::{HEADER, MOST_EXTENSIONS, VERSION};

pub use talk::{reader, talk};

/// Offsets of a frame's payload length, the length of its extension fields, and its checksums.
const LENGTH_AT: usize = 116;
const EXTENSIONS_AT: usize = 128;
const PAYLOAD_SUM_AT: usize = 132;
const HEADER_SUM_AT: usize = 136;

/// Bytes from the network, unchanged and with valid checksums; as frames and as fields.
pub fn wire(data: &[u8]) {
    parse(data);
    deliver(data);
    if data.len() >= HEADER {
        let mut frame = data.to_vec();
        // As many extension fields as the input says, if it has as many bytes.
        let extensions = usize::from(frame[EXTENSIONS_AT]).min(MOST_EXTENSIONS);
        let extensions = extensions.min(frame.len() - HEADER);
        let payload_at = HEADER + extensions;
        let payload = frame.len() - payload_at;
        frame[..4].copy_from_slice(b"KVST");
        frame[4..6].copy_from_slice(&VERSION.to_le_bytes());
        frame[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&(payload as u64).to_le_bytes());
        let len = u16::try_from(extensions).unwrap_or(0).to_le_bytes();
        frame[EXTENSIONS_AT..EXTENSIONS_AT + 2].copy_from_slice(&len);
        let sum = kvstore_checksum::crc32c(&frame[payload_at..]);
        frame[PAYLOAD_SUM_AT..PAYLOAD_SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        let sum = kvstore_checksum::crc32c(&frame[..HEADER_SUM_AT]);
        let sum = kvstore_checksum::append(sum, &frame[HEADER..payload_at]);
        frame[HEADER_SUM_AT..HEADER].copy_from_slice(&sum.to_le_bytes());
        deliver(&frame);
        parse(&frame[payload_at..]);
    }
}

/// What a peer says in the greeting of a connection.
pub fn greeting(data: &[u8]) {
    transport::greeting(data);
}

/// Records of TLS.
pub fn records(data: &[u8]) {
    transport::records(data);
}

/// Offers of shared memory, and the memory.
pub fn offers(data: &[u8]) {
    transport::offers(data);
}

fn deliver(data: &[u8]) {
    let piece = usize::from(data.first().copied().unwrap_or(1)) + 1;
    let mut pieces = data.chunks(piece).map(Piece::from);
    let _ = read_all(data.len(), &mut pieces, &Arc::default(), false);
}

/// Texts of options, optimizers, codecs, settings, names, addresses and requests.
pub fn text(data: &[u8]) {
    read_setting(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (name, value) = text.split_once('\n').unwrap_or((text, ""));
    let mut config = Config::new();
    let _ = config.set(name, value);
    let _ = Optimizer::new(name, value);
    let _ = Codec::new(name, value);
    if let Some(identity) = Identity::parse(name) {
        assert_eq!(identity.to_string(), name);
    }
    let _ = who_and_address(value);
    let _ = target(text);
}

/// Bytes of a push through a codec: the codec, the number of elements, the encoded bytes.
pub fn codec(data: &[u8]) {
    const NAMES: [&str; 7] = ["1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk"];
    let Some(([kind, low, high], bytes)) = data.split_first_chunk() else { return };
    let Ok(Some(codec)) = Codec::new(NAMES[usize::from(*kind) % NAMES.len()], "") else { return };
    let mut out = vec![0.0; usize::from(u16::from_le_bytes([*low, *high])) % 5_000];
    let origin = Origin { key: 1, rank: 2, round: 3, block: 0 };
    for name in ["scalar", "auto"] {
        let Ok(isa) = Isa::choose(name) else { continue };
        let _ = codec.decode(isa, origin, bytes, &mut out);
        // The exact number of bytes.
        let mut whole = bytes.to_vec();
        whole.resize(codec.bytes(out.len()), 0);
        let _ = codec.decode(isa, origin, &whole, &mut out);
    }
}

/// A file given as a certificate, a key or a token.
pub fn credentials(data: &[u8]) {
    with_file(data, read_file);
}

/// A file given as a checkpoint, unchanged and with valid checksums; read to its end, and loaded.
pub fn checkpoint(data: &[u8]) {
    let with_sums = with_right_sums(data);
    for data in std::iter::once(data).chain(with_sums.as_deref()) {
        open(data);
        with_file(data, |path| {
            let config = Config::new().with("threads", "1");
            if let Ok(store) = config.and_then(|config| Store::open("local", &config)) {
                let _ = store.load(path);
            }
        });
    }
}

fn open(data: &[u8]) {
    with_file(data, |path| {
        let found = Inspection::read(path);
        let Ok(mut reader) = FileReader::open(path.as_ref()) else { return };
        let header = reader.header();
        // The last entry holds their checksums.
        let Some((_, entries)) = header.entries.split_last() else { return };
        let intact = entries.iter().filter(|entry| !entry.is_pad()).all(|entry| {
            assert!(entry.bytes() <= data.len() as u64, "more than there is");
            let mut bytes = vec![0; usize::try_from(entry.bytes()).unwrap_or(0)];
            reader.tensor(&mut bytes).is_ok()
        });
        assert!(!intact || found.is_ok(), "what can be loaded can be inspected");
    });
}

/// The last tensor has the checksums: of the header, and of each other tensor.
fn with_right_sums(data: &[u8]) -> Option<Vec<u8>> {
    let (size, rest) = data.split_first_chunk()?;
    let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
    let (header, mut values) = rest.split_at_checked(size)?;
    let header = FileHeader::parse(header, values.len() as u64).ok()?;
    let mut sums = kvstore_checksum::crc32c(&data[..8 + size]).to_le_bytes().to_vec();
    let (_, entries) = header.entries.split_last()?;
    for entry in entries {
        let (value, rest) = values.split_at_checked(usize::try_from(entry.bytes()).ok()?)?;
        sums.extend_from_slice(&kvstore_checksum::crc32c(value).to_le_bytes());
        values = rest;
    }
    let mut data = data.to_vec();
    data.truncate(data.len().checked_sub(sums.len())?);
    data.extend_from_slice(&sums);
    Some(data)
}

fn with_file(data: &[u8], read: impl FnOnce(&str)) {
    if let Ok(file) = crate::sys::memory_file(data) {
        read(&format!("/proc/self/fd/{}", file.as_raw_fd()));
    }
}

/// Offers of UCX, and messages over it.
pub fn fabric(data: &[u8]) {
    transport::fabric(data);
}

#[cfg(test)]
mod tests {
    use super::corpus;

    fn replay(name: &str, target: fn(&[u8])) {
        corpus::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus"), name, target);
    }

    #[test]
    fn bytes_that_were_found_are_read() {
        replay("wire.tar", super::wire);
        replay("codec.tar", super::codec);
    }

    #[test]
    fn connections_that_were_found_are_refused_or_read() {
        replay("greeting.tar", super::greeting);
        replay("records.tar", super::records);
        replay("offers.tar", super::offers);
        replay("fabric.tar", super::fabric);
    }

    #[test]
    fn texts_that_were_found_are_read() {
        replay("text.tar", super::text);
    }

    #[test]
    fn files_that_were_found_are_read() {
        replay("checkpoint.tar", super::checkpoint);
        replay("credentials.tar", super::credentials);
    }

    #[test]
    fn talks_that_were_found_are_held() {
        replay("talk.tar", super::talk);
        replay("reader.tar", super::reader);
    }
}
