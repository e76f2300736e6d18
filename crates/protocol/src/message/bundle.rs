//! Small messages that travel in one frame: a table of what they are, then their payloads.

use std::sync::Arc;

use super::header::{BadFrame, Cursor, Header, Kind};
use super::reader::Reader;
use super::{Body, Message};
use crate::job::Data;

/// Messages of a bundle, and bytes of their payloads, at most.
pub(crate) const MOST_PARTS: usize = 64;
pub(crate) const MOST_BYTES: u64 = 64 << 10;
/// Larger payloads travel alone.
const MOST_EACH: u64 = 16 << 10;
/// The bytes of a message in the table.
const ENTRY: usize = 76;

/// The messages of a bundle. However often somebody asks for their bytes, they are counted once.
#[derive(Debug, Clone)]
pub struct Parts<D> {
    messages: Vec<Message<D>>,
    bytes: u64,
}

impl<D: Data> From<Vec<Message<D>>> for Parts<D> {
    fn from(messages: Vec<Message<D>>) -> Self {
        let payloads: u64 = messages.iter().map(|part| part.body.len()).sum();
        let bytes = (messages.len() * ENTRY) as u64 + payloads;
        Self { messages, bytes }
    }
}

impl<D> Parts<D> {
    #[must_use]
    pub fn messages(&self) -> &[Message<D>] {
        &self.messages
    }

    #[must_use]
    pub fn into_messages(self) -> Vec<Message<D>> {
        self.messages
    }

    /// The bytes of the payload: the table and all payloads.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }
}

/// A message of a bundle, before its payload is read.
pub struct Entry {
    pub head: Header,
    pub payload: usize,
    /// The CRC32C of the payload.
    pub checksum: u32,
}

impl Kind {
    /// Whether messages of this kind may be parts of a bundle.
    fn is_bundled(self) -> bool {
        matches!(self, Self::Push | Self::Pull | Self::Value)
    }
}

impl Header {
    /// How many bytes of the payload the payload checksum covers: the parts of a bundle have their own.
    #[must_use]
    pub fn covered(&self, payload: usize) -> usize {
        if self.kind == Kind::Bundle { table_len(self.total).min(payload) } else { payload }
    }
}

impl<D: Data> Message<D> {
    /// Whether it may be a part of a bundle.
    pub(crate) fn is_small(&self) -> bool {
        let Header { kind, replicas, .. } = &self.head;
        kind.is_bundled() && replicas.is_none() && self.body.len() < MOST_EACH
    }

    /// Messages as one. They are small.
    #[must_use]
    pub fn bundle(parts: Vec<Self>) -> Self {
        let total = parts.len() as u64;
        let head = Header { kind: Kind::Bundle, total, ..Header::default() };
        Self { head, body: Body::Parts(Arc::new(parts.into())) }
    }

    /// What it is made of: itself, unless it is a bundle.
    pub fn parts(&self) -> &[Self] {
        match &self.body {
            Body::Parts(parts) => parts.messages(),
            _ => std::slice::from_ref(self),
        }
    }
}

fn table_len(parts: u64) -> usize {
    usize::try_from(parts).unwrap_or(usize::MAX).saturating_mul(ENTRY)
}

/// Writes the payload of a bundle; gives the CRC32C of its table. `copy` puts the payload of one part to
/// its place, and gives its CRC32C, or None if nobody needs the bundle any more.
///
/// # Panics
/// There is no room for it.
pub fn write_parts<D: Data>(
    parts: &[Message<D>],
    out: &mut [u8],
    copy: impl Fn(&Body<D>, &mut [u8]) -> Option<u32>,
) -> Option<u32> {
    let (table, mut rest) = out.split_at_mut(parts.len() * ENTRY);
    for (part, entry) in parts.iter().zip(table.chunks_exact_mut(ENTRY)) {
        let len = part.body.len();
        let (place, others) = rest.split_at_mut(usize::try_from(len).unwrap_or(usize::MAX));
        let sum = copy(&part.body, place)?;
        write_entry(&part.head, len, sum, entry);
        rest = others;
    }
    Some(kvstore_checksum::crc32c(table))
}

fn write_entry(head: &Header, len: u64, sum: u32, out: &mut [u8]) {
    let mut out = Cursor(out);
    for wide in [head.key, head.round, head.offset, head.total, head.request, head.setting] {
        out.put(wide.to_le_bytes());
    }
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    for narrow in [head.generation, head.slice, head.priority.cast_unsigned(), len, sum] {
        out.put(narrow.to_le_bytes());
    }
    out.put([head.kind as u8, 0]);
    for short in [head.flags, head.codec, 0] {
        out.put(short.to_le_bytes());
    }
}

/// Reads the table of a bundle, whose payload has so many bytes.
///
/// # Errors
/// It is not a table of this payload.
pub fn read_table(head: &Header, table: &[u8], payload: usize) -> Result<Vec<Entry>, BadFrame> {
    let unfit = BadFrame::Length(payload as u64);
    if head.total > MOST_PARTS as u64 || table.len() != table_len(head.total) {
        return Err(unfit);
    }
    let entries: Vec<_> =
        table.chunks_exact(ENTRY).map(|bytes| read_entry(head, bytes)).collect::<Result<_, _>>()?;
    let payloads: usize = entries.iter().map(|entry| entry.payload).sum();
    if table.len() + payloads == payload { Ok(entries) } else { Err(unfit) }
}

fn read_entry(bundle: &Header, bytes: &[u8]) -> Result<Entry, BadFrame> {
    let mut from = Reader::new(bytes);
    let mut wide = || from.u64().ok_or(BadFrame::Short);
    let mut head = Header { key: wide()?, ..bundle.clone() };
    for field in
        [&mut head.round, &mut head.offset, &mut head.total, &mut head.request, &mut head.setting]
    {
        *field = wide()?;
    }
    let mut narrow = || from.u32().ok_or(BadFrame::Short);
    (head.generation, head.slice) = (narrow()?, narrow()?);
    head.priority = narrow()?.cast_signed();
    let (payload, checksum) = (narrow()? as usize, narrow()?);
    let code = from.u8().ok_or(BadFrame::Short)?;
    let kind = Kind::from_code(code).filter(|kind| kind.is_bundled());
    head.kind = kind.ok_or(BadFrame::Kind(code))?;
    from.u8().ok_or(BadFrame::Short)?;
    let mut short = || from.u16().ok_or(BadFrame::Short);
    (head.flags, head.codec) = (short()?, short()?);
    Ok(Entry { head, payload, checksum })
}
