//! Waits that end, and addresses to meet at.

use std::env;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::process;
use std::sync::OnceLock;
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

const FIRST: u32 = 10_000;
const BLOCKS: u32 = 40;
const PORTS_OF_BLOCK: u32 = 500;

/// An address that nobody uses now, at none of the ports that the system chooses for connections.
pub fn free_address() -> String {
    static BLOCK: OnceLock<PortBlock> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = FIRST + BLOCK.get_or_init(PortBlock::take).number * PORTS_OF_BLOCK;
    let next = || first + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS_OF_BLOCK;
    let mut addresses = (0..PORTS_OF_BLOCK).map(|_| format!("127.0.0.1:{}", next()));
    addresses.find(|address| TcpListener::bind(address).is_ok()).expect("a port of the loopback")
}

/// Ports that no other test process takes.
struct PortBlock {
    number: u32,
    /// Locked as long as this process lives.
    _lock: Option<File>,
}

impl PortBlock {
    fn take() -> Self {
        // Processes that are started one after the other begin far from each other.
        let first = process::id().wrapping_mul(0x9E37_79B9) >> 8;
        let numbers = || (0..BLOCKS).map(|at| first.wrapping_add(at) % BLOCKS);
        let locked = numbers().find_map(|number| {
            let file = env::temp_dir().join(format!("libkvstore-test-ports-{number}"));
            let file =
                OpenOptions::new().create(true).truncate(false).write(true).open(file).ok()?;
            file.try_lock().ok()?;
            Some(Self { number, _lock: Some(file) })
        });
        locked.unwrap_or(Self { number: first % BLOCKS, _lock: None })
    }
}
