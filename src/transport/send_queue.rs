//! Flow control between a transport and the queues in front of its senders. Also called: backpressure,
//! writability notification.

use std::sync::Weak;
use std::time::Instant;

#[cfg(test)]
use super::SendMode;
use super::{SendBuffer, Sender, Transport};
use crate::sys::sync::{Arc, Condvar, Mutex};

/// Messages that wait for a sender.
pub(crate) trait SendQueue: Send + Sync {
    /// The sender may take the next messages now. Called on a thread of the transport, which must not wait.
    fn go_on(self: Arc<Self>);
}

/// Sender for a thread that may wait until its bytes are sent, or dropped.
pub(crate) struct BlockingSender {
    line: Box<dyn Sender>,
    signal: Arc<ReadySignal>,
}

struct ReadySignal {
    is_ready: Mutex<bool>,
    changed: Condvar,
}

impl SendQueue for ReadySignal {
    fn go_on(self: Arc<Self>) {
        *self.is_ready.lock() = true;
        self.changed.notify_all();
    }
}

impl BlockingSender {
    pub(crate) fn new(transport: &dyn Transport, to: &str) -> Self {
        let signal = Arc::new(ReadySignal { is_ready: Mutex::new(false), changed: Condvar::new() });
        let queue: Arc<dyn SendQueue> = Arc::clone(&signal) as Arc<dyn SendQueue>;
        let line = transport.line(to, Arc::downgrade(&queue));
        Self { line, signal }
    }

    #[cfg(test)]
    pub(super) fn is_ready(&mut self) -> bool {
        self.line.is_ready()
    }

    #[cfg(test)]
    pub(super) fn owes(&self) -> bool {
        self.line.owes()
    }

    #[cfg(test)]
    pub(super) fn room_for(&mut self, len: usize) -> SendMode {
        self.line.room_for(len)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.line.is_connected()
    }

    pub(crate) fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        self.line.parcel(room, lent)
    }

    /// Sends bytes, or drops them if no connection can be made; waits until this time at most, for a
    /// connection and until the bytes are sent.
    pub(crate) fn send(&mut self, parcel: SendBuffer, end: Instant) {
        self.wait(end);
        self.line.send(parcel);
        self.wait(end);
    }

    /// Sends a frame from its place, without waiting behind it; false if the sender does not do that.
    #[cfg(test)]
    pub(super) fn send_from_place(&mut self, front: &[u8], payload: &[u8], end: Instant) -> bool {
        self.wait(end);
        let does = self.line.sends_from_place(front.len() + payload.len());
        if does {
            self.line.send_from_place(front, payload);
        }
        does
    }

    /// Waits until the sender is ready.
    fn wait(&mut self, end: Instant) {
        while !self.line.is_ready() {
            self.line.call_back();
            let mut is_ready = self.signal.is_ready.lock();
            while !*is_ready {
                if self.signal.changed.wait_until(&mut is_ready, end) {
                    return;
                }
            }
            *is_ready = false;
        }
    }
}

/// A queue that has gone is not called.
pub(super) fn go_on(queue: &Weak<dyn SendQueue>) {
    if let Some(queue) = queue.upgrade() {
        queue.go_on();
    }
}
