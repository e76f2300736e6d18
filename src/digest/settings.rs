//! Options of digests.

use std::path::PathBuf;

/// What a process digests, and where it logs it.
#[derive(Debug, Clone)]
pub(crate) struct DigestSettings {
    /// Whether a server digests the value of each round.
    #[cfg(feature = "dist")]
    pub(crate) values: bool,
    /// Whether states and contributions have digests too.
    pub(crate) all: bool,
    pub(crate) folder: Option<PathBuf>,
    /// Maximum bytes of a process's log.
    pub(crate) bytes: u64,
}
