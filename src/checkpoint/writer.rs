//! Writes a file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::header::FileHeader;
use super::replacement::Replacement;
use super::{BUFFER_BYTES, PIECE_BYTES};
use crate::error::{Error, Result, fail};
use crate::interrupt;

/// Writes a file; the path has its old one until [`FileWriter::finish`].
pub(crate) struct FileWriter {
    out: BufWriter<Replacement>,
    header: FileHeader,
    /// The checksums of the header and of the tensors so far.
    sums: Vec<u32>,
}

impl FileWriter {
    /// Begins a file that will have the tensors of a header.
    ///
    /// # Errors
    /// `Io`, and `Unsupported` if there are too many tensors.
    pub(crate) fn create(path: &Path, mut header: FileHeader) -> Result<Self> {
        header.seal();
        let bytes = header.to_bytes()?;
        let replacement = Replacement::begin(path).map_err(|error| failed(&error))?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, replacement);
        let mut writer = Self { out, header, sums: Vec::new() };
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Writes the bytes of the next tensor.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn tensor(&mut self, bytes: &[u8]) -> Result<()> {
        // The header is the first item with a checksum.
        let next = &self.header.entries[self.sums.len() - 1];
        if next.is_pad() {
            let zeros = [0; size_of::<u64>()];
            let pad = zeros.iter().zip(0..next.bytes()).count();
            self.put(&zeros[..pad])?;
        }
        let next = &self.header.entries[self.sums.len() - 1];
        debug_assert_eq!(next.bytes(), bytes.len() as u64, "{}", next.name);
        self.put(bytes)
    }

    /// Writes the checksums, and renames the file to its target.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn finish(mut self) -> Result<()> {
        let sums: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.put(&sums)?;
        debug_assert_eq!(self.sums.len() - 1, self.header.entries.len());
        let replacement = self.out.into_inner().map_err(|error| failed(error.error()))?;
        replacement.commit().map_err(|error| failed(&error))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sum = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            if interrupt::requested() {
                return Err(fail!(Timeout, "it was not written to its end"));
            }
            sum = kvstore_checksum::append(sum, piece);
            self.out.write_all(piece).map_err(|error| failed(&error))?;
        }
        self.sums.push(sum);
        Ok(())
    }
}

fn failed(error: &io::Error) -> Error {
    fail!(Io, "cannot write it: {error}")
}
