//! How much device memory the keys of a store have, and may have.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result, fail};

const MB: usize = 1 << 20;

/// The bytes of a store's keys on all devices, and their bound.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: usize,
    held: AtomicUsize,
}

impl MemoryBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit: limit.unwrap_or(usize::MAX), held: AtomicUsize::new(0) }
    }

    /// Takes bytes from the budget for memory that `allocate` makes.
    pub(super) fn take<T>(&self, bytes: usize, allocate: impl FnOnce() -> Result<T>) -> Result<T> {
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
        made.map_err(|error| {
            self.give_back(bytes);
            if error.kind() != ErrorKind::OutOfMemory {
                return error;
            }
            let text = format!("{}; keys of this store hold {} MB", error.message(), held / MB);
            Error::new(error.kind(), text)
        })
    }

    /// Gives back the bytes of memory that is freed.
    pub(super) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}
