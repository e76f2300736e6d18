//! Owned memory: aligned for the widest vectors; allocation fails with an error instead of
//! aborting.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::error::{Result, fail};
use crate::sys;

/// A cache line, which is also the widest vector register. Alignment of what is allocated.
pub(crate) const LINE: usize = 64;

/// Maximum size of a buffer without an allocation.
pub(crate) const INSIDE: usize = 64;

/// Addresses that are equal modulo this share a set of the first-level cache, which holds about
/// eight of them. Large arrays from `malloc` all do: a pass over nine of them in step finds none of
/// its lines again. And a load that follows a store to an equal address waits for it. So our own
/// arrays begin elsewhere in their pages than the caller's.
const SET_BYTES: usize = 4096;

/// From this size on a buffer has room to begin elsewhere: the larger, the more.
const MOVABLE_BYTES: usize = 2048;

/// Size of a large page. Buffers of two or more lie in such pages where the system gives them: a
/// pass over many arrays then spends less time on finding its pages.
const HUGE_PAGE: usize = 2 << 20;

/// An owned block of memory. Its bytes are undefined until written.
///
/// Small contents are stored inline, and move with it: their address is valid only until then. A
/// small value thus lies beside the lock that guards it, and costs no cache line and no page of its
/// own.
pub(crate) struct Buffer {
    bytes: usize,
    memory: Allocation,
}

enum Allocation {
    Inside(UnsafeCell<MaybeUninit<[u64; INSIDE / size_of::<u64>()]>>),
    Elsewhere {
        start: NonNull<u8>,
        /// Where the content begins, below [`SET_BYTES`].
        shift: usize,
        /// Whether it is mapped pages instead of heap memory.
        mapped: bool,
    },
}

/// Where in a page an array of ours begins, after where the caller's begin.
#[derive(Clone, Copy)]
pub(crate) enum PageOffset {
    ThirdState = 512,
    FirstState = 1024,
    Stored = 2048,
    Master = 2560,
    SecondState = 3072,
}

// SAFETY: owns its memory, like a Box<[u8]>.
unsafe impl Send for Buffer {}
// SAFETY: returns pointers only; a writer through them has exclusive access.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes`, or reports that there is not enough memory.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        if bytes <= INSIDE {
            let memory = Allocation::Inside(UnsafeCell::new(MaybeUninit::uninit()));
            return Ok(Self { bytes, memory });
        }
        // SAFETY: the layout has a size above zero.
        let start = layout(bytes).and_then(|layout| NonNull::new(unsafe { alloc(layout) }));
        let start = start.ok_or_else(|| fail!(OutOfMemory, "cannot allocate {bytes} bytes"))?;
        if bytes >= 2 * HUGE_PAGE {
            sys::prefer_huge_pages(start, bytes);
        }
        Ok(Self { bytes, memory: Allocation::Elsewhere { start, shift: 0, mapped: false } })
    }

    /// Like [`Buffer::new`], at an address that stays when the buffer moves.
    pub(crate) fn fixed(bytes: usize) -> Result<Self> {
        Self::new(bytes.max(INSIDE + 1))
    }

    /// Allocates zeroed `bytes`, or reports that there is not enough memory. Unwritten parts of
    /// large buffers take no memory; in steps of large pages, if `scattered` does not forbid it.
    pub(crate) fn zeroed(bytes: usize, scattered: bool) -> Result<Self> {
        if bytes < 2 * HUGE_PAGE {
            let buffer = Self::new(bytes)?;
            // Also where the content moves to when it is placed.
            // SAFETY: so many bytes have been allocated.
            unsafe { buffer.as_ptr().write_bytes(0, bytes + room(bytes)) };
            return Ok(buffer);
        }
        let size = layout(bytes).map(|layout| layout.size());
        let start = size.and_then(|size| sys::map_pages(size, HUGE_PAGE));
        let start = start.ok_or_else(|| fail!(OutOfMemory, "cannot allocate {bytes} bytes"))?;
        if !scattered {
            sys::prefer_huge_pages(start, bytes);
        }
        Ok(Self { bytes, memory: Allocation::Elsewhere { start, shift: 0, mapped: true } })
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The bytes, all of which were written before and have no concurrent writer.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are there from where the content begins, and they are not undefined.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// The bytes, all of which have been written before.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many initialised bytes begin at the content, and no other reference uses them.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.bytes) }
    }

    /// Moves the beginning of a large buffer to the offset in a cache line that an address of the
    /// caller has. Stores to both can then stream line by line. Its offset in the page differs. The
    /// content is not moved: it is lost unless [`Buffer::put_back`] follows.
    pub(crate) fn place(&mut self, with: *const u8, place: PageOffset) {
        let room = room(self.bytes);
        if let Allocation::Elsewhere { start, shift, .. } = &mut self.memory
            && room > 0
        {
            let wanted = with.addr().wrapping_add(place as usize);
            let best = wanted.wrapping_sub(start.addr().get()) % SET_BYTES;
            let (least, most) = (best % LINE, room - LINE + best % LINE);
            *shift = if best <= most {
                best
            } else if best - most < SET_BYTES - best {
                most
            } else {
                least
            };
        }
    }

    /// Where it begins now, for [`Buffer::put_back`].
    pub(crate) fn position(&self) -> usize {
        match self.memory {
            Allocation::Inside(_) => 0,
            Allocation::Elsewhere { shift, .. } => shift,
        }
    }

    /// Moves the beginning back to where it was.
    pub(crate) fn put_back(&mut self, position: usize) {
        if let Allocation::Elsewhere { shift, .. } = &mut self.memory {
            *shift = position;
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
        match &self.memory {
            Allocation::Inside(bytes) => bytes.get().cast(),
            Allocation::Elsewhere { start, shift, .. } => start.as_ptr().wrapping_add(*shift),
        }
    }
}

/// The allocation of a buffer; None if memory cannot hold it.
fn layout(bytes: usize) -> Option<Layout> {
    let align = if bytes >= 2 * HUGE_PAGE { HUGE_PAGE } else { LINE };
    Layout::from_size_align(bytes.checked_add(room(bytes))?, align).ok()
}

/// Bytes by which the beginning of a buffer can move.
fn room(bytes: usize) -> usize {
    if bytes < MOVABLE_BYTES { 0 } else { (bytes / 8).min(SET_BYTES) / LINE * LINE }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Allocation::Elsewhere { start, mapped, .. } = self.memory else {
            return;
        };
        // Some: it was there when the memory was allocated.
        if let Some(layout) = layout(self.bytes) {
            // SAFETY: mapped by `zeroed` or allocated by `new`, with the same size or layout.
            unsafe {
                if mapped {
                    sys::unmap_pages(start, layout.size(), layout.align());
                } else {
                    dealloc(start.as_ptr(), layout);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zeroed_buffer_is_zero_and_can_be_written_and_moved() {
        for bytes in [0, 64, 2100, 5 << 20] {
            for scattered in [false, true] {
                let mut buffer = Buffer::zeroed(bytes, scattered).unwrap();
                for with in [0, 16, 4095] {
                    buffer.place(std::ptr::without_provenance(with), PageOffset::FirstState);
                    // SAFETY: so many bytes are there.
                    let content = unsafe { std::slice::from_raw_parts(buffer.as_ptr(), bytes) };
                    let step = if cfg!(miri) { 4001 } else { 1 };
                    assert!(content.iter().step_by(step).all(|&byte| byte == 0), "{bytes} bytes");
                }
            }
        }
        assert!(Buffer::zeroed(usize::MAX, false).is_err());
        // An interpreter would try to allocate it.
        if !cfg!(miri) {
            assert!(Buffer::zeroed(isize::MAX as usize / 2, false).is_err());
        }
    }

    #[test]
    fn a_buffer_begins_where_its_room_lets_it() {
        for bytes in [0, 64, 65, 2047, 2048, 2100, 4096, 40_000, 5 << 20] {
            let mut buffer = Buffer::new(bytes).unwrap();
            for with in (0..3 * SET_BYTES).step_by(4) {
                buffer.place(std::ptr::without_provenance(with), PageOffset::Stored);
                let (shift, room) = (buffer.position(), room(bytes));
                assert!(shift < room || shift == 0, "{bytes} bytes, {with}: {shift} of {room}");
                let start = buffer.as_ptr().addr();
                assert!(room == 0 || start % LINE == with % LINE, "{bytes} bytes, {with}");
                if room == SET_BYTES {
                    let distance = start.wrapping_sub(with) % SET_BYTES;
                    assert_eq!(distance, PageOffset::Stored as usize, "{bytes} bytes, {with}");
                }
            }
            // All of it can be written.
            // SAFETY: so many bytes are there.
            unsafe { buffer.as_ptr().write_bytes(1, bytes) };
        }
    }
}
