//! Memory that a thread keeps from one call to the next.

use std::cell::Cell;
use std::thread::LocalKey;

/// The place of it in each thread.
pub(crate) type Kept<T> = LocalKey<Cell<Option<T>>>;

/// What this thread has kept, or new memory.
#[inline]
pub(crate) fn take<T: Default>(kept: &'static Kept<T>) -> T {
    // A thread that is ending has none any more.
    kept.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Keeps memory for the next call of this thread.
#[inline]
pub(crate) fn keep<T>(kept: &'static Kept<T>, memory: T) {
    let _ = kept.try_with(|kept| kept.set(Some(memory)));
}
