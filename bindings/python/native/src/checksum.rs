//! The checksums of checkpoints.

use pyo3::prelude::*;

/// CRC-32C of bytes behind those that have the checksum `sum`, which is 0 for none.
#[pyfunction]
pub fn crc32c(py: Python<'_>, sum: u32, bytes: &[u8]) -> u32 {
    py.detach(|| kvstore_checksum::append(sum, bytes))
}
