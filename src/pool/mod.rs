//! The thread pool of the library: one small pool per process, shared by all stores, started on
//! first use. Also called: task executor with fork-join splits.
//!
//! It runs queued tasks (operations with a ticket), and helps a running operation with its pieces.
//! The caller of [`Pool::split`] works too and never waits for a helper that has not begun.
//!
//! The locks are those of the standard library: they are futexes without shared tables, so that a
//! child of `fork()` can start a pool of its own whatever the parent's pool was doing.
#![allow(unsafe_code, reason = "pieces borrow from the stack of the thread that splits")]

mod crew;
#[cfg(all(test, loom))]
mod models;
mod place;
mod split;
mod wakes;

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crew::ThreadCrew;
use wakes::Wakes;

use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::sys;
use crate::sys::sync::Mutex;

/// Bytes touched by a step below which helpers bring no gain, even spinning ones.
pub(crate) const SPLIT_BYTES: usize = 512 << 10;

/// Bytes touched by a step from which waking helpers pays for this step alone.
const WAKE_BYTES: usize = 4 << 20;

/// A task for a thread of the library. Must not unwind.
pub(crate) trait Task: Send + Sync {
    fn run(self: Arc<Self>);
}

pub(crate) struct Pool {
    crew: ThreadCrew,
    wakes: Wakes,
    /// Changes under `starting`.
    threads: AtomicUsize,
    starting: Mutex<()>,
}

/// The pool of this process, which [`forget_after_fork`] must reach without a lock.
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

/// The pool of this process. It is never freed: threads may be in it when the process ends.
pub(crate) fn pool() -> &'static Pool {
    let mut found = CURRENT.load(Ordering::SeqCst);
    if found.is_null() {
        sys::after_fork(forget_after_fork);
        let fresh = Box::into_raw(Box::new(Pool::new()));
        let raced = CURRENT.compare_exchange(found, fresh, Ordering::SeqCst, Ordering::SeqCst);
        found = match raced {
            Ok(_) => fresh,
            Err(theirs) => {
                // SAFETY: allocated here and not published, so no other thread has its address.
                drop(unsafe { Box::from_raw(fresh) });
                theirs
            }
        };
    }
    // SAFETY: not null, and never freed once it has been published.
    unsafe { &*found }
}

/// How many helpers make a step of an operation faster; lives as long as the step.
pub(crate) struct Help {
    pub(crate) helpers: usize,
    crew: Option<&'static ThreadCrew>,
}

impl Help {
    /// Counts helpers for a step that touches so many bytes, on this thread and up to `wanted`
    /// others. With none wanted the pool is not touched.
    ///
    /// Spinning helpers start at once, parked helpers have to be woken: for a large step, or for
    /// smaller ones that follow one another closely. Neither kind is used when every processor
    /// already works on such a step.
    pub(crate) fn ask(wanted: usize, touched: usize) -> Self {
        if wanted == 0 || touched < SPLIT_BYTES {
            return Self { helpers: 0, crew: None };
        }
        let Pool { crew, wakes, .. } = pool();
        let there = if touched < WAKE_BYTES { wakes.ask(crew.looking(), wanted) } else { wanted };
        let helpers = wanted.min(there).min(crew.start_work());
        Self { helpers, crew: Some(crew) }
    }
}

impl Drop for Help {
    fn drop(&mut self) {
        if let Some(crew) = self.crew {
            crew.stop_work();
        }
    }
}

/// In the child of a fork: the parent's threads do not exist here, so the next caller starts a new
/// pool.
fn forget_after_fork() {
    CURRENT.store(ptr::null_mut(), Ordering::SeqCst);
}

impl Pool {
    fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (crew, threads) = (ThreadCrew::new(processors), AtomicUsize::new(0));
        Self { crew, wakes: Wakes::new(), threads, starting: Mutex::new(()) }
    }

    /// Queues a task; `limit` is the maximum number of threads that the task's store asks for.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no thread and none can be started; the task is then dropped.
    pub(crate) fn spawn(&'static self, limit: usize, task: Weak<dyn Task>) -> Result<()> {
        if self.grow(limit.max(1), 1) == 0 {
            return Err(fail!(OutOfMemory, "cannot start a thread for operations with a ticket"));
        }
        self.crew.push(task);
        Ok(())
    }

    /// Runs `run(0)` to `run(pieces - 1)`, each once, on this thread and up to `helpers` others.
    ///
    /// # Panics
    /// If a piece panics, after all pieces have ended.
    pub(crate) fn split(
        &'static self,
        helpers: usize,
        pieces: usize,
        run: &(dyn Fn(usize) + Sync),
    ) {
        let helpers = helpers.min(pieces.saturating_sub(1));
        let Some(shared) = u32::try_from(pieces).ok().filter(|_| helpers > 0) else {
            (0..pieces).for_each(run);
            return;
        };
        self.grow(helpers, helpers);
        let well = self.crew.split(helpers, shared, run);
        assert!(well, "a piece of a split operation panicked");
    }

    /// Starts threads until `wanted` are idle or there are `limit`; returns how many there are.
    fn grow(&'static self, limit: usize, wanted: usize) -> usize {
        // Relaxed: the number never falls, and no other data is read because of it.
        let threads = || self.threads.load(Ordering::Relaxed);
        if threads() >= limit {
            return threads();
        }
        let _starting = self.starting.lock();
        while threads() < limit && self.crew.idle() < wanted {
            let helper = threads();
            let name = format!("kvstore-{helper}");
            self.crew.start_looking();
            let started = without_signals(|| {
                std::thread::Builder::new().name(name).spawn(move || self.serve(helper))
            });
            if let Err(error) = started {
                self.crew.stop_looking();
                log(Level::Warn, || format!("cannot start a thread: {error}"));
                break;
            }
            self.threads.fetch_add(1, Ordering::Relaxed);
        }
        threads()
    }

    /// Main loop of a pool thread.
    fn serve(&self, helper: usize) {
        let mut spins = true;
        loop {
            spins = self.crew.serve(helper, spins);
        }
    }
}

/// Runs `start` with all signals blocked, so that threads started in it never run a handler of the
/// host.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // Miri knows no signal masks.
    if cfg!(miri) {
        return start();
    }
    // SAFETY: plain calls with sets of our own; failures leave the mask as it is.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::panics;

    const PATIENCE: Duration = Duration::from_secs(120);

    /// Splits, and checks that each piece ran once.
    fn check(helpers: usize, pieces: usize) {
        let hits: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
        pool().split(helpers, pieces, &|piece| {
            hits[piece].fetch_add(1, Ordering::SeqCst);
        });
        assert!(hits.iter().all(|hit| hit.load(Ordering::SeqCst) == 1));
    }

    /// Tells when it has been run.
    struct Note(mpsc::Sender<&'static str>, &'static str);

    impl Task for Note {
        fn run(self: Arc<Self>) {
            check(2, 10);
            self.0.send(self.1).expect("the test listens");
        }
    }

    fn spawn(note: &Arc<Note>) {
        let note: Weak<Note> = Arc::downgrade(note);
        pool().spawn(2, note).expect("a thread starts");
    }

    #[test]
    fn split_runs_each_piece_once() {
        for (helpers, pieces) in [(0, 0), (3, 0), (0, 5), (1, 1), (3, 100), (7, 1000)] {
            check(helpers, pieces);
        }
    }

    #[test]
    fn more_owners_than_posts_and_nested_splits_run_each_piece_once() {
        thread::scope(|threads| {
            for _ in 0..40 {
                threads.spawn(|| {
                    for pieces in 1..50 {
                        check(3, pieces);
                    }
                    pool().split(2, 5, &|piece| check(2, piece + 2));
                });
            }
        });
    }

    #[test]
    fn helpers_come_whether_they_spin_or_sleep() {
        // A pool of this test, whose posts and helpers no other test takes.
        let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
        for pause in [0, 0, 0, 20, 20] {
            thread::sleep(Duration::from_millis(pause));
            let (here, elsewhere) = (thread::current().id(), AtomicUsize::new(0));
            // The owner's pieces wait for a helper's, so this ends only if a helper joins.
            pool.split(1, 2, &|_| {
                if thread::current().id() != here {
                    elsewhere.store(1, Ordering::SeqCst);
                }
                while elsewhere.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_in_a_piece_reaches_the_caller_after_all_pieces() {
        let hits = AtomicUsize::new(0);
        let outcome = panics::catch(|| {
            pool().split(2, 50, &|piece| {
                hits.fetch_add(1, Ordering::SeqCst);
                assert!(piece != 7, "piece 7");
            });
        });
        assert!(outcome.is_err());
        assert_eq!(hits.load(Ordering::SeqCst), 50);
    }

    #[test]
    fn tasks_run_beside_splits_and_those_that_are_gone_do_not() {
        let (sender, notes) = mpsc::channel();
        let gone = Arc::new(Note(sender.clone(), "gone"));
        let note = Arc::new(Note(sender, "here"));
        let weak: Weak<Note> = Arc::downgrade(&gone);
        drop(gone);
        pool().spawn(2, weak).unwrap();
        for _ in 0..100 {
            spawn(&note);
            check(2, 20);
        }
        for _ in 0..100 {
            assert_eq!(notes.recv_timeout(PATIENCE), Ok("here"));
        }
    }

    #[test]
    fn help_is_for_steps_that_are_large_enough() {
        assert_eq!(Help::ask(0, usize::MAX).helpers, 0);
        assert_eq!(Help::ask(3, SPLIT_BYTES - 1).helpers, 0);
        for touched in [SPLIT_BYTES, WAKE_BYTES - 1, WAKE_BYTES, usize::MAX] {
            assert!(Help::ask(3, touched).helpers <= 3);
        }
    }

    #[test]
    fn help_goes_to_as_many_as_there_are_processors_for() {
        let crew = ThreadCrew::new(4);
        assert_eq!([crew.start_work(), crew.start_work()], [3, 2]);
        assert_eq!([crew.start_work(), crew.start_work(), crew.start_work()], [1, 0, 0]);
        (0..4).for_each(|_| crew.stop_work());
        assert_eq!(crew.start_work(), 2);
    }
}
