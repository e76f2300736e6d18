//! Bytes on their way into the engine: in memory that is used again, or that the receiver reads.

use std::sync::Arc;

use bytes::Bytes;

use super::shm::Claim;
use crate::sys::sync::Mutex;

/// Pieces of memory of one size that are kept for the next parcels.
const MOST_SPARE: usize = 16;
/// The sizes are multiples of this.
const STEP: usize = 64 << 10;
/// Larger parcels are rare, and smaller ones come from the heap as fast.
const KEPT: std::ops::RangeInclusive<usize> = STEP / 8..=2 << 20;

/// Where the memory of parcels waits for the next ones.
#[derive(Default)]
pub(crate) struct SendBuffers {
    /// By size, in steps.
    spare: Mutex<Vec<Vec<Vec<u8>>>>,
}

/// Bytes to be sent.
pub(crate) struct SendBuffer {
    pub(super) memory: SendMemory,
    /// Bytes of the memory that were written.
    len: usize,
    /// What is not copied: behind so many bytes of the memory stand these.
    pub(super) lent: Vec<(usize, Bytes)>,
}

pub(super) enum SendMemory {
    /// Ours; all of it was written once.
    Own(Own),
    Shared(Claim),
}

/// Memory that goes home after its use.
pub(super) struct Own {
    bytes: Vec<u8>,
    used: usize,
    home: Arc<SendBuffers>,
}

impl SendBuffers {
    /// An empty parcel that has room for so many bytes.
    pub(super) fn take(self: &Arc<Self>, room: usize) -> SendBuffer {
        let bytes = if KEPT.contains(&room) {
            let size = room.next_multiple_of(STEP);
            let kept = self.spare.lock().get_mut(size / STEP).and_then(Vec::pop);
            kept.unwrap_or_else(|| vec![0; size])
        } else {
            vec![0; room]
        };
        let own = Own { bytes, used: 0, home: Arc::clone(self) };
        SendBuffer { memory: SendMemory::Own(own), len: 0, lent: Vec::new() }
    }
}

impl SendBuffer {
    pub(super) fn shared(claim: Claim) -> Self {
        Self { memory: SendMemory::Shared(claim), len: 0, lent: Vec::new() }
    }

    /// Puts bytes behind those so far: `write` writes some to the front of the room that is left, and
    /// says how many.
    pub(crate) fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let all = match &mut self.memory {
            SendMemory::Own(own) => &mut own.bytes,
            SendMemory::Shared(claim) => claim.bytes(),
        };
        self.len += write(&mut all[self.len..]);
    }

    /// Puts a copy of these bytes behind those so far.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.put(|room| {
            room[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
    }

    /// Whether bytes may stay where they are until they are sent.
    pub(crate) fn borrows(&self) -> bool {
        matches!(self.memory, SendMemory::Own(_))
    }

    /// Puts bytes behind those so far, without a copy, if the parcel borrows.
    pub(crate) fn lend(&mut self, bytes: Bytes) {
        debug_assert!(self.borrows(), "the other side reads only the memory of the parcel");
        self.lent.push((self.len, bytes));
    }

    /// Bytes of the memory that were written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Own {
    /// The first `used` bytes are what counts.
    pub(super) fn cut(mut self, used: usize) -> Self {
        self.used = used;
        self
    }
}

impl AsRef<[u8]> for Own {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Drop for Own {
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
