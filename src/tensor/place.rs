//! Where the tensors of a call begin.

use std::ptr;
use std::slice;

/// The start of a plain array of a call. Also called: base address.
///
/// It has neither length nor lifetime: the checks of the call guarantee that the array exists, and
/// the loan that it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Place(*mut u8);

// SAFETY: only a pointer; threads of one call use different arrays.
unsafe impl Send for Place {}
// SAFETY: only a pointer; threads of one call use different arrays.
unsafe impl Sync for Place {}

impl Place {
    pub(crate) const NOWHERE: Self = Self(ptr::null_mut());

    pub(crate) fn of(start: *mut u8) -> Self {
        Self(start)
    }

    pub(crate) fn start(self) -> *mut u8 {
        self.0
    }

    pub(crate) fn addr(self) -> usize {
        self.0.addr()
    }

    /// Values as the inputs of a pass.
    pub(crate) fn inputs(places: &[Self]) -> &[*const u8] {
        // SAFETY: a place is a pointer, and a pointer to constants has the same layout.
        unsafe { slice::from_raw_parts(places.as_ptr().cast(), places.len()) }
    }

    /// Outs as the outs of a pass.
    pub(crate) fn outs(places: &[Self]) -> &[*mut u8] {
        // SAFETY: a place is a pointer.
        unsafe { slice::from_raw_parts(places.as_ptr().cast(), places.len()) }
    }
}
