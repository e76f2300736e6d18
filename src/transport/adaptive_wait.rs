//! Waiting for what comes soon. A thread that sleeps has to be woken, which takes longer than many a
//! message; on a virtual machine the system may even put it behind the thread that wakes it while
//! another processor is idle. So a thread that did not wait long lately looks for a while before it
//! sleeps, as KVM does for its guests (Linux, "The KVM halt polling system").

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::sys::processors;
use crate::sys::spin::Spin;

/// Whoever waits for longer than this sleeps at once the next time.
const SOON: Duration = Duration::from_millis(2);

/// The threads of this process that look, rather than sleep, now.
static LOOKERS: Lookers = Lookers(AtomicUsize::new(0));

/// How one thread waits.
pub(super) struct Lookout {
    looks: bool,
}

impl Lookout {
    pub(super) fn new() -> Self {
        Self { looks: true }
    }

    /// Waits for something: `look` gives it if it is there, `sleep` when it is.
    pub(super) fn wait<T>(
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

/// With more than this others might be kept from their work.
fn most_lookers() -> usize {
    processors() / 2
}

/// How many there are.
struct Lookers(AtomicUsize);

/// One of them, from when it is counted until it goes.
struct Looker<'a>(&'a Lookers);

impl Lookers {
    /// One more, if there are less than so many.
    fn admit(&self, most: usize) -> Option<Looker<'_>> {
        // Relaxed: a number, and no more.
        let others = self.0.fetch_add(1, Ordering::Relaxed);
        let looker = Looker(self);
        (others < most).then_some(looker)
    }
}

impl Drop for Looker<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it looks for something that comes by sleeping for this long.
    fn looks(lookout: &mut Lookout, sleep: Duration) -> usize {
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
        // Other tests may look at the same time.
        let found = || Lookout::new().wait(|| Some(true), || false);
        assert!((0..1_000_000).any(|_| found()));
    }

    #[test]
    fn whoever_has_waited_long_sleeps_at_once() {
        let mut lookout = Lookout::new();
        looks(&mut lookout, SOON);
        assert_eq!(looks(&mut lookout, SOON), 0);
        // A test may be kept from its processor, and it may not be the only one.
        let mut is_looked_for_again = || {
            looks(&mut lookout, Duration::ZERO);
            looks(&mut lookout, Duration::ZERO) > 0
        };
        assert!(most_lookers() == 0 || (0..10_000).any(|_| is_looked_for_again()));
    }

    #[test]
    fn only_so_many_look_at_a_time() {
        let lookers = Lookers(AtomicUsize::new(0));
        let (first, second) = (lookers.admit(2), lookers.admit(2));
        assert!(first.is_some() && second.is_some());
        // Whoever was sent away does not count.
        assert!((0..5).all(|_| lookers.admit(2).is_none()));
        drop(first);
        assert!(lookers.admit(2).is_some());
    }
}
