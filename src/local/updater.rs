//! The user's function that merges a sum into the stored value.

use std::cell::RefCell;
use std::error::Error as StdError;

use crate::error::{Result, fail};
use crate::key::Key;
use crate::panics;
use crate::tensor::{Tensor, TensorMut};

/// The errors that a user's updater may return.
pub type UpdaterError = Box<dyn StdError + Send + Sync>;

type Function = dyn Fn(Key, &Tensor<'_>, &mut TensorMut<'_>) -> std::result::Result<(), UpdaterError>
    + Send
    + Sync;

/// A user's updater.
pub(crate) struct Updater {
    function: Box<Function>,
}

thread_local! {
    /// The stores whose updaters this thread is inside of, the innermost last.
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread is inside an updater of the store with this serial number.
pub(crate) fn is_inside(store: u64) -> bool {
    INSIDE.try_with(|stores| stores.borrow().contains(&store)).unwrap_or(false)
}

/// Marks this thread as inside an updater, for as long as the value lives.
struct UpdaterScope;

impl UpdaterScope {
    fn enter(store: u64) -> Self {
        // A thread that is ending has no thread-local slot for it any more.
        let _ = INSIDE.try_with(|stores| stores.borrow_mut().push(store));
        Self
    }
}

impl Drop for UpdaterScope {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|stores| stores.borrow_mut().pop());
    }
}

impl Updater {
    pub(crate) fn new(
        function: impl Fn(Key, &Tensor<'_>, &mut TensorMut<'_>) -> std::result::Result<(), UpdaterError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { function: Box::new(function) }
    }

    /// Runs the user's code. The error has its message only; the caller adds call and key.
    pub(crate) fn call(
        &self,
        store: u64,
        key: Key,
        input: &Tensor<'_>,
        stored: &mut TensorMut<'_>,
    ) -> Result<()> {
        let inside = UpdaterScope::enter(store);
        let outcome = panics::catch(|| (self.function)(key, input, stored));
        drop(inside);
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(fail!(Callback, "the updater failed: {error}")),
            Err(panic) => Err(fail!(Callback, "the updater panicked: {panic}")),
        }
    }
}
