//! Adaptive polling: a thread polls for a while before it sleeps. Also called: halt polling, spin-then-block.
//!
//! Waking a sleeping thread takes longer than the transfer of many a message. On a virtual machine the system
//! may even queue the thread behind its waker while another processor is idle. So a thread whose last wait
//! was short polls before it sleeps, as KVM does for its guests (Linux, "The KVM halt polling system").

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::sys::processors;
use crate::sys::spin::Spin;

/// After a wait longer than this, the thread's next wait sleeps at once.
const SOON: Duration = Duration::from_millis(2);

/// The threads of this process that poll, rather than sleep, now.
static LOOKERS: PollerCount = PollerCount(AtomicUsize::new(0));

/// The threads of the program that poll, for the results of their calls.
static CALLERS: PollerCount = PollerCount(AtomicUsize::new(0));

/// Adaptive polling of one thread.
pub(in crate::transport) struct AdaptiveWait {
    looks: bool,
}

impl AdaptiveWait {
    pub(in crate::transport) fn new() -> Self {
        Self { looks: true }
    }

    /// Waits for a value: polls `look` for a while, unless the last wait was long, then blocks in `sleep`.
    pub(in crate::transport) fn wait<T>(
        &mut self,
        look: impl FnMut() -> Option<T>,
        sleep: impl FnOnce() -> T,
    ) -> T {
        let start = Instant::now();
        let found = if self.looks { look_until_time_is_over(look) } else { None };
        let found = found.unwrap_or_else(sleep);
        self.looks = start.elapsed() < SOON;
        found
    }
}

fn look_until_time_is_over<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let _looker = LOOKERS.admit(most_lookers())?;
    let mut spin = Spin::yielding();
    loop {
        let found = look();
        if found.is_some() || !spin.wait() {
            return found;
        }
    }
}

/// Maximum number of polling threads: more could take processors from working threads.
fn most_lookers() -> usize {
    processors() / 2
}

/// Number of polling threads.
struct PollerCount(AtomicUsize);

/// A slot of one polling thread, counted until it is dropped.
pub(super) struct PollerGuard<'a>(&'a PollerCount);

impl PollerGuard<'static> {
    /// A slot for a thread of the program, unless enough poll already.
    pub(super) fn of_caller() -> Option<Self> {
        CALLERS.admit(most_lookers().max(1))
    }
}

impl PollerCount {
    /// Takes a slot, if fewer than `most` are taken.
    fn admit(&self, most: usize) -> Option<PollerGuard<'_>> {
        // Relaxed: only a count; it publishes no other memory.
        let others = self.0.fetch_add(1, Ordering::Relaxed);
        let looker = PollerGuard(self);
        (others < most).then_some(looker)
    }
}

impl Drop for PollerGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mail::wait_for;

    /// Number of polls in a wait for a value that arrives after a sleep of this length.
    fn looks(lookout: &mut AdaptiveWait, sleep: Duration) -> usize {
        let mut looks = 0;
        let look = || {
            looks += 1;
            None
        };
        lookout.wait(look, || std::thread::sleep(sleep));
        looks
    }

    #[test]
    fn what_is_there_is_not_slept_for() {
        if most_lookers() == 0 {
            return;
        }
        // Other tests may poll at the same time.
        wait_for(|| AdaptiveWait::new().wait(|| Some(true), || false).then_some(()));
    }

    #[test]
    fn whoever_has_waited_long_sleeps_at_once() {
        let mut lookout = AdaptiveWait::new();
        looks(&mut lookout, SOON);
        assert_eq!(looks(&mut lookout, SOON), 0);
        // The system may preempt this test, and other tests may hold the slots.
        let mut is_looked_for_again = || {
            looks(&mut lookout, Duration::ZERO);
            looks(&mut lookout, Duration::ZERO) > 0
        };
        if most_lookers() > 0 {
            wait_for(|| is_looked_for_again().then_some(()));
        }
    }

    #[test]
    fn only_so_many_look_at_a_time() {
        let lookers = PollerCount(AtomicUsize::new(0));
        let (first, second) = (lookers.admit(2), lookers.admit(2));
        assert!(first.is_some() && second.is_some());
        // A rejected thread takes no slot.
        assert!((0..5).all(|_| lookers.admit(2).is_none()));
        drop(first);
        assert!(lookers.admit(2).is_some());
    }
}
