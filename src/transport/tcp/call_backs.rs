//! Queues that a thread of the transport calls back, and the wake-up of that thread.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mio::Waker;

use crate::sys::sync::Mutex;
use crate::transport::SendQueue;

/// What other threads leave for a thread that waits for events.
pub(super) struct CallBacks {
    queues: Mutex<Vec<Weak<dyn SendQueue>>>,
    closed: AtomicBool,
    /// Number of its connections that owe bytes.
    debts: AtomicUsize,
    waker: Waker,
}

impl CallBacks {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            queues: Mutex::default(),
            closed: AtomicBool::new(false),
            debts: AtomicUsize::new(0),
            waker,
        }
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

    /// Moves the queues to call now to an empty list.
    pub(super) fn take(&self, list: &mut Vec<Weak<dyn SendQueue>>) {
        std::mem::swap(&mut *self.queues.lock(), list);
    }

    pub(super) fn wake(&self) {
        // It fails only for want of memory, and then the thread goes on at its next event.
        let _ = self.waker.wake();
    }

    /// A connection begins to owe bytes, or owes none any more.
    pub(super) fn owe(&self, owes: bool) {
        // Relaxed: only how the thread waits depends on it.
        if owes {
            self.debts.fetch_add(1, Ordering::Relaxed);
        } else {
            self.debts.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn has_debts(&self) -> bool {
        self.debts.load(Ordering::Relaxed) > 0
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
