//! How a process of a job ended, and the exit status for shells. Also called: wait status.

use std::fmt;

use serde::{Deserialize, Serialize};
use signal_hook::low_level::signal_name;

/// The status of a process whose end is unknown: the one of ssh for lost connections.
const LOST: u8 = 255;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExitReason {
    /// By itself, with this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// With the connection to its host.
    Lost,
}

impl ExitReason {
    pub(crate) fn is_failure(self) -> bool {
        self != ExitReason::Status(0)
    }

    /// The exit status for shells.
    pub(crate) fn status(self) -> u8 {
        match self {
            ExitReason::Status(status) => u8::try_from(status).unwrap_or(1),
            ExitReason::Signal(signal) => signal_status(signal),
            ExitReason::Lost => LOST,
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ExitReason::Status(status) => write!(formatter, "status {status}"),
            ExitReason::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(formatter, "signal {signal} ({name})"),
                None => write!(formatter, "signal {signal}"),
            },
            ExitReason::Lost => formatter.write_str("the connection to its host"),
        }
    }
}

/// The exit status of a program that a signal ended.
pub(crate) fn signal_status(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}
