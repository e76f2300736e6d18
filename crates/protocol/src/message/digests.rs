//! Fields of the observation of digests (also: fingerprints): what a server knows of the rounds of its slices.

use super::SliceName;
use super::facts::Look;
use super::fields::{Field, FieldReader, put_list, put_sized};

/// First byte behind the fields of a Look that asks for digests, and first byte of the answer.
const DIGESTS: u8 = 0xfe;

/// Maximum slices in one answer.
pub const MOST_DIGESTS: usize = 64;

/// Maximum arrays of a state, and maximum earlier rounds, of one slice.
const MOST_STATES: usize = 8;
const MOST_EARLIER: usize = 64;

impl Look {
    /// Fields of a Look that asks a server for the digests of its slices behind `skip` of them.
    #[must_use]
    pub fn encode_digests(&self, skip: u32) -> Vec<u8> {
        let mut out = self.encode(0);
        out.push(DIGESTS);
        skip.put(&mut out);
        out
    }

    /// Slices to skip, if the fields of a Look ask for digests.
    #[must_use]
    pub(crate) fn digests(bytes: &[u8]) -> Option<u32> {
        let mut from = FieldReader::new(bytes);
        from.text()?;
        from.u32()?;
        let asks = from.u8()? == DIGESTS;
        from.u32().filter(|_| asks)
    }
}

/// What the digests of a server are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DigestScope {
    /// The server makes none.
    Off = 0,
    /// Values.
    Values = 1,
    /// Values and states.
    All = 2,
}

impl Field for DigestScope {
    const LEAST: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        match from.u8()? {
            0 => Some(Self::Off),
            1 => Some(Self::Values),
            2 => Some(Self::All),
            _ => None,
        }
    }
}

/// Digests of a slice, and of what it was after earlier rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceDigest {
    /// The slice.
    pub slice: SliceName,
    /// First byte of the slice, bytes of the slice, and bytes of its key.
    pub place: (u64, (u64, u64)),
    /// Last round.
    pub round: u64,
    /// Digest of the value; None if a call has replaced the value since the round.
    pub value: Option<u64>,
    /// Digest and bytes of each array of the state.
    pub states: Vec<(u64, u64)>,
    /// Earlier rounds, and digests of the values.
    pub earlier: Vec<(u64, u64)>,
}

/// Behind its length.
impl Field for SliceDigest {
    const LEAST: usize = 65;

    fn put(&self, out: &mut Vec<u8>) {
        put_sized(out, |out| {
            let SliceName { key, generation, slice } = self.slice;
            key.put(out);
            (generation, slice).put(out);
            self.place.put(out);
            self.round.put(out);
            (self.value.is_some(), self.value.unwrap_or(0)).put(out);
            put_list(out, &self.states[..self.states.len().min(MOST_STATES)]);
            put_list(out, &self.earlier[..self.earlier.len().min(MOST_EARLIER)]);
        });
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let from = &mut from.sized()?;
        let (key, generation, slice) = (from.u64()?, from.u32()?, from.u32()?);
        let (place, round) = (Field::take(from)?, from.u64()?);
        let (is_known, value) = <(bool, u64)>::take(from)?;
        let (states, earlier) = <(Vec<_>, Vec<_>)>::take(from)?;
        let slice = SliceName { key, generation, slice };
        let fits = states.len() <= MOST_STATES && earlier.len() <= MOST_EARLIER;
        let value = is_known.then_some(value);
        fits.then_some(Self { slice, place, round, value, states, earlier })
    }
}

/// Answer of a server to a Look at its digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDigests {
    /// What they are of.
    pub scope: DigestScope,
    /// Slices of the server in all, skipped ones included.
    pub slices: u32,
    /// Slices in the order of the server, without those that have had no round.
    pub digests: Vec<SliceDigest>,
}

impl SeenDigests {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![DIGESTS];
        self.scope.put(&mut out);
        self.slices.put(&mut out);
        put_list(&mut out, &self.digests);
        out
    }

    /// Decodes the fields of a Seen; None if they are of another kind or cannot be read.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let is_ours = from.u8()? == DIGESTS;
        let (scope, slices) = (Field::take(&mut from)?, from.u32()?);
        let digests: Vec<SliceDigest> = Field::take(&mut from)?;
        let fits = is_ours && digests.len() <= MOST_DIGESTS;
        fits.then_some(Self { scope, slices, digests })
    }
}

#[cfg(test)]
mod tests {
    use super::{DigestScope, Look, SeenDigests, SliceDigest, SliceName};
    use crate::message::{JobView, is_echo};
    use crate::testing::Random;

    fn any(random: &mut Random) -> SeenDigests {
        let pairs = |count, random: &mut Random| {
            (0..count).map(|_| (random.next(), random.next())).collect::<Vec<_>>()
        };
        let mut slice = |index| SliceDigest {
            slice: SliceName { key: random.next(), generation: 3, slice: index },
            place: (random.next(), (random.next(), random.next())),
            round: random.next(),
            value: (random.below(2) == 0).then(|| random.next()),
            states: pairs(random.below(3), random),
            earlier: pairs(random.below(9), random),
        };
        let digests = (0..5).map(&mut slice).collect();
        SeenDigests { scope: DigestScope::All, slices: 77, digests }
    }

    #[test]
    fn digests_are_read_as_they_were_written_or_refused() {
        let mut random = Random::new(31);
        for _ in 0..300 {
            let seen = any(&mut random);
            let mut bytes = seen.encode();
            assert_eq!(SeenDigests::decode(&bytes).as_ref(), Some(&seen));
            assert!(!is_echo(&bytes) && JobView::decode(&bytes).is_none());
            let longer = [&bytes[..], &[1, 2, 3]].concat();
            assert_eq!(SeenDigests::decode(&longer).as_ref(), Some(&seen));
            let at = random.index(bytes.len());
            assert_eq!(SeenDigests::decode(&bytes[..at]), None);
            bytes[at] = u8::try_from(random.below(256)).unwrap();
            let read = SeenDigests::decode(&bytes);
            assert!(read.is_none_or(|it| SeenDigests::decode(&it.encode()) == Some(it)));
        }
    }

    #[test]
    fn a_look_at_digests_is_no_other_look() {
        let look = Look { address: "a:1".into(), skip: u32::MAX };
        let fields = look.encode_digests(9);
        assert_eq!((Look::digests(&fields), Look::echo(&fields)), (Some(9), None));
        assert_eq!(Look::decode(&fields), Some(look.clone()));
        assert_eq!(Look::digests(&look.encode(64)), None);
        assert_eq!(Look::digests(&look.encode_echo(4, 4)), None);
    }

    #[test]
    fn fields_of_a_later_release_are_skipped() {
        let seen = any(&mut Random::new(5));
        let mut bytes = seen.encode();
        // The first slice has one more number, which shifts no other slice.
        let (front, own) = bytes.split_at(1 + 1 + 4 + 4);
        let len = u32::from_le_bytes(own[..4].try_into().unwrap());
        let end = 4 + len as usize;
        let more = (len + 8).to_le_bytes();
        bytes = [front, &more, &own[4..end], &[7; 8], &own[end..]].concat();
        assert_eq!(SeenDigests::decode(&bytes), Some(seen));
    }
}
