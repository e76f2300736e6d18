//! Records of messages that may overtake one another: the number of its first record stands beside each message, and
//! a window refuses those that come again. Also called: datagram records (as in DTLS), anti-replay window.

use rustls::ContentType;

use super::error::TlsError;
use super::image::records_mut;
use super::record::{RecordKey, record_len};
use super::secret::Secret;

/// Length of the secret of the messages of one direction.
pub(in crate::transport) const MESSAGE_SECRET: usize = 32;
/// Number of records under one key, as for connections.
const RECORDS_OF_KEY: u64 = 1 << 24;
/// Numbers of records end here: they travel in 7 bytes.
const END: u64 = 1 << 56;
/// Types of the first record of a message, and of its others, so that a message begins and ends where it did.
const FIRST: ContentType = ContentType::ApplicationData;
const NEXT: ContentType = ContentType::Unknown(128);
/// Maximum distance of the number of a message from the highest one: 256 MiB.
const WINDOW: u64 = 1 << 14;

/// A key of the chain that key updates make (RFC 8446, section 7.2).
struct ChainKey {
    secret: Secret,
    /// Its place in the chain.
    number: u64,
    key: RecordKey,
}

impl ChainKey {
    fn first(secret: [u8; MESSAGE_SECRET]) -> Result<Self, TlsError> {
        let secret = Secret::of(secret);
        Ok(Self { key: secret.record_key()?, number: 0, secret })
    }

    fn next(&self) -> Result<Self, TlsError> {
        let secret = self.secret.next()?;
        Ok(Self { key: secret.record_key()?, number: self.number + 1, secret })
    }
}

/// Seals the messages to one peer.
pub(in crate::transport) struct MessageSealer {
    key: ChainKey,
    /// Number of the next record.
    next: u64,
}

impl MessageSealer {
    pub(in crate::transport) fn new(secret: [u8; MESSAGE_SECRET]) -> Result<Self, TlsError> {
        Ok(Self { key: ChainKey::first(secret)?, next: 0 })
    }

    /// Seals the first `len` bytes of the content of an image where they lie; the number of the message.
    pub(in crate::transport) fn seal(
        &mut self,
        image: &mut [u8],
        len: usize,
    ) -> Result<u64, TlsError> {
        let number = self.next;
        let mut kind = FIRST;
        for record in records_mut(image, len) {
            if self.next >= END {
                return Err(TlsError::Misuse("the numbers of records are used up"));
            }
            if self.next / RECORDS_OF_KEY > self.key.number {
                self.key = self.key.next()?;
            }
            self.key.key.seal_numbered(self.next, kind, record)?;
            self.next += 1;
            kind = NEXT;
        }
        Ok(number)
    }

    #[cfg(any(fuzzing, test))]
    pub(in crate::transport) fn skip_to(&mut self, number: u64) {
        self.next = number;
    }
}

/// Opens the messages of one peer.
pub(in crate::transport) struct MessageOpener {
    key: ChainKey,
    previous: Option<ChainKey>,
    window: ReplayWindow,
}

impl MessageOpener {
    pub(in crate::transport) fn new(secret: [u8; MESSAGE_SECRET]) -> Result<Self, TlsError> {
        let window = ReplayWindow { seen: vec![0; WORDS], end: 0 };
        Ok(Self { key: ChainKey::first(secret)?, previous: None, window })
    }

    /// Opens a message in its place, so that its content moves to the front of `bytes`; its length. None for a
    /// message that is not whole and new, and of this peer.
    pub(in crate::transport) fn open(&mut self, number: u64, bytes: &mut [u8]) -> Option<usize> {
        if number >= END || self.window.has(number) {
            return None;
        }
        let (mut len, mut at, mut next) = (0, 0, number);
        while at < bytes.len() {
            let record = record_len(&bytes[at..]).ok().flatten()?;
            let kind = if at == 0 { FIRST } else { NEXT };
            len += self.open_record(next, kind, &mut bytes[len..at + record], at - len)?;
            (at, next) = (at + record, next + 1);
        }
        if next == number {
            return None;
        }
        self.window.add(number);
        Some(len)
    }

    fn open_record(
        &mut self,
        number: u64,
        kind: ContentType,
        place: &mut [u8],
        at: usize,
    ) -> Option<usize> {
        let chain = number / RECORDS_OF_KEY;
        let open = |key: &ChainKey, place: &mut [u8]| {
            let opened = key.key.open_numbered(number, place, at).ok()?;
            (opened.kind == kind).then_some(opened.content.len())
        };
        if chain == self.key.number {
            return open(&self.key, place);
        }
        if chain + 1 == self.key.number {
            return open(self.previous.as_ref()?, place);
        }
        if chain != self.key.number + 1 {
            return None;
        }
        let next = self.key.next().ok()?;
        let len = open(&next, place)?;
        self.previous = Some(std::mem::replace(&mut self.key, next));
        Some(len)
    }
}

const WORDS: usize = (WINDOW / 64) as usize;

/// The numbers of messages that have arrived, in a ring of bits (RFC 6479).
struct ReplayWindow {
    seen: Vec<u64>,
    /// Behind the highest number that has arrived.
    end: u64,
}

impl ReplayWindow {
    fn place(number: u64) -> (usize, u64) {
        let at = number % WINDOW;
        (usize::try_from(at / 64).unwrap_or(0), 1 << (at % 64))
    }

    /// Whether a number has arrived, or is too old to tell.
    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        number < self.end && (self.end - number > WINDOW || self.seen[word] & bit != 0)
    }

    fn add(&mut self, number: u64) {
        if number >= self.end {
            let new = (number - self.end).min(WINDOW - 1);
            for number in number - new..=number {
                let (word, bit) = Self::place(number);
                self.seen[word] &= !bit;
            }
            self.end = number + 1;
        }
        let (word, bit) = Self::place(number);
        self.seen[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::super::image::{records_len, write_content};
    use super::super::record::{MAX_CONTENT, OVERHEAD};
    use super::*;

    fn pair() -> (MessageSealer, MessageOpener) {
        (MessageSealer::new([7; 32]).unwrap(), MessageOpener::new([7; 32]).unwrap())
    }

    fn sealed(sealer: &mut MessageSealer, content: &[u8]) -> (u64, Vec<u8>) {
        let mut image = vec![0; records_len(content.len())];
        write_content(&mut image, 0, content);
        (sealer.seal(&mut image, content.len()).unwrap(), image)
    }

    fn opened(opener: &mut MessageOpener, (number, bytes): &(u64, Vec<u8>)) -> Option<Vec<u8>> {
        let mut bytes = bytes.clone();
        let len = opener.open(*number, &mut bytes)?;
        bytes.truncate(len);
        Some(bytes)
    }

    fn content(number: usize) -> Vec<u8> {
        (0..=250).cycle().skip(number).take(1 + number * 9_000).collect()
    }

    #[test]
    fn messages_arrive_in_any_order_and_each_once() {
        let (mut sealer, mut opener) = pair();
        let messages: Vec<_> = (0..20).map(|at| sealed(&mut sealer, &content(at))).collect();
        for at in [3, 0, 19, 7, 1, 18, 2] {
            assert_eq!(opened(&mut opener, &messages[at]), Some(content(at)), "message {at}");
            assert_eq!(opened(&mut opener, &messages[at]), None, "message {at} again");
        }
        for (at, message) in messages.iter().enumerate() {
            let is_new = ![3, 0, 19, 7, 1, 18, 2].contains(&at);
            assert_eq!(opened(&mut opener, message).is_some(), is_new, "message {at}");
        }
        // Another key opens none.
        let mut stranger = MessageOpener::new([8; 32]).unwrap();
        assert_eq!(opened(&mut stranger, &messages[4]), None);
    }

    #[test]
    fn altered_cut_and_composed_messages_are_refused_and_take_no_place() {
        let (mut sealer, mut opener) = pair();
        let whole = sealed(&mut sealer, &content(5));
        let (number, bytes) = &whole;
        let record = MAX_CONTENT + OVERHEAD;
        assert!(bytes.len() > 2 * record);
        for at in [0, 1, 4, 5, 100, record - 1, record, record + 5, bytes.len() - 1] {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            // The version in the header is authenticated too.
            assert_eq!(opened(&mut opener, &(*number, altered)), None, "altered at {at}");
        }
        for end in [0, 1, 4, 5, 100, record - 1, bytes.len() - 1] {
            assert_eq!(
                opened(&mut opener, &(*number, bytes[..end].to_vec())),
                None,
                "cut at {end}"
            );
        }
        for other in [number + 1, number + (1 << 24), END - 1, END, u64::MAX] {
            assert_eq!(opened(&mut opener, &(other, bytes.clone())), None, "as {other}");
        }
        // Records behind the first one begin no message.
        assert_eq!(opened(&mut opener, &(number + 1, bytes[record..].to_vec())), None);
        // Records of two messages are no message.
        let more = sealed(&mut sealer, &content(1));
        let joined = [&bytes[..], &more.1].concat();
        assert_eq!(opened(&mut opener, &(*number, joined)), None);
        assert_eq!(opened(&mut opener, &whole), Some(content(5)));
        assert_eq!(opened(&mut opener, &more), Some(content(1)));
    }

    #[test]
    fn keys_follow_one_another_and_the_former_one_is_good_for_late_messages() {
        let (mut sealer, mut opener) = pair();
        sealer.skip_to(RECORDS_OF_KEY - 1);
        let early = sealed(&mut sealer, &content(0));
        let (late, mut messages) = (sealed(&mut sealer, &content(4)), Vec::new());
        // A message with records under both keys.
        sealer.skip_to(2 * RECORDS_OF_KEY - 1);
        messages.push(sealed(&mut sealer, &content(6)));
        messages.push(sealed(&mut sealer, &content(2)));
        assert_eq!(opened(&mut opener, &late), Some(content(4)));
        assert_eq!(opened(&mut opener, &early), Some(content(0)));
        assert_eq!(opened(&mut opener, &messages[0]), Some(content(6)));
        assert_eq!(opened(&mut opener, &messages[1]), Some(content(2)));
        // A key that is two ahead is not looked for: a peer that sends so is none.
        sealer.skip_to(5 * RECORDS_OF_KEY);
        let far = sealed(&mut sealer, &content(1));
        assert_eq!(opened(&mut opener, &far), None);
    }

    #[test]
    fn a_window_knows_what_has_arrived_and_refuses_what_is_older() {
        let mut window = ReplayWindow { seen: vec![0; WORDS], end: 0 };
        assert!(!window.has(0) && !window.has(1 << 40));
        let mut seen = std::collections::HashSet::new();
        let mut state = 1_u64;
        let mut top = 0;
        for step in 0..60_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (step * 2 + (state >> 33) % 9_000).saturating_sub(4_000);
            if number + WINDOW >= top {
                assert_eq!(window.has(number), seen.contains(&number), "number {number}");
            }
            if !window.has(number) {
                window.add(number);
                seen.insert(number);
                top = top.max(number + 1);
            }
        }
        window.add(top + 10 * WINDOW);
        assert!(window.has(top - 1) && window.has(top + 8 * WINDOW));
        assert!(!window.has(top + 10 * WINDOW - 1));
    }
}
