//! Inbox for tests of shared memory and TCP.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::{Inbox, Piece, SendBuffer};

/// Events of an inbox in order: bytes from a peer, the end of a peer, or why there is no connection.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Heard {
    Bytes(String, Vec<u8>),
    Down(String),
    Refused(String, String),
    Rejected(String, String),
}

#[derive(Default)]
pub(super) struct Mail {
    pub(super) heard: Mutex<Vec<Heard>>,
    changed: Condvar,
    /// While this is locked, `arrived` blocks before it reads.
    pub(super) gate: Mutex<()>,
    /// Number of connections that were made again.
    reconnected: AtomicUsize,
}

impl Mail {
    fn hear(&self, what: Heard) {
        self.heard.lock().unwrap().push(what);
        self.changed.notify_all();
    }

    pub(super) fn reconnected(&self) -> usize {
        self.reconnected.load(Ordering::SeqCst)
    }

    pub(super) fn has(&self, what: &Heard) -> bool {
        self.heard.lock().unwrap().contains(what)
    }

    /// Waits for this number of events; returns all events so far.
    pub(super) fn wait(&self, count: usize) -> Vec<Heard> {
        let end = Instant::now() + Duration::from_secs(20);
        let mut heard = self.heard.lock().unwrap();
        while heard.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} came", heard.len());
            heard = self.changed.wait_timeout(heard, left).unwrap().0;
        }
        heard.clone()
    }
}

impl Inbox for Mail {
    fn arrived(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        drop(self.gate.lock().unwrap());
        let bytes = pieces.flat_map(Piece::to_vec).collect::<Vec<_>>();
        assert_eq!(bytes.len(), len);
        self.hear(Heard::Bytes(from.into(), bytes));
    }

    fn down(&self, address: &str) {
        self.hear(Heard::Down(address.into()));
    }

    fn reconnected(&self, _address: &str) {
        self.reconnected.fetch_add(1, Ordering::SeqCst);
    }

    fn refused(&self, address: &str, reason: &str) {
        self.hear(Heard::Refused(address.into(), reason.into()));
    }

    fn rejected(&self, _address: &str, who: &str, reason: &str) {
        self.hear(Heard::Rejected(who.into(), reason.into()));
    }
}

/// Appends bytes to a buffer, and more that are lent, each behind its number of own bytes.
pub(super) fn fill(parcel: &mut SendBuffer, own: &[u8], lent: &[(usize, Vec<u8>)]) {
    let mut taken = 0;
    for (at, lent) in lent {
        parcel.copy(&own[taken..*at]);
        if parcel.borrows() {
            parcel.lend(lent.clone().into());
        } else {
            parcel.copy(lent);
        }
        taken = *at;
    }
    parcel.copy(&own[taken..]);
}

/// Polls until `find` returns a value, for 20 s at most.
pub(super) fn wait_for<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Test payload, different for each number modulo 251.
pub(super) fn content(number: usize, len: usize) -> Vec<u8> {
    (0..=250).cycle().skip(number % 251).take(len).collect()
}
