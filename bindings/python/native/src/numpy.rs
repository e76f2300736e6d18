//! Arrays of numpy, through `__array_struct__`: the same for all versions of numpy.
//!
//! <https://numpy.org/doc/stable/reference/arrays.interface.html>
#![allow(unsafe_code, reason = "a structure of C that numpy fills")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::library::{Dtype, Tensor};
use crate::python::{invalid, rare};

const CPU: i32 = 1;
const C_CONTIGUOUS: c_int = 0x1;
const NATIVE_BYTE_ORDER: c_int = 0x200;
const WRITEABLE: c_int = 0x400;

/// A `PyArrayInterface`.
#[repr(C)]
struct Interface {
    two: c_int,
    ndim: c_int,
    kind: c_char,
    item_size: c_int,
    flags: c_int,
    shape: *const i64,
    strides: *const i64,
    data: *mut c_void,
    descr: *mut c_void,
}

/// How a `PyArrayObject` begins, in all versions of numpy.
#[repr(C)]
struct Fields {
    head: PyObject,
    data: *mut c_void,
    ndim: c_int,
    dimensions: *const i64,
    strides: *const i64,
    base: *mut PyObject,
    descr: *mut PyObject,
}

/// What of an array a program may change in place: `resize()`, `shape`, `strides`, `dtype`.
#[derive(PartialEq, Eq)]
pub struct Layout {
    start: usize,
    /// Extents, then strides in bytes.
    numbers: Box<[i64]>,
    /// Address of the dtype, which the array keeps.
    descr: usize,
}

impl Fields {
    fn of<'a>(array: &'a Bound<'_, PyAny>) -> &'a Self {
        // SAFETY: an array of numpy begins with these fields; the GIL is held.
        unsafe { &*array.as_ptr().cast::<Self>() }
    }

    /// Extents and strides.
    fn numbers(&self) -> [&[i64]; 2] {
        let list = |start| match usize::try_from(self.ndim) {
            // SAFETY: numpy has as many of both.
            Ok(ndim) if ndim > 0 => unsafe { std::slice::from_raw_parts(start, ndim) },
            _ => &[],
        };
        [list(self.dimensions), list(self.strides)]
    }
}

impl Layout {
    pub fn of(array: &Bound<'_, PyAny>) -> Self {
        let fields = Fields::of(array);
        let (start, descr) = (fields.data.addr(), fields.descr.addr());
        Self { start, numbers: fields.numbers().concat().into(), descr }
    }

    /// Whether an array still has it. Reads no attribute, and so may be asked of thousands of arrays in a call.
    #[inline]
    pub fn is_of(&self, array: &Bound<'_, PyAny>) -> bool {
        let fields = Fields::of(array);
        let [extents, strides] = fields.numbers();
        fields.data.addr() == self.start
            && fields.descr.addr() == self.descr
            && extents.len() + strides.len() == self.numbers.len()
            && self.numbers.starts_with(extents)
            && self.numbers.ends_with(strides)
    }

    /// Whether it is that of these elements.
    pub fn is_at(&self, start: usize, extents: &[i64]) -> bool {
        self.start == start
            && self.numbers.len() == 2 * extents.len()
            && self.numbers.starts_with(extents)
    }
}

/// An array as the library takes it, valid as long as its capsule.
pub struct Described<'py> {
    pub tensor: Tensor,
    pub is_writeable: bool,
    pub capsule: Bound<'py, PyAny>,
}

/// Describes an array. The strides of one that is not row-major are appended to `strides`, and not
/// named in the tensor, because the list may move.
pub fn describe<'py>(
    array: &Bound<'py, PyAny>,
    strides: &mut Vec<i64>,
) -> PyResult<Described<'py>> {
    let capsule = array.getattr(intern!(array.py(), "__array_struct__"))?;
    let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(None)?;
    // SAFETY: numpy documents that the capsule has this structure, which lives as long.
    let interface = unsafe { pointer.cast::<Interface>().as_ref() };
    let dtype = dtype(interface, array)?;
    if interface.flags & C_CONTIGUOUS == 0 {
        append_strides(interface, array, strides)?;
    }
    let tensor = Tensor {
        data: interface.data,
        device_type: CPU,
        device_id: 0,
        ndim: interface.ndim,
        dtype,
        shape: interface.shape,
        strides: null(),
        byte_offset: 0,
    };
    let is_writeable = interface.flags & WRITEABLE != 0;
    Ok(Described { tensor, is_writeable, capsule })
}

fn dtype(interface: &Interface, array: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let code = match interface.kind.cast_unsigned() {
        _ if interface.flags & NATIVE_BYTE_ORDER == 0 => None,
        b'i' => Some(0),
        b'u' => Some(1),
        // float8_e5m2 of ml_dtypes is one of these too.
        b'f' if interface.item_size > 1 => Some(2),
        b'c' => Some(5),
        b'b' => Some(6),
        _ => None,
    };
    if let (Some(code), Ok(bits)) = (code, u8::try_from(8 * interface.item_size)) {
        return Ok(Dtype { code, bits, lanes: 1 });
    }
    // A dtype of ml_dtypes, or a refusal.
    let py = array.py();
    let dtype = array.getattr(intern!(py, "dtype"))?;
    let number: u32 = rare(intern!(py, "number_of"), (dtype,))?.extract()?;
    let [code, bits, ..] = number.to_le_bytes();
    Ok(Dtype { code, bits, lanes: 1 })
}

fn append_strides(
    interface: &Interface,
    array: &Bound<'_, PyAny>,
    strides: &mut Vec<i64>,
) -> PyResult<()> {
    let size = i64::from(interface.item_size);
    let ndim = usize::try_from(interface.ndim).unwrap_or(0);
    // SAFETY: an array that is not contiguous has dimensions, and a stride for each.
    let bytes = unsafe { std::slice::from_raw_parts(interface.strides, ndim) };
    if bytes.iter().any(|stride| stride % size != 0) {
        let bytes = array.getattr(intern!(array.py(), "strides"))?;
        let text = format!(
            "strides of {bytes} bytes are not multiples of the {size}-byte element: pass a copy"
        );
        return Err(invalid(array.py(), text));
    }
    strides.extend(bytes.iter().map(|stride| stride / size));
    Ok(())
}
