//! Lists that a thread keeps for their memory, from one step of a machine to the next.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Maximum number of elements whose memory is kept.
const MOST_KEPT: usize = 4_096;

/// Empty lists of one thread: as many as it uses at a time, as a step may be inside of another one.
pub(crate) struct SpareLists<T>(RefCell<Vec<Vec<T>>>);

impl<T> SpareLists<T> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// An empty list.
    pub(crate) fn take(lists: &'static LocalKey<Self>) -> Vec<T> {
        // A thread that is ending has none any more.
        let spare = lists.try_with(|lists| lists.0.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_default()
    }

    /// Keeps the memory of a list.
    pub(crate) fn keep(lists: &'static LocalKey<Self>, mut list: Vec<T>) {
        list.clear();
        list.shrink_to(MOST_KEPT);
        let _ = lists.try_with(|lists| lists.0.borrow_mut().push(list));
    }
}
