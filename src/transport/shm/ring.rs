//! Receiver side of one ring, and its thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
const LOOK_AGAIN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// Maximum length in bytes of a small piece: reading it takes no longer than a wake-up.
pub(super) const SMALL: usize = 32 << 10;

/// Memory of a sender, read by a thread until it is signalled to end; small pieces also by threads that wait.
pub(super) struct Ring {
    /// None before the thread has mapped it.
    segment: Mutex<Option<Arc<Segment>>>,
    /// The sender, as in [`Inbox::arrived`].
    from: String,
    ending: ReaderEnd,
    /// Number of pieces read, from the thread's beginning to its end. Its lock is held while one is delivered.
    read: Mutex<Option<u64>>,
    /// Number of threads of the program that poll, and of those that read large pieces too.
    pollers: AtomicUsize,
    readers_of_all: AtomicUsize,
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
        let (segment, ending, read) = (Mutex::default(), ReaderEnd::default(), Mutex::default());
        let (pollers, readers_of_all) = Default::default();
        let from = from.to_owned();
        let ring = Arc::new(Self { segment, from, ending, read, pollers, readers_of_all });
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
        let head = segment.head().load(Ordering::Acquire);
        segment.tail().store(head, Ordering::Release);
        segment.taken().store(taken::YES, Ordering::Release);
        *self.read.lock() = Some(head);
        let (mut lookout, mut last) = (AdaptiveWait::new(), 0);
        while !self.ending.is_to(EndMode::Closed) {
            let mut read = self.read.lock();
            let Some(number) = &mut *read else { return };
            match next(segment, *number) {
                Ok(Some(piece)) => {
                    *number += 1;
                    self.hand_on(segment, inbox, piece, *number);
                    last = piece.1;
                }
                Ok(None) if self.ending.is_to(EndMode::Drained) => break,
                Ok(None) => {
                    let number = *number;
                    drop(read);
                    self.wait(segment, number, last, &mut lookout);
                }
                Err(BadRing) => {
                    let from = &self.from;
                    log(Level::Warn, || format!("{from}: memory that makes no sense"));
                    break;
                }
            }
        }
        *self.read.lock() = None;
    }

    /// Waits until there is an unread piece, or the thread is signalled to end. Behind small pieces threads of the
    /// program that wait read the next one, if there are any.
    fn wait(&self, segment: &Segment, read: u64, last: usize, lookout: &mut AdaptiveWait) {
        // Relaxed: only a hint; `next` reads `head` again with Acquire.
        let is_there = || segment.head().load(Ordering::Relaxed) != read;
        let is_over = || self.ending.is_to(EndMode::Drained);
        let sleep = || segment.sleep(read, LOOK_AGAIN, is_over);
        // Relaxed: only a hint, too.
        let is_left = || {
            let readers = if last <= SMALL { &self.pollers } else { &self.readers_of_all };
            readers.load(Ordering::Relaxed) > 0
        };
        if is_left() {
            sleep();
        } else {
            lookout.wait(|| (is_there() || is_left()).then_some(()), sleep);
        }
    }

    /// The memory, if the thread reads it.
    pub(super) fn segment(&self) -> Option<Arc<Segment>> {
        self.segment.lock().clone()
    }

    /// A thread of the program begins to poll.
    pub(super) fn begin_polling(&self, segment: &Segment) {
        self.pollers.fetch_add(1, Ordering::Relaxed);
        segment.begin_polling();
    }

    /// A thread that polls begins to read large pieces too.
    pub(super) fn begin_reading_all(&self) {
        self.readers_of_all.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_reading_all(&self) {
        self.readers_of_all.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn end_polling(&self, segment: &Segment) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
        segment.end_polling();
    }

    /// Reads a piece of at most `most` bytes, if one is there, on a thread that waits for a result. The thread of the
    /// ring reads a larger one, while others may do something else.
    pub(super) fn poll(&self, segment: &Segment, most: usize, inbox: &dyn Inbox) {
        segment.begin_polling();
        if !segment.has_unread() {
            return;
        }
        // The thread of the ring may read at this moment.
        let Some(mut read) = self.read.try_lock() else { return };
        let Some(number) = read.as_mut().filter(|_| !self.ending.is_to(EndMode::Closed)) else {
            return;
        };
        match next(segment, *number) {
            Ok(Some(piece)) if piece.1 <= most => {
                *number += 1;
                self.hand_on(segment, inbox, piece, *number);
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(BadRing) => segment.wake(),
        }
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
