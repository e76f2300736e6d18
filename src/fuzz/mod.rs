//! What the targets of `fuzz/` call: everything that reads what others have written.
//!
//! Only there under `cargo fuzz`.

use std::os::fd::AsRawFd;

use crate::checkpoint::Reader;
use crate::cluster::parse;
use crate::codec::Codec;
use crate::config::Config;
use crate::credentials::Identity;
use crate::driver::read_alone;
use crate::engine::who_and_address;
use crate::optim::Optimizer;

/// Where the checksums of a frame are, and what they cover.
const HEADER: usize = 140;
const LENGTH_AT: usize = 116;
const PAYLOAD_SUM_AT: usize = 132;
const HEADER_SUM_AT: usize = 136;

/// Bytes from the network, as they are and with right checksums; as frames and as fields.
pub fn wire(data: &[u8]) {
    parse(data);
    deliver(data);
    if data.len() >= HEADER {
        let mut frame = data.to_vec();
        let payload = frame.len() - HEADER;
        frame[..6].copy_from_slice(&[b'K', b'V', b'S', b'T', 1, 0]);
        frame[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&(payload as u64).to_le_bytes());
        frame[128..130].fill(0);
        let sum = crc32c::crc32c(&frame[HEADER..]);
        frame[PAYLOAD_SUM_AT..PAYLOAD_SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32c::crc32c(&frame[..HEADER_SUM_AT]);
        frame[HEADER_SUM_AT..HEADER].copy_from_slice(&sum.to_le_bytes());
        deliver(&frame);
    }
}

fn deliver(data: &[u8]) {
    let piece = usize::from(data.first().copied().unwrap_or(1)) + 1;
    read_alone(&mut data.chunks(piece), data.len());
}

/// Texts of options, optimizers, codecs, names and addresses.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (name, value) = text.split_once('\n').unwrap_or((text, ""));
    let mut config = Config::new();
    let _ = config.set(name, value);
    let _ = Optimizer::new(name, value);
    let _ = Codec::new(name, value);
    let _ = crate::credentials::parse_token(value);
    if let Some(identity) = Identity::parse(name) {
        assert_eq!(identity.to_string(), name);
    }
    let _ = who_and_address(value);
}

/// A file that somebody calls a checkpoint, read to its end.
pub fn checkpoint(data: &[u8]) {
    let Ok(file) = crate::sys::memory_file(data) else { return };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(mut reader) = Reader::open(path.as_ref()) else { return };
    let header = reader.header();
    for entry in &header.entries {
        assert!(entry.bytes() <= data.len() as u64, "more than there is");
        let mut bytes = vec![0; usize::try_from(entry.bytes()).unwrap_or(0)];
        if reader.tensor(&mut bytes).is_err() {
            return;
        }
    }
}
