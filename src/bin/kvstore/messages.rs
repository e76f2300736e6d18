//! Lines of the program itself, on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes one line; `command` is the subcommand that speaks.
pub(crate) fn say(command: &str, text: impl Display) {
    // A line that nobody can read any more is no reason to stop.
    let _ = writeln!(io::stderr().lock(), "kvstore {command}: {text}");
}
