//! Receiver side of one ring, and its thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::segment::{QUEUE, Segment, taken};
use crate::log::{Level, log};
use crate::transport::adaptive_wait::AdaptiveWait;
use crate::transport::reader_end::{EndMode, ReaderEnd};
use crate::transport::{Inbox, who_and_address};

/// Timeout of one sleep, after which a ring is read even if its sender was killed before the wake-up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Memory of a sender, read by a thread until it is signalled to end.
pub(super) struct Ring {
    segment: Segment,
    /// The sender, as in [`Inbox::arrived`].
    from: String,
    ending: ReaderEnd,
}

/// Content of a ring that no sender of this library would write.
struct BadRing;

impl Ring {
    pub(super) fn new(segment: Segment, from: &str) -> Self {
        Self { segment, from: from.into(), ending: ReaderEnd::default() }
    }

    /// Signals its thread to end; false if it had ended before, so that the signal has no effect.
    pub(super) fn end(&self, how: EndMode) -> bool {
        let is_heard = self.ending.tell(how);
        self.segment.wake();
        is_heard
    }

    /// Starts the thread that reads the ring.
    pub(super) fn serve(self: &Arc<Self>, inbox: &Arc<dyn Inbox>) -> std::io::Result<()> {
        let (ring, inbox) = (Arc::clone(self), Arc::clone(inbox));
        let thread = std::thread::Builder::new().name("kvstore-ring".into());
        let read = move || {
            ring.read_all(&*inbox);
            ring.segment.taken().store(taken::NO_MORE, Ordering::Release);
            if ring.ending.end() {
                inbox.down(who_and_address(&ring.from).1);
            }
        };
        crate::pool::without_signals(|| thread.spawn(read)).map(drop)
    }

    /// Delivers pieces to the inbox, until the end.
    fn read_all(&self, inbox: &dyn Inbox) {
        // Pieces before this point were written for an earlier receiver.
        let mut read = self.segment.head().load(Ordering::Acquire);
        self.segment.tail().store(read, Ordering::Release);
        self.segment.taken().store(taken::YES, Ordering::Release);
        let mut lookout = AdaptiveWait::new();
        while !self.ending.is_to(EndMode::Closed) {
            match self.next(read) {
                Ok(Some((at, len))) => {
                    read += 1;
                    self.hand_on(inbox, at, len, read);
                }
                Ok(None) if self.ending.is_to(EndMode::Drained) => return,
                Ok(None) => self.wait(read, &mut lookout),
                Err(BadRing) => {
                    let from = &self.from;
                    return log(Level::Warn, || format!("{from}: memory that makes no sense"));
                }
            }
        }
    }

    /// Waits until there is an unread piece, or the thread is signalled to end.
    fn wait(&self, read: u64, lookout: &mut AdaptiveWait) {
        // Relaxed: only a hint; `next` reads `head` again with Acquire.
        let is_there = || self.segment.head().load(Ordering::Relaxed) != read;
        let is_over = || self.ending.is_to(EndMode::Drained);
        let sleep = || self.segment.sleep(read, LOOK_AGAIN, is_over);
        lookout.wait(|| is_there().then_some(()), sleep);
    }

    /// Offset and length of the next unread piece; None without one.
    fn next(&self, read: u64) -> Result<Option<(usize, usize)>, BadRing> {
        // Acquire: the sender writes a piece before it publishes `head`.
        let head = self.segment.head().load(Ordering::Acquire);
        let unread = head.checked_sub(read).filter(|unread| *unread <= QUEUE as u64);
        if unread.ok_or(BadRing)? == 0 {
            return Ok(None);
        }
        let entry = self.segment.entry(read);
        let number = |word: &AtomicU64| usize::try_from(word.load(Ordering::Relaxed)).ok();
        let piece = number(&entry.at).zip(number(&entry.len));
        let is_inside = |(at, len): &(usize, usize)| {
            at.checked_add(*len).is_some_and(|end| end <= self.segment.len())
        };
        piece.filter(is_inside).map(Some).ok_or(BadRing)
    }

    fn hand_on(&self, inbox: &dyn Inbox, at: usize, len: usize, read: u64) {
        // Once the bytes are read, the sender may overwrite them.
        let give_back = || self.segment.tail().store(read, Ordering::Release);
        let bytes = std::iter::once(self.segment.bytes(at, len));
        let behind = std::iter::from_fn(|| {
            give_back();
            None
        });
        inbox.arrived(&self.from, len, &mut bytes.chain(behind));
        give_back();
    }
}
