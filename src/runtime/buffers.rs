//! Bytes of values in flight: in pooled blocks, or in memory that a caller has lent (zero copy).
#![allow(unsafe_code, reason = "memory that callers lend is read here")]

use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Result;
use crate::sys::sync::Mutex;
use crate::tensor::Buffer;
use crate::transport::{LentPart, Unwritten};
use kvstore_checksum::CopySums;
use kvstore_protocol::Data;

/// Sizes of blocks that are pooled, in bytes.
const KEPT: std::ops::RangeInclusive<usize> = 512..=4 << 20;

/// As many powers of two as there are in [`KEPT`], and all below.
const SIZES: usize = KEPT.end().ilog2() as usize + 1;

/// Maximum number of bytes in spare blocks.
const MOST_SPARE: usize = 64 << 20;

/// Maximum numbers of spare allocations for blocks, of about a hundred bytes each, and for encoded values.
const MOST_BLOCKS: usize = 8_192;
const MOST_ENCODED: usize = 1_024;
/// Maximum number of slices of an encoded value whose list is kept.
const MOST_SLICES: usize = 64;

/// Pool of memory for slices.
#[derive(Default)]
pub(crate) struct BlockPool {
    spare: Mutex<SpareBuffers>,
}

#[derive(Default)]
struct SpareBuffers {
    /// Indexed by the logarithm of their size: each serves every block larger than half of it.
    buffers: [Vec<Buffer>; SIZES],
    bytes: usize,
    /// Allocations for blocks, without memory for their bytes.
    blocks: Vec<Arc<BlockMemory>>,
    /// Allocations for encoded values, without slices.
    encoded: Vec<Arc<EncodedSlices>>,
}

/// Size of the memory for this many bytes, if it is pooled. The part that a block does not write takes no memory.
fn kept_size(len: usize) -> Option<usize> {
    KEPT.contains(&len).then(|| len.next_power_of_two())
}

impl SpareBuffers {
    fn take(&mut self, size: usize) -> Option<Buffer> {
        let buffer = self.buffers[size.ilog2() as usize].pop()?;
        self.bytes -= size;
        Some(buffer)
    }

    fn keep(&mut self, buffer: Buffer) {
        let size = buffer.len();
        if KEPT.contains(&size) && size.is_power_of_two() && self.bytes + size <= MOST_SPARE {
            self.bytes += size;
            self.buffers[size.ilog2() as usize].push(buffer);
        }
    }
}

/// Bytes in pooled memory, all written. Clones share them; the last one returns the memory.
#[derive(Clone)]
pub(crate) struct Block(ManuallyDrop<Arc<BlockMemory>>);

/// Empty while it is a spare one.
#[derive(Default)]
struct BlockMemory {
    buffer: Option<Buffer>,
    len: usize,
    /// CRC32C of the bytes, once it was computed.
    sum: KnownSum,
    /// CRC-64 of the bytes, if it was computed when they were received.
    digest: Option<u64>,
    home: Option<Arc<BlockPool>>,
}

/// A checksum that any thread may compute.
#[derive(Default)]
struct KnownSum(AtomicU64);

impl KnownSum {
    /// Is added to a checksum that is known.
    const KNOWN: u64 = 1 << 32;

    fn get(&self) -> Option<u32> {
        // Relaxed: nothing depends on it.
        let known = self.0.load(Ordering::Relaxed).checked_sub(Self::KNOWN)?;
        u32::try_from(known).ok()
    }

    fn set(&self, sum: u32) {
        self.0.store(Self::KNOWN + u64::from(sum), Ordering::Relaxed);
    }
}

impl BlockPool {
    /// Memory for this many bytes, whose content is undefined.
    pub(crate) fn take(&self, len: usize) -> Result<Buffer> {
        let Some(size) = kept_size(len) else { return Buffer::new(len) };
        let spare = self.spare.lock().take(size);
        spare.map_or_else(|| Buffer::new(size), Ok)
    }

    /// Whether memory for this many bytes is kept for others.
    pub(super) fn keeps(len: usize) -> bool {
        KEPT.contains(&len)
    }

    pub(crate) fn give_back(&self, buffer: Buffer) {
        self.spare.lock().keep(buffer);
    }

    /// Makes a block of `len` bytes. Those that `fill` does not write are zero. Few bytes lie inside of the
    /// allocation of the block.
    pub(crate) fn make(
        self: &Arc<Self>,
        len: usize,
        fill: impl FnOnce(&mut Unwritten<'_>),
    ) -> Result<Block> {
        let block = self.block(len)?;
        let start = block.0.start().cast::<MaybeUninit<u8>>();
        // SAFETY: this many bytes are allocated, and the block has no other owner yet.
        let mut room = Unwritten::new(unsafe { std::slice::from_raw_parts_mut(start, len) });
        fill(&mut room);
        room.zeroed();
        Ok(block)
    }

    /// Makes a block that concatenates parts.
    pub(crate) fn join(self: &Arc<Self>, parts: &[&[u8]]) -> Result<Block> {
        self.make(parts.iter().map(|part| part.len()).sum(), |room| {
            for &part in parts {
                room.put(part.into());
            }
        })
    }

    /// A block whose bytes are undefined, by one taking of the lock.
    fn block(self: &Arc<Self>, len: usize) -> Result<Block> {
        let size = kept_size(len);
        let mut spare = self.spare.lock();
        let (buffer, block) = (size.and_then(|size| spare.take(size)), spare.blocks.pop());
        drop(spare);
        let buffer = buffer.map_or_else(|| Buffer::new(size.unwrap_or(len)), Ok)?;
        Ok(self.wrap_in(block.unwrap_or_default(), buffer, len))
    }

    /// Makes a block of memory that has been written.
    pub(crate) fn wrap(self: &Arc<Self>, buffer: Buffer, len: usize) -> Block {
        let spare = self.spare.lock().blocks.pop();
        self.wrap_in(spare.unwrap_or_default(), buffer, len)
    }

    fn wrap_in(self: &Arc<Self>, mut spare: Arc<BlockMemory>, buffer: Buffer, len: usize) -> Block {
        assert!(len <= buffer.len(), "a block inside of its memory");
        let (buffer, home) = (Some(buffer), Some(Arc::clone(self)));
        let memory = BlockMemory { buffer, len, sum: KnownSum::default(), digest: None, home };
        match Arc::get_mut(&mut spare) {
            Some(empty) => *empty = memory,
            None => spare = Arc::new(memory),
        }
        Block(ManuallyDrop::new(spare))
    }

    /// Makes an encoded value, whose slices `fill` adds. `len` is the number of bytes of the unencoded value,
    /// and `slice` that of each slice but the last.
    pub(crate) fn encoded(
        self: &Arc<Self>,
        codec: u16,
        sizes: (usize, usize),
        fill: impl FnOnce(&mut Vec<Block>) -> Result<()>,
    ) -> Result<Bytes> {
        self.in_slices(codec, sizes, |slices, _| fill(slices))
    }

    /// Makes queries of some slices of a value, which `fill` adds with the numbers of these slices, ascending. The
    /// parts of others are empty.
    pub(crate) fn queries(
        self: &Arc<Self>,
        sizes: (usize, usize),
        fill: impl FnOnce(&mut Vec<Block>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<Bytes> {
        self.in_slices(0, sizes, fill)
    }

    fn in_slices(
        self: &Arc<Self>,
        codec: u16,
        (len, slice): (usize, usize),
        fill: impl FnOnce(&mut Vec<Block>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<Bytes> {
        let mut spare = self.spare.lock().encoded.pop().unwrap_or_default();
        let EncodedSlices { mut slices, mut numbers, .. } =
            Arc::get_mut(&mut spare).map(mem::take).unwrap_or_default();
        fill(&mut slices, &mut numbers)?;
        let made = EncodedSlices { codec, slice, slices, numbers, home: Some(Arc::clone(self)) };
        match Arc::get_mut(&mut spare) {
            Some(empty) => *empty = made,
            None => spare = Arc::new(made),
        }
        let source = BlockSource::Encoded(Encoded(ManuallyDrop::new(spare)));
        Ok(Bytes { source, at: 0, len })
    }
}

impl BlockMemory {
    /// Where its bytes begin.
    fn start(&self) -> *mut u8 {
        self.buffer.as_ref().map_or_else(|| NonNull::dangling().as_ptr(), Buffer::as_ptr)
    }
}

impl AsRef<[u8]> for BlockMemory {
    fn as_ref(&self) -> &[u8] {
        if self.buffer.is_none() {
            return &[];
        }
        // SAFETY: this many bytes are allocated and written, and the bytes of a block do not change.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl Block {
    pub(crate) fn bytes(&self) -> &[u8] {
        (**self.0).as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    /// Stores the sums that a received block has, which has no other owner.
    pub(super) fn has_sums(&mut self, sums: CopySums) {
        if let Some(memory) = Arc::get_mut(&mut self.0) {
            memory.sum.set(sums.crc32c);
            memory.digest = sums.crc64;
        }
    }

    /// CRC-64 of the bytes, if it is known.
    pub(crate) fn known_digest(&self) -> Option<u64> {
        self.0.digest
    }

    /// The memory, without a copy, if the block has no other owner.
    pub(crate) fn into_buffer(mut self) -> std::result::Result<Buffer, Self> {
        let buffer = Arc::get_mut(&mut self.0).and_then(|memory| memory.buffer.take());
        buffer.ok_or(self)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let mut shared = unsafe { ManuallyDrop::take(&mut self.0) };
        let Some(memory) = Arc::get_mut(&mut shared) else { return };
        let (buffer, home) = (memory.buffer.take(), memory.home.take());
        (memory.sum, memory.digest) = (KnownSum::default(), None);
        let Some(home) = home else { return };
        let mut spare = home.spare.lock();
        buffer.into_iter().for_each(|buffer| spare.keep(buffer));
        if spare.blocks.len() < MOST_BLOCKS {
            spare.blocks.push(shared);
        }
    }
}

impl Drop for BlockMemory {
    /// Of two owners that drop the block at the same moment, each may see the other one.
    fn drop(&mut self) {
        if let (Some(home), Some(buffer)) = (self.home.take(), self.buffer.take()) {
            home.give_back(buffer);
        }
    }
}

/// Memory that a caller has lent until its call is complete.
pub(crate) struct Loan(RwLock<LentBytes>);

enum LentBytes {
    /// Memory of the caller, of this many bytes.
    Theirs(*const u8, usize),
    /// The loan has ended; this is a copy.
    Copied(Block),
    /// The loan has ended, and no message needs the bytes any more.
    Over,
}

// SAFETY: the caller has lent the memory to all threads of the library.
unsafe impl Send for Loan {}
// SAFETY: the caller has lent the memory to all threads of the library, which only read it.
unsafe impl Sync for Loan {}

impl Loan {
    /// # Safety
    /// `len` bytes from `start` stay valid and unchanged until `copy` or `end` has returned.
    pub(crate) unsafe fn new(start: *const u8, len: usize) -> Self {
        Self(RwLock::new(LentBytes::Theirs(start, len)))
    }

    /// Begins the next loan, in the memory of one that has ended.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn again(&mut self, start: *const u8, len: usize) {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = LentBytes::Theirs(start, len);
    }

    /// Loan of static bytes.
    #[cfg(test)]
    pub(super) fn of_static(bytes: &'static [u8]) -> Self {
        Self(RwLock::new(LentBytes::Theirs(bytes.as_ptr(), bytes.len())))
    }

    /// Ends the loan; messages still in flight continue from a copy.
    pub(crate) fn copy(&self, blocks: &Arc<BlockPool>) -> Result<()> {
        let mut lent = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let LentBytes::Theirs(start, len) = *lent {
            // SAFETY: the promise of `new`.
            let theirs = unsafe { slice(start, len) };
            let copy = blocks.join(&[theirs]);
            *lent = LentBytes::Over;
            *lent = LentBytes::Copied(copy?);
        }
        Ok(())
    }

    /// Ends the loan; all of its bytes have been acknowledged.
    pub(crate) fn end(loan: &Arc<Self>) {
        if Arc::strong_count(loan) == 1 {
            // No message has it, nor can get it. Its former owners have read before they dropped it.
            fence(Ordering::Acquire);
            return;
        }
        let mut lent = loan.0.write().unwrap_or_else(PoisonError::into_inner);
        *lent = LentBytes::Over;
    }
}

/// # Safety
/// NULL without bytes, or `len` valid bytes that stay unchanged for `'a`.
unsafe fn slice<'a>(start: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// A value, or a part of one.
#[derive(Clone)]
pub(crate) struct Bytes {
    source: BlockSource,
    at: usize,
    len: usize,
}

#[derive(Clone)]
enum BlockSource {
    Block(Block),
    Loan(Arc<Loan>),
    /// Received into its destination.
    Landed,
    Encoded(Encoded),
}

/// A value that a codec has encoded, or queries in its place, slice by slice. Clones share it; the last one returns
/// the memory.
#[derive(Clone)]
struct Encoded(ManuallyDrop<Arc<EncodedSlices>>);

/// Empty while it is a spare one.
#[derive(Default)]
struct EncodedSlices {
    codec: u16,
    /// Number of bytes of each slice but the last, unencoded.
    slice: usize,
    slices: Vec<Block>,
    /// The numbers of the slices, ascending; empty if they are all of the value.
    numbers: Vec<u32>,
    home: Option<Arc<BlockPool>>,
}

impl EncodedSlices {
    /// A slice by its number; None if it is not there.
    fn slice(&self, number: usize) -> Option<&Block> {
        if self.numbers.is_empty() {
            return Some(&self.slices[number]);
        }
        let number = u32::try_from(number).ok()?;
        Some(&self.slices[self.numbers.binary_search(&number).ok()?])
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let mut shared = unsafe { ManuallyDrop::take(&mut self.0) };
        let Some(encoded) = Arc::get_mut(&mut shared) else { return };
        encoded.slices.clear();
        encoded.numbers.clear();
        let Some(home) = encoded.home.take() else { return };
        let is_small = encoded.slices.capacity() <= MOST_SLICES;
        let mut spare = home.spare.lock();
        if is_small && spare.encoded.len() < MOST_ENCODED {
            spare.encoded.push(shared);
        }
    }
}

impl Bytes {
    pub(crate) fn of_block(block: Block) -> Self {
        let len = block.len();
        Self { source: BlockSource::Block(block), at: 0, len }
    }

    pub(crate) fn of_loan(loan: Arc<Loan>, len: usize) -> Self {
        Self { source: BlockSource::Loan(loan), at: 0, len }
    }

    /// `len` bytes that were received to their destination.
    pub(super) fn landed(len: usize) -> Self {
        Self { source: BlockSource::Landed, at: 0, len }
    }

    /// Calls `read` with the bytes; None if no message needs them any more.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let range = self.at..self.at + self.len;
        match &self.source {
            BlockSource::Block(block) => Some(read(&block.bytes()[range])),
            BlockSource::Loan(loan) => {
                let lent = loan.0.read().unwrap_or_else(PoisonError::into_inner);
                match &*lent {
                    LentBytes::Theirs(start, len) => {
                        // SAFETY: the promise of `Loan::new`; the read lock keeps the loan open.
                        let bytes = unsafe { slice(*start, *len) };
                        Some(read(&bytes[range]))
                    }
                    LentBytes::Copied(block) => Some(read(&block.bytes()[range])),
                    LentBytes::Over => None,
                }
            }
            // Only slices of an encoded value are sent; a received value is never sent from its destination.
            BlockSource::Encoded(_) | BlockSource::Landed => None,
        }
    }

    /// The bytes in the memory of their block, if they are in one.
    pub(super) fn in_place(&self) -> Option<InPlace<'_>> {
        let BlockSource::Block(block) = &self.source else { return None };
        Some(InPlace { block, at: self.at, len: self.len })
    }

    /// Whether these are at least so many bytes in memory of a caller.
    pub(super) fn is_loan(&self, least: usize) -> bool {
        self.len >= least && matches!(self.source, BlockSource::Loan(_))
    }

    /// The bytes, if they are in a block.
    pub(crate) fn in_block(&self) -> Option<&[u8]> {
        self.in_place().map(InPlace::bytes)
    }

    /// CRC-64 of the bytes, if it is known.
    pub(crate) fn known_digest(&self) -> Option<u64> {
        let InPlace { block, len, .. } = self.in_place()?;
        block.known_digest().filter(|_| len == block.len())
    }

    /// The block, if this is the whole of one; it may have further owners.
    pub(crate) fn into_block(self) -> std::result::Result<Block, Self> {
        let Self { source, at, len } = self;
        match source {
            BlockSource::Block(block) if at == 0 && len == block.len() => Ok(block),
            source => Err(Self { source, at, len }),
        }
    }
}

/// Bytes in place in a block.
#[derive(Clone, Copy)]
pub(super) struct InPlace<'a> {
    block: &'a Block,
    at: usize,
    len: usize,
}

impl<'a> InPlace<'a> {
    pub(super) fn len(self) -> usize {
        self.len
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        &self.block.bytes()[self.at..self.at + self.len]
    }

    /// CRC32C of the bytes, if it is known.
    pub(super) fn known_checksum(self) -> Option<u32> {
        self.block.0.sum.get().filter(|_| self.len == self.block.len())
    }

    /// CRC32C of the bytes. That of a whole block is kept for further receivers.
    pub(super) fn checksum(self) -> u32 {
        self.known_checksum().unwrap_or_else(|| {
            let sum = kvstore_checksum::crc32c(self.bytes());
            if self.len == self.block.len() {
                self.block.0.sum.set(sum);
            }
            sum
        })
    }

    /// Keeps the block alive for the sender of these bytes.
    pub(super) fn lend(self) -> LentPart {
        LentPart::new(Arc::clone(&self.block.0) as Arc<_>, self.at, self.len)
    }
}

impl Data for Bytes {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn part(&self, at: u64, len: u64) -> Self {
        let fits = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (at, len) = (fits(at), fits(len));
        if let BlockSource::Encoded(encoded) = &self.source {
            let slice = encoded.0.slice(at / encoded.0.slice.max(1)).cloned();
            return slice.map_or_else(|| Self::landed(0), Self::of_block);
        }
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "a part inside of its value");
        Self { source: self.source.clone(), at: self.at + at, len }
    }

    fn codec(&self) -> u16 {
        match &self.source {
            BlockSource::Encoded(encoded) => encoded.0.codec,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_without_a_query_have_an_empty_part_and_those_of_values_are_all_there() {
        let pool = Arc::<BlockPool>::default();
        let block = |number: u8| pool.join(&[&[number; 5]]);
        let parts = |value: &Bytes| {
            let part = |number: u64| value.part(number * 30, 30.min(100 - number * 30));
            let read = |part: Bytes| part.read(<[u8]>::to_vec).unwrap_or_default();
            [0, 1, 2, 3].map(|number| (part(number).len(), read(part(number))))
        };
        for asked in [vec![1, 3], vec![0]] {
            let queries = pool.queries((100, 30), |slices, numbers| {
                slices.extend(asked.iter().map(|number| block(*number).unwrap()));
                numbers.extend(asked.iter().map(|number| u32::from(*number)));
                Ok(())
            });
            let queries = queries.unwrap();
            let expected = |number| {
                let len = if asked.contains(&number) { 5 } else { 0 };
                (len as u64, vec![number; len])
            };
            assert_eq!(parts(&queries), [0, 1, 2, 3].map(expected));
            drop(queries);
            // In the memory of the queries.
            let value = pool.encoded(7, (100, 30), |slices| {
                slices.extend((0..4).map(|number| block(number).unwrap()));
                Ok(())
            });
            assert_eq!(parts(&value.unwrap()), [0, 1, 2, 3].map(|number| (5, vec![number; 5])));
        }
    }
}
