//! Which callbacks of which stores a thread is inside of: calls that could wait there are refused.
//! Also called: reentrancy guard.

use std::cell::RefCell;

/// Callbacks of a store, the strictest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallbackKind {
    /// At the end of an operation: calls that do not wait are served.
    Done,
    /// Merges a value, under the lock of its key: only a few queries are served.
    Updater,
}

thread_local! {
    /// The callbacks that this thread is inside of, each with its store, the innermost last.
    static INSIDE: RefCell<Vec<(u64, CallbackKind)>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread is inside no callback of any store.
pub(crate) fn is_outside() -> bool {
    INSIDE.try_with(|inside| inside.borrow().is_empty()).unwrap_or(true)
}

/// The strictest callback of the store with this serial number that this thread is inside of.
pub(crate) fn inside(store: u64) -> Option<CallbackKind> {
    let strictest = |inside: &RefCell<Vec<(u64, CallbackKind)>>| {
        let inside = inside.borrow();
        inside.iter().filter(|(each, _)| *each == store).map(|(_, kind)| *kind).max()
    };
    INSIDE.try_with(strictest).ok().flatten()
}

/// Marks this thread as inside a callback, for as long as the value lives.
pub(crate) struct CallbackScope;

impl CallbackScope {
    pub(crate) fn enter(store: u64, kind: CallbackKind) -> Self {
        // A thread that is ending has no thread-local slot for it any more.
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push((store, kind)));
        Self
    }
}

impl Drop for CallbackScope {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().pop());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_callback_of_a_store_counts() {
        assert_eq!(inside(1), None);
        let updater = CallbackScope::enter(1, CallbackKind::Updater);
        let other = CallbackScope::enter(2, CallbackKind::Done);
        let done = CallbackScope::enter(1, CallbackKind::Done);
        assert_eq!(inside(1), Some(CallbackKind::Updater));
        assert_eq!(inside(2), Some(CallbackKind::Done));
        drop((done, other));
        drop(updater);
        assert_eq!((inside(1), inside(2)), (None, None));
    }
}
