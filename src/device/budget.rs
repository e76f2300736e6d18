//! How much device memory the keys of a store have, and may have.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::context::lock;
use crate::error::{Error, ErrorKind, Result, fail};

const MB: usize = 1 << 20;

/// The bytes of a store's keys on all devices, and their bound.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: usize,
    held: AtomicUsize,
    /// By device.
    shares: Mutex<SmallVec<[(u16, usize); 1]>>,
}

impl MemoryBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self {
            limit: limit.unwrap_or(usize::MAX),
            held: AtomicUsize::new(0),
            shares: Mutex::default(),
        }
    }

    /// The bytes on one device.
    pub(crate) fn held_on(&self, ordinal: u16) -> usize {
        let shares = lock(&self.shares);
        shares.iter().find(|(device, _)| *device == ordinal).map_or(0, |(_, bytes)| *bytes)
    }

    fn change_share(&self, ordinal: u16, change: impl FnOnce(&mut usize)) {
        let mut shares = lock(&self.shares);
        let at = shares.iter().position(|(device, _)| *device == ordinal).unwrap_or_else(|| {
            shares.push((ordinal, 0));
            shares.len() - 1
        });
        change(&mut shares[at].1);
    }

    /// Takes bytes from the budget for memory that `allocate` makes on a device.
    pub(super) fn take<T>(
        &self,
        ordinal: u16,
        bytes: usize,
        allocate: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        // Relaxed: a count, which orders nothing.
        let held = self.held.fetch_add(bytes, Ordering::Relaxed);
        let made = if held.saturating_add(bytes) <= self.limit {
            allocate()
        } else {
            let limit = self.limit;
            Err(fail!(
                OutOfMemory,
                "the option device_bytes allows {limit} bytes on GPUs, keys of this store hold {held}, \
                 {bytes} more are needed"
            ))
        };
        if made.is_ok() {
            self.change_share(ordinal, |share| *share += bytes);
        }
        made.map_err(|error| {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            if error.kind() != ErrorKind::OutOfMemory {
                return error;
            }
            let text = format!("{}; keys of this store hold {} MB", error.message(), held / MB);
            Error::new(error.kind(), text)
        })
    }

    /// Gives back the bytes of memory that is freed on a device.
    pub(super) fn give_back(&self, ordinal: u16, bytes: usize) {
        self.change_share(ordinal, |share| *share -= bytes);
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}
