//! Waits that end, and addresses to meet at.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(2);

/// Repeats until `done`; false when the time is up.
pub fn soon(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(STEP);
    }
    true
}

/// An address that nobody uses now.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
