//! The forms of the tutorials (a key or a list, an array or a list, lists of lists) as pairs.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyRange, PyString, PyTuple};

use crate::kinds::{Kind, Way};
use crate::lent::{Lent, Life, Role};
use crate::python::{invalid, rare};

/// Integers below are keys of the user; the library gives the others to names.
const KEY_LIMIT: u64 = 1 << 63;

/// A list or a tuple.
enum Items<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
}

impl<'a, 'py> Items<'a, 'py> {
    fn of(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        let list = object.cast::<PyList>().map(Items::List);
        list.or_else(|_| object.cast::<PyTuple>().map(Items::Tuple)).ok()
    }

    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    fn get(&self, index: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::List(list) => list.get_item(index),
            Self::Tuple(tuple) => tuple.get_item(index),
        }
    }
}

/// The arrays of one call on their way into a list.
pub struct Lender<'a, 'py> {
    /// The name of the call, for texts of errors.
    pub call: &'a str,
    /// The store's `Handle`.
    pub handle: &'a Bound<'py, PyAny>,
    pub role: Role,
    pub life: Life,
}

impl<'py> Lender<'_, 'py> {
    /// Lends one array or several under one key, or those of each key of a list.
    pub fn lend(&self, keys: &Bound<'py, PyAny>, arrays: &Bound<'py, PyAny>) -> PyResult<Lent> {
        let mut lent = Lent::new();
        let keys = match keys.cast::<PyRange>() {
            Ok(range) => &PyList::new(keys.py(), range.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
            Err(_) => keys,
        };
        match Items::of(keys) {
            None => self.lend_key(&mut lent, keys, arrays)?,
            Some(keys) => {
                let arrays = self.arrays_of(&keys, arrays)?;
                for index in 0..keys.len() {
                    self.lend_key(&mut lent, &keys.get(index)?, &arrays.get(index)?)?;
                }
            }
        }
        lent.finish();
        Ok(lent)
    }

    fn arrays_of<'a>(
        &self,
        keys: &Items<'_, 'py>,
        arrays: &'a Bound<'py, PyAny>,
    ) -> PyResult<Items<'a, 'py>> {
        let call = self.call;
        let Some(items) = Items::of(arrays) else {
            let kind = arrays.get_type().name()?;
            let text = format!("{call}: a list of keys needs a list of arrays, not {kind}");
            return Err(PyTypeError::new_err(text));
        };
        if items.len() != keys.len() {
            let (keys, arrays) = (keys.len(), items.len());
            let text = format!("{call}: {keys} keys, but {arrays} arrays or lists");
            return Err(invalid(self.handle.py(), text));
        }
        Ok(items)
    }

    /// Lends the array or the list of arrays of a key.
    fn lend_key(
        &self,
        lent: &mut Lent,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let number = self.number_of(key)?;
        match Items::of(value) {
            Some(items) if self.is_list_of_arrays(key, value, &items)? => {
                for index in 0..items.len() {
                    self.lend_array(lent, key, number, &items.get(index)?)?;
                }
                Ok(())
            }
            _ => self.lend_array(lent, key, number, value),
        }
    }

    fn lend_array(
        &self,
        lent: &mut Lent,
        key: &Bound<'py, PyAny>,
        number: u64,
        array: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let added =
            Kind::of(array).and_then(|kind| lent.add(number, array, kind, self.role, self.life));
        added.or_else(|error| {
            let py = array.py();
            let error = error.into_value(py);
            let located = rare(intern!(py, "located"), (self.call, key, error))?;
            Err(PyErr::from_value(located))
        })
    }

    /// The library's number of a key.
    fn number_of(&self, key: &Bound<'py, PyAny>) -> PyResult<u64> {
        let py = key.py();
        if key.is_exact_instance_of::<PyInt>() {
            if let Ok(number) = key.extract::<u64>()
                && number < KEY_LIMIT
            {
                return Ok(number);
            }
        } else if key.is_exact_instance_of::<PyString>() {
            let names = self.handle.getattr(intern!(py, "numbers"))?;
            if let Some(number) = names.cast::<PyDict>()?.get_item(key)? {
                return number.extract();
            }
        }
        // A new name, or a refusal.
        self.handle.call_method1(intern!(py, "number_of"), (key,))?.extract()
    }

    /// Whether a list is one of arrays, and not an array written out as numbers.
    fn is_list_of_arrays(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        items: &Items<'_, 'py>,
    ) -> PyResult<bool> {
        if items.len() > 0 && !matches!(Kind::of(&items.get(0)?)?.way, Way::Other) {
            return Ok(true);
        }
        rare(intern!(key.py(), "is_list_of_arrays"), (self.call, key, value))?.extract()
    }
}
