//! An end for tests that hang.

use std::io::{self, Write};
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Far above what any test takes, also under slow tools.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs `body`; ends the whole test program if it does not come back.
pub fn bounded<T>(test: &'static str, body: impl FnOnce() -> T) -> T {
    let (alive, watched) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(io::stderr(), "{test}: hangs");
            process::exit(1);
        }
    });
    let result = body();
    drop(alive);
    watchdog.join().expect("the watchdog does not panic");
    result
}
