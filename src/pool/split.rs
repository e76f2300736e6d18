//! Work in pieces, and the posts where its owner publishes it for helpers.

use std::ptr;

use super::processor;
use crate::log::{Level, log};
use crate::panics;
use crate::sys::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Work in pieces; lives on the stack of its owner, the thread that splits.
pub(super) struct Split {
    run: *const (dyn Fn(usize) + Sync),
    pieces: usize,
    next: AtomicUsize,
    failed: AtomicBool,
    /// Where the owner runs.
    processor: Option<usize>,
}

impl Split {
    /// # Safety
    /// `run` outlives the split.
    pub(super) unsafe fn new(pieces: usize, run: &(dyn Fn(usize) + Sync)) -> Self {
        // SAFETY: only the lifetime is erased; the caller's promise replaces it.
        let run: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), _>(run) };
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { run, pieces, next, failed, processor: processor() }
    }

    pub(super) fn processor(&self) -> Option<usize> {
        self.processor
    }

    /// Claims and runs pieces until none is left. Does not unwind.
    pub(super) fn work(&self) {
        // SAFETY: `run` outlives the split.
        let run = unsafe { &*self.run };
        loop {
            // Relaxed: the number only hands out pieces; leaving the post orders the results.
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            if let Err(panic) = panics::catch(|| run(piece)) {
                self.failed.store(true, Ordering::Relaxed);
                // The logger is the user's.
                let _ = panics::catch(|| log(Level::Error, || panic));
            }
        }
    }

    /// Ends a split that no other thread can reach any more; returns whether no piece panicked.
    pub(super) fn finish(self) -> bool {
        // Consumed by value so that a model finds a helper that still uses it.
        let claimed = self.next.into_inner();
        debug_assert!(claimed >= self.pieces, "the owner leaves no piece");
        !self.failed.into_inner()
    }
}

/// Where an owner publishes its split.
///
/// Posts are never freed, so that a helper may read one at any time. Only a helper with a seat
/// reaches a split through a post, and the split's owner waits for it.
pub(super) struct Post {
    /// [`TAKEN`], [`ASLEEP`], the number of free seats, the number of helpers at work.
    state: AtomicU32,
    /// Valid while a helper is at work.
    split: AtomicPtr<Split>,
}

/// An owner uses the post.
const TAKEN: u32 = 1 << 31;
/// The owner has stopped spinning; the last helper wakes it.
const ASLEEP: u32 = 1 << 30;
/// One free seat.
const SEAT: u32 = 1 << 12;
const SEATS: u32 = (SEAT - 1) * SEAT;
/// One helper at work.
const HELPER: u32 = 1;
const HELPERS: u32 = SEAT - 1;

impl Post {
    pub(super) fn new() -> Self {
        Self { state: AtomicU32::new(0), split: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Takes a free post for a split, and opens it for so many helpers; false if it is not free.
    pub(super) fn open(&self, split: &Split, seats: usize) -> bool {
        let seats = u32::try_from(seats).unwrap_or(HELPERS).min(HELPERS);
        // Acquire: orders the previous owner's accesses before ours.
        let free = self.state.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            return false;
        }
        // Relaxed, as the state is stored after it and read before it.
        self.split.store(ptr::from_ref(split).cast_mut(), Ordering::Relaxed);
        // Release: a helper that takes a seat sees the split.
        self.state.store(TAKEN | (seats * SEAT), Ordering::Release);
        true
    }

    /// The free seats; may be stale.
    pub(super) fn seats(&self) -> usize {
        // Relaxed: taking a seat checks again.
        ((self.state.load(Ordering::Relaxed) & SEATS) / SEAT) as usize
    }

    /// Takes a seat; from then on the split lives until [`Self::leave`].
    pub(super) fn join(&self) -> Option<*const Split> {
        if self.seats() == 0 {
            return None;
        }
        let sit = |state: u32| (state & SEATS > 0).then(|| state - SEAT + HELPER);
        // Acquire: see `open`.
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, sit).ok()?;
        Some(self.split.load(Ordering::Relaxed))
    }

    /// Leaves the split, which may be freed afterwards. True if its owner has to be woken.
    pub(super) fn leave(&self) -> bool {
        // Release: orders this helper's pieces before the end of the split.
        let before = self.state.fetch_sub(HELPER, Ordering::Release);
        before & ASLEEP > 0 && before & HELPERS == HELPER
    }

    /// Closes the post to further helpers.
    pub(super) fn close(&self) {
        // Relaxed: publishes no data.
        self.state.fetch_and(!SEATS, Ordering::Relaxed);
    }

    /// Whether a helper is at work.
    pub(super) fn is_busy(&self) -> bool {
        // Acquire: orders the helpers' writes before the owner's next access.
        self.state.load(Ordering::Acquire) & HELPERS > 0
    }

    /// From now on the last helper to leave wakes the owner.
    pub(super) fn fall_asleep(&self) {
        // Relaxed: publishes no data.
        self.state.fetch_or(ASLEEP, Ordering::Relaxed);
    }

    /// Returns a post that is closed and not busy.
    pub(super) fn free(&self) {
        // Release: see `open`.
        self.state.store(0, Ordering::Release);
    }
}
