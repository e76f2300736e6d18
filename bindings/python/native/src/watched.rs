//! Arrays of bound lists: each call looks whether they are at the places that the library knows.
//!
//! A reference keeps an array, and not always its memory: `resize()` of numpy, `tensor.data = other`
//! and `untyped_storage().resize_()` of PyTorch take it away.
#![allow(unsafe_code, reason = "extents to which tensors point")]

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::dlpack::Table;
use crate::kinds::{Kind, Way};
use crate::library::{Dtype, Tensor};
use crate::numpy::{self, Layout};

/// How the place of an array is found again.
enum Look {
    /// numpy's own structure.
    Fields(Layout),
    /// numpy's interface, if the structure is not the known one.
    Interface,
    /// PyTorch's table.
    Table(&'static Table),
    /// PyTorch's methods, before it had a table.
    Methods,
    /// An export keeps the memory, and has no other place.
    Nowhere,
}

/// An array, and where it was when it was bound.
pub struct Watched {
    /// The library's number of its key.
    pub key: u64,
    array: Py<PyAny>,
    look: Look,
    start: usize,
    extents: Box<[i64]>,
    strides: Box<[i64]>,
    dtype: Dtype,
}

impl Watched {
    /// # Errors
    /// What the array's package raises.
    pub fn new(key: u64, array: &Bound<'_, PyAny>, kind: Kind, tensor: &Tensor) -> PyResult<Self> {
        // SAFETY: its package has described the array, which is held.
        let (extents, strides) = unsafe { (tensor.extents(), tensor.strides()) };
        let mut strides = strides.to_vec();
        let look = match kind.way {
            Way::Numpy => {
                let layout = Layout::of(array);
                // As long as numpy's structure is the known one.
                if layout.is_at(tensor.start(), extents) {
                    Look::Fields(layout)
                } else {
                    numpy::describe(array, &mut strides)?;
                    Look::Interface
                }
            }
            Way::Table(table) if kind.is_torch() => Look::Table(table),
            Way::Capsule if kind.is_torch() => {
                // An export has other strides for extents of 1.
                strides = numbers(array, intern!(array.py(), "stride"))?;
                Look::Methods
            }
            _ => Look::Nowhere,
        };
        let (start, dtype, array) = (tensor.start(), tensor.dtype, array.clone().unbind());
        Ok(Self {
            key,
            array,
            look,
            start,
            extents: extents.into(),
            strides: strides.into(),
            dtype,
        })
    }

    #[inline]
    pub fn is_in_place(&self, py: Python<'_>) -> PyResult<bool> {
        let array = self.array.bind(py);
        match &self.look {
            Look::Fields(layout) => Ok(layout.is_of(array)),
            Look::Interface => {
                let mut strides = Vec::new();
                let described = numpy::describe(array, &mut strides)?;
                Ok(self.is_like(&described.tensor, &strides))
            }
            Look::Table(table) => match table.borrow(array) {
                Some(described) => {
                    let tensor = described?.tensor;
                    // SAFETY: its package has just described the array, which is held.
                    Ok(self.is_like(&tensor, unsafe { tensor.strides() }))
                }
                None => Ok(true),
            },
            Look::Methods => {
                let start: usize = array.call_method0(intern!(py, "data_ptr"))?.extract()?;
                Ok(start == self.start
                    && numbers(array, intern!(py, "size"))? == *self.extents
                    && numbers(array, intern!(py, "stride"))? == *self.strides)
            }
            Look::Nowhere => Ok(true),
        }
    }

    fn is_like(&self, tensor: &Tensor, strides: &[i64]) -> bool {
        // SAFETY: its package has just described the array, which is held.
        let extents = unsafe { tensor.extents() };
        tensor.start() == self.start
            && *extents == *self.extents
            && *strides == *self.strides
            && tensor.dtype == self.dtype
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.array)
    }
}

/// What a method of PyTorch gives: extents, or strides in elements.
fn numbers(array: &Bound<'_, PyAny>, method: &Bound<'_, PyString>) -> PyResult<Vec<i64>> {
    array.call_method0(method)?.extract()
}
