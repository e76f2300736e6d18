//! Short waits that keep the processor, because a wake-up takes longer. Also called: adaptive
//! polling.

#[cfg(not(loom))]
use std::time::{Duration, Instant};

/// How a thread waits before it sleeps.
#[cfg(not(loom))]
struct SpinPolicy {
    /// Polls between two yields.
    looks: u32,
    /// Duration of a yield after which other threads need the processor. One that no other thread
    /// takes lasts half a microsecond.
    contended: Duration,
    /// Maximum time of the wait.
    most: Duration,
}

/// For ten times the cost of a wake-up, with a yield in some 10 microseconds.
#[cfg(not(loom))]
const ALONE: SpinPolicy = SpinPolicy {
    looks: 256,
    contended: Duration::from_micros(10),
    most: Duration::from_micros(150),
};

/// Beside busy threads of its process, or with system calls.
#[cfg(all(feature = "dist", not(loom)))]
const YIELDING: SpinPolicy = SpinPolicy { looks: 16, ..ALONE };

/// For processes that wait for each other in turns, and have fewer processors: a yield lasts until
/// another one has done its part. One that lasts longer was for work of another kind.
#[cfg(all(feature = "dist", not(loom)))]
const TAKING_TURNS: SpinPolicy =
    SpinPolicy { looks: 16, contended: Duration::from_millis(1), most: Duration::from_millis(2) };

/// One wait.
#[cfg(not(loom))]
pub(crate) struct Spin {
    policy: &'static SpinPolicy,
    looks: u32,
    start: Option<Instant>,
}

#[cfg(not(loom))]
impl Default for Spin {
    fn default() -> Self {
        Self::by(&ALONE)
    }
}

#[cfg(not(loom))]
impl Spin {
    fn by(policy: &'static SpinPolicy) -> Self {
        Self { policy, looks: 0, start: None }
    }

    /// A wait that yields more often.
    #[cfg(feature = "dist")]
    pub(crate) fn yielding() -> Self {
        Self::by(&YIELDING)
    }

    /// A wait for other processes, which may need this processor for what is waited for.
    #[cfg(feature = "dist")]
    pub(crate) fn taking_turns() -> Self {
        Self::by(&TAKING_TURNS)
    }

    /// Pauses for a moment; false once it is time to sleep: after the time of its kind of wait, or
    /// as soon as other threads need the processor.
    pub(crate) fn wait(&mut self) -> bool {
        self.looks += 1;
        if !self.looks.is_multiple_of(self.policy.looks) {
            std::hint::spin_loop();
            return true;
        }
        let before = Instant::now();
        let start = *self.start.get_or_insert(before);
        std::thread::yield_now();
        let after = Instant::now();
        after - before < self.policy.contended && after - start < self.policy.most
    }
}

/// In a model a waiter polls once more.
#[cfg(loom)]
#[derive(Default)]
pub(crate) struct Spin {
    has_waited: bool,
}

#[cfg(loom)]
impl Spin {
    pub(crate) fn wait(&mut self) -> bool {
        !std::mem::replace(&mut self.has_waited, true)
    }
}
