//! Bytes on their way into the engine: in memory that is used again, or that the receiver reads.

use std::sync::Arc;

use super::shared::Claim;
use crate::sync::Mutex;

/// Pieces of memory of one size that are kept for the next parcels.
const MOST_SPARE: usize = 16;
/// The sizes are multiples of this.
const STEP: usize = 64 << 10;
/// Larger parcels are rare, and smaller ones come from the heap as fast.
const KEPT: std::ops::RangeInclusive<usize> = STEP / 8..=2 << 20;

/// Where the memory of parcels waits for the next ones.
#[derive(Default)]
pub(crate) struct Parcels {
    /// By size, in steps.
    spare: Mutex<Vec<Vec<Vec<u8>>>>,
}

/// Bytes to be sent.
pub(crate) struct Parcel {
    pub(super) memory: Memory,
    len: usize,
}

pub(super) enum Memory {
    /// Ours; all of it was written once.
    Own(Own),
    Shared(Claim),
}

/// Memory that goes home after its use.
pub(super) struct Own {
    bytes: Vec<u8>,
    used: usize,
    home: Arc<Parcels>,
}

impl Parcels {
    /// An empty parcel that has room for so many bytes.
    pub(super) fn take(self: &Arc<Self>, room: usize) -> Parcel {
        let bytes = if KEPT.contains(&room) {
            let size = room.next_multiple_of(STEP);
            let kept = self.spare.lock().get_mut(size / STEP).and_then(Vec::pop);
            kept.unwrap_or_else(|| vec![0; size])
        } else {
            vec![0; room]
        };
        let own = Own { bytes, used: 0, home: Arc::clone(self) };
        Parcel { memory: Memory::Own(own), len: 0 }
    }
}

impl Parcel {
    pub(super) fn shared(claim: Claim) -> Self {
        Self { memory: Memory::Shared(claim), len: 0 }
    }

    /// The room that is left, some of which may become part of it by `grow`.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let all = match &mut self.memory {
            Memory::Own(own) => &mut own.bytes,
            Memory::Shared(claim) => claim.bytes(),
        };
        &mut all[self.len..]
    }

    /// So many bytes of the room have been written.
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.len += bytes;
    }

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
