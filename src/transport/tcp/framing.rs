//! Messages of a connection: a head with length and kind, then the payload.

use std::io;

use crate::transport::table::is_offer;

/// Bytes of a head.
pub(super) const HEAD: usize = 8;

/// Maximum length of a payload in bytes: a sender of this library sends none of a quarter of that.
pub(super) const MOST_BYTES: usize = 1 << 30;

/// What a message carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// Frames of the protocol.
    Frames,
    /// An offer of the transport whose offers have this kind.
    Offer(u16),
    /// The process of the sender ends.
    Goodbye,
}

/// The kind of [`MessageKind::Goodbye`]; those of offers are smaller, or for tests.
const GOODBYE: u16 = 255;

impl MessageKind {
    fn code(self) -> u16 {
        match self {
            Self::Frames => 0,
            Self::Offer(kind) => kind,
            Self::Goodbye => GOODBYE,
        }
    }

    /// None for a kind of a later version.
    fn of(code: u16) -> Option<Self> {
        match code {
            0 => Some(Self::Frames),
            GOODBYE => Some(Self::Goodbye),
            kind => is_offer(kind).then_some(Self::Offer(kind)),
        }
    }
}

/// The first message of the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery<'a> {
    /// None for a kind of a later version, which is skipped.
    Whole(Option<MessageKind>, &'a [u8]),
    /// The head is there, or not; at least this many bytes are missing.
    Missing(Option<Unfinished<'a>>, usize),
}

/// The begin of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfinished<'a> {
    pub(super) kind: Option<MessageKind>,
    pub(super) payload: &'a [u8],
}

pub(super) fn head(kind: MessageKind, len: usize) -> io::Result<[u8; HEAD]> {
    let len = u32::try_from(len).map_err(io::Error::other)?;
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4..6].copy_from_slice(&kind.code().to_le_bytes());
    Ok(head)
}

pub(super) fn first(bytes: &[u8]) -> io::Result<Delivery<'_>> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(Delivery::Missing(None, HEAD - bytes.len()));
    };
    let [a, b, c, d, kind, high, _, _] = *head;
    let len = usize::try_from(u32::from_le_bytes([a, b, c, d])).map_err(io::Error::other)?;
    if len > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a length that no process sends"));
    }
    let kind = MessageKind::of(u16::from_le_bytes([kind, high]));
    Ok(match rest.get(..len) {
        Some(payload) => Delivery::Whole(kind, payload),
        None => Delivery::Missing(Some(Unfinished { kind, payload: rest }), len - rest.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written_and_those_of_later_versions_are_skipped() {
        let message = [&head(MessageKind::Offer(1), 3).unwrap()[..], &[7, 8, 9]].concat();
        for end in 0..message.len() {
            let missing = if end < HEAD { HEAD - end } else { message.len() - end };
            let payload = message[..end].get(HEAD..);
            let kind = Some(MessageKind::Offer(1));
            let unfinished = payload.map(|payload| Unfinished { kind, payload });
            assert_eq!(first(&message[..end]).unwrap(), Delivery::Missing(unfinished, missing));
        }
        let whole = Delivery::Whole(Some(MessageKind::Offer(1)), &[7, 8, 9]);
        assert_eq!(first(&[&message[..], &[1]].concat()).unwrap(), whole);
        // An unknown kind, and reserved bits that a later version may set.
        for later in [[4, 0, 0, 0, 0xfe, 0xff, 0, 0], [4, 0, 0, 0, 0, 1, 0xff, 0xff]] {
            let message = [&later[..], &[1, 2, 3, 4]].concat();
            assert_eq!(first(&message).unwrap(), Delivery::Whole(None, &[1, 2, 3, 4]));
        }
        assert!(first(&u64::MAX.to_le_bytes()).is_err());
    }
}
