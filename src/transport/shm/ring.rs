//! Receiver side of one ring, and its thread.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::handover;
use super::offer::SegmentOffer;
use super::segment::{QUEUE, Segment, taken};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::polling::{AdaptiveWait, PolledSource, SMALL};
use crate::transport::reader_end::{EndMode, ReaderEnd};
use crate::transport::{Inbox, who_and_address};

/// Timeout of one sleep, after which a ring is read even if its sender was killed before the wake-up.
const LOOK_AGAIN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// Memory of a sender, read by a thread until it is signalled to end; small pieces also by threads that wait.
pub(super) struct Ring {
    /// Not there before the thread has mapped it.
    segment: OnceLock<Segment>,
    /// The sender, as in [`Inbox::arrived`].
    from: String,
    inbox: Arc<dyn Inbox>,
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
        let ring = Arc::new(Self {
            segment: OnceLock::new(),
            from: from.to_owned(),
            inbox: Arc::clone(inbox),
            ending: ReaderEnd::default(),
            read: Mutex::default(),
            pollers: AtomicUsize::new(0),
            readers_of_all: AtomicUsize::new(0),
        });
        let reader = Arc::clone(&ring);
        let thread = std::thread::Builder::new().name("kvstore-ring".into());
        crate::pool::without_signals(|| thread.spawn(move || reader.run(&offer)))?;
        Ok(ring)
    }

    /// Signals its thread to end; false if it had ended before, so that the signal has no effect.
    pub(super) fn end(&self, how: EndMode) -> bool {
        let is_heard = self.ending.tell(how);
        // A thread that maps the segment later finds the signal.
        if let Some(segment) = self.segment.get() {
            segment.wake();
        }
        is_heard
    }

    /// The thread.
    fn run(&self, offer: &SegmentOffer) {
        match self.map(offer) {
            Ok(segment) => {
                self.read_all(segment);
                segment.taken().store(taken::NO_MORE, Ordering::Release);
            }
            Err(error) => {
                log(Level::Debug, || format!("no memory is shared with {}: {error}", self.from));
            }
        }
        if self.ending.end() {
            self.inbox.down(who_and_address(&self.from).1);
        }
    }

    fn map(&self, offer: &SegmentOffer) -> io::Result<&Segment> {
        let size = usize::try_from(offer.size).map_err(io::Error::other)?;
        let segment = Segment::open(handover::get(offer)?, size)?;
        Ok(self.segment.get_or_init(|| segment))
    }

    /// Delivers pieces to the inbox, until the end.
    fn read_all(&self, segment: &Segment) {
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
                    self.hand_on(segment, piece, *number);
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

    fn hand_on(&self, segment: &Segment, (at, len): (usize, usize), read: u64) {
        // Once the bytes are read, the sender may overwrite them.
        let give_back = || segment.tail().store(read, Ordering::Release);
        let bytes = std::iter::once(segment.piece(at, len));
        let behind = std::iter::from_fn(|| {
            give_back();
            None
        });
        self.inbox.arrived(&self.from, len, &mut bytes.chain(behind));
        give_back();
    }
}

impl PolledSource for Ring {
    fn begin(&self, all: bool) {
        self.pollers.fetch_add(1, Ordering::Relaxed);
        self.readers_of_all.fetch_add(usize::from(all), Ordering::Relaxed);
        if let Some(segment) = self.segment.get() {
            segment.begin_polling();
        }
    }

    /// Reads a piece, if one is there, and it is small: the thread of the ring reads a large one, while others may do
    /// something else.
    fn look(&self, all: bool) {
        let Some(segment) = self.segment.get() else { return };
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
            Ok(Some(piece)) if all || piece.1 <= SMALL => {
                *number += 1;
                self.hand_on(segment, piece, *number);
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(BadRing) => segment.wake(),
        }
    }

    fn end(&self, all: bool) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
        self.readers_of_all.fetch_sub(usize::from(all), Ordering::Relaxed);
        if let Some(segment) = self.segment.get() {
            segment.end_polling();
        }
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
