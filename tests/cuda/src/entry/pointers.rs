//! Pointers that C passes in. Their types say what CUDA's manual makes the caller promise; only C makes
//! values of them.
#![allow(unsafe_code, reason = "pointers of callers are followed here")]

use std::ffi::{CStr, c_char};

use crate::error::{Code, Result};
use crate::host::HostSpan;

/// A place for a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn set(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a caller passes NULL or a place for a value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// A result that callers may leave out.
    pub(crate) fn set_if_there(&self, value: T) {
        let _ = self.set(value);
    }

    /// Results from the first place on.
    pub(crate) fn set_all(&self, values: &[T])
    where
        T: Copy,
    {
        for (index, value) in values.iter().enumerate() {
            // SAFETY: a caller passes as many places as another argument says.
            unsafe { self.0.add(index).write(*value) };
        }
    }
}

/// A value that is read, and a place for a result.
#[repr(transparent)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    pub(crate) fn get(&self) -> Result<T> {
        In(self.0.cast_const()).get(0)
    }

    pub(crate) fn set(&self, value: T) -> Result<()> {
        Out(self.0).set(value)
    }
}

/// Values that are read.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(&self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a caller passes NULL or as many values as another argument says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// The bytes of an argument of a kernel, behind a pointer.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Argument(*const u8);

impl Argument {
    /// At most 8 bytes as a number.
    pub(crate) fn number(self, bytes: usize) -> Result<u64> {
        let bytes = (0..bytes).map(|index| In(self.0).get(index));
        bytes.rev().try_fold(0, |number, byte| Ok(number << 8 | u64::from(byte?)))
    }

    /// The place itself, for attributes of pointers and options of the compiler.
    pub(crate) fn out<T>(self) -> Out<T> {
        Out(self.0.cast_mut().cast())
    }

    /// A number that stands in the place of the pointer.
    pub(crate) fn value(self) -> usize {
        self.0 as usize
    }
}

/// A text that ends with a zero.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a caller passes NULL or a text.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Code::INVALID_VALUE)
    }
}

/// Host memory that a caller lends until a copy has run.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Host(*mut u8);

impl Host {
    pub(crate) fn span(self, bytes: usize) -> Result<HostSpan> {
        if self.0.is_null() && bytes > 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the manual's rule for copies of host memory.
        Ok(unsafe { HostSpan::lent(self.0 as u64, bytes) })
    }
}
