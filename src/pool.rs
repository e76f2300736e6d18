//! The threads of the library: one small pool per process, shared by all stores, started when there
//! is work for it.
//!
//! It does two things: it runs queued tasks (operations with a ticket), and it helps a running
//! operation with its pieces. The caller of [`Pool::split`] works too and never waits for a helper
//! that has not begun.
//!
//! The locks are those of the standard library: they are futexes without shared tables, so that a
//! child of `fork()` can start a pool of its own whatever the parent's pool was doing.
#![allow(unsafe_code, reason = "pieces borrow from the stack of the thread that splits")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::panics;

/// Something to do on a thread of the library. Must not unwind.
pub(crate) trait Task: Send + Sync {
    fn run(self: Arc<Self>);
}

pub(crate) struct Pool {
    state: Mutex<State>,
    work: Condvar,
    /// Signalled when the last helper of a split has finished.
    idle: Condvar,
}

struct State {
    tasks: VecDeque<Weak<dyn Task>>,
    splits: Vec<NonNull<Split>>,
    threads: usize,
    sleeping: usize,
}

// SAFETY: a Split is reached through the list only under the lock, and by helpers that its owner
// waits for.
unsafe impl Send for State {}

/// Work in pieces; lives on the stack of the thread that splits.
struct Split {
    run: *const (dyn Fn(usize) + Sync),
    pieces: usize,
    next: AtomicUsize,
    failed: AtomicBool,
    /// How many more helpers may join. Guarded by the pool's lock.
    seats: Cell<usize>,
    /// Helpers at work. Guarded by the pool's lock.
    helpers: Cell<usize>,
}

impl Split {
    /// Claims and runs pieces until none is left.
    ///
    /// # Safety
    /// `self.run` is alive.
    unsafe fn work(&self) {
        // SAFETY: the caller's promise.
        let run = unsafe { &*self.run };
        loop {
            // Relaxed: the number only hands out pieces; the pool's lock orders the results.
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            if let Err(panic) = panics::catch(|| run(piece)) {
                log(Level::Error, || panic);
                self.failed.store(true, Ordering::SeqCst);
            }
        }
    }
}

static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

/// The pool of this process. It lives for ever: threads may be in it when the process ends.
pub(crate) fn pool() -> &'static Pool {
    let mut found = CURRENT.load(Ordering::SeqCst);
    if found.is_null() {
        let fresh = Box::into_raw(Box::new(Pool::new()));
        let raced = CURRENT.compare_exchange(found, fresh, Ordering::SeqCst, Ordering::SeqCst);
        found = match raced {
            Ok(_) => fresh,
            Err(theirs) => {
                // SAFETY: ours, and nobody has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                theirs
            }
        };
    }
    // SAFETY: not null, and never freed once it has been published.
    unsafe { &*found }
}

/// In the child of a fork: the parent's threads are not here, so the next user starts afresh.
pub(crate) fn forget_after_fork() {
    CURRENT.store(ptr::null_mut(), Ordering::SeqCst);
}

impl Pool {
    fn new() -> Self {
        let state = State { tasks: VecDeque::new(), splits: Vec::new(), threads: 0, sleeping: 0 };
        Self { state: Mutex::new(state), work: Condvar::new(), idle: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a task; `limit` is how many threads the task's store wants the pool to have.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no thread and none can be started; the task is dropped then.
    pub(crate) fn spawn(&'static self, limit: usize, task: Weak<dyn Task>) -> Result<()> {
        let mut state = self.lock();
        self.grow(&mut state, limit.max(1), 1);
        if state.threads == 0 {
            return Err(fail!(OutOfMemory, "cannot start a thread for operations with a ticket"));
        }
        state.tasks.push_back(task);
        drop(state);
        self.work.notify_one();
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
        if helpers == 0 {
            (0..pieces).for_each(run);
            return;
        }
        // SAFETY: only the lifetime is erased; the split is off the list, and no helper is left,
        // before this call returns.
        let run: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), _>(run) };
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let split =
            Split { run, pieces, next, failed, seats: Cell::new(helpers), helpers: Cell::new(0) };
        let this = NonNull::from(&split);
        let mut state = self.lock();
        self.grow(&mut state, helpers, helpers);
        state.splits.push(this);
        drop(state);
        self.work.notify_all();
        // SAFETY: `split` lives to the end of this function, and `run` as long.
        unsafe { this.as_ref().work() };
        let mut state = self.lock();
        state.splits.retain(|other| *other != this);
        // Under the lock, which guards `helpers`.
        while split.helpers.get() > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        assert!(!split.failed.into_inner(), "a piece of a split operation panicked");
    }

    /// Starts threads until `wanted` could sleep or `limit` is reached.
    fn grow(&'static self, state: &mut State, limit: usize, wanted: usize) {
        let queued = state.tasks.len() + wanted;
        while state.threads < limit && state.sleeping < queued.min(limit) {
            let name = format!("kvstore-{}", state.threads);
            let started = without_signals(|| {
                std::thread::Builder::new().name(name).spawn(move || self.serve())
            });
            if let Err(error) = started {
                log(Level::Warn, || format!("cannot start a thread: {error}"));
                return;
            }
            state.threads += 1;
            state.sleeping += 1;
        }
    }

    /// The life of a thread of the pool. It counts as sleeping from its start.
    fn serve(&'static self) {
        let mut state = self.lock();
        loop {
            if let Some(split) = joinable(&mut state) {
                state.sleeping -= 1;
                drop(state);
                // SAFETY: we are counted among its helpers, whom its owner waits for.
                unsafe { split.as_ref().work() };
                state = self.lock();
                state.sleeping += 1;
                // SAFETY: as above, and under the lock, which guards `helpers`.
                let left = unsafe {
                    let helpers = &split.as_ref().helpers;
                    helpers.set(helpers.get() - 1);
                    helpers.get()
                };
                if left == 0 {
                    self.idle.notify_all();
                }
            } else if let Some(task) = state.tasks.pop_front() {
                state.sleeping -= 1;
                drop(state);
                if let Some(task) = task.upgrade() {
                    task.run();
                }
                state = self.lock();
                state.sleeping += 1;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Takes a seat in a split that has one, and pieces left.
fn joinable(state: &mut State) -> Option<NonNull<Split>> {
    state.splits.iter().copied().find(|split| {
        // SAFETY: on the list, so its owner has not left; the lock guards the counts.
        let split = unsafe { split.as_ref() };
        let open = split.seats.get() > 0 && split.next.load(Ordering::Relaxed) < split.pieces;
        if open {
            split.seats.set(split.seats.get() - 1);
            split.helpers.set(split.helpers.get() + 1);
        }
        open
    })
}

/// Runs `start` with all signals blocked, so that threads started in it never run a handler of the
/// host.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_runs_each_piece_once() {
        for (helpers, pieces) in [(0, 5), (1, 1), (3, 100), (7, 1000)] {
            let hits: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            pool().split(helpers, pieces, &|piece| {
                hits[piece].fetch_add(1, Ordering::SeqCst);
            });
            assert!(hits.iter().all(|hit| hit.load(Ordering::SeqCst) == 1));
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
}
