//! End signal for the threads that read shared memory.

use std::sync::atomic::{AtomicU8, Ordering};

/// When a reader thread ends, and what it reports then.
#[derive(Clone, Copy)]
pub(super) enum EndMode {
    /// After it has read all bytes written so far.
    Drained = 1,
    /// After it has read all bytes written so far; it then reports the sender as down.
    Gone = 2,
    /// At once.
    Closed = 3,
}

/// The thread has ended.
const OVER: u8 = 4;

/// End signal of one thread; the highest value counts.
#[derive(Default)]
pub(super) struct ReaderEnd(AtomicU8);

impl ReaderEnd {
    /// Signals the thread to end; false if it had ended before, so that the signal has no effect.
    pub(super) fn tell(&self, how: EndMode) -> bool {
        self.0.fetch_max(how as u8, Ordering::SeqCst) != OVER
    }

    pub(super) fn is_to(&self, end: EndMode) -> bool {
        self.0.load(Ordering::SeqCst) >= end as u8
    }

    /// Marks the thread as ended; true if it must report the sender as down.
    pub(super) fn end(&self) -> bool {
        self.0.swap(OVER, Ordering::SeqCst) == EndMode::Gone as u8
    }
}
