//! Memory of our own: aligned for the widest vectors, and refused instead of aborting.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::error::{Result, fail};
use crate::sys;

/// Alignment of every buffer: a cache line, and the widest vector register.
const ALIGN: usize = 64;

/// Addresses that are equal modulo this share a set of the first-level cache, which holds eight of
/// them or so. Large arrays from `malloc` all do: a pass over nine of them in step finds none of
/// its lines again. So our own arrays begin elsewhere in their pages than those of the caller.
const SET_BYTES: usize = 4096;

/// From this size on a buffer has room to begin anywhere in a page.
const MOVABLE_BYTES: usize = 32 << 10;

/// Size of a large page. Buffers of two or more lie in such pages where the system gives them: a
/// pass over many arrays then spends less time on finding its pages.
const HUGE_PAGE: usize = 2 << 20;

/// An owned block of memory. Its bytes are undefined until written.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    /// Where its content begins, below [`SET_BYTES`].
    shift: usize,
}

/// Where in a page an array of ours begins, after where the caller's begin.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    ThirdState = 512,
    FirstState = 1024,
    Stored = 2048,
    Master = 2560,
    SecondState = 3072,
}

// SAFETY: owns its memory, like a Box<[u8]>.
unsafe impl Send for Buffer {}
// SAFETY: gives out pointers only; who writes through them has exclusive access.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes`, or says that there is not enough memory.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { start: NonNull::dangling(), bytes, shift: 0 });
        }
        // SAFETY: the layout has a size above zero.
        let start = layout(bytes).and_then(|layout| NonNull::new(unsafe { alloc(layout) }));
        let start = start.ok_or_else(|| fail!(OutOfMemory, "cannot allocate {bytes} bytes"))?;
        if bytes >= 2 * HUGE_PAGE {
            sys::prefer_huge_pages(start, bytes);
        }
        Ok(Self { start, bytes, shift: 0 })
    }

    /// Makes all bytes zero.
    pub(crate) fn clear(&mut self) {
        // SAFETY: so many bytes are there from where the content begins.
        unsafe { self.as_ptr().write_bytes(0, self.bytes) };
    }

    /// Moves the beginning of a large buffer to the same place in a cache line as an address of the
    /// caller's has, so that stores to both can go line by line, and to another place in the page.
    /// The content stays where it was: it is lost unless [`Buffer::put_back`] comes next.
    pub(crate) fn place(&mut self, with: *const u8, place: Place) {
        if self.bytes >= MOVABLE_BYTES {
            let wanted = with.addr().wrapping_add(place as usize);
            self.shift = wanted.wrapping_sub(self.start.addr().get()) % SET_BYTES;
        }
    }

    /// Where it begins now, for [`Buffer::put_back`].
    pub(crate) fn position(&self) -> usize {
        self.shift
    }

    /// Moves the beginning back to where it was.
    pub(crate) fn put_back(&mut self, position: usize) {
        self.shift = position;
    }

    /// Makes room for at least `bytes`; the content is lost when it has to grow.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.bytes < bytes {
            *self = Self::new(bytes)?;
        }
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.shift)
    }
}

/// What is allocated for a buffer; None if memory cannot hold it.
fn layout(bytes: usize) -> Option<Layout> {
    let room = if bytes >= MOVABLE_BYTES { SET_BYTES } else { 0 };
    let align = if bytes >= 2 * HUGE_PAGE { HUGE_PAGE } else { ALIGN };
    Layout::from_size_align(bytes.checked_add(room)?, align).ok()
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let layout = layout(self.bytes);
            // SAFETY: allocated by `allocate` with the same layout.
            layout.into_iter().for_each(|it| unsafe { dealloc(self.start.as_ptr(), it) });
        }
    }
}
