//! Options of digests.

use std::path::PathBuf;

/// What a process digests, and where it logs it.
#[derive(Debug, Clone)]
pub(crate) struct DigestSettings {
    /// Whether the value of each round is digested, and whether state and contributions are too.
    pub(crate) values: bool,
    pub(crate) all: bool,
    pub(crate) folder: Option<PathBuf>,
    /// Maximum bytes of a process's log.
    pub(crate) bytes: u64,
}
