//! The sender's side of a ring.
#![allow(unsafe_code, reason = "says which bytes of the ring nobody reads any more")]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::reference::Reference;
use super::segment::{Place, Segment};

/// The bytes of a ring: more than are in flight, so that hardly anything finds no room.
const SIZE: usize = 8 << 20;
/// A receiver that has not mapped the segment after this long will not.
const OFFER: Duration = Duration::from_secs(10);
/// One that has read nothing for this long may be another process by now.
const PATIENCE: Duration = Duration::from_secs(1);

/// Memory that the receiver of a line reads.
pub(in crate::engine) struct Outlet {
    segment: Arc<Segment>,
    reference: Reference,
    offered: Instant,
    /// Where the last published bytes end, and where those that were published without a pause began.
    end: u64,
    floor: u64,
    /// How far the receiver had read, and since when.
    read: u64,
    since: Instant,
}

/// Room in the ring for bytes that are to be sent.
pub(in crate::engine) struct Claim {
    place: Place,
    start: u64,
}

impl Claim {
    pub(in crate::engine) fn bytes(&mut self) -> &mut [u8] {
        self.place.bytes()
    }
}

impl Outlet {
    pub(in crate::engine) fn new() -> io::Result<Self> {
        // Keyed by chance, for every map.
        let token = [(); 2].map(|()| RandomState::new().build_hasher().finish());
        let segment = Segment::create(SIZE, token)?;
        let fd = u32::try_from(segment.fd()).map_err(io::Error::other)?;
        let (pid, size, now) = (std::process::id(), SIZE as u64, Instant::now());
        let reference = Reference { pid, fd, token, size, start: 0, len: 0 };
        let segment = Arc::new(segment);
        Ok(Self { segment, reference, offered: now, end: 0, floor: 0, read: 0, since: now })
    }

    /// Asks the receiver to map the segment.
    pub(in crate::engine) fn offer(&self) -> Reference {
        self.reference
    }

    /// Whether the receiver will never map it.
    pub(in crate::engine) fn is_declined(&self) -> bool {
        !self.is_taken() && self.offered.elapsed() > OFFER
    }

    fn is_taken(&self) -> bool {
        self.segment.taken().load(Ordering::Acquire) == 1
    }

    /// Room for so many bytes, if there is some now. Only the last claim may be published.
    pub(in crate::engine) fn claim(&mut self, room: usize) -> Option<Claim> {
        if room > SIZE || !self.is_taken() {
            return None;
        }
        // Acquire: the receiver has read what was there before it said so.
        let tail = self.segment.tail().load(Ordering::Acquire);
        if tail > self.end {
            return None;
        }
        let (size, is_empty) = (SIZE as u64, tail == self.end);
        if is_empty || tail != self.read {
            (self.read, self.since) = (tail, Instant::now());
        } else if self.since.elapsed() > PATIENCE {
            return None;
        }
        // Starts over whenever it can: the same few bytes stay in the caches.
        let mut start = if is_empty { self.end.next_multiple_of(size) } else { self.end };
        if start % size + room as u64 > size {
            start = start.next_multiple_of(size);
        }
        if is_empty {
            self.floor = start;
        }
        if start + room as u64 - tail.max(self.floor) > size {
            return None;
        }
        let at = usize::try_from(start % size).ok()?;
        // SAFETY: everything from `tail` to the end of the last published bytes, a ring's length at
        // most, lies elsewhere; `Outlet` has one claim at a time that counts.
        let place = unsafe { Place::new(Arc::clone(&self.segment), at, room) };
        Some(Claim { place, start })
    }

    /// The first `len` bytes of a claim are written, and may be read.
    pub(in crate::engine) fn publish(&mut self, claim: &Claim, len: usize) -> Reference {
        self.end = claim.start + len as u64;
        self.segment.head().store(self.end, Ordering::Release);
        Reference { start: claim.start, len: len as u64, ..self.reference }
    }
}
