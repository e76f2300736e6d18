//! How a call under way ends, whatever kind of call: its result, and the loans of what it sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::error::Result;
use crate::interrupt;
use crate::runtime::{BlockPool, Loan};
use crate::search;
use crate::sys::sync::{Condvar, Mutex};
use crate::transport::Polling;

/// The result of a call, for the one thread that waits for it.
pub(super) struct CallOutcome {
    state: Mutex<OutcomeState>,
    /// Whether there is a result, for a thread that polls.
    is_there: AtomicBool,
    changed: Condvar,
}

#[derive(Default)]
struct OutcomeState {
    result: Option<Result<()>>,
    /// Whether the thread sleeps.
    sleeps: bool,
}

impl CallOutcome {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), is_there: AtomicBool::new(false), changed: Condvar::new() }
    }

    /// Begins the next call in the memory of one that has ended.
    pub(super) fn clear(&mut self) {
        *self.state.get_mut() = OutcomeState::default();
        *self.is_there.get_mut() = false;
    }

    /// Wakes the thread that waits for the call.
    pub(super) fn finish(&self, result: Result<()>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        self.is_there.store(true, Ordering::Release);
        let sleeps = state.sleeps;
        drop(state);
        // Waking costs a call of the system, even without a thread that sleeps; and one that wakes takes the lock.
        if sleeps {
            self.changed.notify_all();
        }
    }

    /// Waits for the result, which is due by the machine's deadline, at first by polling if the call does that. An
    /// interrupt has the call expired at once. None if a call that was expired has no result.
    pub(super) fn wait(
        &self,
        polling: Option<Polling>,
        expire: impl FnOnce(),
    ) -> Option<Result<()>> {
        search::trip();
        if let Some(polling) = polling {
            polling.wait(|| self.is_there.load(Ordering::Acquire));
        }
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
        let mut state = self.state.lock();
        loop {
            if let Some(result) = state.result.take() {
                return Some(result);
            }
            state.sleeps = true;
            match until {
                None => self.changed.wait(&mut state),
                Some(until) if self.changed.wait_until(&mut state, until) => {
                    return state.result.take();
                }
                Some(_) => {}
            }
        }
    }
}

/// Ends the loans of a call that has this result.
pub(super) fn end_loans(
    loans: &[Arc<Loan>],
    mut result: Result<()>,
    blocks: &Arc<BlockPool>,
) -> Result<()> {
    for loan in loans {
        match &result {
            Ok(()) => Loan::end(loan),
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
