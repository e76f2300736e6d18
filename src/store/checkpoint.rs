//! Checkpoints of a store (also called: snapshots): saving to a file, and loading.

use std::path::Path;

use super::{CallClass, Store};
use crate::error::Result;
use crate::log::{Level, log};
use crate::spans;

impl Store {
    /// Writes the keys, their values and the optimizer with its state to a file, which replaces an existing
    /// one; docs/use/checkpoints.md has its format.
    ///
    /// Each key is as it was between two pushes; all are of one moment if no thread pushes meanwhile.
    ///
    /// # Errors
    /// `Io`, `Timeout`: the old file is unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let _span = spans::enter!("save", path = %path.display());
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || format!("save {}", path.display()));
            match &self.remote {
                Some(remote) => remote.save(path),
                None => local.save(path, 1),
            }
        })
    }

    /// Loads a file of [`Store::save`]: existing keys get its values, new keys are added; its optimizer, if
    /// it has one, replaces the present one.
    ///
    /// `Io`, `Corrupt`, `Unsupported` for files of other programs, `ShapeMismatch` and `DtypeMismatch` if a
    /// key of the store differs, `Timeout`; the store is unchanged then.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let _span = spans::enter!("load", path = %path.display());
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || format!("load {}", path.display()));
            match &self.remote {
                Some(remote) => remote.load(path),
                None => local.load(path, 1),
            }
        })
    }
}
