//! Receiver side of one ring, and its thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::handover;
use super::offer::SegmentOffer;
use super::segment::{QUEUE, Segment, taken};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::adaptive_wait::AdaptiveWait;
use crate::transport::reader_end::{EndMode, ReaderEnd};
use crate::transport::{Inbox, who_and_address};

/// Timeout of one sleep, after which a ring is read even if its sender was killed before the wake-up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Memory of a sender, read by a thread until it is signalled to end.
pub(super) struct Ring {
    /// None before the thread has mapped it.
    segment: Mutex<Option<Arc<Segment>>>,
    /// The sender, as in [`Inbox::arrived`].
    from: String,
    ending: ReaderEnd,
}

/// Content of a ring that no sender of this library would write.
pub(super) struct BadRing;

impl Ring {
    /// Starts a thread that maps an offered segment, and reads it.
    pub(super) fn read(
        offer: SegmentOffer,
        from: &str,
        inbox: &Arc<dyn Inbox>,
    ) -> io::Result<Arc<Self>> {
        let (segment, ending) = (Mutex::default(), ReaderEnd::default());
        let ring = Arc::new(Self { segment, from: from.into(), ending });
        let (reader, inbox) = (Arc::clone(&ring), Arc::clone(inbox));
        let thread = std::thread::Builder::new().name("kvstore-ring".into());
        let read = move || reader.run(&offer, &*inbox);
        crate::pool::without_signals(|| thread.spawn(read))?;
        Ok(ring)
    }

    /// Signals its thread to end; false if it had ended before, so that the signal has no effect.
    pub(super) fn end(&self, how: EndMode) -> bool {
        let is_heard = self.ending.tell(how);
        // A thread that maps the segment later finds the signal.
        if let Some(segment) = &*self.segment.lock() {
            segment.wake();
        }
        is_heard
    }

    /// The thread.
    fn run(&self, offer: &SegmentOffer, inbox: &dyn Inbox) {
        match self.map(offer) {
            Ok(segment) => {
                self.read_all(&segment, inbox);
                segment.taken().store(taken::NO_MORE, Ordering::Release);
            }
            Err(error) => {
                log(Level::Debug, || format!("no memory is shared with {}: {error}", self.from));
            }
        }
        if self.ending.end() {
            inbox.down(who_and_address(&self.from).1);
        }
    }

    fn map(&self, offer: &SegmentOffer) -> io::Result<Arc<Segment>> {
        let size = usize::try_from(offer.size).map_err(io::Error::other)?;
        let segment = Arc::new(Segment::open(handover::get(offer)?, size)?);
        *self.segment.lock() = Some(Arc::clone(&segment));
        Ok(segment)
    }

    /// Delivers pieces to the inbox, until the end.
    fn read_all(&self, segment: &Segment, inbox: &dyn Inbox) {
        // Pieces before this point were written for an earlier receiver.
        let mut read = segment.head().load(Ordering::Acquire);
        segment.tail().store(read, Ordering::Release);
        segment.taken().store(taken::YES, Ordering::Release);
        let mut lookout = AdaptiveWait::new();
        while !self.ending.is_to(EndMode::Closed) {
            match next(segment, read) {
                Ok(Some((at, len))) => {
                    read += 1;
                    self.hand_on(segment, inbox, (at, len), read);
                }
                Ok(None) if self.ending.is_to(EndMode::Drained) => return,
                Ok(None) => self.wait(segment, read, &mut lookout),
                Err(BadRing) => {
                    let from = &self.from;
                    return log(Level::Warn, || format!("{from}: memory that makes no sense"));
                }
            }
        }
    }

    /// Waits until there is an unread piece, or the thread is signalled to end.
    fn wait(&self, segment: &Segment, read: u64, lookout: &mut AdaptiveWait) {
        // Relaxed: only a hint; `next` reads `head` again with Acquire.
        let is_there = || segment.head().load(Ordering::Relaxed) != read;
        let is_over = || self.ending.is_to(EndMode::Drained);
        let sleep = || segment.sleep(read, LOOK_AGAIN, is_over);
        lookout.wait(|| is_there().then_some(()), sleep);
    }

    fn hand_on(&self, segment: &Segment, inbox: &dyn Inbox, (at, len): (usize, usize), read: u64) {
        // Once the bytes are read, the sender may overwrite them.
        let give_back = || segment.tail().store(read, Ordering::Release);
        let bytes = std::iter::once(segment.piece(at, len));
        let behind = std::iter::from_fn(|| {
            give_back();
            None
        });
        inbox.arrived(&self.from, len, &mut bytes.chain(behind));
        give_back();
    }
}

/// Offset and length of the next unread piece; None without one.
pub(super) fn next(segment: &Segment, read: u64) -> Result<Option<(usize, usize)>, BadRing> {
    // Acquire: the sender writes a piece before it publishes `head`.
    let head = segment.head().load(Ordering::Acquire);
    let unread = head.checked_sub(read).filter(|unread| *unread <= QUEUE as u64);
    if unread.ok_or(BadRing)? == 0 {
        return Ok(None);
    }
    let entry = segment.entry(read);
    let number = |word: &AtomicU64| usize::try_from(word.load(Ordering::Relaxed)).ok();
    let piece = number(&entry.at).zip(number(&entry.len));
    let is_inside =
        |(at, len): &(usize, usize)| at.checked_add(*len).is_some_and(|end| end <= segment.len());
    piece.filter(is_inside).map(Some).ok_or(BadRing)
}
