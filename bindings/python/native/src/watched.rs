//! Arrays of bound lists: each call looks whether they are at the places that the library knows.
//!
//! A reference keeps an array, and not always its memory: `resize()` of numpy, `tensor.data = other`
//! and `untyped_storage().resize_()` of PyTorch take it away.
#![allow(unsafe_code, reason = "extents to which tensors point")]

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use crate::dlpack::Table;
use crate::kinds::{Kind, Way};
use crate::library::{Dtype, Tensor};
use crate::numpy;

/// How the place of an array is found again.
#[derive(Clone, Copy)]
enum Look {
    /// numpy's own structure.
    Fields,
    /// numpy's interface, if the structure is not the known one.
    Interface,
    /// PyTorch's table.
    Table(&'static Table),
    /// PyTorch's method, before it had a table.
    DataPtr,
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
    dtype: Dtype,
}

impl Watched {
    /// # Errors
    /// What the array's package raises.
    pub fn new(key: u64, array: &Bound<'_, PyAny>, kind: Kind, tensor: &Tensor) -> PyResult<Self> {
        let look = match kind.way {
            Way::Numpy => Look::Fields,
            Way::Table(table) if kind.is_torch() => Look::Table(table),
            Way::Capsule if kind.is_torch() => Look::DataPtr,
            _ => Look::Nowhere,
        };
        // SAFETY: its package has described the array, which is held.
        let extents = unsafe { tensor.extents() }.into();
        let (start, dtype, held) = (tensor.start(), tensor.dtype, array.clone().unbind());
        let mut watched = Self { key, array: held, look, start, extents, dtype };
        if matches!(look, Look::Fields) && !watched.is_in_place(array.py())? {
            watched.look = Look::Interface;
        }
        Ok(watched)
    }

    #[inline]
    pub fn is_in_place(&self, py: Python<'_>) -> PyResult<bool> {
        let array = self.array.bind(py);
        match self.look {
            Look::Fields => Ok(numpy::is_at(array, self.start, &self.extents)),
            Look::Interface => {
                let described = numpy::describe(array, &mut Vec::new())?;
                Ok(self.is_like(&described.tensor))
            }
            Look::Table(table) => match table.borrow(array) {
                Some(described) => Ok(self.is_like(&described?.tensor)),
                None => Ok(true),
            },
            Look::DataPtr => {
                let start: usize = array.call_method0(intern!(py, "data_ptr"))?.extract()?;
                Ok(start == self.start)
            }
            Look::Nowhere => Ok(true),
        }
    }

    fn is_like(&self, tensor: &Tensor) -> bool {
        // SAFETY: its package has just described the array, which is held.
        let extents = unsafe { tensor.extents() };
        tensor.start() == self.start && *extents == *self.extents && tensor.dtype == self.dtype
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.array)
    }
}
