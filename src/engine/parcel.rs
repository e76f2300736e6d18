//! Bytes on their way into the engine, in memory that is used again.

use std::sync::Arc;

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
    pub(crate) bytes: Vec<u8>,
    home: Arc<Parcels>,
}

impl Parcels {
    /// An empty parcel that has room for so many bytes.
    pub(crate) fn take(self: &Arc<Self>, room: usize) -> Parcel {
        let mut bytes = self.spare.lock().pop().unwrap_or_default();
        bytes.reserve(room);
        Parcel { bytes, home: Arc::clone(self) }
    }
}

impl AsRef<[u8]> for Parcel {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut spare = self.home.spare.lock();
        if spare.len() < MOST_SPARE && bytes.capacity() <= MOST_BYTES {
            spare.push(bytes);
        }
    }
}
