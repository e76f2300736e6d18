//! Memory of a device: mapped once for callers, who may not touch it, and once for the stand-in.
#![allow(unsafe_code, reason = "mappings of the system, and the bytes in them")]

use std::io::{Error, Result};
use std::ptr::{copy_nonoverlapping, null_mut, write_bytes};

/// What callers may do with their view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The memory of a device: a host access is a segmentation fault.
    None,
    /// Pinned host memory: both views are the same.
    Host,
}

/// A memory file with two views.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The address that callers know.
    seen: usize,
    /// The address that the stand-in uses.
    alias: usize,
    bytes: usize,
}

/// A quarantined address range: the memory is unmapped, and no other mapping gets the addresses.
#[derive(Debug)]
pub(crate) struct Reservation {
    address: usize,
    bytes: usize,
}

const PAGE: usize = 4096;

fn map(file: i32, bytes: usize, protection: i32, at: Option<usize>) -> Result<usize> {
    let kind = if file < 0 {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
    } else {
        libc::MAP_SHARED
    };
    let kind = kind | if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping, or one in the place of a mapping of ours that nothing refers to any more.
    let address = unsafe {
        libc::mmap(at.map_or(null_mut(), |at| at as *mut _), bytes, protection, kind, file, 0)
    };
    if address == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(address as usize) }
}

impl Mapping {
    /// New memory, each byte of which is 0xA5.
    pub(crate) fn new(bytes: usize, access: Access) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: a name that ends with a zero.
        let file = unsafe { libc::memfd_create(c"cuda-stand-in".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(Error::last_os_error());
        }
        let views = Self::views(file, bytes, access);
        // SAFETY: the file is ours; mappings keep its memory.
        unsafe { libc::close(file) };
        let (seen, alias) = views?;
        let mapping = Self { seen, alias, bytes };
        mapping.fill(0, bytes, 0xa5);
        Ok(mapping)
    }

    fn views(file: i32, bytes: usize, access: Access) -> Result<(usize, usize)> {
        let length = libc::off_t::try_from(bytes).map_err(Error::other)?;
        // SAFETY: the file is ours.
        if unsafe { libc::ftruncate(file, length) } != 0 {
            return Err(Error::last_os_error());
        }
        let alias = map(file, bytes, libc::PROT_READ | libc::PROT_WRITE, None)?;
        match access {
            Access::Host => Ok((alias, alias)),
            Access::None => Ok((map(file, bytes, libc::PROT_NONE, None)?, alias)),
        }
    }

    /// The address that callers see.
    pub(crate) fn address(&self) -> u64 {
        self.seen as u64
    }

    fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "an access beyond a mapping");
        (self.alias + offset) as *mut u8
    }

    pub(crate) fn fill(&self, offset: usize, bytes: usize, byte: u8) {
        // SAFETY: inside of the writable view, which lives as long as `self`.
        unsafe { write_bytes(self.pointer(offset, bytes), byte, bytes) }
    }

    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: inside of the view; `to` is memory of Rust, which lies elsewhere.
        unsafe { copy_nonoverlapping(self.pointer(offset, to.len()), to.as_mut_ptr(), to.len()) }
    }

    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        // SAFETY: as for reading.
        unsafe { copy_nonoverlapping(from.as_ptr(), self.pointer(offset, from.len()), from.len()) }
    }

    /// At most 8 bytes, little-endian.
    pub(crate) fn load(&self, offset: usize, bytes: usize) -> u64 {
        let mut value = [0; 8];
        self.read(offset, &mut value[..bytes]);
        u64::from_le_bytes(value)
    }

    /// At most 8 bytes, little-endian.
    pub(crate) fn store(&self, offset: usize, bytes: usize, value: u64) {
        self.write(offset, &value.to_le_bytes()[..bytes]);
    }

    /// Gives the memory back. Accesses of the host to its addresses are segmentation faults until the
    /// reservation ends.
    pub(crate) fn retire(self) -> Option<Reservation> {
        let reserved = map(-1, self.bytes, libc::PROT_NONE, Some(self.seen));
        let reservation = Reservation { address: reserved.ok()?, bytes: self.bytes };
        if self.alias != self.seen {
            unmap(self.alias, self.bytes);
        }
        std::mem::forget(self);
        Some(reservation)
    }
}

fn unmap(address: usize, bytes: usize) {
    // SAFETY: a mapping of ours, whose owner ends.
    unsafe { libc::munmap(address as *mut _, bytes) };
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.seen, self.bytes);
        if self.alias != self.seen {
            unmap(self.alias, self.bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(self.address, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Mapping};

    #[test]
    fn bytes_are_where_they_were_written() {
        let mapping = Mapping::new(100, Access::None).unwrap();
        assert_eq!(mapping.load(92, 8), 0xa5a5_a5a5_a5a5_a5a5);
        mapping.store(4, 4, 0x1122_3344_5566_7788);
        assert_eq!(mapping.load(0, 8), 0x5566_7788_a5a5_a5a5);
        let address = mapping.address();
        let reservation = mapping.retire();
        let others: Vec<Mapping> =
            (0..8).map(|_| Mapping::new(100, Access::None).unwrap()).collect();
        assert!(others.iter().all(|other| other.address() != address));
        drop(reservation);
    }

    #[test]
    #[should_panic(expected = "an access beyond a mapping")]
    fn an_access_beyond_the_end_is_refused() {
        Mapping::new(100, Access::Host).unwrap().load(4_090, 8);
    }
}
