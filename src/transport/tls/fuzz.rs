//! Records of a peer that has the keys, and bytes of one that has not, for fuzzing.

use std::cell::RefCell;

use rustls::ContentType;

use super::{Opener, Sealer, TlsConnection, TlsError};
use crate::credentials::Tls;

/// What one byte of the input says of the next record: the lowest bits its type, of which the last value stands
/// for bytes without a record, and a bit to alter it.
const KINDS: [ContentType; 3] =
    [ContentType::ApplicationData, ContentType::Handshake, ContentType::Alert];
const IS_ALTERED: u8 = 128;

thread_local! {
    /// An open connection, until records of it are refused.
    static OPEN: RefCell<Option<(Sealer, Opener)>> = const { RefCell::new(None) };
}

/// The size of the pieces in which the records arrive, then for each record a byte with its type, its length in
/// two bytes, and its content.
pub(crate) fn records(data: &[u8]) {
    let Some((size, mut rest)) = data.split_first() else { return };
    let (mut sealer, mut opener) = OPEN.take().unwrap_or_else(|| handshake().expect("a handshake"));
    // The data of the records in front of the first one that is none of a good peer.
    let (mut sealed, mut expected, mut is_good) = (Vec::new(), Vec::new(), true);
    while let Some(([bits, low, high], content)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(content.len()).min(1 << 14);
        let (content, behind) = content.split_at(len);
        rest = behind;
        let begin = sealed.len();
        let kind = usize::from(bits & 3);
        match KINDS.get(kind) {
            None => sealed.extend_from_slice(content),
            Some(kind) => {
                let fill = |out: &mut Vec<u8>| out.extend_from_slice(content);
                sealer.record(*kind, len, &mut sealed, fill).expect("an open connection");
            }
        }
        let is_altered = bits & IS_ALTERED != 0 && sealed.len() > begin;
        if is_altered {
            let at = begin + usize::from(*low) % (sealed.len() - begin);
            sealed[at] ^= 1;
        }
        is_good &= kind == 0 && !is_altered && !content.is_empty();
        if is_good {
            expected.extend_from_slice(content);
        }
    }
    let (mut received, mut plain) = (Vec::new(), Vec::new());
    let mut result = Ok(());
    for piece in sealed.chunks(usize::from(*size) * 64 + 1) {
        received.extend_from_slice(piece);
        match opener.open(&mut received, &mut plain) {
            Ok(opened) => drop(received.drain(..opened.consumed)),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    assert!(plain.starts_with(&expected), "the data of good records arrives");
    if is_good {
        assert!(result.is_ok() && plain == expected && received.is_empty());
        OPEN.set(Some((sealer, opener)));
    }
}

/// What the caller sends with, and the listener receives with, after a handshake.
fn handshake() -> Result<(Sealer, Opener), TlsError> {
    let config = Tls::of_tests("worker").client().expect("good files");
    let mut caller = TlsConnection::caller(config, "127.0.0.1")?;
    let config = Tls::of_tests("scheduler").server().expect("good files");
    let mut listener = TlsConnection::listener(config)?;
    let (mut to_caller, mut to_listener, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut out = Vec::new();
        caller.receive(&mut to_caller, &mut plain, &mut out)?;
        to_listener.append(&mut out);
        listener.receive(&mut to_listener, &mut plain, &mut out)?;
        to_caller.append(&mut out);
    }
    Ok((caller.split()?.0, listener.split()?.1))
}
