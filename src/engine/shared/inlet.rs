//! The receiver's side of rings.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::reference::Reference;
use super::segment::Segment;
use crate::log::{Level, log};
use crate::sync::Mutex;

/// More senders than this on one machine use the network.
const MOST_RINGS: usize = 1_024;

/// The segments of all senders, by their address.
#[derive(Default)]
pub(in crate::engine) struct Inlets {
    rings: Mutex<HashMap<String, (Reference, Arc<Segment>)>>,
}

/// Bytes of a sender, until they are given back.
pub(in crate::engine) struct Piece {
    segment: Arc<Segment>,
    at: usize,
    len: usize,
    end: u64,
}

impl Inlets {
    /// The bytes that a sender speaks of; None if there are none, or if they cannot be had.
    pub(in crate::engine) fn take(&self, from: &str, reference: &Reference) -> Option<Piece> {
        let segment = self.segment(from, reference)?;
        let (size, start, len) = (reference.size, reference.start, reference.len);
        // Acquire: the sender has written them before it said so.
        let head = segment.head().load(Ordering::Acquire);
        let end = start.checked_add(len).filter(|end| *end <= head)?;
        let (at, len) = (usize::try_from(start % size).ok()?, usize::try_from(len).ok()?);
        let is_inside = at.checked_add(len).is_some_and(|end| end <= segment.len());
        (len > 0 && is_inside).then_some(Piece { segment, at, len, end })
    }

    /// Forgets a sender that has gone.
    pub(in crate::engine) fn forget(&self, from: &str) {
        self.rings.lock().remove(from);
    }

    fn segment(&self, from: &str, reference: &Reference) -> Option<Arc<Segment>> {
        let offer = Reference { start: 0, len: 0, ..*reference };
        let mut rings = self.rings.lock();
        match rings.get(from) {
            Some((known, segment)) if *known == offer => return Some(Arc::clone(segment)),
            None if rings.len() >= MOST_RINGS => return None,
            _ => {}
        }
        let Reference { pid, fd, token, size, .. } = offer;
        match Segment::open(pid, fd, usize::try_from(size).ok()?, token) {
            Ok(segment) => {
                let segment = Arc::new(segment);
                segment.taken().store(1, Ordering::Release);
                rings.insert(from.into(), (offer, Arc::clone(&segment)));
                Some(segment)
            }
            Err(error) => {
                log(Level::Debug, || format!("no memory is shared with {from}: {error}"));
                None
            }
        }
    }
}

impl Piece {
    pub(in crate::engine) fn bytes(&self) -> &[u8] {
        self.segment.bytes(self.at, self.len)
    }

    /// Says that they have been read: the sender may write there again.
    pub(in crate::engine) fn give_back(&self) {
        self.segment.tail().fetch_max(self.end, Ordering::Release);
    }
}
