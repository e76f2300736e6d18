//! How a thread that reads past the engine is told to end.

use std::sync::atomic::{AtomicU8, Ordering};

/// When a thread ends, and what it does then.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Behind what was written so far.
    Drained = 1,
    /// The same; then it says that the sender is gone.
    Gone = 2,
    /// At once.
    Closed = 3,
}

/// The thread has ended.
const OVER: u8 = 4;

/// What one thread has been told; the last word counts.
#[derive(Default)]
pub(super) struct ReaderEnd(AtomicU8);

impl ReaderEnd {
    /// Tells the thread to end; false if it had ended before, and does nothing about it any more.
    pub(super) fn tell(&self, how: End) -> bool {
        self.0.fetch_max(how as u8, Ordering::SeqCst) != OVER
    }

    pub(super) fn is_to(&self, end: End) -> bool {
        self.0.load(Ordering::SeqCst) >= end as u8
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst) == OVER
    }

    /// The thread ends; whether it is to say that the sender is gone.
    pub(super) fn end(&self) -> bool {
        self.0.swap(OVER, Ordering::SeqCst) == End::Gone as u8
    }
}
