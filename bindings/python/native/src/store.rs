//! A store and its handle, as far as data calls read them: the package derives its classes from these.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};

/// The base of `kvstore/_handle.py: Handle`, which owns the `kv_store`.
#[pyclass(frozen, subclass, module = "kvstore._native")]
pub struct Handle {
    /// The address of the `kv_store`, 0 for none. Read and written with the GIL held.
    pointer: AtomicUsize,
    /// The library's numbers of names.
    #[pyo3(get)]
    pub numbers: Py<PyDict>,
}

#[pymethods]
impl Handle {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(py: Python<'_>, _arguments: &Bound<'_, PyTuple>) -> Self {
        let numbers = PyDict::new(py).unbind();
        Self { pointer: AtomicUsize::new(0), numbers }
    }

    #[getter(pointer)]
    fn get_pointer(&self) -> Option<usize> {
        Some(self.address()).filter(|&address| address != 0)
    }

    #[setter]
    fn set_pointer(&self, address: Option<usize>) {
        self.pointer.store(address.unwrap_or(0), Relaxed);
    }
}

impl Handle {
    pub fn address(&self) -> usize {
        self.pointer.load(Relaxed)
    }
}

/// The base of `KVStore`.
#[pyclass(frozen, subclass, module = "kvstore._native")]
pub struct Store {
    /// None before the creation and after the end. Locked without running code of Python.
    handle: Mutex<Option<Py<Handle>>>,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(_arguments: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> Self {
        Self { handle: Mutex::new(None) }
    }

    #[getter(_handle)]
    fn get_handle(&self, py: Python<'_>) -> Option<Py<Handle>> {
        self.lock().as_ref().map(|handle| handle.clone_ref(py))
    }

    #[setter(_handle)]
    fn set_handle(&self, handle: Option<Py<Handle>>) {
        let before = std::mem::replace(&mut *self.lock(), handle);
        // May free the store, which runs code of Python: the lock is released.
        drop(before);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.lock().as_ref().map_or(Ok(()), |handle| visit.call(handle))
    }

    fn __clear__(&self) {
        self.set_handle(None);
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Option<Py<Handle>>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of an open store, after the work that finalizers have left to the next call.
pub fn open<'py>(store: &Bound<'py, Store>) -> PyResult<Bound<'py, Handle>> {
    static POSTPONED: PyOnceLock<Py<PyList>> = PyOnceLock::new();
    let py = store.py();
    let postponed = POSTPONED.import(py, "kvstore._handle", "postponed")?;
    match store.get().get_handle(py) {
        Some(handle) if postponed.is_empty() => Ok(handle.into_bound(py)),
        _ => Ok(store.call_method0(intern!(py, "_open"))?.cast_into()?),
    }
}
