//! Buffers for sending: reusable memory of this process, or memory that the receiver reads.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::shm::RingReservation;
use super::tls::{content_mut, records_len, write_content};
use crate::sys::sync::Mutex;
use kvstore_checksum::CopySums;

/// Maximum number of spare buffers of one size.
const MOST_SPARE: usize = 16;
/// Buffer sizes are multiples of this many bytes.
const STEP: usize = 64 << 10;
/// Size of buffers for the fronts of frames and for small messages, in bytes.
const SMALL: usize = 8 << 10;
/// Maximum size of buffers that are reused, in bytes. Larger buffers are rare.
const MOST_KEPT: usize = 2 << 20;

/// Size of most parts of frames that are no payloads, in bytes.
const FEW: usize = 256;

/// Pool of spare send buffers.
#[derive(Default)]
pub(crate) struct SendBuffers {
    /// Indexed by size, in units of `STEP`; the small ones first.
    spare: Mutex<Vec<Vec<Vec<u8>>>>,
}

/// A part of bytes that their owner does not change while they are sent.
#[derive(Clone)]
pub(crate) struct LentPart {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    at: usize,
    len: usize,
}

impl LentPart {
    pub(crate) fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, at: usize, len: usize) -> Self {
        Self { owner, at, len }
    }
}

impl Deref for LentPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.at..][..self.len]
    }
}

impl AsRef<[u8]> for LentPart {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
impl From<Vec<u8>> for LentPart {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self::new(Arc::new(bytes), 0, len)
    }
}

/// Borrowed parts, each with the number of bytes of the buffer before it.
pub(super) type LentParts = SmallVec<[(usize, LentPart); 2]>;

/// Bytes to be sent.
pub(crate) struct SendBuffer {
    pub(super) memory: SendMemory,
    /// Number of bytes written to the memory.
    len: usize,
    /// Borrowed bytes, not copied (scatter/gather): each with the number of bytes of the memory before it.
    pub(super) lent: LentParts,
    /// If the bytes are one frame with a payload: so many of them precede it. Else 0.
    pub(super) front: usize,
    /// The row of the transport whose path gave the buffer; None for the connection.
    pub(super) row: Option<usize>,
}

pub(super) enum SendMemory {
    /// Memory of this process; all of it was written once.
    Own(PooledBuffer),
    /// Memory of this process in the layout of records of TLS, which are sealed in their place. So many bytes of
    /// content in front are of the transport.
    Records(PooledBuffer, usize),
    Shared(RingReservation),
}

/// Memory that returns to its pool when it is dropped.
pub(super) struct PooledBuffer {
    bytes: Vec<u8>,
    used: usize,
    home: Arc<SendBuffers>,
}

impl SendBuffers {
    /// An empty buffer with space for `room` bytes.
    pub(super) fn take(self: &Arc<Self>, room: usize) -> SendBuffer {
        SendBuffer::of(SendMemory::Own(self.memory(room)))
    }

    /// An empty buffer of records with space for `room` bytes, behind `front` bytes of the transport.
    pub(super) fn take_records(self: &Arc<Self>, room: usize, front: usize) -> SendBuffer {
        SendBuffer::of(SendMemory::Records(self.memory(records_len(front + room)), front))
    }

    fn memory(self: &Arc<Self>, room: usize) -> PooledBuffer {
        let size = if room <= SMALL { SMALL } else { room.next_multiple_of(STEP) };
        let kept = self.spare.lock().get_mut(size / STEP).and_then(Vec::pop);
        let bytes = kept.unwrap_or_else(|| vec![0; size]);
        PooledBuffer { bytes, used: 0, home: Arc::clone(self) }
    }
}

impl SendBuffer {
    pub(super) fn shared(claim: RingReservation) -> Self {
        Self::of(SendMemory::Shared(claim))
    }

    fn of(memory: SendMemory) -> Self {
        Self { memory, len: 0, lent: SmallVec::new(), front: 0, row: None }
    }

    /// Appends `len` bytes, which `write` writes.
    pub(crate) fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) {
        let at = self.leave(len);
        self.fill(at, len, write);
    }

    /// Appends a copy of these bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        match &mut self.memory {
            SendMemory::Own(own) => own.bytes[self.len..][..bytes.len()].copy_from_slice(bytes),
            SendMemory::Records(own, front) => {
                write_content(&mut own.bytes, *front + self.len, bytes);
            }
            SendMemory::Shared(claim) => claim.write(self.len, bytes),
        }
        self.len += bytes.len();
    }

    /// Appends a copy of these bytes; returns their CRC32C, or 0 if the buffer is sealed.
    pub(crate) fn copy_summed(&mut self, bytes: &[u8]) -> u32 {
        let mut sums = CopySums::default();
        match &mut self.memory {
            SendMemory::Own(own) => {
                let place = &mut own.bytes[self.len..][..bytes.len()];
                kvstore_checksum::copy_slice(bytes, place, &mut sums);
            }
            SendMemory::Records(..) => {
                self.copy(bytes);
                return 0;
            }
            SendMemory::Shared(claim) => claim.write_summed(self.len, bytes, &mut sums),
        }
        self.len += bytes.len();
        sums.crc32c
    }

    /// Leaves space for `len` bytes; returns its offset, for `fill`.
    pub(crate) fn leave(&mut self, len: usize) -> usize {
        let at = self.len;
        self.len += len;
        at
    }

    /// Fills space that was left, with the `len` bytes that `write` writes.
    pub(crate) fn fill(&mut self, at: usize, len: usize, write: impl FnOnce(&mut [u8])) {
        match &mut self.memory {
            SendMemory::Own(own) => write(&mut own.bytes[at..][..len]),
            SendMemory::Records(own, front) => {
                let at = *front + at;
                if let Some(place) = content_mut(&mut own.bytes, at, len) {
                    return write(place);
                }
                let mut bytes = SmallVec::<[u8; FEW]>::from_elem(0, len);
                write(&mut bytes);
                write_content(&mut own.bytes, at, &bytes);
            }
            // The receiver may write this memory, so there is no reference to it.
            SendMemory::Shared(claim) => {
                let mut bytes = SmallVec::<[u8; FEW]>::from_elem(0, len);
                write(&mut bytes);
                claim.write(at, &bytes);
            }
        }
    }

    /// Fills space that was left with a copy of these bytes.
    pub(crate) fn fill_with(&mut self, at: usize, bytes: &[u8]) {
        match &mut self.memory {
            SendMemory::Own(own) => own.bytes[at..][..bytes.len()].copy_from_slice(bytes),
            SendMemory::Records(own, front) => write_content(&mut own.bytes, *front + at, bytes),
            SendMemory::Shared(claim) => claim.write(at, bytes),
        }
    }

    /// The bytes are one frame with a payload, which so many bytes precede.
    pub(crate) fn is_frame(&mut self, front: usize) {
        self.front = front;
    }

    /// Drops the bytes behind an offset.
    pub(crate) fn cut(&mut self, at: usize) {
        self.len = at;
    }

    /// Whether the buffer can reference bytes until they are sent (zero copy).
    pub(crate) fn borrows(&self) -> bool {
        matches!(self.memory, SendMemory::Own(_))
    }

    /// Appends bytes without a copy, if the buffer borrows.
    pub(crate) fn lend(&mut self, bytes: LentPart) {
        debug_assert!(self.borrows(), "the other side reads only the memory of the parcel");
        self.lent.push((self.len, bytes));
    }

    /// The memory with what was written, if it is of this process alone and no records.
    pub(super) fn into_own(self) -> Option<PooledBuffer> {
        let SendMemory::Own(own) = self.memory else { return None };
        Some(own.cut(self.len))
    }

    /// Number of bytes written to the memory.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl PooledBuffer {
    /// All of the memory.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Keeps the first `used` bytes as the content.
    pub(super) fn cut(mut self, used: usize) -> Self {
        self.used = used;
        self
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() > MOST_KEPT {
            return;
        }
        let (mut spare, at) = (self.home.spare.lock(), bytes.len() / STEP);
        if at >= spare.len() {
            spare.resize_with(at + 1, Vec::new);
        }
        if spare[at].len() < MOST_SPARE {
            spare[at].push(bytes);
        }
    }
}
