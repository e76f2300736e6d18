//! Reads a file. Its contents are untrusted: the file may come from any source.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

use super::header::{FileHeader, MOST_BYTES};
use super::{BUFFER_BYTES, PIECE_BYTES};
use crate::error::{Error, Result, fail};

/// The bytes of the header's length.
pub(super) const PREFIX: usize = size_of::<u64>();

/// Reads the tensors of a file one after the other, and compares their checksums.
pub(crate) struct FileReader {
    file: BufReader<File>,
    header: Rc<FileHeader>,
    /// The checksums of the tensors.
    sums: Vec<u32>,
    next: usize,
}

impl FileReader {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported` for files of other programs, `OutOfMemory`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (mut file, length) = open_file(path)?;
        let bytes = header_bytes(&mut file, length)?;
        let data = length - bytes.len() as u64;
        let header = FileHeader::parse(&bytes[PREFIX..], data)?;
        let mut sums = checksums(&file, &header, bytes.len() as u64)?;
        if sums.remove(0) != kvstore_checksum::crc32c(&bytes) {
            return Err(fail!(Corrupt, "its header is altered: the checksum differs"));
        }
        Ok(Self { file, header: Rc::new(header), sums, next: 0 })
    }

    pub(crate) fn header(&self) -> Rc<FileHeader> {
        Rc::clone(&self.header)
    }

    /// Reads the next tensor, which has as many bytes as `into`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn tensor(&mut self, into: &mut [u8]) -> Result<()> {
        while self.header.entries[self.next].is_pad() {
            let pad = &mut [0; size_of::<u64>()];
            let bytes = self.header.entries[self.next].bytes();
            let pad = usize::try_from(bytes).ok().and_then(|bytes| pad.get_mut(..bytes));
            self.fill(pad.ok_or_else(|| fail!(Corrupt, "a tensor of padding is too long"))?)?;
        }
        self.fill(into)
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        let (entry, expected) = (&self.header.entries[self.next], self.sums[self.next]);
        debug_assert_eq!(entry.bytes(), into.len() as u64, "{}", entry.name);
        let mut sum = 0;
        for piece in into.chunks_mut(PIECE_BYTES) {
            self.file.read_exact(piece).map_err(|error| failed(&error))?;
            sum = kvstore_checksum::append(sum, piece);
        }
        if sum != expected {
            return Err(fail!(
                Corrupt,
                "the bytes of tensor {:?} are altered: the checksum differs",
                entry.name
            ));
        }
        self.next += 1;
        Ok(())
    }
}

/// A file and its size in bytes.
pub(super) fn open_file(path: &Path) -> Result<(BufReader<File>, u64)> {
    // Does not block on a pipe that has no writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| failed(&error))?;
    let about = file.metadata().map_err(|error| failed(&error))?;
    if !about.is_file() {
        return Err(fail!(Io, "cannot read it: it is not a file"));
    }
    Ok((BufReader::with_capacity(BUFFER_BYTES, file), about.len()))
}

/// The header with its length in front, from a file of `length` bytes.
pub(super) fn header_bytes(file: &mut impl Read, length: u64) -> Result<Vec<u8>> {
    let mut prefix = [0; PREFIX];
    if length < PREFIX as u64 {
        return Err(fail!(Corrupt, "it is no checkpoint: it has {length} bytes"));
    }
    file.read_exact(&mut prefix).map_err(|error| failed(&error))?;
    let announced = u64::from_le_bytes(prefix);
    let room = (length - PREFIX as u64).min(MOST_BYTES as u64);
    let Some(size) = usize::try_from(announced).ok().filter(|_| announced <= room) else {
        return Err(fail!(
            Corrupt,
            "it is cut off or no checkpoint: its first bytes announce a header of {announced} \
             bytes, and there can be {room}"
        ));
    };
    let mut bytes = zeros(PREFIX + size)?;
    bytes[..PREFIX].copy_from_slice(&prefix);
    file.read_exact(&mut bytes[PREFIX..]).map_err(|error| failed(&error))?;
    Ok(bytes)
}

/// The checksums of a file whose tensors begin at `start`: of the header, then of each tensor.
pub(super) fn checksums(
    file: &BufReader<File>,
    header: &FileHeader,
    start: u64,
) -> Result<Vec<u32>> {
    // Checked with the header: they are the last tensor, of four bytes for each of the others.
    let last = &header.entries[header.entries.len() - 1];
    let mut bytes = zeros(header.entries.len() * size_of::<u32>())?;
    let place = start + last.place.start;
    file.get_ref().read_exact_at(&mut bytes, place).map_err(|error| failed(&error))?;
    let (sums, _) = bytes.as_chunks();
    Ok(sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect())
}

fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut zeros = Vec::new();
    zeros
        .try_reserve_exact(bytes)
        .map_err(|_| fail!(OutOfMemory, "cannot allocate {bytes} bytes for its header"))?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

pub(super) fn failed(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return fail!(Corrupt, "it became shorter while it was read");
    }
    fail!(Io, "cannot read it: {error}")
}
