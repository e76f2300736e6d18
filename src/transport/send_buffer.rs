//! Buffers for sending: reusable memory of this process, or memory that the receiver reads.

use std::sync::Arc;

use bytes::Bytes;

use super::shm::RingReservation;
use crate::sys::sync::Mutex;

/// Maximum number of spare buffers of one size.
const MOST_SPARE: usize = 16;
/// Buffer sizes are multiples of this many bytes.
const STEP: usize = 64 << 10;
/// Sizes of buffers that are reused, in bytes. Larger buffers are rare, and the heap allocates smaller ones
/// as fast.
const KEPT: std::ops::RangeInclusive<usize> = STEP / 8..=2 << 20;

/// Pool of spare send buffers.
#[derive(Default)]
pub(crate) struct SendBuffers {
    /// Indexed by size, in units of `STEP`.
    spare: Mutex<Vec<Vec<Vec<u8>>>>,
}

/// Bytes to be sent.
pub(crate) struct SendBuffer {
    pub(super) memory: SendMemory,
    /// Number of bytes written to the memory.
    len: usize,
    /// Borrowed bytes, not copied (scatter/gather): each with the number of bytes of the memory before it.
    pub(super) lent: Vec<(usize, Bytes)>,
    /// The row of the transport whose path gave the buffer; None for the connection.
    pub(super) row: Option<usize>,
}

pub(super) enum SendMemory {
    /// Memory of this process; all of it was written once.
    Own(PooledBuffer),
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
        let bytes = if KEPT.contains(&room) {
            let size = room.next_multiple_of(STEP);
            let kept = self.spare.lock().get_mut(size / STEP).and_then(Vec::pop);
            kept.unwrap_or_else(|| vec![0; size])
        } else {
            vec![0; room]
        };
        let own = PooledBuffer { bytes, used: 0, home: Arc::clone(self) };
        SendBuffer { memory: SendMemory::Own(own), len: 0, lent: Vec::new(), row: None }
    }
}

impl SendBuffer {
    pub(super) fn shared(claim: RingReservation) -> Self {
        Self { memory: SendMemory::Shared(claim), len: 0, lent: Vec::new(), row: None }
    }

    /// Appends bytes: `write` writes them to the front of the free space, and returns their number.
    pub(crate) fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let all = match &mut self.memory {
            SendMemory::Own(own) => &mut own.bytes,
            SendMemory::Shared(claim) => claim.bytes(),
        };
        self.len += write(&mut all[self.len..]);
    }

    /// Appends a copy of these bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.put(|room| {
            room[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
    }

    /// Whether the buffer can reference bytes until they are sent (zero copy).
    pub(crate) fn borrows(&self) -> bool {
        matches!(self.memory, SendMemory::Own(_))
    }

    /// Appends bytes without a copy, if the buffer borrows.
    pub(crate) fn lend(&mut self, bytes: Bytes) {
        debug_assert!(self.borrows(), "the other side reads only the memory of the parcel");
        self.lent.push((self.len, bytes));
    }

    /// Number of bytes written to the memory.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl PooledBuffer {
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
        if !bytes.len().is_multiple_of(STEP) || !KEPT.contains(&bytes.len()) {
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
