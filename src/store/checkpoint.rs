//! Saving a store to a file, and loading one.

use std::path::Path;

use super::{Gate, Store};
use crate::error::Result;
use crate::log::{Level, log};
use crate::spans;

impl Store {
    /// Writes the keys, their values and the optimizer with its state to a file, which takes the
    /// place of the one that is there; docs/checkpoints.md has its format.
    ///
    /// Each key is as it was between two pushes; all are of one moment if nobody pushes meanwhile.
    ///
    /// # Errors
    /// `Io`, `Timeout`: the old file is as it was.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let _span = spans::enter!("save", path = %path.display());
        self.enter(Gate::Work, |local| {
            log(Level::Debug, || format!("save {}", path.display()));
            match &self.remote {
                Some(remote) => remote.save(path),
                None => local.save(path, 1),
            }
        })
    }

    /// Takes over what a file of [`Store::save`] has: keys that are there get its values, others
    /// are added; its optimizer, if it has one, takes the place of what is set.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported` for files of others, `ShapeMismatch` and `DtypeMismatch` if
    /// a key of the store is another one, `Timeout`; nothing has changed then.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let _span = spans::enter!("load", path = %path.display());
        self.enter(Gate::Work, |local| {
            log(Level::Debug, || format!("load {}", path.display()));
            match &self.remote {
                Some(remote) => remote.load(path),
                None => local.load(path, 1),
            }
        })
    }
}
