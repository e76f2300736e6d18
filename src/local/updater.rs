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
        let inside = CallbackScope::enter(store, CallbackKind::Updater);
        let outcome = panics::catch(|| (self.function)(key, input, stored));
        drop(inside);
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(fail!(Callback, "the updater failed: {error}")),
            Err(panic) => Err(fail!(Callback, "the updater panicked: {panic}")),
        }
    }
}
