//! What the single worker of a job reads.

use std::io::{self, IsTerminal};
use std::process::{ChildStdin, Stdio};
use std::thread;

use crate::sys;

/// Where the worker's input comes from.
///
/// A file or a pipe it may have as it is. A terminal it may not: it would be stopped as soon as it
/// reads, because the terminal talks to the group of the launcher. So the launcher reads for it.
pub(crate) fn source() -> Stdio {
    if !io::stdin().is_terminal() {
        Stdio::inherit()
    } else if sys::is_in_foreground() {
        Stdio::piped()
    } else {
        Stdio::null()
    }
}

/// Passes on what is typed, until the end of either side.
pub(crate) fn relay(mut worker: ChildStdin) -> io::Result<()> {
    let copy = move || {
        sys::fail_background_reads();
        let _ = io::copy(&mut io::stdin().lock(), &mut worker);
    };
    thread::Builder::new().name("input".into()).spawn(copy)?;
    Ok(())
}
