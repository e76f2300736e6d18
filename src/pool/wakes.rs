//! Whether a step that is too small to wake helpers for itself wakes them for the steps after it.
//! Also called: exponential backoff.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between the beginnings of two steps that follow one another closely. Most of it is the step
/// itself; a helper spins for half of it before it parks.
const CLOSE: Duration = Duration::from_micros(300);

/// The most steps that go without a helper after a wake-up that was of no use.
const MOST_SKIPPED: u32 = 63;

/// Recent steps of medium size. Threads may mix theirs: all numbers are hints.
pub(super) struct Wakes {
    start: Instant,
    /// When the last step without a helper began, in nanoseconds from `start`.
    last: AtomicU64,
    /// How many steps go without a helper after the last wake-up, and how many of them are left.
    backoff: AtomicU32,
    left: AtomicU32,
}

impl Wakes {
    pub(super) fn new() -> Self {
        let (last, backoff, left) = (AtomicU64::new(0), AtomicU32::new(0), AtomicU32::new(0));
        Self { start: Instant::now(), last, backoff, left }
    }

    /// How many helpers to call for a step, if so many are awake.
    ///
    /// A step wakes helpers if the one before was a moment ago. Where they park again before the
    /// next step, because it comes late or because processors are busy, twice as many steps as
    /// before go by until the next try.
    pub(super) fn ask(&self, awake: usize, wanted: usize) -> usize {
        // Relaxed: hints.
        if awake > 0 {
            self.backoff.store(0, Ordering::Relaxed);
            self.left.store(0, Ordering::Relaxed);
            return awake;
        }
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let last = self.last.swap(now, Ordering::Relaxed);
        if Duration::from_nanos(now.saturating_sub(last)) > CLOSE {
            return 0;
        }
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            return 0;
        }
        let backoff = (2 * self.backoff.load(Ordering::Relaxed) + 1).min(MOST_SKIPPED);
        self.backoff.store(backoff, Ordering::Relaxed);
        self.left.store(backoff, Ordering::Relaxed);
        wanted
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// How many of so many steps, one right after the other, wake helpers that park at once.
    fn woken(wakes: &Wakes, steps: usize) -> usize {
        (0..steps).filter(|_| wakes.ask(0, 3) == 3).count()
    }

    #[test]
    fn helpers_that_do_not_stay_awake_are_woken_ever_more_rarely() {
        let wakes = Wakes::new();
        // The first steps may be late on a busy machine; all that follow closely are not.
        assert!((1..=25).contains(&woken(&wakes, 1000)));
        assert_eq!(wakes.ask(2, 3), 2, "awake helpers are used");
        assert_eq!(wakes.backoff.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_step_alone_wakes_no_helper() {
        let wakes = Wakes::new();
        std::thread::sleep(2 * CLOSE);
        assert_eq!(wakes.ask(0, 3), 0);
    }
}
