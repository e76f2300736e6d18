//! Deadlines: the maximum time of a wait.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use crate::error::{Result, fail};
use crate::interrupt;

/// The end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// Waits for ever.
    Never,
    /// Waits until this moment; one that has passed makes the wait a poll.
    At(Instant),
}

impl Deadline {
    /// A deadline this far from now; one too far to express never expires.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Instant::now().checked_add(time).map_or(Self::Never, Self::At)
    }

    pub(crate) fn has_passed(self) -> bool {
        matches!(self, Self::At(end) if Instant::now() >= end)
    }

    /// Whether a wait is to end: the deadline has passed, or this thread's call was interrupted.
    pub(crate) fn is_over(self) -> bool {
        self.has_passed() || interrupt::requested()
    }

    /// The moment, if it is finite.
    pub(crate) fn moment(self) -> Option<Instant> {
        match self {
            Self::Never => None,
            Self::At(end) => Some(end),
        }
    }

    /// A deadline in the C interface's form: milliseconds from now, 0 polls, -1 for ever.
    pub(crate) fn from_ms(ms: i64) -> Result<Self> {
        match u64::try_from(ms) {
            Ok(ms) => Ok(Self::after(Duration::from_millis(ms))),
            Err(_) if ms == -1 => Ok(Self::Never),
            Err(_) => {
                Err(fail!(InvalidArgument, "timeout_ms is {ms}; use 0 or more, or -1 for ever"))
            }
        }
    }
}

impl From<Duration> for Deadline {
    fn from(time: Duration) -> Self {
        Self::after(time)
    }
}

/// A deadline that is fixed on first use: calls that never wait never read the clock.
pub(crate) struct LazyDeadline {
    timeout: Option<Duration>,
    end: OnceCell<Deadline>,
}

impl LazyDeadline {
    /// Without a timeout it never expires.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, end: OnceCell::new() }
    }

    pub(crate) fn end(&self) -> Deadline {
        *self.end.get_or_init(|| self.timeout.map_or(Deadline::Never, Deadline::after))
    }
}
