//! The frame: a fixed header, the replicas, the payload; two checksums.

use super::reader::Reader;
use crate::job::Role;

const MAGIC: u32 = u32::from_le_bytes(*b"KVST");
pub const VERSION: u16 = 2;
/// The bytes of the fixed part.
pub const HEADER: usize = 140;
/// Where the checksum of the header is; it covers everything before, and the replicas.
const CHECKSUM_AT: usize = HEADER - 4;
const MAX_REPLICAS: u16 = 16;
/// Behind all rounds of a slice: no worker pushes any more.
pub(crate) const ROUNDS_OVER: u64 = u64::MAX;
/// Bytes that are copied and added to the checksum at a time.
const CHUNK: usize = 16 << 10;

/// Bits of [`Header::flags`].
pub(crate) mod flags {
    /// The push was granted: it is not paid with credit.
    pub(crate) const GRANTED: u16 = 1;
    /// The push asks for the value of its round.
    pub(crate) const ANSWER: u16 = 2;
    /// The sender has nothing more to send.
    pub(crate) const LAST: u16 = 8;
    /// The receiver is the one whose value, or setting, counts.
    pub(crate) const PROVIDE: u16 = 4;
    /// Something else was decided, for which the receiver will be failed.
    pub(crate) const DIFFERS: u16 = 16;
    /// The sender takes what there is and wants nothing: the first key from this one on, or a setting.
    pub(crate) const LEARN: u16 = 32;
    /// The sender takes back that it initialises, or removes, a key.
    pub(crate) const BACK: u16 = 64;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal,)+) => {
        /// What a message is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum Kind { $($(#[$doc])* $kind = $code,)+ }

        impl Kind {
            pub const ALL: &'static [Self] = &[$(Self::$kind,)+];
        }
    };
}

kinds! {
    /// Acknowledges, and shows that the sender lives.
    #[default]
    Alive = 0,
    /// A process asks to be a member, or a member introduces itself to a new scheduler.
    Hello = 1,
    /// The scheduler does not take the process.
    Refused = 2,
    /// A scheduler asks an unknown member to introduce itself.
    Who = 3,
    /// The receiver was declared lost.
    Evicted = 4,
    /// All members with their state, from the scheduler.
    Book = 5,
    /// A worker has come to a barrier.
    Barrier = 6,
    /// All workers have come to the barrier.
    Released = 7,
    /// A worker pushes no more.
    Done = 8,
    /// The sender leaves the job.
    Leave = 9,
    /// The sender does not hear a member.
    Suspect = 10,
    /// Whom does this wait for?
    Ask = 11,
    Awaited = 12,
    /// A worker wants a key, or a setting, to exist.
    Declare = 13,
    /// Where the slices of a key are.
    Place = 14,
    /// The provider has brought the value, or the setting, to every server.
    Ready = 15,
    /// The first value of a slice.
    Init = 16,
    /// What merges pushes, from some version on.
    Setting = 17,
    Push = 18,
    /// A push is held back for want of credit.
    Offer = 19,
    /// An offered push may be sent.
    Grant = 20,
    /// Bytes of pushes that are no longer held.
    Credit = 21,
    Pull = 22,
    /// The value of a slice.
    Value = 23,
    /// A worker needs the key no more.
    Remove = 24,
    Removed = 25,
    /// A request failed.
    Failed = 26,
    /// What a key is, to a server that will hold slices of it.
    Describe = 27,
    /// A slice as a checkpoint has it: value and state.
    Restore = 28,
    /// Somebody who is no member wants to see the job.
    Look = 29,
    /// What there is to see.
    Seen = 30,
    /// What a member says of itself, or that it is asked for it.
    Report = 31,
    /// Small messages of a stream, in their order.
    Bundle = 32,
}

impl Kind {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether the payload is part of a value, to be received into place.
    #[must_use]
    pub fn carries_data(self) -> bool {
        matches!(self, Self::Init | Self::Push | Self::Value | Self::Restore)
    }
}

/// All fields before the payload. Fields that a kind does not use are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub role: Role,
    pub rank: u32,
    pub job: u64,
    /// Tells a process from the one before it of the same rank; later ones have larger numbers.
    pub incarnation: u64,
    /// Whom it is meant for; 0 before the sender knows.
    pub to_incarnation: u64,
    pub epoch: u32,
    /// The place in the stream between two processes; 0 is outside of it.
    pub sequence: u64,
    /// Everything up to here has arrived in the other direction.
    pub ack: u64,
    pub key: u64,
    pub generation: u32,
    pub slice: u32,
    pub round: u64,
    /// Bytes before this slice in its key.
    pub offset: u64,
    /// Bytes of the key, or of credit.
    pub total: u64,
    /// The sender's number for what it asks; an answer has the same.
    pub request: u64,
    /// The setting in force for this push.
    pub setting: u64,
    /// How urgent the answer is; larger is earlier.
    pub priority: i32,
    pub flags: u16,
    /// How the payload is encoded; 0 is raw little-endian values.
    pub codec: u16,
    /// Servers that must have the push before it counts, by rank; none without replication.
    pub replicas: Option<Box<[u32]>>,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            kind: Kind::Alive,
            role: Role::Scheduler,
            rank: 0,
            job: 0,
            incarnation: 0,
            to_incarnation: 0,
            epoch: 0,
            sequence: 0,
            ack: 0,
            key: 0,
            generation: 0,
            slice: 0,
            round: 0,
            offset: 0,
            total: 0,
            request: 0,
            setting: 0,
            priority: 0,
            flags: 0,
            codec: 0,
            replicas: None,
        }
    }
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// Fewer bytes than the frame says it has.
    Short,
    Magic,
    /// Another version of the protocol.
    Version(u16),
    HeaderChecksum,
    PayloadChecksum,
    Kind(u8),
    Role(u8),
    Replicas(u16),
    /// The payload is longer than the receiver takes.
    Length(u64),
}

impl Header {
    fn places(&self) -> &[u32] {
        let replicas = self.replicas.as_deref().unwrap_or_default();
        &replicas[..replicas.len().min(usize::from(MAX_REPLICAS))]
    }

    /// The bytes of the frame in front of its payload.
    #[must_use]
    pub fn len(&self) -> usize {
        HEADER + 4 * self.places().len()
    }
}

/// Puts a frame behind what `out` holds already; frames may travel together.
#[cfg(any(fuzzing, test, feature = "testing"))]
pub fn encode(head: &Header, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + head.len() + payload.len(), 0);
    let (front, place) = out[start..].split_at_mut(head.len());
    place.copy_from_slice(payload);
    let sum = kvstore_checksum::crc32c(&payload[..head.covered(payload.len())]);
    write_front(head, payload.len(), sum, front);
}

/// Writes a frame to the front of `out`; gives its bytes.
///
/// # Panics
/// There is no room for it.
pub fn write(head: &Header, payload: &[u8], out: &mut [u8]) -> usize {
    let (front, rest) = out.split_at_mut(head.len());
    let sum = copy(payload, &mut rest[..payload.len()]);
    write_front(head, payload.len(), sum, front) + payload.len()
}

/// Copies a payload to a place of its size; gives its CRC32C.
pub fn copy(payload: &[u8], mut out: &mut [u8]) -> u32 {
    let mut sum = 0;
    // While a chunk is in the cache it is read again.
    for chunk in payload.chunks(CHUNK) {
        let (place, rest) = out.split_at_mut(chunk.len());
        place.copy_from_slice(chunk);
        sum = kvstore_checksum::append(sum, place);
        out = rest;
    }
    sum
}

/// Writes what is in front of a payload, of which the length and the CRC32C are known, to the front of
/// `out`; gives its bytes.
///
/// # Panics
/// There is no room for it.
pub fn write_front(head: &Header, payload: usize, sum: u32, out: &mut [u8]) -> usize {
    let replicas = head.places();
    let count = u16::try_from(replicas.len()).unwrap_or(MAX_REPLICAS);
    let (fixed, places) = out[..head.len()].split_at_mut(HEADER);
    let mut out = Cursor(fixed);
    out.put(MAGIC.to_le_bytes());
    out.put(VERSION.to_le_bytes());
    out.put([head.kind as u8, head.role as u8]);
    for wide in [head.job, head.incarnation, head.to_incarnation, head.sequence, head.ack] {
        out.put(wide.to_le_bytes());
    }
    for wide in [head.key, head.round, head.offset, head.total, head.request, head.setting] {
        out.put(wide.to_le_bytes());
    }
    let priority = head.priority.cast_unsigned();
    for narrow in [head.rank, head.epoch, head.generation, head.slice, priority] {
        out.put(narrow.to_le_bytes());
    }
    out.put((payload as u64).to_le_bytes());
    for short in [head.flags, head.codec, count, 0] {
        out.put(short.to_le_bytes());
    }
    out.put(sum.to_le_bytes());
    for (place, rank) in places.chunks_exact_mut(4).zip(replicas) {
        place.copy_from_slice(&rank.to_le_bytes());
    }
    let sum = kvstore_checksum::append(kvstore_checksum::crc32c(&fixed[..CHECKSUM_AT]), places);
    fixed[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    head.len()
}

/// A place to be filled from the front. What does not fit is not written.
pub(super) struct Cursor<'a>(pub(super) &'a mut [u8]);

impl Cursor<'_> {
    pub(super) fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some((place, rest)) = std::mem::take(&mut self.0).split_first_chunk_mut() {
            *place = bytes;
            self.0 = rest;
        }
    }
}

/// A frame whose fixed part has been read, and nothing believed yet but its lengths.
pub struct Opening {
    head: Result<Header, BadFrame>,
    payload: u64,
    replicas: u16,
    payload_checksum: u32,
    checksum: u32,
    /// The checksum of the fixed part, as it is.
    found: u32,
}

/// A frame whose header is right.
pub struct Opened {
    pub head: Header,
    /// Bytes of the payload that follows.
    pub payload: usize,
    /// The CRC32C of what it covers of the payload.
    pub payload_checksum: u32,
}

impl Opening {
    /// Looks at the fixed part of a frame.
    ///
    /// # Errors
    /// It is not that of a frame of this version.
    pub fn new(fixed: &[u8; HEADER]) -> Result<Self, BadFrame> {
        let mut from = Reader::new(fixed);
        let magic = from.u32().ok_or(BadFrame::Short)?;
        let version = from.u16().ok_or(BadFrame::Short)?;
        if magic != MAGIC {
            return Err(BadFrame::Magic);
        }
        if version != VERSION {
            return Err(BadFrame::Version(version));
        }
        let mut opening = Self::read(from).ok_or(BadFrame::Short)?;
        if opening.replicas > MAX_REPLICAS {
            return Err(BadFrame::Replicas(opening.replicas));
        }
        opening.found = kvstore_checksum::crc32c(&fixed[..CHECKSUM_AT]);
        Ok(opening)
    }

    /// Bytes of replicas that follow the fixed part.
    #[must_use]
    pub fn places(&self) -> usize {
        usize::from(self.replicas) * 4
    }

    /// Takes the replicas, and believes the header if its checksum is right.
    ///
    /// # Errors
    /// It is not, or it announces a payload of more than `most` bytes.
    pub fn open(self, places: &[u8], most: u64) -> Result<Opened, BadFrame> {
        if kvstore_checksum::append(self.found, places) != self.checksum {
            return Err(BadFrame::HeaderChecksum);
        }
        if self.payload > most {
            return Err(BadFrame::Length(self.payload));
        }
        let payload = usize::try_from(self.payload).map_err(|_| BadFrame::Length(self.payload))?;
        let mut head = self.head?;
        let mut places = Reader::new(places);
        if self.replicas > 0 {
            head.replicas = Some(std::iter::from_fn(|| places.u32()).collect());
        }
        Ok(Opened { head, payload, payload_checksum: self.payload_checksum })
    }

    /// From behind the version.
    fn read(mut from: Reader) -> Option<Self> {
        let (kind, role) = (from.u8()?, from.u8()?);
        let mut head = Header { job: from.u64()?, ..Header::default() };
        head.incarnation = from.u64()?;
        head.to_incarnation = from.u64()?;
        head.sequence = from.u64()?;
        head.ack = from.u64()?;
        head.key = from.u64()?;
        head.round = from.u64()?;
        head.offset = from.u64()?;
        head.total = from.u64()?;
        head.request = from.u64()?;
        head.setting = from.u64()?;
        head.rank = from.u32()?;
        head.epoch = from.u32()?;
        head.generation = from.u32()?;
        head.slice = from.u32()?;
        head.priority = from.u32()?.cast_signed();
        let payload = from.u64()?;
        head.flags = from.u16()?;
        head.codec = from.u16()?;
        let replicas = from.u16()?;
        from.u16()?;
        let payload_checksum = from.u32()?;
        let checksum = from.u32()?;
        let head = match (Kind::from_code(kind), Role::from_code(role)) {
            (Some(kind), Some(role)) => Ok(Header { kind, role, ..head }),
            (None, _) => Err(BadFrame::Kind(kind)),
            (_, None) => Err(BadFrame::Role(role)),
        };
        Some(Self { head, payload, replicas, payload_checksum, checksum, found: 0 })
    }
}

/// Takes the first frame off `bytes`: its header, its payload, and what follows.
///
/// # Errors
/// The bytes are no frame of this version, or one with a payload of more than `most` bytes.
#[cfg(test)]
pub(crate) fn decode(bytes: &[u8], most: u64) -> Result<(Header, &[u8], &[u8]), BadFrame> {
    // A short frame still tells its version.
    let mut fixed = [0; HEADER];
    let there = bytes.len().min(HEADER);
    fixed[..there].copy_from_slice(&bytes[..there]);
    if there < 6 {
        return Err(BadFrame::Short);
    }
    let opening = Opening::new(&fixed);
    let (_, rest) = bytes.split_at_checked(HEADER).ok_or(match opening {
        Err(bad @ (BadFrame::Magic | BadFrame::Version(_))) => bad,
        _ => BadFrame::Short,
    })?;
    let opening = opening?;
    let (places, rest) = rest.split_at_checked(opening.places()).ok_or(BadFrame::Short)?;
    let opened = opening.open(places, most)?;
    let (payload, rest) = rest.split_at_checked(opened.payload).ok_or(BadFrame::Short)?;
    let covered = &payload[..opened.head.covered(payload.len())];
    if kvstore_checksum::crc32c(covered) != opened.payload_checksum {
        return Err(BadFrame::PayloadChecksum);
    }
    Ok((opened.head, payload, rest))
}
