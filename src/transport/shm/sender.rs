//! The sender's side of a ring.
#![allow(unsafe_code, reason = "says which bytes of the ring nobody reads any more")]

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::offer::SegmentOffer;
use super::segment::{QUEUE, Segment, WriteRange, taken};

/// The bytes of a ring: more than are in flight, so that hardly anything finds no room.
const SIZE: usize = 8 << 20;
/// A receiver that has not mapped the segment after this long will not.
const OFFER: Duration = Duration::from_secs(10);
/// One that has read nothing for this long may be another process by now.
const PATIENCE: Duration = Duration::from_secs(1);

/// Memory that the receiver of a line reads.
pub(in crate::transport) struct ShmSender {
    segment: Arc<Segment>,
    offer: SegmentOffer,
    offered: Instant,
    /// Pieces that the receiver has read, and those that wait for it, oldest first.
    read: u64,
    unread: VecDeque<PublishedPiece>,
    /// When it last read one, or had nothing to read.
    since: Instant,
}

/// What was published: its place in the ring.
struct PublishedPiece {
    start: usize,
    end: usize,
}

/// Room in the ring for bytes that are to be sent.
pub(in crate::transport) struct Claim {
    place: WriteRange,
    at: usize,
}

impl Claim {
    pub(in crate::transport) fn bytes(&mut self) -> &mut [u8] {
        self.place.bytes()
    }
}

impl ShmSender {
    pub(in crate::transport) fn new() -> io::Result<Self> {
        // Keyed by chance, for every map.
        let token = [(); 2].map(|()| RandomState::new().build_hasher().finish());
        let segment = Segment::create(SIZE, token)?;
        let fd = u32::try_from(segment.fd()).map_err(io::Error::other)?;
        let (pid, size, now) = (std::process::id(), SIZE as u64, Instant::now());
        let offer = SegmentOffer { pid, fd, token, size };
        let segment = Arc::new(segment);
        Ok(Self { segment, offer, offered: now, read: 0, unread: VecDeque::new(), since: now })
    }

    /// What asks the receiver to read the segment.
    pub(in crate::transport) fn offer(&self) -> SegmentOffer {
        self.offer
    }

    /// The offer, if it is time to make it again: whoever had taken it reads no more.
    pub(in crate::transport) fn renewed(&mut self) -> Option<SegmentOffer> {
        let is_due = self.is_taken() && self.is_stalled() && self.offered.elapsed() > PATIENCE;
        is_due.then(|| {
            self.offered = Instant::now();
            self.offer
        })
    }

    /// Whether nobody will ever read it.
    pub(in crate::transport) fn is_declined(&self) -> bool {
        match self.segment.taken().load(Ordering::Acquire) {
            taken::NOT_YET => self.offered.elapsed() > OFFER,
            state => state != taken::YES,
        }
    }

    fn is_taken(&self) -> bool {
        self.segment.taken().load(Ordering::Acquire) == taken::YES
    }

    fn is_stalled(&self) -> bool {
        !self.unread.is_empty() && self.since.elapsed() > PATIENCE
    }

    /// Forgets what has been read; None if the receiver says that it has read what was never written.
    fn look(&mut self) -> Option<()> {
        // Acquire: the receiver has read what was there before it said so.
        let tail = self.segment.tail().load(Ordering::Acquire);
        let fresh = usize::try_from(tail.checked_sub(self.read)?).ok()?;
        if fresh > self.unread.len() {
            return None;
        }
        if fresh > 0 || self.unread.is_empty() {
            self.since = Instant::now();
        }
        self.unread.drain(..fresh);
        self.read = tail;
        Some(())
    }

    /// Whether a claim of so many bytes would be granted now.
    pub(in crate::transport) fn has_room(&mut self, room: usize) -> bool {
        self.free(room).is_some()
    }

    /// Where so many bytes may be written now, if the receiver reads.
    fn free(&mut self, room: usize) -> Option<usize> {
        if !self.is_taken() {
            return None;
        }
        self.look()?;
        if self.is_stalled() || self.unread.len() == QUEUE {
            return None;
        }
        self.place(room)
    }

    /// Room for so many bytes, if there is some now. Only the last claim may be published.
    pub(in crate::transport) fn claim(&mut self, room: usize) -> Option<Claim> {
        let at = self.free(room)?;
        // SAFETY: everything that the receiver has not read lies elsewhere; `ShmSender` has one claim at a
        // time that counts.
        let place = unsafe { WriteRange::new(Arc::clone(&self.segment), at, room) };
        Some(Claim { place, at })
    }

    /// Where so many bytes are free.
    fn place(&self, room: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.unread.front(), self.unread.back()) else {
            // Starts over whenever it can: the same few bytes stay in the caches.
            return (room <= SIZE).then_some(0);
        };
        if first.start < last.end {
            // Behind it, or in front of all.
            let behind = SIZE - last.end >= room;
            return if behind { Some(last.end) } else { (room < first.start).then_some(0) };
        }
        (first.start - last.end > room).then_some(last.end)
    }

    /// The first `len` bytes of a claim are written, and may be read.
    pub(in crate::transport) fn publish(&mut self, claim: &Claim, len: usize) {
        let entry = self.segment.entry(self.read + self.unread.len() as u64);
        // Relaxed: the receiver looks there only once it has seen how many there are, which follows.
        entry.at.store(claim.at as u64, Ordering::Relaxed);
        entry.len.store(len as u64, Ordering::Relaxed);
        self.unread.push_back(PublishedPiece { start: claim.at, end: claim.at + len });
        self.segment.publish(self.read + self.unread.len() as u64);
    }
}
