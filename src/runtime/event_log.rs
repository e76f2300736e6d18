//! Log of losses, evictions and dropped frames, limited in rate. Each peer and reason is logged at its first
//! event, at each tenfold growth of the count, and at the end. So a flood fills no disk, and no drop is
//! silent.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use kvstore_protocol::{Peer, PeerEvent};

/// Maximum number of peers and reasons with a count of their own; the rest is counted together.
const MOST: usize = 1_024;

/// Count for one peer and reason.
struct EventCount {
    level: Level,
    count: u64,
    /// The count at which it is logged again.
    next: u64,
    first: String,
}

/// Peer, address, and reason.
type EventName = (String, String, String);

#[derive(Default)]
pub(super) struct DropLog(Mutex<BTreeMap<EventName, EventCount>>);

impl DropLog {
    /// Counts a dropped frame of a peer, or the loss of the peer.
    pub(super) fn note(&self, level: Level, who: String, address: &str, reason: String) {
        let mut entries = self.0.lock();
        let mut name = (who, address.to_owned(), reason);
        if entries.len() >= MOST && !entries.contains_key(&name) {
            name = ("other peers".into(), "other addresses".into(), "different reasons".into());
        }
        let (count, next) = (0, 1);
        let first = || EventCount { level, count, next, first: utc(SystemTime::now()) };
        let entry = entries.entry(name.clone()).or_insert_with(first);
        entry.count += 1;
        if entry.count == entry.next {
            entry.next = entry.next.saturating_mul(10);
            entry.log(&name);
        }
    }

    /// Logs an event of the process `me` if it is a loss, an eviction or a drop; `from` is the address of the
    /// frames that caused it.
    pub(super) fn tell(&self, me: Peer, from: Option<&str>, event: &PeerEvent) {
        match event {
            PeerEvent::Lost(peer, address, reason) => {
                self.note(Level::Warn, peer.to_string(), address, format!("lost: {reason}"));
            }
            PeerEvent::Evicted(peer, address) => {
                let reason = "evicted: it was declared lost, and still speaks".into();
                self.note(Level::Warn, peer.to_string(), address, reason);
            }
            PeerEvent::Fatal(text) => {
                self.note(Level::Warn, me.to_string(), "this process", text.clone());
            }
            PeerEvent::Dropped(peer, kind, why) => {
                let level = if why.is_harmless() { Level::Debug } else { Level::Warn };
                self.note(level, peer.to_string(), from.unwrap_or("?"), why.effect(*kind));
            }
            PeerEvent::Up(..)
            | PeerEvent::Down(_)
            | PeerEvent::Epoch(_)
            | PeerEvent::Passed(_)
            | PeerEvent::Clock { .. } => {}
        }
    }

    /// Logs the counts that were not logged yet.
    pub(super) fn close(&self) {
        for (name, entry) in std::mem::take(&mut *self.0.lock()) {
            if entry.count > 1 && entry.count * 10 != entry.next {
                entry.log(&name);
            }
        }
    }
}

impl EventCount {
    fn log(&self, (who, address, reason): &EventName) {
        log(self.level, || match self.count {
            1 => format!("{}: {who} at {address}: {reason}", self.first),
            count => format!("{who} at {address}: {reason}; {count} times since {}", self.first),
        });
    }
}

/// A moment as in RFC 3339, in seconds. Days become dates by the algorithm `civil_from_days` of Howard
/// Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_flood_is_counted_and_takes_bounded_memory() {
        let ledger = DropLog::default();
        for number in 0..5_000 {
            ledger.note(Level::Warn, "worker 0".into(), &format!("a-{}", number % 2), "x".into());
            ledger.note(Level::Warn, "worker 1".into(), &format!("b-{number}"), "x".into());
        }
        let entries = ledger.0.lock();
        assert_eq!(entries.len(), MOST + 1);
        let of = |who: &str, address: &str| {
            let name = (who.to_owned(), address.to_owned(), "x".to_owned());
            let entry = &entries[&name];
            (entry.count, entry.next)
        };
        assert_eq!(of("worker 0", "a-1"), (2_500, 10_000));
        assert_eq!(entries.values().map(|entry| entry.count).sum::<u64>(), 10_000);
    }
}
