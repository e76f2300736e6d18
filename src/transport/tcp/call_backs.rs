//! Queues that a thread of the transport calls back, and the wake-up of that thread.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::Waker;

use crate::sys::sync::Mutex;
use crate::transport::SendQueue;

/// What other threads leave for a thread that waits for events.
pub(super) struct CallBacks {
    queues: Mutex<Vec<Weak<dyn SendQueue>>>,
    closed: AtomicBool,
    waker: Waker,
}

impl CallBacks {
    pub(super) fn new(waker: Waker) -> Self {
        Self { queues: Mutex::default(), closed: AtomicBool::new(false), waker }
    }

    /// Has the thread call a queue.
    pub(super) fn post(&self, queue: Weak<dyn SendQueue>) {
        let mut queues = self.queues.lock();
        queues.push(queue);
        let is_first = queues.len() == 1;
        drop(queues);
        if is_first {
            self.wake();
        }
    }

    /// The queues to call now.
    pub(super) fn take(&self) -> Vec<Weak<dyn SendQueue>> {
        std::mem::take(&mut *self.queues.lock())
    }

    pub(super) fn wake(&self) {
        // It fails only for want of memory, and then the thread goes on at its next event.
        let _ = self.waker.wake();
    }

    /// Tells the thread to end.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}
