//! Sender side of a ring.
#![allow(unsafe_code, reason = "frees bytes of the ring that the receiver has read")]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::handover;
use super::offer::SegmentOffer;
use super::segment::{QUEUE, Segment, WriteRange, taken};
use crate::transport::polling::wake_later;
use kvstore_checksum::CopySums;

/// Size of a ring in bytes: more than are in flight, so that a full ring is rare.
const SIZE: usize = 8 << 20;
/// Timeout of an offer: a receiver that has not mapped the segment by then will not.
const OFFER: Duration = Duration::from_secs(10);
/// Timeout of a read: the receiver behind a ring without progress may be another process by now.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ring that one receiver reads.
pub(in crate::transport) struct ShmSender {
    segment: Arc<Segment>,
    offer: SegmentOffer,
    offered: Instant,
    /// Number of pieces that the receiver has read, and the unread pieces, oldest first.
    read: u64,
    unread: VecDeque<PublishedPiece>,
    /// Time of the receiver's last read, or of the last moment without an unread piece.
    since: Instant,
}

/// Range of a published piece in the ring.
struct PublishedPiece {
    start: usize,
    end: usize,
}

/// Space in the ring for bytes to be sent.
pub(in crate::transport) struct RingReservation {
    place: WriteRange,
    at: usize,
}

impl RingReservation {
    /// Copies bytes to an offset of the space.
    pub(in crate::transport) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.place.write(at, bytes);
    }

    /// Copies bytes to an offset of the space, and continues their sums.
    pub(in crate::transport) fn write_summed(
        &mut self,
        at: usize,
        bytes: &[u8],
        sums: &mut CopySums,
    ) {
        self.place.write_summed(at, bytes, sums);
    }
}

impl ShmSender {
    pub(in crate::transport) fn new() -> io::Result<Self> {
        let (segment, token) = (Arc::new(Segment::create(SIZE)?), handover::random()?);
        let socket = handover::open(&segment, token, OFFER)?;
        let (offer, now) = (SegmentOffer { socket, token, size: SIZE as u64 }, Instant::now());
        Ok(Self { segment, offer, offered: now, read: 0, unread: VecDeque::new(), since: now })
    }

    /// The offer that asks the receiver to read the segment.
    pub(in crate::transport) fn offer(&self) -> SegmentOffer {
        self.offer
    }

    /// The offer, if it is due again: the receiver that took it reads no more.
    pub(in crate::transport) fn renewed(&mut self) -> Option<SegmentOffer> {
        let is_due = self.is_taken() && self.is_stalled() && self.offered.elapsed() > PATIENCE;
        if !is_due {
            return None;
        }
        self.offered = Instant::now();
        self.offer.socket = handover::open(&self.segment, self.offer.token, OFFER).ok()?;
        Some(self.offer)
    }

    /// Whether no receiver will ever read the ring.
    pub(in crate::transport) fn is_declined(&self) -> bool {
        match self.segment.taken().load(Ordering::Acquire) {
            taken::NOT_YET => self.offered.elapsed() > OFFER,
            state => state != taken::YES,
        }
    }

    /// Whether a receiver reads the ring.
    pub(super) fn is_taken(&self) -> bool {
        self.segment.taken().load(Ordering::Acquire) == taken::YES
    }

    fn is_stalled(&self) -> bool {
        !self.unread.is_empty() && self.since.elapsed() > PATIENCE
    }

    /// Releases pieces that have been read; None if the receiver claims to have read an unwritten piece.
    fn look(&mut self) -> Option<()> {
        // Acquire: the receiver reads a piece before it publishes `tail`.
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

    /// Whether a claim of this many bytes would be granted now.
    pub(in crate::transport) fn has_room(&mut self, room: usize) -> bool {
        self.free(room).is_some()
    }

    /// Offset at which this many bytes may be written now, if the receiver reads.
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

    /// Claims space for this many bytes, if it is free now. Only the last claim may be published.
    pub(in crate::transport) fn claim(&mut self, room: usize) -> Option<RingReservation> {
        let at = self.free(room)?;
        // SAFETY: all unread pieces lie elsewhere; only the last claim of a `ShmSender` is valid.
        let place = unsafe { WriteRange::new(Arc::clone(&self.segment), at, room) };
        Some(RingReservation { place, at })
    }

    /// Offset of this many free bytes.
    fn place(&self, room: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.unread.front(), self.unread.back()) else {
            // Starts over whenever possible, so that the used part of the ring stays in the caches.
            return (room <= SIZE).then_some(0);
        };
        if first.start < last.end {
            // Behind the last piece, or in front of all.
            let behind = SIZE - last.end >= room;
            return if behind { Some(last.end) } else { (room < first.start).then_some(0) };
        }
        (first.start - last.end > room).then_some(last.end)
    }

    /// Publishes the first `len` bytes of a claim to the receiver.
    pub(in crate::transport) fn publish(&mut self, claim: &RingReservation, len: usize) {
        let entry = self.segment.entry(self.read + self.unread.len() as u64);
        // Relaxed: the receiver reads the entry only after it has seen `head`, which is stored next.
        entry.at.store(claim.at as u64, Ordering::Relaxed);
        entry.len.store(len as u64, Ordering::Relaxed);
        self.unread.push_back(PublishedPiece { start: claim.at, end: claim.at + len });
        let must_wake = self.segment.publish(self.read + self.unread.len() as u64);
        if must_wake && !wake_later(&self.segment) {
            self.segment.wake();
        }
    }

    #[cfg(test)]
    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}
