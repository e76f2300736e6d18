//! The user's function that merges a sum into the stored value.

use std::error::Error as StdError;

use crate::error::{Result, fail};
use crate::key::Key;
use crate::panics;
use crate::reentry::{CallbackKind, CallbackScope};
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
        run_users(store, "the updater", || (self.function)(key, input, stored))
    }
}

/// Runs code of the user that may not call the store; `what` names it in the error.
pub(super) fn run_users<T>(
    store: u64,
    what: &str,
    code: impl FnOnce() -> std::result::Result<T, UpdaterError>,
) -> Result<T> {
    let inside = CallbackScope::enter(store, CallbackKind::Updater);
    let outcome = panics::catch(code);
    drop(inside);
    match outcome {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(fail!(Callback, "{what} failed: {error}")),
        Err(panic) => Err(fail!(Callback, "{what} panicked: {panic}")),
    }
}
