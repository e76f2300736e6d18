//! Memory that calls leave for later ones: lists of a thread, pinned host memory, device memory, tables
//! of jobs. Also called: caching allocators.

pub(super) mod pinned;
pub(super) mod scratch;
pub(super) mod tables;

use std::cell::RefCell;
use std::thread::LocalKey;

/// Maximum number of lists of a kind that a thread keeps: a call of a key in host memory uses two.
const MOST: usize = 4;

/// Empty lists of a thread, which have the memory of its earlier calls.
pub(crate) struct Spares<T>(RefCell<Vec<T>>);

impl<T: Default> Spares<T> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    pub(crate) fn take(spares: &'static LocalKey<Self>) -> T {
        // A thread that is ending has no thread-local lists any more.
        let taken = spares.try_with(|it| it.0.borrow_mut().pop());
        taken.ok().flatten().unwrap_or_default()
    }

    /// Keeps a list, which is empty.
    pub(crate) fn put(spares: &'static LocalKey<Self>, list: T) {
        let _ = spares.try_with(|it| {
            let mut kept = it.0.borrow_mut();
            if kept.len() < MOST {
                kept.push(list);
            }
        });
    }
}
