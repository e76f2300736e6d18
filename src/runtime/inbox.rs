//! Decodes received bytes into messages. Also called: frame parser, ingress.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::buffers::{BlockPool, Bytes};
use crate::sys::kept;
use crate::transport::{Piece, ReceivePlace, ReceiveRoom, ReceiveTarget, Unwritten};
use kvstore_checksum::CopySums;
use kvstore_protocol::{
    BadFrame, Body, BundleEntry, BundleParts, Data as _, HEADER, Header, MOST_EXTENSIONS, Message,
    MessageKind, PartialFrame, VerifiedFrame, read_table,
};

/// Size in bytes from which values are received into their destination; for smaller ones a copy costs less
/// than the lookup.
const LARGE: usize = 32 << 10;

/// Maximum number of messages, and of bundles, whose memory a thread keeps from one delivery to the next.
const MOST_KEPT: usize = 256;

/// Why the rest of a delivery is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadDelivery {
    Bad(BadFrame),
    /// There is no memory for the message; its sender retransmits it.
    NoMemory,
}

const SHORT: BadDelivery = BadDelivery::Bad(BadFrame::Short);

/// A delivery, as one sequence of bytes.
struct Pieces<'a, 'b> {
    current: Piece<'a>,
    rest: &'b mut dyn Iterator<Item = Piece<'a>>,
    left: usize,
    /// Whether payloads have checksums.
    is_summed: bool,
}

impl Pieces<'_, '_> {
    /// Copies the next `len` bytes and continues sums, unless payloads have no checksums. None if the delivery is
    /// too short.
    fn take_on(
        &mut self,
        len: usize,
        out: &mut Unwritten<'_>,
        mut sums: CopySums,
    ) -> Option<CopySums> {
        let mut done = 0;
        while done < len {
            while self.current.len() == 0 {
                self.current = self.rest.next()?;
            }
            let (taken, rest) = self.current.split_at(self.current.len().min(len - done));
            if self.is_summed {
                out.put_summed(taken, &mut sums);
            } else {
                out.put(taken);
            }
            self.current = rest;
            done += taken.len();
        }
        self.left = self.left.saturating_sub(done);
        Some(sums)
    }

    /// Copies the next `len` bytes; returns their CRC32C, or any number if payloads have no checksums. None if
    /// the delivery is too short.
    fn take(&mut self, len: usize, out: &mut Unwritten<'_>) -> Option<u32> {
        self.take_on(len, out, CopySums::default()).map(|sums| sums.crc32c)
    }

    /// Fills `out`, as `take`.
    fn fill(&mut self, out: &mut [u8]) -> Option<u32> {
        self.take(out.len(), &mut out.into())
    }

    /// Checks that a payload is complete, and that it has the expected checksum, if payloads have one.
    fn intact(&self, found: Option<u32>, checksum: u32) -> Result<(), BadDelivery> {
        match found {
            Some(sum) if sum == checksum || !self.is_summed => Ok(()),
            Some(_) => Err(BadDelivery::Bad(BadFrame::PayloadChecksum)),
            None => Err(SHORT),
        }
    }

    /// Reads no more: the sender may reuse the memory.
    fn end(&mut self) {
        while self.rest.next().is_some() {}
    }
}

/// Memory of a thread that reads deliveries, from one to the next.
#[derive(Default)]
pub(super) struct ReadMemory {
    /// Messages of the delivery, in their order.
    pub(super) messages: VecDeque<Message<Bytes>>,
    /// Bundles without messages, which have no other owner.
    pub(super) bundles: Vec<Arc<BundleParts<Bytes>>>,
    table: Vec<u8>,
    entries: Vec<BundleEntry>,
}

thread_local! {
    static MEMORY: Cell<Option<ReadMemory>> = const { Cell::new(None) };
}

impl ReadMemory {
    /// The memory of this thread, without messages.
    pub(super) fn take() -> Self {
        kept::take(&MEMORY)
    }

    /// Keeps the memory for the next delivery.
    pub(super) fn leave(mut self) {
        self.messages.clear();
        self.messages.shrink_to(MOST_KEPT);
        self.bundles.truncate(MOST_KEPT);
        kept::keep(&MEMORY, self);
    }
}

/// Makes the blocks of received values.
#[derive(Clone, Copy)]
pub(super) struct ReceiveBlocks<'a> {
    pub(super) pool: &'a Arc<BlockPool>,
    /// Pushed values get digests while they are copied.
    pub(super) digests_pushes: bool,
}

/// Where the bytes of frames are read to.
pub(super) struct FrameReader<'a> {
    /// The tags of records have protected the delivery: its payloads have no checksums.
    pub(super) is_sealed: bool,
    pub(super) blocks: ReceiveBlocks<'a>,
    /// Finds the destination of a value that a call waits for.
    pub(super) land: &'a dyn Fn(&Header, usize) -> Option<ReceiveTarget>,
    pub(super) memory: &'a mut ReadMemory,
}

/// Reads all messages of a delivery of `len` bytes. Bytes after an invalid frame are lost with it. No more
/// memory is taken than there are bytes.
pub(super) fn read(
    len: usize,
    pieces: &mut dyn Iterator<Item = Piece<'_>>,
    reader: &mut FrameReader<'_>,
) -> Option<BadDelivery> {
    let none: &[u8] = &[];
    let is_summed = !reader.is_sealed;
    let mut pieces = Pieces { current: none.into(), rest: pieces, left: len, is_summed };
    let mut broken = None;
    while pieces.left > 0 && broken.is_none() {
        match one(&mut pieces, reader) {
            Ok(message) => reader.memory.messages.push_back(message),
            Err(error) => broken = Some(error),
        }
    }
    pieces.end();
    broken
}

/// Like `read`, for a receiver that waits for no values; `is_sealed` as in [`FrameReader`].
pub(crate) fn read_all(
    len: usize,
    pieces: &mut dyn Iterator<Item = Piece<'_>>,
    blocks: &Arc<BlockPool>,
    is_sealed: bool,
) -> (Vec<Message<Bytes>>, Option<BadDelivery>) {
    let mut memory = ReadMemory::default();
    let land = &|_: &Header, _| None;
    let blocks = ReceiveBlocks { pool: blocks, digests_pushes: false };
    let mut reader = FrameReader { is_sealed, blocks, land, memory: &mut memory };
    let broken = read(len, pieces, &mut reader);
    (memory.messages.into(), broken)
}

/// The frame whose front is `front`, with the length of the front; None if the front is not there, or broken.
fn opened(front: &[u8], most: u64) -> Option<(VerifiedFrame, usize)> {
    let (fixed, rest) = front.split_first_chunk::<HEADER>()?;
    let opening = PartialFrame::new(fixed).ok()?;
    let extensions = rest.get(..opening.extensions_len())?;
    Some((opening.open(extensions, most).ok()?, HEADER + extensions.len()))
}

/// The only frame of a delivery of `len` bytes, if its payload is large, and the length of its front.
fn large(len: usize, front: &[u8]) -> Option<(VerifiedFrame, usize)> {
    let (opened, front) = opened(front, len as u64)?;
    let is_only = front + opened.payload == len;
    (is_only && opened.payload >= LARGE).then_some((opened, front))
}

/// Memory for a payload that has not arrived yet: no more than what is pooled.
fn block_of(payload: usize, pool: &BlockPool) -> Option<ReceiveRoom> {
    let is_pooled = BlockPool::keeps(payload);
    let buffer = is_pooled.then(|| pool.take(payload).ok()).flatten()?;
    ReceiveRoom::own(buffer, payload)
}

/// Memory for the payload of the only frame of a delivery of `len` bytes, and the length of its front; None if it is
/// to be read as others.
pub(super) fn room(
    len: usize,
    front: &[u8],
    ReceiveBlocks { pool, digests_pushes }: ReceiveBlocks<'_>,
    land: &dyn Fn(&Header, usize) -> Option<ReceiveTarget>,
) -> Option<(ReceiveRoom, usize)> {
    let (VerifiedFrame { head, payload, .. }, front) = &large(len, front)?;
    let target = || land(head, *payload).map(ReceiveRoom::lent);
    let block = || block_of(*payload, pool);
    let room = match head.kind {
        MessageKind::Value => target(),
        MessageKind::Segment => target().or_else(block),
        MessageKind::Push if !digests_pushes => block(),
        _ => None,
    };
    room.map(|room| (room, *front))
}

/// Like `room`, for a front that has arrived as a whole, and memory of no caller. A value for which `is_awaited` finds
/// a call is received as others, and copied to the call.
pub(super) fn block(
    len: usize,
    front: &[u8],
    ReceiveBlocks { pool, digests_pushes }: ReceiveBlocks<'_>,
    is_awaited: &dyn Fn(&Header, usize) -> bool,
) -> Option<ReceiveRoom> {
    let all = front.len();
    let (VerifiedFrame { head, payload, .. }, _) =
        &large(len, front).filter(|(_, front)| *front == all)?;
    let is_kept = match head.kind {
        MessageKind::Segment => !is_awaited(head, *payload),
        MessageKind::Push => !digests_pushes,
        _ => false,
    };
    is_kept.then(|| block_of(*payload, pool)).flatten()
}

/// The message of a frame whose payload is in the memory that `room` has given.
pub(super) fn whole(
    front: &[u8],
    payload: ReceiveRoom,
    pool: &Arc<BlockPool>,
) -> Result<Message<Bytes>, BadDelivery> {
    let (VerifiedFrame { head, payload: len, payload_checksum, .. }, _) =
        opened(front, u64::MAX).ok_or(SHORT)?;
    let (place, sum) = payload.finish();
    if sum != payload_checksum {
        return Err(BadDelivery::Bad(BadFrame::PayloadChecksum));
    }
    let data = match place {
        ReceivePlace::Lent(_) => Bytes::landed(len),
        ReceivePlace::Own(buffer) => {
            let mut block = pool.wrap(buffer, len);
            block.has_sums(CopySums { crc32c: sum, crc64: None });
            Bytes::of_block(block)
        }
    };
    Ok(Message { head, body: Body::Data(data) })
}

fn one(
    pieces: &mut Pieces<'_, '_>,
    reader: &mut FrameReader<'_>,
) -> Result<Message<Bytes>, BadDelivery> {
    let mut fixed = [0; HEADER];
    pieces.fill(&mut fixed).ok_or(SHORT)?;
    let opening = PartialFrame::new(&fixed).map_err(BadDelivery::Bad)?;
    let mut extensions = [0; MOST_EXTENSIONS];
    let extensions = &mut extensions[..opening.extensions_len()];
    pieces.fill(extensions).ok_or(SHORT)?;
    let opened = opening.open(extensions, pieces.left as u64).map_err(BadDelivery::Bad)?;
    let len = opened.payload;
    if opened.head.kind == MessageKind::Bundle {
        return bundle(&opened, pieces, reader);
    }
    let has_place = matches!(opened.head.kind, MessageKind::Value | MessageKind::Segment);
    let is_large = has_place && len >= LARGE;
    let target = is_large.then(|| (reader.land)(&opened.head, len)).flatten();
    let landed = target
        .and_then(|target| target.write(|memory| pieces.take(len, &mut Unwritten::new(memory))))
        .map(|sum| (sum, Body::Data(Bytes::landed(len))));
    let (sum, body) = match landed {
        Some(landed) => landed,
        None => body(opened.head.kind, len, pieces, reader.blocks)?,
    };
    pieces.intact(sum, opened.payload_checksum)?;
    Ok(Message { head: opened.head, body })
}

/// Reads a bundle: several messages, whose payload begins with a table and their extension fields.
fn bundle(
    opened: &VerifiedFrame,
    pieces: &mut Pieces<'_, '_>,
    reader: &mut FrameReader<'_>,
) -> Result<Message<Bytes>, BadDelivery> {
    let ReadMemory { bundles, table, entries, .. } = &mut *reader.memory;
    table.clear();
    table.resize(opened.head.covered(opened.payload), 0);
    let sum = pieces.fill(table);
    pieces.intact(sum, opened.payload_checksum)?;
    let mut bundle = bundles.pop().unwrap_or_default();
    let parts = Arc::make_mut(&mut bundle);
    let read = read_table(&opened.head, table, opened.payload, parts, entries);
    read.map_err(BadDelivery::Bad)?;
    if parts.messages().iter().all(|part| part.head.kind == MessageKind::Value) {
        values(entries, pieces, reader.blocks.pool, parts)?;
    } else {
        parts.fill(entries, |head, entry| {
            let (sum, body) = body(head.kind, entry.payload, pieces, reader.blocks)?;
            pieces.intact(sum, entry.checksum).map(|()| body)
        })?;
    }
    Ok(Message { head: opened.head.clone(), body: Body::Parts(bundle) })
}

/// Values share a block, because they are soon copied to their destinations. Pushes do not, because a server
/// keeps them.
fn values(
    entries: &[BundleEntry],
    pieces: &mut Pieces<'_, '_>,
    blocks: &Arc<BlockPool>,
    parts: &mut BundleParts<Bytes>,
) -> Result<(), BadDelivery> {
    let mut read = Ok(());
    let fill = |room: &mut Unwritten<'_>| {
        for entry in entries {
            read = read.and_then(|()| {
                let sum = pieces.take(entry.payload, room);
                pieces.intact(sum, entry.checksum)
            });
        }
    };
    let bytes = entries.iter().map(|entry| entry.payload).sum();
    let block = blocks.make(bytes, fill).map_err(|_| BadDelivery::NoMemory)?;
    read?;
    let (all, mut at) = (Bytes::of_block(block), 0);
    parts.fill(entries, |_, entry| {
        let len = entry.payload as u64;
        let part = all.part(at, len);
        at += len;
        Ok(Body::Data(part))
    })
}

/// Body of a message, data in a block, and its checksum; None if the payload is incomplete.
fn body(
    kind: MessageKind,
    len: usize,
    pieces: &mut Pieces<'_, '_>,
    ReceiveBlocks { pool, digests_pushes }: ReceiveBlocks<'_>,
) -> Result<(Option<u32>, Body<Bytes>), BadDelivery> {
    if !kind.carries_data(len) {
        let mut fields = vec![0; len];
        return Ok((pieces.fill(&mut fields), Body::Fields(fields)));
    }
    let is_digested = digests_pushes && kind == MessageKind::Push;
    let start = CopySums { crc32c: 0, crc64: is_digested.then_some(0) };
    let mut sums = None;
    let fill = |room: &mut Unwritten<'_>| sums = pieces.take_on(len, room, start);
    let mut block = pool.make(len, fill).map_err(|_| BadDelivery::NoMemory)?;
    if let Some(sums) = sums.filter(|_| pieces.is_summed) {
        block.has_sums(sums);
    }
    Ok((sums.map(|sums| sums.crc32c), Body::Data(Bytes::of_block(block))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvstore_protocol::testing::encode;

    fn frames(count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for at in 0..count {
            let kind = if at % 2 == 0 { MessageKind::Push } else { MessageKind::Failed };
            let head = Header { kind, key: at as u64, ..Header::default() };
            let payload: Vec<u8> = (0..=255).cycle().take(at * 37).collect();
            encode(&head, &payload, &mut bytes);
        }
        bytes
    }

    #[test]
    fn messages_are_read_from_pieces_of_any_size() {
        let (bytes, blocks) = (frames(20), Arc::default());
        for size in [1, 2, 3, 139, 140, 141, 1000, bytes.len()] {
            let (messages, broken) =
                read_all(bytes.len(), &mut bytes.chunks(size).map(Piece::from), &blocks, false);
            assert_eq!((messages.len(), broken), (20, None), "in pieces of {size}");
            for (at, message) in messages.iter().enumerate() {
                let content = match &message.body {
                    Body::Fields(fields) => fields.clone(),
                    Body::Data(data) => data.read(<[u8]>::to_vec).unwrap(),
                    Body::Parts(_) => panic!("nobody has sent a bundle"),
                };
                assert_eq!(message.head.key, at as u64);
                assert!(content.iter().copied().eq((0..=255).cycle().take(at * 37)));
                assert_eq!(content.len(), at * 37);
            }
        }
    }

    #[test]
    fn pushed_values_get_digests_while_they_are_copied() {
        let (pool, payload) = (Arc::default(), (0..=255).cycle().take(70_000).collect::<Vec<u8>>());
        let frame = |kind| {
            let mut bytes = Vec::new();
            encode(&Header { kind, ..Header::default() }, &payload, &mut bytes);
            bytes
        };
        let bytes = [frame(MessageKind::Push), frame(MessageKind::Value)].concat();
        for digests_pushes in [true, false] {
            let mut memory = ReadMemory::default();
            let blocks = ReceiveBlocks { pool: &pool, digests_pushes };
            let (land, is_sealed) = (&|_: &Header, _| None, false);
            let mut reader = FrameReader { is_sealed, blocks, land, memory: &mut memory };
            // Pieces that end inside of steps of the sums.
            let pieces = &mut bytes.chunks(9_999).map(Piece::from);
            assert_eq!(read(bytes.len(), pieces, &mut reader), None);
            let digests: Vec<_> = memory
                .messages
                .iter()
                .map(|message| match &message.body {
                    Body::Data(data) => data.known_digest(),
                    _ => panic!("values have data"),
                })
                .collect();
            let digest = kvstore_checksum::crc64::crc64(&payload);
            assert_eq!(digests, [digests_pushes.then_some(digest), None]);
        }
    }

    #[test]
    fn payloads_of_a_sealed_delivery_need_no_checksum_and_are_complete() {
        let (blocks, payload) = (Arc::default(), vec![7; 40_000]);
        let head = Header { kind: MessageKind::Push, key: 3, ..Header::default() };
        let mut bytes = vec![0; head.len()];
        kvstore_protocol::write_front(&head, payload.len(), 0, &mut bytes);
        bytes.extend_from_slice(&payload);
        let read = |is_sealed| {
            read_all(bytes.len(), &mut bytes.chunks(999).map(Piece::from), &blocks, is_sealed)
        };
        let (messages, broken) = read(true);
        assert_eq!((messages.len(), broken), (1, None));
        let Body::Data(data) = &messages[0].body else { panic!("a push has data") };
        assert_eq!(data.read(<[u8]>::to_vec), Some(payload.clone()));
        // The number that stands in place of the checksum is not kept as one.
        assert_eq!(data.in_place().unwrap().known_checksum(), None);
        // The last byte is missing.
        let mut pieces = bytes[..bytes.len() - 1].chunks(999).map(Piece::from);
        let (messages, broken) = read_all(bytes.len(), &mut pieces, &blocks, true);
        assert_eq!((messages.len(), broken), (0, Some(SHORT)));
        let (messages, broken) = read(false);
        let bad = BadDelivery::Bad(BadFrame::PayloadChecksum);
        assert_eq!((messages.len(), broken), (0, Some(bad)));
    }

    fn frame(kind: MessageKind, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&Header { kind, key: 5, ..Header::default() }, payload, &mut bytes);
        bytes
    }

    /// The message of a frame that arrives as a whole, in memory of its own.
    fn received(bytes: &[u8], there: usize) -> Option<Result<Message<Bytes>, BadDelivery>> {
        let pool = Arc::default();
        let blocks = ReceiveBlocks { pool: &pool, digests_pushes: false };
        let (mut payload, front) =
            room(bytes.len(), &bytes[..there], blocks, &|_: &Header, _| None)?;
        payload.begin(&bytes[front..]);
        Some(whole(&bytes[..front], payload, &pool))
    }

    #[test]
    fn a_large_payload_has_memory_once_its_front_is_there() {
        let payload: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let bytes = frame(MessageKind::Push, &payload);
        let front = bytes.len() - payload.len();
        for there in 0..front + 10 {
            let message = received(&bytes, there);
            assert_eq!(message.is_some(), there >= front, "{there} bytes");
            let Some(message) = message else { continue };
            let message = message.unwrap();
            let Body::Data(data) = &message.body else { panic!("a push has data") };
            assert!(data.in_block().unwrap() == payload && message.head.key == 5);
            let sum = data.in_place().unwrap().known_checksum();
            assert_eq!(sum, Some(kvstore_checksum::crc32c(&payload)));
        }
        // A bit of the payload changes; or one of the front, which is then none.
        for (at, is_front) in [(front + 77_777, false), (front - 1, true), (9, true)] {
            let mut altered = bytes.clone();
            altered[at] ^= 4;
            let bad = BadDelivery::Bad(BadFrame::PayloadChecksum);
            let expected = (!is_front).then_some(Some(bad));
            assert_eq!(received(&altered, front).map(Result::err), expected, "{at}");
        }
    }

    #[test]
    fn what_is_not_one_large_value_of_known_place_is_read_as_before() {
        let (large, small) = (vec![1; 100_000], vec![1; 1_000]);
        let push = frame(MessageKind::Push, &large);
        assert!(received(&frame(MessageKind::Push, &small), 200).is_none());
        assert!(received(&frame(MessageKind::Failed, &large), 200).is_none());
        assert!(received(&frame(MessageKind::Value, &large), 200).is_none(), "no call waits");
        assert!(received(&[&push[..], &push[..]].concat(), 200).is_none(), "two frames");
        assert!(received(&push[..push.len() - 1], 200).is_none(), "not the whole frame");
        let huge = frame(MessageKind::Push, &vec![0; (4 << 20) + 1]);
        assert!(received(&huge, 200).is_none(), "memory for what has not arrived");
        let pool = Arc::default();
        let blocks = ReceiveBlocks { pool: &pool, digests_pushes: true };
        assert!(room(push.len(), &push[..200], blocks, &|_: &Header, _| None).is_none());
    }

    #[test]
    fn a_block_is_given_for_the_large_payload_of_a_whole_and_true_front() {
        let pool = Arc::default();
        let is_given = |bytes: &[u8], front: usize, len: usize| {
            let blocks = ReceiveBlocks { pool: &pool, digests_pushes: false };
            block(len, &bytes[..front], blocks, &|head: &Header, len| {
                assert_eq!((head.kind, len), (MessageKind::Segment, 100_000));
                true
            })
            .is_some()
        };
        let payload = vec![1; 100_000];
        let push = frame(MessageKind::Push, &payload);
        let (len, front) = (push.len(), push.len() - payload.len());
        assert!(is_given(&push, front, len));
        for there in (0..front + 10).filter(|there| *there != front) {
            assert!(!is_given(&push, there, len), "{there} bytes");
        }
        // The front says another length than the message.
        for other in [0, front, len - 1, len + 1, len * 2, usize::MAX] {
            assert!(!is_given(&push, front, other), "{other}");
        }
        for at in 0..front {
            let mut altered = push.clone();
            altered[at] ^= 4;
            assert!(!is_given(&altered, front, len), "{at}");
        }
        // Values of calls are for the memory of callers, which may end first.
        for (kind, size) in [
            (MessageKind::Value, 100_000),
            (MessageKind::Segment, 100_000),
            (MessageKind::Push, 1_000),
            (MessageKind::Push, (4 << 20) + 1),
        ] {
            let bytes = frame(kind, &vec![1; size]);
            assert!(!is_given(&bytes, bytes.len() - size, bytes.len()), "{kind:?} {size}");
        }
        let segment = frame(MessageKind::Segment, &payload);
        for digests_pushes in [false, true] {
            let blocks = ReceiveBlocks { pool: &pool, digests_pushes };
            let front = segment.len() - payload.len();
            let room = block(segment.len(), &segment[..front], blocks, &|_: &Header, _| false);
            assert!(room.is_some(), "no call waits for it");
            let push = block(len, &push[..front], blocks, &|_: &Header, _| false);
            assert_eq!(push.is_none(), digests_pushes);
        }
    }

    #[test]
    fn what_is_cut_off_or_altered_is_refused_and_nothing_before_it() {
        let (bytes, blocks) = (frames(6), Arc::default());
        for end in 0..bytes.len() {
            let (messages, broken) =
                read_all(end, &mut bytes[..end].chunks(50).map(Piece::from), &blocks, false);
            assert!(messages.len() < 6);
            assert!(broken.is_some() || frames(messages.len()).len() == end, "cut at {end}");
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 0x40;
            let (messages, broken) =
                read_all(altered.len(), &mut altered.chunks(77).map(Piece::from), &blocks, false);
            // A change of the reserved field is found too.
            assert!(broken.is_some(), "altered at {at}");
            assert!(messages.len() < 6);
        }
        // The announced length exceeds the bytes that arrive.
        let (_, broken) =
            read_all(usize::MAX, &mut bytes.chunks(64).map(Piece::from), &blocks, false);
        assert_eq!(broken, Some(BadDelivery::Bad(BadFrame::Short)));
    }
}
