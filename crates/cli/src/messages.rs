//! Lines of the program itself, on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes one line; `command` is the subcommand that speaks.
pub(crate) fn say(command: &str, text: impl Display) {
    // In one piece: other processes may write to the same place.
    let line = format!("kvstore {command}: {text}\n");
    // A line that nobody can read any more is no reason to stop.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}
