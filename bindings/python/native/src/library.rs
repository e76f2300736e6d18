//! The C library: its types, and its functions by name.
#![allow(unsafe_code, reason = "functions of the C library by dlsym")]

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

pub const OK: i32 = 0;
const CALLBACK: i32 = 11;
/// From here on a status says that an operation failed, not that its arguments are wrong.
const FIRST_FAILURE: i32 = 20;

/// The opaque `kv_store`.
pub type Store = *mut c_void;
/// The C function that a waiting call asks whether to end.
pub type InterruptCheck = unsafe extern "C" fn(*mut c_void) -> i32;
pub type SetInterrupt = unsafe extern "C" fn(Option<InterruptCheck>, *mut c_void) -> i32;

/// A `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct Dtype {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A `kv_tensor`, which has the layout of DLPack's `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub dtype: Dtype,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

impl Tensor {
    /// The address of the first element.
    pub fn start(&self) -> usize {
        self.data.addr().wrapping_add(usize::try_from(self.byte_offset).unwrap_or(0))
    }

    /// The extents.
    ///
    /// # Safety
    ///
    /// The shape has `ndim` extents.
    pub unsafe fn extents(&self) -> &[i64] {
        match usize::try_from(self.ndim) {
            // SAFETY: the caller's promise.
            Ok(ndim) if ndim > 0 => unsafe { std::slice::from_raw_parts(self.shape, ndim) },
            _ => &[],
        }
    }

    /// The strides in elements; none if they are not named.
    ///
    /// # Safety
    ///
    /// Strides that are named are `ndim`.
    pub unsafe fn strides(&self) -> &[i64] {
        match usize::try_from(self.ndim) {
            // SAFETY: the caller's promise.
            Ok(ndim) if ndim > 0 && !self.strides.is_null() => unsafe {
                std::slice::from_raw_parts(self.strides, ndim)
            },
            _ => &[],
        }
    }

    /// Bytes of the elements without gaps.
    ///
    /// # Safety
    ///
    /// The shape has `ndim` extents.
    pub unsafe fn row_major_bytes(&self) -> usize {
        let bits = usize::from(self.dtype.bits);
        // SAFETY: the caller's promise.
        let extents = unsafe { self.extents() }.iter();
        extents.map(|&extent| usize::try_from(extent).unwrap_or(0)).product::<usize>() * bits / 8
    }

    /// Whether it has several elements, in row-major order without gaps.
    ///
    /// # Safety
    ///
    /// The shape has `ndim` extents, and strides, if there are any, are as many.
    pub unsafe fn is_row_major_array(&self) -> bool {
        // SAFETY: the caller's promise.
        let (extents, strides) = unsafe { (self.extents(), self.strides()) };
        let mut count = 1;
        for (at, &extent) in extents.iter().enumerate().rev() {
            let stride = strides.get(at).copied().unwrap_or(count);
            if extent > 1 && stride != count {
                return false;
            }
            count *= extent;
        }
        count > 1
    }

    /// A row-major tensor of the same shape and dtype in host memory.
    pub fn in_host_memory(&self, data: *mut c_void) -> Self {
        const CPU: i32 = 1;
        let strides = std::ptr::null();
        Self { data, device_type: CPU, device_id: 0, strides, byte_offset: 0, ..*self }
    }
}

/// The handle that `dlopen()` gave for the library, a number.
static HANDLE: OnceLock<usize> = OnceLock::new();

/// Names the library that all later calls use, by the handle of its `dlopen()`.
#[pyfunction]
pub fn bind(handle: usize) {
    HANDLE.get_or_init(|| handle);
}

/// A function of the library, of the type that the caller names.
///
/// # Safety
///
/// `F` is the type of a pointer to the function of this name.
pub unsafe fn function<F: Copy>(name: &str) -> PyResult<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    let handle = *HANDLE.get().ok_or_else(|| PyImportError::new_err("bind() comes first"))?;
    let symbol = CString::new(name)?;
    // SAFETY: the package keeps the library open, so the handle is valid.
    let address = unsafe { libc::dlsym(handle as *mut c_void, symbol.as_ptr()) };
    if address.is_null() {
        return Err(PyImportError::new_err(format!("the library has no function {name}")));
    }
    // SAFETY: a pointer to a function has the size of `address`, and the caller knows its type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// Whether outs may have been filled. A call that is refused changes nothing.
pub fn may_have_written(status: i32) -> bool {
    matches!(status, OK | CALLBACK) || status >= FIRST_FAILURE
}
