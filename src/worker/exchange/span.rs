//! Memory of a collective call.
#![allow(unsafe_code, reason = "memory that callers lend is shared by the threads of a call")]

use std::ops::Range;
use std::ptr;

use crate::local::collective::copy;

/// Bytes that a call has lent, or that are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteSpan {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is lent to the call, whatever its threads.
unsafe impl Send for ByteSpan {}
// SAFETY: the memory is lent to the call; its threads write disjoint parts.
unsafe impl Sync for ByteSpan {}

impl ByteSpan {
    pub(super) const NONE: Self = Self { start: ptr::null_mut(), len: 0 };

    pub(super) fn new(start: *mut u8, len: usize) -> Self {
        if len == 0 { Self::NONE } else { Self { start, len } }
    }

    pub(super) fn start(self) -> *mut u8 {
        self.start
    }

    pub(super) fn len(self) -> usize {
        self.len
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }

    /// A part of it.
    pub(super) fn from(self, at: usize, len: usize) -> Self {
        debug_assert!(at + len <= self.len, "a part of its span");
        Self::new(self.start.wrapping_add(at), len)
    }
}

impl ByteSpan {
    /// The bytes of these elements.
    pub(super) fn part(self, elements: &Range<usize>, size: usize) -> Self {
        if self.is_empty() || elements.is_empty() {
            return Self::NONE;
        }
        self.from(elements.start * size, elements.len() * size)
    }

    /// Copies a received piece to its place.
    pub(super) fn put(self, at: usize, bytes: &[u8]) {
        if at.checked_add(bytes.len()).is_some_and(|end| end <= self.len) {
            copy(self.from(at, bytes.len()).start, bytes.as_ptr(), bytes.len());
        }
    }
}

/// The part of an array that this worker reduces.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReducedPart {
    pub(super) own: ByteSpan,
    pub(super) out: ByteSpan,
}
