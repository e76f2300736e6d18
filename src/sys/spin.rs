//! Short waits that keep the processor, because a wake-up takes longer. Also called: adaptive
//! polling.

#[cfg(not(loom))]
use std::time::{Duration, Instant};

/// Maximum time that a thread spins before it sleeps: ten times the cost of waking it.
#[cfg(not(loom))]
const SPIN: Duration = Duration::from_micros(150);

/// Duration of a yield while another thread was waiting for the processor. Otherwise a yield takes
/// half a microsecond.
#[cfg(not(loom))]
const CONTENDED: Duration = Duration::from_micros(10);

/// Polls between two yields: some 10 microseconds.
#[cfg(not(loom))]
const LOOKS: u32 = 256;

/// Polls between two yields for a waiter beside busy threads of its process, or with system calls.
#[cfg(all(feature = "dist", not(loom)))]
const FEW_LOOKS: u32 = 16;

/// One wait.
#[cfg(not(loom))]
pub(crate) struct Spin {
    looks: u32,
    /// Between two yields.
    most_looks: u32,
    start: Option<Instant>,
}

#[cfg(not(loom))]
impl Default for Spin {
    fn default() -> Self {
        Self { looks: 0, most_looks: LOOKS, start: None }
    }
}

#[cfg(not(loom))]
impl Spin {
    /// A wait that yields more often.
    #[cfg(feature = "dist")]
    pub(crate) fn yielding() -> Self {
        Self { most_looks: FEW_LOOKS, ..Self::default() }
    }

    /// Pauses for a moment; false once it is time to sleep: after [`SPIN`], or as soon as other
    /// threads need the processor.
    pub(crate) fn wait(&mut self) -> bool {
        self.looks += 1;
        if !self.looks.is_multiple_of(self.most_looks) {
            std::hint::spin_loop();
            return true;
        }
        let before = Instant::now();
        let start = *self.start.get_or_insert(before);
        std::thread::yield_now();
        let after = Instant::now();
        after - before < CONTENDED && after - start < SPIN
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
