//! Names of keys for the tensors of a file.

use std::collections::HashMap;

use super::super::updater::{UpdaterError, run_users};
use crate::error::{Result, fail};

/// What the caller's function says of a tensor.
type Named = std::result::Result<Option<String>, UpdaterError>;

/// The caller's function that names the key of each tensor of a file (also called: a mapping of keys).
#[derive(Clone, Copy)]
pub(crate) struct KeyNamer<'a>(pub(crate) &'a dyn Fn(&str) -> Named);

impl KeyNamer<'_> {
    /// The name of a tensor's key; None if the caller leaves the tensor out.
    fn name(self, store: u64, tensor: &str) -> Result<Option<String>> {
        let named = run_users(store, "the function of names", || (self.0)(tensor))
            .map_err(|error| error.at(format_args!("tensor {tensor:?}")))?;
        match named {
            Some(name) if name.contains('\0') => {
                Err(fail!(InvalidArgument, "tensor {tensor:?}: the name {name:?} has a NUL"))
            }
            named => Ok(named),
        }
    }
}

/// Names keys for tensors, different ones for different tensors.
pub(super) struct Names<'a> {
    namer: Option<KeyNamer<'a>>,
    store: u64,
    /// The tensors by the names of their keys.
    given: HashMap<String, String>,
}

impl<'a> Names<'a> {
    pub(super) fn new(namer: Option<KeyNamer<'a>>, store: u64) -> Self {
        Self { namer, store, given: HashMap::new() }
    }

    /// The name of a tensor's key; None if the caller leaves the tensor out.
    pub(super) fn next(&mut self, tensor: &str) -> Result<Option<String>> {
        let Some(namer) = self.namer else {
            // The header has it once.
            return Ok(Some(check_name(tensor)?.to_owned()));
        };
        let Some(name) = namer.name(self.store, check_name(tensor)?)? else { return Ok(None) };
        match self.given.insert(name.clone(), tensor.to_owned()) {
            None => Ok(Some(name)),
            Some(other) => Err(fail!(
                InvalidArgument,
                "tensors {other:?} and {tensor:?} are both named {name:?}"
            )),
        }
    }
}

/// Refuses a name that no store can have.
pub(super) fn check_name(name: &str) -> Result<&str> {
    if name.contains('\0') {
        return Err(fail!(Corrupt, "its header is damaged: the name {name:?} has a NUL"));
    }
    Ok(name)
}
