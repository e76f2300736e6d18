//! Bundles (also: batching, coalescing): small messages in one frame: a table of them, their extension fields, and
//! their payloads.

use std::sync::Arc;
use std::vec::Drain;

use super::fields::FieldReader;
use super::header::extensions::{self, MOST_EXTENSIONS};
use super::header::{BadFrame, Cursor, Header, MessageKind};
use super::{Body, Message};
use crate::job::Data;

/// Maximum messages of a bundle.
pub(crate) const MOST_PARTS: usize = 64;
/// A bundle with more messages has memory for all of them.
const FEW_PARTS: usize = 4;
/// Maximum payload bytes of the messages of a bundle.
pub(crate) const MOST_BYTES: u64 = 64 << 10;
/// Payload bytes from which on a message is sent alone.
const MOST_EACH: u64 = 16 << 10;
/// Maximum number of bundles whose memory a stream keeps.
const MOST_SPARE: usize = 64;
/// Bytes of a table entry.
const ENTRY: usize = 76;

/// Messages of a bundle, with their length, which is summed up once.
#[derive(Debug, Clone)]
pub struct BundleParts<D> {
    messages: Vec<Message<D>>,
    bytes: u64,
}

impl<D> Default for BundleParts<D> {
    fn default() -> Self {
        Self { messages: Vec::new(), bytes: 0 }
    }
}

impl<D: Data> BundleParts<D> {
    /// Appends a message that this process sends.
    #[cfg_attr(not(feature = "wire-next"), allow(unused_mut, reason = "no part gets a field"))]
    pub(crate) fn add(&mut self, mut part: Message<D>) {
        #[cfg(feature = "wire-next")]
        {
            part.head.next = super::next::VALUE;
        }
        self.push(part);
    }

    fn push(&mut self, part: Message<D>) {
        if self.messages.len() == FEW_PARTS {
            self.messages.reserve_exact(MOST_PARTS - FEW_PARTS);
        }
        self.bytes += (ENTRY + extensions::len(&part.head)) as u64 + part.body.len();
        self.messages.push(part);
    }

    /// Fills the messages that [`read_table`] has made, by their entries. `read` gives the payload of each.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn fill<E>(
        &mut self,
        entries: &[BundleEntry],
        mut read: impl FnMut(&Header, &BundleEntry) -> Result<Body<D>, E>,
    ) -> Result<(), E> {
        for (message, entry) in self.messages.iter_mut().zip(entries) {
            message.body = read(&message.head, entry)?;
            self.bytes += message.body.len();
        }
        Ok(())
    }
}

impl<D> BundleParts<D> {
    /// The messages, in their order.
    #[must_use]
    pub fn messages(&self) -> &[Message<D>] {
        &self.messages
    }

    /// Removes all messages, in their order. The memory of the list is kept.
    pub fn drain(&mut self) -> Drain<'_, Message<D>> {
        self.bytes = 0;
        self.messages.drain(..)
    }

    /// Length of the bundle's payload in bytes: the table, all extension fields and all payloads.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }
}

/// Memory of bundles that were acknowledged, for the next ones.
#[derive(Debug)]
pub(crate) struct SpareBundles<D> {
    empty: Vec<Arc<BundleParts<D>>>,
    /// Those that a frame still refers to.
    used: Vec<Arc<BundleParts<D>>>,
}

impl<D> Default for SpareBundles<D> {
    fn default() -> Self {
        Self { empty: Vec::new(), used: Vec::new() }
    }
}

impl<D: Data> SpareBundles<D> {
    /// A bundle without messages, which has no other owner.
    pub(crate) fn take(&mut self) -> Arc<BundleParts<D>> {
        self.empty.pop().unwrap_or_default()
    }

    /// Keeps the memory of a body, if it is a bundle.
    pub(crate) fn keep(&mut self, body: Body<D>) {
        let Body::Parts(parts) = body else { return };
        self.used.push(parts);
        let mut at = 0;
        while let Some(parts) = self.used.get_mut(at) {
            let Some(owned) = Arc::get_mut(parts) else {
                at += 1;
                continue;
            };
            owned.drain();
            self.empty.push(self.used.swap_remove(at));
        }
        self.used.truncate(MOST_SPARE);
        self.empty.truncate(MOST_SPARE);
    }
}

/// What the table of a bundle says of the payload of a message. The extension fields of all messages follow the
/// table, then the payloads, both in the order of the entries.
#[derive(Debug, Clone, Copy)]
pub struct BundleEntry {
    /// Length of the payload in bytes.
    pub payload: usize,
    /// CRC32C of the payload.
    pub checksum: u32,
}

impl MessageKind {
    /// Whether messages of this kind may be parts of a bundle. Later releases may bundle other ones.
    fn is_bundled(self) -> bool {
        matches!(
            self,
            Self::Push
                | Self::Pull
                | Self::Value
                | Self::Offer
                | Self::Grant
                | Self::Declare
                | Self::Place
                | Self::Describe
                | Self::Init
                | Self::Ready
                | Self::Remove
                | Self::Removed
                | Self::Unknown(_)
        )
    }
}

impl Header {
    /// Bytes of the payload that the payload checksum covers: all, or of a bundle only the table and the
    /// extension fields, because payloads have checksums of their own.
    #[must_use]
    pub fn covered(&self, payload: usize) -> usize {
        if self.kind == MessageKind::Bundle {
            table_len(self.total).saturating_add(length(self.offset)).min(payload)
        } else {
            payload
        }
    }
}

impl<D: Data> Message<D> {
    /// Whether the message may begin a bundle. Kinds of later releases do not: some peers take no bundles.
    pub(crate) fn begins_bundle(&self) -> bool {
        self.joins_bundle() && !matches!(self.head.kind, MessageKind::Unknown(_))
    }

    /// Whether the message may be part of a bundle that another one has begun.
    pub(crate) fn joins_bundle(&self) -> bool {
        self.head.kind.is_bundled() && self.body.len() < MOST_EACH
    }

    /// A bundle of messages about keys and their values, each below 16 KiB, at most 64 of them and 64 KiB.
    #[must_use]
    pub fn bundle(parts: Vec<Self>) -> Self {
        let mut all = BundleParts::default();
        parts.into_iter().for_each(|part| all.add(part));
        Self::of_parts(Arc::new(all))
    }

    /// A bundle of messages that are in their place.
    pub(crate) fn of_parts(parts: Arc<BundleParts<D>>) -> Self {
        let messages = parts.messages();
        let (total, offset) = (messages.len() as u64, fields_len(messages) as u64);
        let head = Header { kind: MessageKind::Bundle, total, offset, ..Header::default() };
        Self { head, body: Body::Parts(parts) }
    }

    /// Messages of a bundle; for any other message, the message itself.
    pub fn parts(&self) -> &[Self] {
        match &self.body {
            Body::Parts(parts) => parts.messages(),
            _ => std::slice::from_ref(self),
        }
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn table_len(parts: u64) -> usize {
    length(parts).saturating_mul(ENTRY)
}

/// Bytes of the extension fields of all messages.
fn fields_len<D>(parts: &[Message<D>]) -> usize {
    parts.iter().map(|part| extensions::len(&part.head)).sum()
}

/// Writes the payload of a bundle to `out`, of its size; returns the CRC32C of the table and the extension fields.
/// `copy` writes the payload of one part and returns its CRC32C, or None to give up: the bundle was acknowledged
/// meanwhile.
///
/// # Panics
/// `out` is too short.
pub fn write_parts<D: Data>(
    parts: &[Message<D>],
    out: &mut [u8],
    copy: impl Fn(&Body<D>, &mut [u8]) -> Option<u32>,
) -> Option<u32> {
    let (front, mut rest) = out.split_at_mut(parts.len() * ENTRY + fields_len(parts));
    let (table, mut fields) = front.split_at_mut(parts.len() * ENTRY);
    for (part, entry) in parts.iter().zip(table.chunks_exact_mut(ENTRY)) {
        let len = part.body.len();
        let (place, others) = rest.split_at_mut(length(len));
        let sum = copy(&part.body, place)?;
        let (own, next) = fields.split_at_mut(extensions::len(&part.head));
        extensions::write(&part.head, own);
        write_entry(&part.head, own.len(), (len, sum), entry);
        (rest, fields) = (others, next);
    }
    Some(kvstore_checksum::crc32c(front))
}

fn write_entry(head: &Header, fields: usize, (len, sum): (u64, u32), out: &mut [u8]) {
    let mut out = Cursor(out);
    for wide in [head.key, head.round, head.offset, head.total, head.request, head.setting] {
        out.put(wide.to_le_bytes());
    }
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    for narrow in [head.generation, head.slice, head.priority.cast_unsigned(), len, sum] {
        out.put(narrow.to_le_bytes());
    }
    out.put([head.kind.code(), 0]);
    let fields = u16::try_from(fields).unwrap_or(u16::MAX);
    for short in [head.flags, head.codec, fields] {
        out.put(short.to_le_bytes());
    }
}

/// Decodes the table of a bundle and the extension fields behind it, the bytes that [`Header::covered`] gives, of a
/// payload of `payload` bytes: the headers to messages of `parts`, which are in their place from then on, as a
/// header is some 170 bytes; what it says of their payloads to `entries`. `parts` is empty before.
///
/// # Errors
/// The table does not fit the header or the payload, or has an entry of another kind.
pub fn read_table<D>(
    head: &Header,
    table: &[u8],
    payload: usize,
    parts: &mut BundleParts<D>,
    entries: &mut Vec<BundleEntry>,
) -> Result<(), BadFrame> {
    let unfit = BadFrame::Length(payload as u64);
    let (own, fields) = table.split_at_checked(table_len(head.total)).ok_or(unfit)?;
    if head.total > MOST_PARTS as u64 || fields.len() as u64 != head.offset {
        return Err(unfit);
    }
    let mut fields = FieldReader::new(fields);
    entries.clear();
    if head.total > FEW_PARTS as u64 {
        parts.messages.reserve_exact(MOST_PARTS);
    }
    for bytes in own.chunks_exact(ENTRY) {
        parts.messages.push(Message { head: head.clone(), body: Body::Fields(Vec::new()) });
        let Some(part) = parts.messages.last_mut() else { break };
        entries.push(read_entry(&mut part.head, bytes, &mut fields)?);
        parts.bytes += (ENTRY + extensions::len(&part.head)) as u64;
    }
    fields.end().ok_or(unfit)?;
    let payloads: usize = entries.iter().map(|entry| entry.payload).sum();
    if table.len() + payloads == payload { Ok(()) } else { Err(unfit) }
}

/// Reads an entry to a header, which is that of the bundle before.
fn read_entry(
    head: &mut Header,
    bytes: &[u8],
    fields: &mut FieldReader,
) -> Result<BundleEntry, BadFrame> {
    let mut from = FieldReader::new(bytes);
    let mut wide = || from.u64().ok_or(BadFrame::Short);
    extensions::clear(head);
    for field in [
        &mut head.key,
        &mut head.round,
        &mut head.offset,
        &mut head.total,
        &mut head.request,
        &mut head.setting,
    ] {
        *field = wide()?;
    }
    let mut narrow = || from.u32().ok_or(BadFrame::Short);
    (head.generation, head.slice) = (narrow()?, narrow()?);
    head.priority = narrow()?.cast_signed();
    let (payload, checksum) = (narrow()? as usize, narrow()?);
    let code = from.u8().ok_or(BadFrame::Short)?;
    let kind = MessageKind::from_code(code).filter(|kind| kind.is_bundled());
    head.kind = kind.ok_or(BadFrame::Kind(code))?;
    from.u8().ok_or(BadFrame::Short)?;
    let mut short = || from.u16().ok_or(BadFrame::Short);
    (head.flags, head.codec) = (short()?, short()?);
    let len = short()?;
    let own = Some(len).filter(|len| usize::from(*len) <= MOST_EXTENSIONS);
    let own = own.and_then(|len| fields.bytes(len.into())).ok_or(BadFrame::Extensions(len))?;
    extensions::read(head, own)?;
    Ok(BundleEntry { payload, checksum })
}
