//! Signals sent to this program.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::sys;

/// The signals that end this program. A program started with `nohup` outlives its terminal.
pub(crate) fn ending() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    if !sys::is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Calls `deliver` for each of these signals from now on, on a thread of its own.
pub(crate) fn watch(
    signals: &[i32],
    mut deliver: impl FnMut(i32) + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new(signals)?;
    let forward = move || signals.forever().for_each(&mut deliver);
    thread::Builder::new().name("signals".into()).spawn(forward).map(drop)
}
