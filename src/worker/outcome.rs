//! How a call under way ends, whatever kind of call: its result, and the loans of what it sent.

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::interrupt;
use crate::runtime::{BlockPool, Loan};
use crate::search;
use crate::sys::sync::{Condvar, Mutex};

/// The result of a call, for the one thread that waits for it.
pub(super) struct CallOutcome {
    result: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl CallOutcome {
    pub(super) fn new() -> Self {
        Self { result: Mutex::default(), changed: Condvar::new() }
    }

    /// Begins the next call in the memory of one that has ended.
    pub(super) fn clear(&mut self) {
        *self.result.get_mut() = None;
    }

    /// Wakes the thread that waits for the call.
    pub(super) fn finish(&self, result: Result<()>) {
        *self.result.lock() = Some(result);
        self.changed.notify_all();
    }

    /// Waits for the result, which is due by the machine's deadline. An interrupt has the call
    /// expired at once. None if a call that was expired has no result.
    pub(super) fn wait(&self, expire: impl FnOnce()) -> Option<Result<()>> {
        search::trip();
        loop {
            if let Some(result) = self.wait_until(interrupt::next(None)) {
                return Some(result);
            }
            if interrupt::requested() {
                break;
            }
        }
        expire();
        self.wait_until(None)
    }

    /// None if `until` passes first.
    fn wait_until(&self, until: Option<Instant>) -> Option<Result<()>> {
        let mut result = self.result.lock();
        loop {
            if let Some(result) = result.take() {
                return Some(result);
            }
            match until {
                None => self.changed.wait(&mut result),
                Some(until) if self.changed.wait_until(&mut result, until) => {
                    return result.take();
                }
                Some(_) => {}
            }
        }
    }
}

/// Ends the loans of a call that has this result.
pub(super) fn end_loans<'a>(
    loans: impl Iterator<Item = &'a Arc<Loan>>,
    mut result: Result<()>,
    blocks: &Arc<BlockPool>,
) -> Result<()> {
    for loan in loans {
        match &result {
            Ok(()) => loan.end(),
            // Frames in flight may still take effect, so they keep a copy of the values.
            Err(_) => {
                if let Err(error) = loan.copy(blocks) {
                    result = Err(error);
                }
            }
        }
    }
    result
}
