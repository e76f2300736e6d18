//! The offer of a process, and the headers of its messages, in the format of docs/internals/wire.md.

use smallvec::SmallVec;

use crate::transport::tls::MESSAGE_SECRET;

/// Bytes of the header of a message, without the front of a frame.
pub(super) const HEADER: usize = 24;
/// Maximum bytes of the front of a frame in a header: more than fronts have, and less than the fabrics take.
pub(super) const MOST_FRONT: usize = 488;

/// Versions of the offer: without and with a secret of which the keys of messages are made.
const PLAIN: u8 = 1;
const SEALED: u8 = 2;
/// Maximum bytes of an address of UCX.
const MOST_ADDRESS: usize = 32 << 10;
const TAG: usize = 16;
/// The last format of addresses, in the low four bits of their first byte.
const LAST_FORMAT: u8 = 1;
/// Bytes in front of the frames of a sealed message: their length, the kind of the message, and two of no meaning.
pub(super) const FRONT: usize = 8;

/// What a sender puts into each message, to show that it has received the offer. In messages that are not sealed
/// it is a secret.
pub(super) type PairTag = [u8; TAG];
/// Of it the keys of messages to the process are made that has offered it.
pub(super) type PairSecret = [u8; MESSAGE_SECRET];

/// A process offers to receive messages at this address.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct UcxOffer {
    pub(super) tag: PairTag,
    /// None if messages are not sealed.
    pub(super) secret: Option<PairSecret>,
    pub(super) address: Vec<u8>,
}

impl UcxOffer {
    pub(super) fn encode(tag: &PairTag, secret: Option<&PairSecret>, address: &[u8]) -> Vec<u8> {
        let version = if secret.is_some() { SEALED } else { PLAIN };
        let secret = secret.map_or(&[][..], |secret| secret);
        [&[version, 0, 0, 0], &tag[..], secret, address].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let (tag, rest) = rest.split_first_chunk::<TAG>()?;
        let (secret, address) = match head[0] {
            PLAIN => (None, rest),
            SEALED => rest.split_first_chunk().map(|(secret, rest)| (Some(*secret), rest))?,
            _ => return None,
        };
        // The library ends the process at an address of an unknown format.
        let is_known = address.first().is_some_and(|first| first & 0xf <= LAST_FORMAT);
        let fits = is_known && address.len() <= MOST_ADDRESS;
        fits.then(|| Self { tag: *tag, secret, address: address.to_vec() })
    }
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UcxMessage {
    /// The sender asks whether its messages arrive.
    Contact = 0,
    /// They do.
    Answer = 1,
    /// Frames of the protocol.
    Frames = 2,
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UcxHeader {
    Plain(UcxMessage),
    /// The number of a message that is sealed, with its kind.
    Sealed(u64),
}

/// The kind of a sealed message in its header.
const SEALED_KIND: u8 = 3;

/// What stands behind a header: the front of the only frame of the message, if its payload is the data; or nothing.
pub(super) type HeaderFront = SmallVec<[u8; 192]>;

/// The fixed part of the header of a message, and the front behind it; None for a header of no length that is sent.
pub(super) fn split_header(header: &[u8]) -> Option<(&[u8; HEADER], &[u8])> {
    header.split_first_chunk().filter(|(_, front)| front.len() <= MOST_FRONT)
}

impl UcxMessage {
    fn of(kind: u8) -> Option<Self> {
        let all = [Self::Contact, Self::Answer, Self::Frames];
        all.into_iter().find(|known| *known as u8 == kind)
    }

    pub(super) fn header(self, tag: &PairTag) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..TAG].copy_from_slice(tag);
        header[TAG] = self as u8;
        header
    }

    /// What stands in front of so many bytes of frames, if the message is sealed.
    pub(super) fn front(self, frames: usize) -> [u8; FRONT] {
        let mut front = [0; FRONT];
        front[..4].copy_from_slice(&u32::try_from(frames).unwrap_or(u32::MAX).to_le_bytes());
        front[4] = self as u8;
        front
    }

    /// The kind of a sealed message that was opened. Its frames, if any, lie behind the front.
    pub(super) fn of_content(content: &[u8]) -> Option<Self> {
        let (front, frames) = content.split_first_chunk::<FRONT>()?;
        let message = Self::of(front[4])?;
        (message.front(frames.len())[..6] == front[..6]).then_some(message)
    }
}

impl UcxHeader {
    /// The header of a sealed message with this number, which has 7 bytes.
    pub(super) fn sealed(tag: &PairTag, number: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..TAG].copy_from_slice(tag);
        header[TAG] = SEALED_KIND;
        header[TAG + 1..].copy_from_slice(&number.to_le_bytes()[..HEADER - TAG - 1]);
        header
    }

    /// The tag of a message, and what else its header says.
    pub(super) fn decode(header: &[u8; HEADER]) -> (PairTag, Option<Self>) {
        let mut tag = [0; TAG];
        tag.copy_from_slice(&header[..TAG]);
        let number =
            header[TAG + 1..].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let kind = match header[TAG] {
            SEALED_KIND => Some(Self::Sealed(number)),
            kind => UcxMessage::of(kind).map(Self::Plain),
        };
        (tag, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::random::random_bytes;

    #[test]
    fn offers_are_read_as_they_are_written_and_nothing_else_is() {
        let tag: PairTag = random_bytes().unwrap();
        assert_ne!(tag, random_bytes().unwrap());
        for secret in [None, Some([9; MESSAGE_SECRET])] {
            let offer = UcxOffer { tag, secret, address: vec![0x71; 300] };
            let bytes = UcxOffer::encode(&tag, secret.as_ref(), &offer.address);
            let front = bytes.len() - 300;
            assert_eq!(UcxOffer::decode(&bytes), Some(offer));
            for end in 0..=front {
                assert_eq!(UcxOffer::decode(&bytes[..end]), None, "cut at {end}");
            }
            assert_eq!(UcxOffer::decode(&[&[3], &bytes[1..]].concat()), None);
            assert_eq!(UcxOffer::decode(&[&bytes[..front], &[0xff; 40][..]].concat()), None);
            let long = vec![1; MOST_ADDRESS + 1];
            assert_eq!(UcxOffer::decode(&[&bytes[..front], &long[..]].concat()), None);
        }
    }

    #[test]
    fn headers_and_fronts_are_read_as_they_are_written() {
        let tag: PairTag = random_bytes().unwrap();
        for message in [UcxMessage::Contact, UcxMessage::Answer, UcxMessage::Frames] {
            let plain = (tag, Some(UcxHeader::Plain(message)));
            assert_eq!(UcxHeader::decode(&message.header(&tag)), plain);
            let content = [&message.front(3)[..], &[1, 2, 3]].concat();
            assert_eq!(UcxMessage::of_content(&content), Some(message));
            assert_eq!(UcxMessage::of_content(&content[..10]), None);
            assert_eq!(UcxMessage::of_content(&content[..7]), None);
        }
        for number in [0, 1, 0x0012_3456_789a_bcde, (1 << 56) - 1] {
            let sealed = (tag, Some(UcxHeader::Sealed(number)));
            assert_eq!(UcxHeader::decode(&UcxHeader::sealed(&tag, number)), sealed);
        }
        let header = UcxMessage::Frames.header(&tag);
        for front in [0, 1, 140, MOST_FRONT] {
            let bytes = [&header[..], &[7; MOST_FRONT][..front]].concat();
            let split = split_header(&bytes).unwrap();
            assert_eq!((split.0, split.1.len()), (&header, front));
        }
        let too_long = [&header[..], &[7; MOST_FRONT + 1]].concat();
        assert_eq!(split_header(&too_long), None);
        assert_eq!(split_header(&header[..HEADER - 1]), None);
        let mut other = header;
        other[TAG] = 4;
        assert_eq!(UcxHeader::decode(&other), (tag, None));
    }
}
