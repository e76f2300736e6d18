//! Bytes on their way into the engine: in memory that is used again, or that the receiver reads.

use std::sync::Arc;

use super::shared::Claim;
use crate::sync::Mutex;

/// Memory that is kept for the next parcels.
const MOST_SPARE: usize = 32;
/// Larger parcels are rare, and their memory goes back to the system.
const MOST_BYTES: usize = 2 << 20;

/// Where the memory of parcels waits for the next ones.
#[derive(Default)]
pub(crate) struct Parcels {
    spare: Mutex<Vec<Vec<u8>>>,
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
        let mut bytes = self.spare.lock().pop().unwrap_or_default();
        if bytes.len() < room {
            bytes.resize(room, 0);
        }
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
        let mut spare = self.home.spare.lock();
        if spare.len() < MOST_SPARE && bytes.len() <= MOST_BYTES {
            spare.push(bytes);
        }
    }
}
