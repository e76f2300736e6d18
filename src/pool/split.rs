//! Work in pieces, and the posts where its owner publishes it for helpers.

use std::ptr;

use super::place;
use crate::log::{Level, log};
use crate::panics;
use crate::sys::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The most shares of a split; further helpers begin with the same ones.
const SHARES: usize = 8;

/// Work in pieces; lives on the stack of its owner, the thread that splits.
///
/// Each thread has a share of neighbouring pieces to begin with, the same one in each split, so that
/// it finds in its caches what it used the last time. Then it takes pieces from the ends of others'
/// shares. Also called: work stealing.
pub(super) struct Split {
    run: *const (dyn Fn(usize) + Sync),
    shares: [Share; SHARES],
    /// How many shares there are.
    count: usize,
    failed: AtomicBool,
    /// Where the owner runs.
    processor: Option<usize>,
}

impl Split {
    /// # Safety
    /// `run` outlives the split.
    pub(super) unsafe fn new(helpers: usize, pieces: u32, run: &(dyn Fn(usize) + Sync)) -> Self {
        // SAFETY: only the lifetime is erased; the caller's promise replaces it.
        let run: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), _>(run) };
        let count = SHARES.min(helpers + 1);
        let (size, mut end) = (pieces.div_ceil(u32::try_from(count).unwrap_or(1)), 0_u32);
        let shares = std::array::from_fn(|_| {
            let start = end;
            end = pieces.min(start.saturating_add(size));
            Share::new(start, end)
        });
        Self { run, shares, count, failed: AtomicBool::new(false), processor: place::processor() }
    }

    pub(super) fn processor(&self) -> Option<usize> {
        self.processor
    }

    /// Claims and runs pieces until none is left: of the first share as the owner, of another one
    /// as a helper. Does not unwind.
    pub(super) fn work(&self, helper: Option<usize>) {
        // SAFETY: `run` outlives the split.
        let run = unsafe { &*self.run };
        let home = helper.map_or(0, |index| 1 + index % (self.count - 1).max(1));
        for step in 0..self.count {
            let share = &self.shares[(home + step) % self.count];
            while let Some(piece) = if step == 0 { share.first() } else { share.last() } {
                if let Err(panic) = panics::catch(|| run(piece as usize)) {
                    self.failed.store(true, Ordering::Relaxed);
                    // The logger is the user's.
                    let _ = panics::catch(|| log(Level::Error, || panic));
                }
            }
        }
    }

    /// Ends a split that no other thread can reach any more; returns whether no piece panicked.
    pub(super) fn finish(self) -> bool {
        // Consumed by value so that a model finds a helper that still uses them.
        for share in self.shares {
            let (start, end) = Share::unpack(share.0.into_inner());
            debug_assert!(start >= end, "the owner leaves no piece");
        }
        !self.failed.into_inner()
    }
}

/// Pieces from one to another, on their own cache line: its thread takes the first one, other
/// threads the last one.
#[repr(align(64))]
struct Share(AtomicU64);

impl Share {
    fn new(start: u32, end: u32) -> Self {
        Self(AtomicU64::new(Self::pack(start, end)))
    }

    fn pack(start: u32, end: u32) -> u64 {
        u64::from(start) << 32 | u64::from(end)
    }

    #[allow(clippy::cast_possible_truncation, reason = "the halves of a number")]
    fn unpack(range: u64) -> (u32, u32) {
        ((range >> 32) as u32, range as u32)
    }

    fn first(&self) -> Option<u32> {
        self.take(|start, end| (start + 1, end)).map(|(start, _)| start)
    }

    fn last(&self) -> Option<u32> {
        self.take(|start, end| (start, end - 1)).map(|(_, end)| end - 1)
    }

    /// Takes a piece, if there is one; gives the range before.
    fn take(&self, rest: impl Fn(u32, u32) -> (u32, u32)) -> Option<(u32, u32)> {
        let taken = |range: u64| {
            let (start, end) = Self::unpack(range);
            let (start, end) = (start < end).then(|| rest(start, end))?;
            Some(Self::pack(start, end))
        };
        // Relaxed: it only hands out pieces; leaving the post orders the results.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok()?;
        Some(Self::unpack(before))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::sync::Mutex;

    /// The order in which one thread alone runs the pieces of a split.
    fn order(helpers: usize, pieces: u32, helper: Option<usize>) -> Vec<usize> {
        let taken = Mutex::new(Vec::new());
        let run = |piece| taken.lock().push(piece);
        // SAFETY: the split ends before `run`.
        let split = unsafe { Split::new(helpers, pieces, &run) };
        split.work(helper);
        assert!(split.finish());
        std::mem::take(&mut *taken.lock())
    }

    #[test]
    fn a_thread_begins_with_its_share_and_takes_the_ends_of_others() {
        assert_eq!(order(1, 5, None), [0, 1, 2, 4, 3]);
        assert_eq!(order(1, 5, Some(0)), [3, 4, 2, 1, 0]);
        assert_eq!(order(1, 5, Some(7)), [3, 4, 2, 1, 0]);
        assert_eq!(order(2, 6, Some(1)), [4, 5, 1, 0, 3, 2]);
        assert_eq!(order(2, 2, Some(1)), [0, 1]);
        // More helpers than shares.
        assert_eq!(order(20, 8, Some(7)), [1, 2, 3, 4, 5, 6, 7, 0]);
    }
}
