//! Host memory that callers lend for copies.
#![allow(unsafe_code, reason = "pointers of callers are followed here")]

use std::ptr::copy_nonoverlapping;

/// Bytes that a caller keeps until the copy has run, as CUDA's manual demands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostSpan {
    address: usize,
    bytes: usize,
}

impl HostSpan {
    /// # Safety
    ///
    /// The bytes are readable, and for copies to the host writable, until the copy has run.
    pub(crate) unsafe fn lent(address: u64, bytes: usize) -> Self {
        Self { address: address as usize, bytes }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: lent by the caller; the vector is new.
        unsafe { copy_nonoverlapping(self.address as *const u8, bytes.as_mut_ptr(), self.bytes) };
        bytes
    }

    /// # Panics
    ///
    /// If the lengths differ.
    pub(crate) fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes, "length of a copy");
        // SAFETY: lent by the caller for writing.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), self.address as *mut u8, self.bytes) };
    }
}
