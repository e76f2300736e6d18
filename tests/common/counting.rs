//! The system's allocator, with a count and a limit for each thread.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    pub static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Allocations of this size or more fail, after as many as are allowed.
    pub static REFUSED: Cell<usize> = const { Cell::new(usize::MAX) };
    pub static ALLOWED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    /// Counts an allocation; gives whether it may succeed.
    fn count(size: usize) -> bool {
        // While a thread ends its numbers may be gone already.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        if REFUSED.try_with(|refused| size < refused.get()).unwrap_or(true) {
            return true;
        }
        let allowed = ALLOWED.try_with(Cell::get).unwrap_or(0);
        allowed > 0 && ALLOWED.try_with(|it| it.set(allowed - 1)).is_ok()
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::count(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::count(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !Self::count(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(start, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many allocations this thread makes in ten calls, after four to get started: on a GPU the table of a
/// call stays there from the second on, and the events of the first two are used again behind that.
pub fn allocations(what: &str, mut call: impl FnMut()) {
    (0..4).for_each(|_| call());
    let before = ALLOCATIONS.get();
    (0..10).for_each(|_| call());
    assert_eq!(ALLOCATIONS.get() - before, 0, "{what} allocates");
}
