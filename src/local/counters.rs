//! Statistics of a store, in counters that do not make threads wait for each other.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys::sync::Mutex;

/// The work of one call.
#[derive(Default, Clone, Copy)]
pub(crate) struct CallTally {
    /// Values pushed.
    pub(crate) pushes: u64,
    /// Outs filled.
    pub(crate) pulls: u64,
    pub(crate) push_bytes: u64,
    pub(crate) pull_bytes: u64,
    pub(crate) updater_calls: u64,
}

impl CallTally {
    /// The counts of the values and outs of one key.
    pub(crate) fn of(values: usize, outs: usize, bytes: usize) -> Self {
        Self::sum((values, values * bytes), (outs, outs * bytes))
    }

    /// The counts of values and outs: their number, and their bytes.
    pub(crate) fn sum(values: (usize, usize), outs: (usize, usize)) -> Self {
        Self {
            pushes: values.0 as u64,
            pulls: outs.0 as u64,
            push_bytes: values.1 as u64,
            pull_bytes: outs.1 as u64,
            updater_calls: 0,
        }
    }

    pub(crate) fn add(&mut self, other: &CallTally) {
        self.pushes += other.pushes;
        self.pulls += other.pulls;
        self.push_bytes += other.push_bytes;
        self.pull_bytes += other.pull_bytes;
        self.updater_calls += other.updater_calls;
    }
}

/// The tallies of all calls, added up in several places: a thread adds to one of them.
#[derive(Default)]
pub(crate) struct Counters {
    places: [CounterLine; OWNED + SHARED],
    norm: Mutex<LastNorm>,
}

/// What clipping has measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastNorm {
    /// Norm of the gradients of the last push that was measured; a NaN before the first.
    pub norm: f64,
    /// Number of pushes that changed nothing, because their norms were not finite.
    pub skips: u64,
}

impl Default for LastNorm {
    fn default() -> Self {
        Self { norm: f64::NAN, skips: 0 }
    }
}

/// The first threads of the process have a place each, whose counters no other thread changes: an
/// addition then needs no locked instruction, of which a small call would feel each.
const OWNED: usize = 16;

/// Places that later threads share.
const SHARED: usize = 16;

/// A cache line of its own, or two: processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct CounterLine {
    pushes: AtomicU64,
    pulls: AtomicU64,
    push_bytes: AtomicU64,
    pull_bytes: AtomicU64,
    updater_calls: AtomicU64,
}

/// The place of this thread.
fn place() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let place = PLACE.get();
    if place < usize::MAX {
        return place;
    }
    // Relaxed: the number only spreads the threads.
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    let place = if thread < OWNED { thread } else { OWNED + thread % SHARED };
    PLACE.set(place);
    place
}

impl Counters {
    /// Notes the norm of a push, and whether it is skipped.
    pub(crate) fn note_norm(&self, norm: f64, is_skipped: bool) {
        let mut last = self.norm.lock();
        *last = LastNorm { norm, skips: last.skips + u64::from(is_skipped) };
    }

    pub(crate) fn last_norm(&self) -> LastNorm {
        *self.norm.lock()
    }

    pub(crate) fn add(&self, tally: &CallTally) {
        let index = place();
        let place = &self.places[index];
        // Relaxed: each number is exact by itself, which is all that statistics promise.
        let add = |counter: &AtomicU64, more: u64| match more {
            0 => {}
            _ if index < OWNED => {
                counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
            _ => _ = counter.fetch_add(more, Ordering::Relaxed),
        };
        add(&place.pushes, tally.pushes);
        add(&place.pulls, tally.pulls);
        add(&place.push_bytes, tally.push_bytes);
        add(&place.pull_bytes, tally.pull_bytes);
        add(&place.updater_calls, tally.updater_calls);
    }

    pub(crate) fn total(&self) -> CallTally {
        // Relaxed: each number is exact by itself, as in the sum above.
        let sum = |counter: fn(&CounterLine) -> &AtomicU64| -> u64 {
            self.places.iter().map(|place| counter(place).load(Ordering::Relaxed)).sum()
        };
        CallTally {
            pushes: sum(|place| &place.pushes),
            pulls: sum(|place| &place.pulls),
            push_bytes: sum(|place| &place.push_bytes),
            pull_bytes: sum(|place| &place.pull_bytes),
            updater_calls: sum(|place| &place.updater_calls),
        }
    }
}
