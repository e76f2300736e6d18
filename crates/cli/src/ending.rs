//! How a process of a job ended, and the exit status for shells. Also called: wait status.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io;

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

impl Display for ExitReason {
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

/// An error that gives this program an exit status of its own; others give it 1.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) status: u8,
}

impl Failure {
    /// A command line that cannot be executed.
    pub(crate) fn usage(error: impl Display) -> Self {
        Self { text: format!("{error:#}"), status: 2 }
    }

    /// A program that could not be started, in a few words, with the status by which shells report it.
    pub(crate) fn start(program: &OsStr, error: &io::Error) -> Self {
        let program = program.display();
        let (text, status) = match error.kind() {
            io::ErrorKind::NotFound => (format!("{program}: program not found"), 127),
            io::ErrorKind::PermissionDenied => (format!("{program}: not executable"), 126),
            _ => (format!("{program}: {error}"), 126),
        };
        Self { text, status }
    }

    /// A process of this name that could not be started.
    pub(crate) fn of(self, name: impl Display) -> Self {
        Self { text: format!("cannot start {name}: {}", self.text), ..self }
    }
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Error for Failure {}

/// The exit status of a program that a signal ended.
pub(crate) fn signal_status(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}
