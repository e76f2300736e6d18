//! Waits that end, and addresses to meet at.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// An address that nobody uses now, at none of the ports that the system chooses for connections.
pub fn free_address() -> String {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that are started one after the other begin far from each other.
    let first = process::id().wrapping_mul(0x9E37_79B9) >> 8;
    let next = || NEXT.fetch_add(1, Ordering::Relaxed) + first;
    let mut addresses = (0..COUNT).map(|_| format!("127.0.0.1:{}", FIRST + next() % COUNT));
    addresses.find(|address| TcpListener::bind(address).is_ok()).expect("a port of the loopback")
}
