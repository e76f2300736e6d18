//! The offer of a process, and the header of its messages, in the format of docs/wire.md.

use super::worker::HEADER;

/// Version of the offer.
const VERSION: u8 = 1;
/// Maximum bytes of an address of UCX.
const MOST_ADDRESS: usize = 32 << 10;
const SECRET: usize = 16;
/// The last format of addresses, in the low four bits of their first byte.
const LAST_FORMAT: u8 = 1;

/// What a sender puts into each message, to show that it has received the offer.
pub(super) type Secret = [u8; SECRET];

/// A process offers to receive messages at this address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UcxOffer {
    pub(super) secret: Secret,
    pub(super) address: Vec<u8>,
}

impl UcxOffer {
    pub(super) fn encode(secret: &Secret, address: &[u8]) -> Vec<u8> {
        [&[VERSION, 0, 0, 0], &secret[..], address].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let (secret, address) = rest.split_first_chunk::<SECRET>()?;
        // The library ends the process at an address of an unknown format.
        let is_known = address.first().is_some_and(|first| first & 0xf <= LAST_FORMAT);
        let fits = head[0] == VERSION && is_known && address.len() <= MOST_ADDRESS;
        fits.then(|| Self { secret: *secret, address: address.to_vec() })
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

impl UcxMessage {
    pub(super) fn header(self, secret: &Secret) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..SECRET].copy_from_slice(secret);
        header[SECRET] = self as u8;
        header
    }

    /// The secret and the kind of a message.
    pub(super) fn decode(header: &[u8; HEADER]) -> (Secret, Option<Self>) {
        let mut secret = [0; SECRET];
        secret.copy_from_slice(&header[..SECRET]);
        let all = [Self::Contact, Self::Answer, Self::Frames];
        (secret, all.into_iter().find(|known| *known as u8 == header[SECRET]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::random::random_bytes;

    #[test]
    fn offers_and_headers_are_read_as_they_are_written_and_nothing_else_is() {
        let secret: Secret = random_bytes().unwrap();
        assert_ne!(secret, random_bytes().unwrap());
        let offer = UcxOffer { secret, address: vec![0x71; 300] };
        let bytes = UcxOffer::encode(&secret, &offer.address);
        assert_eq!(UcxOffer::decode(&bytes), Some(offer));
        for end in 0..=20 {
            assert_eq!(UcxOffer::decode(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(UcxOffer::decode(&[&[2], &bytes[1..]].concat()), None);
        assert_eq!(UcxOffer::decode(&[&bytes[..20], &[0xff; 40][..]].concat()), None);
        assert_eq!(
            UcxOffer::decode(&[&bytes[..20], &vec![1; MOST_ADDRESS + 1][..]].concat()),
            None
        );
        let header = UcxMessage::Frames.header(&secret);
        assert_eq!(UcxMessage::decode(&header), (secret, Some(UcxMessage::Frames)));
        let mut other = header;
        other[SECRET] = 3;
        assert_eq!(UcxMessage::decode(&other), (secret, None));
    }
}
