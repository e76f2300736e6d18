//! What the extension takes from the rest of the package, and from modules that are loaded already.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};

static ARRAYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

fn module<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyModule>>,
    name: &str,
) -> PyResult<Bound<'py, PyModule>> {
    let module = cell.get_or_try_init(py, || py.import(name).map(Bound::unbind))?;
    Ok(module.bind(py).clone())
}

/// Calls a function of `kvstore/_arrays.py`.
pub fn rare<'py, A>(name: &Bound<'py, PyString>, arguments: A) -> PyResult<Bound<'py, PyAny>>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    module(name.py(), &ARRAYS, "kvstore._arrays")?.call_method1(name, arguments)
}

fn error(py: Python<'_>, kind: &str, text: String) -> PyErr {
    let kind = module(py, &ERRORS, "kvstore._errors").and_then(|errors| errors.getattr(kind));
    match kind.and_then(|kind| Ok(kind.cast_into::<PyType>()?)) {
        Ok(kind) => PyErr::from_type(kind, text),
        Err(error) => error,
    }
}

/// The exception of the last call of this thread, which returned `status`.
pub fn failure_of(py: Python<'_>, status: i32) -> PyErr {
    static FAILURE_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let function = FAILURE_OF.import(py, "kvstore._call", "failure_of");
    function.and_then(|function| function.call1((status,))).map_or_else(|it| it, PyErr::from_value)
}

/// An `InvalidArgumentError`.
pub fn invalid(py: Python<'_>, text: String) -> PyErr {
    error(py, "InvalidArgumentError", text)
}

/// An `UnsupportedError`.
pub fn unsupported(py: Python<'_>, text: &str) -> PyErr {
    error(py, "UnsupportedError", text.to_owned())
}

/// A `ClosedError`.
pub fn closed(py: Python<'_>, text: &str) -> PyErr {
    error(py, "ClosedError", text.to_owned())
}
