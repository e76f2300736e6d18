//! The frame (also: packet): a fixed header, extension fields, the payload; two checksums.

pub(super) mod extensions;

use super::body::SliceName;
use super::fields::FieldReader;
use crate::job::{Peer, Role};
use extensions::MOST_EXTENSIONS;

const MAGIC: u32 = u32::from_le_bytes(*b"KVST");
/// Version of the protocol; frames of another version are no frames of this one.
pub const VERSION: u16 = 3;
/// Bytes of the fixed part of a frame's header.
pub const HEADER: usize = 140;
/// Offset of the header checksum, which covers the bytes before it, and the extension fields.
const CHECKSUM_AT: usize = HEADER - 4;
/// Largest code of a kind: a message of an unknown kind up to this one is counted and dropped.
const LAST_KIND: u8 = 63;
/// Round behind all rounds of a slice: no worker pushes any more.
pub(crate) const ROUNDS_OVER: u64 = u64::MAX;
/// Numbers of agreements of collective calls are larger than this one, versions of settings are not.
pub(crate) const COLLECTIVE: u64 = 1 << 63;
/// Bytes that are copied and then added to the checksum, while they are in the cache.
const CHUNK: usize = 16 << 10;

/// Bits of [`Header::flags`].
pub(crate) mod flags {
    /// The push was granted and costs no credit.
    pub(crate) const GRANTED: u16 = 1;
    /// The push asks for the value of its round.
    pub(crate) const ANSWER: u16 = 2;
    /// The sender has nothing more to send.
    pub(crate) const LAST: u16 = 8;
    /// The receiver is the provider: its value, or setting, counts. Of a Remove: for the directory.
    pub(crate) const PROVIDE: u16 = 4;
    /// The decided setting differs from the receiver's, whose request will fail.
    pub(crate) const DIFFERS: u16 = 16;
    /// The sender proposes nothing and learns the first key from this one on, or a setting.
    pub(crate) const LEARN: u16 = 32;
    /// The sender withdraws its init, or its removal, of a key.
    pub(crate) const BACK: u16 = 64;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal,)+) => {
        /// Kind of a message; docs/internals/wire.md has the fields of each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub enum MessageKind {
            $($(#[$doc])* $kind,)+
            /// A kind of a later release, by its code: the message is counted and dropped.
            Unknown(u8),
        }

        impl MessageKind {
            /// All kinds of this release, in the order of their codes.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)+];

            /// Code of the kind on the wire.
            #[must_use]
            pub fn code(self) -> u8 {
                match self {
                    $(Self::$kind => $code,)+
                    Self::Unknown(code) => code,
                }
            }

            pub(super) fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)+
                    ..=LAST_KIND => Some(Self::Unknown(code)),
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Acknowledgement and heartbeat.
    #[default]
    Alive = 0,
    /// A process asks to join, or a member introduces itself to a new scheduler.
    Hello = 1,
    /// The scheduler refuses the process.
    Refused = 2,
    /// A scheduler asks an unknown member to introduce itself.
    Who = 3,
    /// The receiver was declared lost.
    Evicted = 4,
    /// Address book of the scheduler: all members with their state.
    Book = 5,
    /// A worker has arrived at a barrier.
    Barrier = 6,
    /// The barrier is open.
    Released = 7,
    /// A worker pushes no more.
    Done = 8,
    /// The sender leaves the job.
    Leave = 9,
    /// A member is silent for the sender, or is no longer.
    Suspect = 10,
    /// Query of the members that a request, a barrier or the start waits for.
    Ask = 11,
    /// Answer to an Ask.
    Awaited = 12,
    /// A worker proposes or looks up a key, or a setting.
    Declare = 13,
    /// Placement of a key's slices, or the decision on a setting.
    Place = 14,
    /// The provider has sent the value, or the setting, to every server.
    Ready = 15,
    /// The first value of a slice.
    Init = 16,
    /// A setting: merge rule, its numbers, or codec, from a version on.
    Setting = 17,
    /// Contribution of a worker to a round of a slice.
    Push = 18,
    /// A push that its worker holds back without credit.
    Offer = 19,
    /// An offered push may be sent.
    Grant = 20,
    /// Credit that is returned to a worker, in bytes.
    Credit = 21,
    /// Request of a slice's value.
    Pull = 22,
    /// The value of a slice.
    Value = 23,
    /// A worker removes a key.
    Remove = 24,
    /// The key is removed, or kept.
    Removed = 25,
    /// A request failed.
    Failed = 26,
    /// Shape, dtype and placement of a key, for a server that will hold slices of it.
    Describe = 27,
    /// Value and state of a slice, from a checkpoint.
    Restore = 28,
    /// Query of the job's state, by an observer or a member.
    Look = 29,
    /// Answer to a Look.
    Seen = 30,
    /// Statistics of a member, or the request for them.
    Report = 31,
    /// Small messages of a stream in one frame.
    Bundle = 32,
    /// A launcher has seen the end of processes that it started.
    ExitNotice = 44,
    /// A worker takes part in a resume, with its counts; to a server, with those of all workers.
    Resume = 50,
    /// No worker is done any more, said by the scheduler with the counts of all, or by a server.
    Resumed = 51,
    /// A piece of what a worker sends to another one in an exchange.
    Segment = 52,
    /// A worker has begun an exchange.
    Begun = 53,
    /// A worker has given an exchange up.
    GivenUp = 54,
    /// A worker makes a group of workers known to a server.
    Form = 55,
    /// A server knows the group.
    Formed = 56,
}

impl MessageKind {
    /// Whether the payload is a slice.
    #[must_use]
    pub(crate) fn carries_slice(self) -> bool {
        matches!(self, Self::Init | Self::Push | Self::Value | Self::Restore | Self::Segment)
    }

    /// Whether a payload of `len` bytes is [`Body::Data`](crate::Body::Data), a slice or a query of one, rather than
    /// fields.
    #[must_use]
    pub fn carries_data(self, len: usize) -> bool {
        self.carries_slice() || (self == Self::Pull && len > 0)
    }
}

/// Fields of a frame before its payload; see docs/internals/wire.md. Fields that a kind does not use are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Kind of the message.
    pub kind: MessageKind,
    /// Role of the sender.
    pub role: Role,
    /// Rank of the sender; [`NO_RANK`](crate::NO_RANK) before it has one.
    pub rank: u32,
    /// Job of the sender.
    pub job: u64,
    /// Incarnation of the sender: larger than that of an earlier process of its role and rank.
    pub incarnation: u64,
    /// Incarnation of the receiver; 0 before the sender knows it.
    pub to_incarnation: u64,
    /// Epoch of the sender's address book; 0 before the start.
    pub epoch: u32,
    /// Sequence in the stream between two processes, from 1; 0 is outside of it.
    pub sequence: u64,
    /// Cumulative acknowledgement: last sequence of the other direction without a gap before it.
    pub ack: u64,
    /// Key of the message.
    pub key: u64,
    /// Generation of the key, from 1.
    pub generation: u32,
    /// Index of the slice, from 0.
    pub slice: u32,
    /// Round of a push or pull, from 1; number of a barrier.
    pub round: u64,
    /// Offset of the slice in the value of its key, in bytes.
    pub offset: u64,
    /// Bytes of the key's value, or of credit; messages of a bundle; second hash of a key's name.
    pub total: u64,
    /// Number of the sender's request, which its answer repeats.
    pub request: u64,
    /// Version of the setting: the one in force for a push. Or the number of an agreement of a collective call.
    pub setting: u64,
    /// Priority of the answer; larger is earlier.
    pub priority: i32,
    /// Flags, by kind.
    pub flags: u16,
    /// Codec of the payload; 0 is raw little-endian values.
    pub codec: u16,
    /// Extension field: weight of a push, the bits of a float64; 0 for a push without a weight.
    pub weight: u64,
    /// Extension field: part of a push in the tree of its round, the first leaf and, from bit 32 on, the number
    /// of leaves; 0 for a push that is no part of a tree.
    pub part: u64,
    /// Extension field: what the sum of the round is multiplied by before its merge rule, the bits of a float64; 0 for
    /// a push whose round is not scaled.
    pub scale: u64,
    /// Extension field: group of workers that the message concerns; 0 for the workers of the job.
    pub group: u64,
    /// Extension fields of a received message that this release does not know.
    pub skipped: u16,
    /// Extension field of builds for tests.
    #[cfg(feature = "wire-next")]
    pub next: u64,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            kind: MessageKind::Alive,
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
            weight: 0,
            part: 0,
            scale: 0,
            group: 0,
            skipped: 0,
            #[cfg(feature = "wire-next")]
            next: 0,
        }
    }
}

/// Reason why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// Fewer bytes than the frame has.
    Short,
    /// Another magic number.
    Magic,
    /// Another version of the protocol.
    Version(u16),
    /// Another checksum of the header.
    HeaderChecksum,
    /// Another checksum of the payload.
    PayloadChecksum,
    /// Unknown kind, or one that is not bundled.
    Kind(u8),
    /// Unknown role.
    Role(u8),
    /// More bytes of extension fields than 256, or other ones than the fields have.
    Extensions(u16),
    /// Payload length beyond the limit of the receiver, or not that of the bundle's table.
    Length(u64),
}

impl Header {
    /// Role and rank of the sender.
    #[must_use]
    pub fn sender(&self) -> Peer {
        Peer { role: self.role, rank: self.rank }
    }

    /// The slice that the message is about.
    pub(crate) fn slice_name(&self) -> SliceName {
        SliceName { key: self.key, generation: self.generation, slice: self.slice }
    }

    /// Bytes of the frame in front of its payload.
    #[must_use]
    pub fn len(&self) -> usize {
        HEADER + extensions::len(self)
    }
}

/// Appends a frame to `out`, which may hold other frames.
#[cfg(any(fuzzing, test, feature = "testing"))]
pub fn encode(head: &Header, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + head.len() + payload.len(), 0);
    let (front, place) = out[start..].split_at_mut(head.len());
    place.copy_from_slice(payload);
    let sum = kvstore_checksum::crc32c(&payload[..head.covered(payload.len())]);
    write_front(head, payload.len(), sum, front);
}

/// Writes a frame to the front of `out`; returns its length in bytes.
///
/// # Panics
/// `out` is too short.
pub fn write(head: &Header, payload: &[u8], out: &mut [u8]) -> usize {
    let (front, rest) = out.split_at_mut(head.len());
    let sum = copy(payload, &mut rest[..payload.len()]);
    write_front(head, payload.len(), sum, front) + payload.len()
}

/// Copies a payload to `out`, of its size; returns its CRC32C.
///
/// # Panics
/// `out` is too short.
pub fn copy(payload: &[u8], mut out: &mut [u8]) -> u32 {
    let mut sum = 0;
    // Each chunk is read a second time while it is in the cache.
    for chunk in payload.chunks(CHUNK) {
        let (place, rest) = out.split_at_mut(chunk.len());
        place.copy_from_slice(chunk);
        sum = kvstore_checksum::append(sum, place);
        out = rest;
    }
    sum
}

/// Writes the part of a frame in front of its payload to the front of `out`; returns its length in bytes.
/// `payload` is the payload's length, `sum` the CRC32C of the bytes that [`Header::covered`] gives.
///
/// # Panics
/// `out` is too short.
pub fn write_front(head: &Header, payload: usize, sum: u32, out: &mut [u8]) -> usize {
    let (fixed, fields) = out[..head.len()].split_at_mut(HEADER);
    let fields_len = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    let mut out = Cursor(fixed);
    out.put(MAGIC.to_le_bytes());
    out.put(VERSION.to_le_bytes());
    out.put([head.kind.code(), head.role as u8]);
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
    for short in [head.flags, head.codec, fields_len, 0] {
        out.put(short.to_le_bytes());
    }
    out.put(sum.to_le_bytes());
    extensions::write(head, fields);
    let sum = kvstore_checksum::append(kvstore_checksum::crc32c(&fixed[..CHECKSUM_AT]), fields);
    fixed[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    head.len()
}

/// A buffer that is filled from the front; fields beyond its end are dropped.
pub(super) struct Cursor<'a>(pub(super) &'a mut [u8]);

impl Cursor<'_> {
    pub(super) fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some((place, rest)) = std::mem::take(&mut self.0).split_first_chunk_mut() {
            *place = bytes;
            self.0 = rest;
        }
    }
}

/// A frame whose fixed part has been read. Only its lengths are trusted: magic and version are checked, the
/// header checksum is not.
pub struct PartialFrame {
    head: Result<Header, BadFrame>,
    payload: u64,
    extensions: u16,
    payload_checksum: u32,
    checksum: u32,
    /// Computed checksum of the fixed part.
    found: u32,
}

/// A frame whose header has been verified.
pub struct VerifiedFrame {
    /// Fields of the header.
    pub head: Header,
    /// Length of the payload that follows, in bytes.
    pub payload: usize,
    /// CRC32C of the bytes of the payload that [`Header::covered`] gives; the caller compares it.
    pub payload_checksum: u32,
}

impl PartialFrame {
    /// Decodes the fixed part of a frame.
    ///
    /// # Errors
    /// Magic, version or length of the extension fields are not those of a frame of this version.
    pub fn new(fixed: &[u8; HEADER]) -> Result<Self, BadFrame> {
        let mut from = FieldReader::new(fixed);
        let magic = from.u32().ok_or(BadFrame::Short)?;
        let version = from.u16().ok_or(BadFrame::Short)?;
        if magic != MAGIC {
            return Err(BadFrame::Magic);
        }
        if version != VERSION {
            return Err(BadFrame::Version(version));
        }
        let mut opening = Self::read(from).ok_or(BadFrame::Short)?;
        if opening.extensions_len() > MOST_EXTENSIONS {
            return Err(BadFrame::Extensions(opening.extensions));
        }
        opening.found = kvstore_checksum::crc32c(&fixed[..CHECKSUM_AT]);
        Ok(opening)
    }

    /// Bytes of extension fields that follow the fixed part, at most [`MOST_EXTENSIONS`].
    #[must_use]
    pub fn extensions_len(&self) -> usize {
        self.extensions.into()
    }

    /// Verifies the header with its extension fields, of the length that
    /// [`extensions_len`](Self::extensions_len) gives.
    ///
    /// # Errors
    /// The header checksum, the kind, the role or a length are wrong, or the payload is longer than `most` bytes.
    pub fn open(self, extensions: &[u8], most: u64) -> Result<VerifiedFrame, BadFrame> {
        if kvstore_checksum::append(self.found, extensions) != self.checksum {
            return Err(BadFrame::HeaderChecksum);
        }
        if self.payload > most {
            return Err(BadFrame::Length(self.payload));
        }
        let payload = usize::try_from(self.payload).map_err(|_| BadFrame::Length(self.payload))?;
        let mut head = self.head?;
        extensions::read(&mut head, extensions)?;
        Ok(VerifiedFrame { head, payload, payload_checksum: self.payload_checksum })
    }

    /// Decodes the fields behind the version.
    fn read(mut from: FieldReader) -> Option<Self> {
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
        let extensions = from.u16()?;
        from.u16()?;
        let payload_checksum = from.u32()?;
        let checksum = from.u32()?;
        let head = match (MessageKind::from_code(kind), Role::from_code(role)) {
            (Some(kind), Some(role)) => Ok(Header { kind, role, ..head }),
            (None, _) => Err(BadFrame::Kind(kind)),
            (_, None) => Err(BadFrame::Role(role)),
        };
        Some(Self { head, payload, extensions, payload_checksum, checksum, found: 0 })
    }
}

/// Decodes the first frame of `bytes`: its header, its payload, and the rest.
///
/// # Errors
/// The bytes are no frame of this version, or one with a payload of more than `most` bytes.
#[cfg(test)]
pub(crate) fn decode(bytes: &[u8], most: u64) -> Result<(Header, &[u8], &[u8]), BadFrame> {
    // A short frame still has its version.
    let mut fixed = [0; HEADER];
    let there = bytes.len().min(HEADER);
    fixed[..there].copy_from_slice(&bytes[..there]);
    if there < 6 {
        return Err(BadFrame::Short);
    }
    let opening = PartialFrame::new(&fixed);
    let (_, rest) = bytes.split_at_checked(HEADER).ok_or(match opening {
        Err(bad @ (BadFrame::Magic | BadFrame::Version(_))) => bad,
        _ => BadFrame::Short,
    })?;
    let opening = opening?;
    let (extensions, rest) =
        rest.split_at_checked(opening.extensions_len()).ok_or(BadFrame::Short)?;
    let opened = opening.open(extensions, most)?;
    let (payload, rest) = rest.split_at_checked(opened.payload).ok_or(BadFrame::Short)?;
    let covered = &payload[..opened.head.covered(payload.len())];
    if kvstore_checksum::crc32c(covered) != opened.payload_checksum {
        return Err(BadFrame::PayloadChecksum);
    }
    Ok((opened.head, payload, rest))
}
