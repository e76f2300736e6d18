//! Memory of our own: aligned for the widest vectors, and refused instead of aborting.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::error::{Result, fail};

/// Alignment of every buffer: a cache line, and the widest vector register.
const ALIGN: usize = 64;

/// An owned block of memory. Its bytes are undefined until written.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owns its memory, like a Box<[u8]>.
unsafe impl Send for Buffer {}
// SAFETY: gives out pointers only; who writes through them has exclusive access.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes`, or says that there is not enough memory.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { start: NonNull::dangling(), bytes });
        }
        let layout = Layout::from_size_align(bytes, ALIGN).ok();
        // SAFETY: the layout has a size above zero.
        let start = layout.and_then(|layout| NonNull::new(unsafe { alloc(layout) }));
        match start {
            Some(start) => Ok(Self { start, bytes }),
            None => Err(fail!(OutOfMemory, "cannot allocate {bytes} bytes")),
        }
    }

    /// Makes room for at least `bytes`; the content is lost when it has to grow.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.bytes < bytes {
            *self = Self::new(bytes)?;
        }
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `new` with the same size and alignment.
            unsafe {
                let layout = Layout::from_size_align_unchecked(self.bytes, ALIGN);
                dealloc(self.start.as_ptr(), layout);
            }
        }
    }
}
