//! The forms of the tutorials (a key or a list, an array or a list, lists of lists) as pairs.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyRange, PyString, PyTuple};

use crate::kinds::{Kinds, Way};
use crate::lent::{Lent, Life, Role};
use crate::python::{invalid, rare};
use crate::store::Handle;

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

/// Arrays of one call on their way into its lists.
pub struct Lender<'a, 'py> {
    /// The name of the call, for texts of errors.
    call: &'a str,
    handle: &'a Bound<'py, Handle>,
    life: Life,
    /// What the library does with the arrays of the list at work.
    role: Role,
    kinds: Kinds<'py>,
    lent: Lent,
}

impl<'a, 'py> Lender<'a, 'py> {
    pub fn new(call: &'a str, handle: &'a Bound<'py, Handle>, life: Life) -> Self {
        let (role, kinds, lent) = (Role::Value, Kinds::default(), Lent::new());
        Self { call, handle, life, role, kinds, lent }
    }

    /// What is lent from here on is the second list.
    pub fn begin_second(&mut self) {
        self.lent.begin_second();
    }

    pub fn finish(mut self) -> Lent {
        self.lent.finish();
        self.lent
    }

    /// Lends one array or several under one key, or those of each key of a list.
    pub fn lend(
        &mut self,
        keys: &Bound<'py, PyAny>,
        arrays: &Bound<'py, PyAny>,
        role: Role,
    ) -> PyResult<()> {
        self.role = role;
        if let Some(keys) = Items::of(keys) {
            self.lend_keys(&keys, arrays)
        } else if let Ok(range) = keys.cast::<PyRange>() {
            let keys = PyList::new(keys.py(), range.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
            self.lend_keys(&Items::List(&keys), arrays)
        } else {
            self.lend_key(keys, arrays)
        }
    }

    /// Lends arrays without keys: one, or those of a list.
    pub fn lend_list(&mut self, arrays: &Bound<'py, PyAny>, role: Role) -> PyResult<()> {
        self.role = role;
        let what = if matches!(role, Role::Value) { "value" } else { "out" };
        let Some(items) = Items::of(arrays) else {
            return self.lend_one(arrays.clone(), what, 0);
        };
        for index in 0..items.len() {
            self.lend_one(items.get(index)?, what, index)?;
        }
        Ok(())
    }

    fn lend_one(&mut self, array: Bound<'py, PyAny>, what: &str, index: usize) -> PyResult<()> {
        let py = array.py();
        let kind = self.kinds.of(&array);
        let label = || format!("{}: {what} {index}", self.call);
        let added = kind.and_then(|kind| {
            self.lent.add(0, array, kind, self.role, self.life)?;
            self.lent.label_stream(|| Ok(label()))
        });
        added.or_else(|error| {
            let error = error.into_value(py);
            Err(PyErr::from_value(rare(intern!(py, "placed"), (label(), error))?))
        })
    }

    fn lend_keys(&mut self, keys: &Items<'_, 'py>, arrays: &Bound<'py, PyAny>) -> PyResult<()> {
        let arrays = self.arrays_of(keys, arrays)?;
        for index in 0..keys.len() {
            self.lend_key(&keys.get(index)?, &arrays.get(index)?)?;
        }
        Ok(())
    }

    fn arrays_of<'b>(
        &self,
        keys: &Items<'_, 'py>,
        arrays: &'b Bound<'py, PyAny>,
    ) -> PyResult<Items<'b, 'py>> {
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
    fn lend_key(&mut self, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let number = self.number_of(key)?;
        match Items::of(value) {
            Some(items) if self.is_list_of_arrays(key, value, &items)? => {
                for index in 0..items.len() {
                    self.lend_array(key, number, items.get(index)?)?;
                }
                Ok(())
            }
            _ => self.lend_array(key, number, value.clone()),
        }
    }

    fn lend_array(
        &mut self,
        key: &Bound<'py, PyAny>,
        number: u64,
        array: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let kind = self.kinds.of(&array);
        let added = kind.and_then(|kind| {
            self.lent.add(number, array, kind, self.role, self.life)?;
            self.lent.label_stream(|| Ok(format!("{}: key {}", self.call, key.repr()?)))
        });
        added.or_else(|error| {
            let py = key.py();
            let error = error.into_value(py);
            let located = rare(intern!(py, "located"), (self.call, key, error))?;
            Err(PyErr::from_value(located))
        })
    }

    /// The library's number of a key.
    fn number_of(&self, key: &Bound<'py, PyAny>) -> PyResult<u64> {
        let py = key.py();
        if key.is_exact_instance_of::<PyInt>() {
            // Keys of the user are below 2**63; the library gives larger numbers to names.
            if let Ok(Ok(number)) = key.extract::<i64>().map(u64::try_from) {
                return Ok(number);
            }
        } else if key.is_exact_instance_of::<PyString>()
            && let Some(number) = self.handle.get().numbers.bind(py).get_item(key)?
        {
            return number.extract();
        }
        // A new name, or a refusal.
        self.handle.call_method1(intern!(py, "number_of"), (key,))?.extract()
    }

    /// Whether a list is one of arrays, and not an array written out as numbers.
    fn is_list_of_arrays(
        &mut self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        items: &Items<'_, 'py>,
    ) -> PyResult<bool> {
        if items.len() > 0 && !matches!(self.kinds.of(&items.get(0)?)?.way, Way::Other) {
            return Ok(true);
        }
        rare(intern!(key.py(), "is_list_of_arrays"), (self.call, key, value))?.extract()
    }
}
