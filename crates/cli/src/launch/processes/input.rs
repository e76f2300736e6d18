//! Standard input of a job's only worker.

use std::io::{self, IsTerminal};
use std::process::{ChildStdin, Stdio};
use std::thread;

use crate::sys;

/// Source of the worker's input.
///
/// The worker inherits a file or a pipe. A terminal is not inherited: the worker would be stopped
/// at its first read, because the launcher's group is the terminal's foreground group. So the
/// launcher reads for it.
pub(crate) fn source() -> Stdio {
    if !io::stdin().is_terminal() {
        Stdio::inherit()
    } else if sys::is_in_foreground() {
        Stdio::piped()
    } else {
        Stdio::null()
    }
}

/// Forwards typed input, until the end of either side.
pub(crate) fn relay(mut worker: ChildStdin) -> io::Result<()> {
    let copy = move || {
        sys::fail_background_reads();
        let _ = io::copy(&mut io::stdin().lock(), &mut worker);
    };
    thread::Builder::new().name("input".into()).spawn(copy).map(drop)
}
