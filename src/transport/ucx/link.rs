//! What the sender of a peer, and the thread of the worker, know of the way to that peer.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::sys::sync::Mutex;
use crate::transport::peer_transport::PathState;

/// Timeout of the first contact.
pub(super) const CONTACT: Duration = Duration::from_secs(2);
/// Maximum bytes that were given to UCX and not sent: more than the streams of a peer have in flight.
const MOST_IN_FLIGHT: usize = 16 << 20;

/// States of a link.
const IDLE: u8 = 0;
const CONTACTED: u8 = 1;
const OPEN: u8 = 2;
const BROKEN: u8 = 3;

#[derive(Default)]
pub(super) struct Link {
    state: AtomicU8,
    in_flight: AtomicUsize,
    /// When the peer was contacted, and why the link is broken.
    details: Mutex<(Option<Instant>, String)>,
}

impl Link {
    pub(super) fn state(&self) -> PathState {
        match self.state.load(Ordering::Acquire) {
            IDLE => PathState::Pending,
            OPEN => PathState::Open,
            BROKEN => PathState::Broken(self.details.lock().1.clone().into()),
            _ => {
                let is_late = self.details.lock().0.is_some_and(|at| at.elapsed() > CONTACT);
                if !is_late {
                    return PathState::Pending;
                }
                self.fail("no answer over UCX within 2 s");
                self.state()
            }
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state.load(Ordering::Acquire) == BROKEN
    }

    /// The peer was contacted.
    pub(super) fn contact(&self) {
        self.details.lock().0 = Some(Instant::now());
        self.state.store(CONTACTED, Ordering::Release);
    }

    /// The peer has answered.
    pub(super) fn answer(&self) {
        let open = (CONTACTED, OPEN);
        let _ = self.state.compare_exchange(open.0, open.1, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, reason: &str) {
        let mut details = self.details.lock();
        if self.state.swap(BROKEN, Ordering::AcqRel) != BROKEN {
            details.1 = reason.into();
        }
    }

    pub(super) fn has_room(&self, len: usize) -> bool {
        // Relaxed: a limit, and not exactly.
        self.in_flight.load(Ordering::Relaxed) + len <= MOST_IN_FLIGHT
            && self.state.load(Ordering::Acquire) == OPEN
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }

    /// So many bytes are given to UCX.
    pub(super) fn begin(&self, bytes: usize) {
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
    }

    /// UCX reads so many bytes no more.
    pub(super) fn finish(&self, bytes: usize) {
        self.in_flight.fetch_sub(bytes, Ordering::Relaxed);
    }
}
