//! Checkpoints of a store (also called: snapshots): saving to a file, and loading.

use std::path::Path;

use super::{CallClass, Store, UpdaterError};
use crate::error::Result;
use crate::local::checkpoint::KeyNamer;
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
    /// A file of another program has values only, under the names of its tensors.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported` for files of later versions, `ShapeMismatch` and `DtypeMismatch` if a
    /// key of the store differs, `Timeout`; the store is unchanged then.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        self.load_with(path.as_ref(), None)
    }

    /// Loads the values of a file of another program, or of the files of an index, for the keys that `name`
    /// gives their tensors: `None` leaves a tensor out. In a job all workers call it, and the function of
    /// one, the lowest rank, is asked.
    ///
    /// # Errors
    /// As [`Store::load`]; `Callback` with what the function fails with; `InvalidArgument` for a name that two
    /// tensors get; `Unsupported` for a file of [`Store::save`]. The function must not use this store.
    pub fn load_values(
        &self,
        path: impl AsRef<Path>,
        name: impl Fn(&str) -> std::result::Result<Option<String>, UpdaterError>,
    ) -> Result<()> {
        self.load_with(path.as_ref(), Some(KeyNamer(&name)))
    }

    fn load_with(&self, path: &Path, namer: Option<KeyNamer<'_>>) -> Result<()> {
        let _span = spans::enter!("load", path = %path.display());
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || format!("load {}", path.display()));
            match &self.remote {
                Some(remote) => remote.load(path, namer),
                None => local.load(path, namer, 1),
            }
        })
    }
}
