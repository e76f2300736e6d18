//! Digests of values and of optimizer states (also called: fingerprints, checksums): CRC-64/NVME, combined
//! from those of parts. docs/use/semantics.md defines them.

mod file;
mod log;
mod record;
mod settings;

use kvstore_checksum::crc64;

pub(crate) use log::DigestLog;
#[cfg(feature = "dist")]
pub(crate) use log::log_names;
pub(crate) use record::{Contributions, LogHead, RoundRecord};
pub(crate) use settings::DigestSettings;

/// Number of rounds of a key, and digests of what they have made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyDigest {
    /// In a job the last closed round of the key; in a local store its pushes since its init.
    pub round: u64,
    /// Digest of the value.
    pub value: u64,
    /// Digest of the optimizer's state: its arrays, then the master. 0 if there is none.
    pub state: u64,
}

/// Digest of a run of bytes, and their number: those of adjacent runs combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RunDigest {
    pub(crate) sum: u64,
    pub(crate) len: u64,
}

impl RunDigest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { sum: crc64::crc64(bytes), len: bytes.len() as u64 }
    }

    /// The digest of this run with another one behind it.
    pub(crate) fn then(self, next: Self) -> Self {
        Self {
            sum: crc64::combine(self.sum, next.sum, next.len),
            len: self.len.saturating_add(next.len),
        }
    }

    /// The digest of adjacent runs.
    pub(crate) fn joined(runs: impl IntoIterator<Item = Self>) -> Self {
        runs.into_iter().fold(Self::default(), Self::then)
    }
}
