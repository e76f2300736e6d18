//! Lines of the program itself, on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes one line; `command` is the name of the subcommand.
pub(crate) fn say(command: &str, text: impl Display) {
    // In one write: other processes may write to this stream.
    let line = format!("kvstore {command}: {text}\n");
    // A closed standard error is no reason to stop.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}
