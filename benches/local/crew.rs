//! Threads that stay between the turns of a benchmark, as a library's do, so that small arrays are
//! not a measure of starting threads.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Orders are smaller than this.
const STOP: u32 = 7;

/// How long a helper spins for its next order before it parks.
const SPIN: Duration = Duration::from_micros(200);

/// Runs orders on the calling thread and on helpers at the same time.
pub struct Crew {
    helpers: Vec<Helper>,
    given: u32,
}

impl Crew {
    /// A helper for each piece of work.
    pub fn new(works: impl Iterator<Item = impl FnMut(u32) + Send + 'static>) -> Self {
        Self { helpers: works.map(Helper::start).collect(), given: 0 }
    }

    /// Has the helpers and this thread carry out an order.
    pub fn run(&mut self, order: u32, mine: impl FnOnce(u32)) {
        self.given = self.given.wrapping_add(1);
        let ticket = self.given.wrapping_mul(STOP + 1).wrapping_add(order);
        self.helpers.iter().for_each(|helper| helper.order(ticket));
        mine(order);
        self.helpers.iter().for_each(|helper| helper.join(ticket));
    }
}

/// The last order given and the last one done. A ticket is a number that counts up, times 8, plus
/// what to do.
#[derive(Default)]
struct Desk {
    given: AtomicU32,
    done: AtomicU32,
}

struct Helper {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn start(mut work: impl FnMut(u32) + Send + 'static) -> Self {
        let desk = Arc::new(Desk::default());
        let theirs = Arc::clone(&desk);
        let thread = thread::spawn(move || theirs.serve(&mut work));
        Self { desk, thread: Some(thread) }
    }

    fn order(&self, ticket: u32) {
        self.desk.given.store(ticket, Ordering::SeqCst);
        self.thread.iter().for_each(|handle| handle.thread().unpark());
    }

    fn join(&self, ticket: u32) {
        while self.desk.done.load(Ordering::SeqCst) != ticket {
            spin_loop();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.order(STOP);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Desk {
    fn serve(&self, work: &mut impl FnMut(u32)) {
        let mut last = 0;
        loop {
            last = self.next(last);
            match last % (STOP + 1) {
                STOP => return,
                order => work(order),
            }
            self.done.store(last, Ordering::SeqCst);
        }
    }

    /// Waits for the next order: spinning for a while, then parked.
    fn next(&self, last: u32) -> u32 {
        let start = Instant::now();
        loop {
            let order = self.given.load(Ordering::SeqCst);
            if order != last {
                return order;
            }
            if start.elapsed() < SPIN { spin_loop() } else { thread::park() }
        }
    }
}
