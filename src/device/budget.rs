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
    /// The bytes on each device, by its number.
    by_device: Mutex<SmallVec<[(u16, usize); 1]>>,
}

impl MemoryBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        let limit = limit.unwrap_or(usize::MAX);
        Self { limit, held: AtomicUsize::new(0), by_device: Mutex::default() }
    }

    /// Takes bytes from the budget for memory of a device that `allocate` makes.
    pub(super) fn take<T>(
        &self,
        device: u16,
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
        let made = made.inspect(|_| self.on_device(device, |held| *held += bytes));
        made.map_err(|error| {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            if error.kind() != ErrorKind::OutOfMemory {
                return error;
            }
            let text = format!("{}; keys of this store hold {} MB", error.message(), held / MB);
            Error::new(error.kind(), text)
        })
    }

    /// Gives back the bytes of memory that is freed.
    pub(super) fn give_back(&self, device: u16, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.on_device(device, |held| *held -= bytes);
    }

    /// The bytes on a device.
    pub(crate) fn held_on(&self, device: u16) -> usize {
        self.on_device(device, |held| *held)
    }

    fn on_device<T>(&self, device: u16, change: impl FnOnce(&mut usize) -> T) -> T {
        let mut all = lock(&self.by_device);
        let found = all.iter().position(|(number, _)| *number == device);
        let at = found.unwrap_or_else(|| {
            all.push((device, 0));
            all.len() - 1
        });
        change(&mut all[at].1)
    }
}
