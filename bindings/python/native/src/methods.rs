//! The data calls as methods of `KVStore`, without a frame of Python around each call.
//!
//! The class declares them as Python functions, with parameters and documentation, whose bodies never
//! run. The methods that replace these get their arguments in an array (`METH_FASTCALL`): a call makes
//! neither a tuple nor a dict of them.
#![allow(unsafe_code, reason = "a calling convention that pyo3 does not offer for Python 3.9")]

use std::ffi::{CString, c_int};
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use pyo3::PyTypeInfo;
use pyo3::exceptions::PySystemError;
use pyo3::ffi::{self, PyObject};
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::operation::Call;
use crate::store::Store;

/// Part of the stable ABI from Python 3.10 on, and the same in 3.9.
const METH_FASTCALL: c_int = 0x80;
type FastCall = unsafe extern "C" fn(
    *mut PyObject,
    *const *mut PyObject,
    ffi::Py_ssize_t,
    *mut PyObject,
) -> *mut PyObject;

/// Maximum number of parameters, `self` not counted.
const PARAMETERS: usize = 4;
type Slots<'a, 'py> = [Option<Borrowed<'a, 'py, PyAny>>; PARAMETERS];

/// Data calls and their C functions. A C function is not told which method it is, so each is an
/// instance for one place of `METHODS`.
const NAMED: [(&str, FastCall); 7] = [
    ("init", run::<0>),
    ("push", run::<1>),
    ("pull", run::<2>),
    ("pushpull", run::<3>),
    ("broadcast", run::<4>),
    ("push_rows", run::<5>),
    ("pull_rows", run::<6>),
];
static METHODS: [PyOnceLock<Method>; NAMED.len()] = [const { PyOnceLock::new() }; NAMED.len()];

/// Replaces the declarations of data calls in a class derived from `Store`; decorates the class.
#[pyfunction]
pub fn with_data_calls<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyType>> {
    for (place, (name, _)) in NAMED.iter().enumerate() {
        class.setattr(name, replacement(&class.getattr(name)?, place)?)?;
    }
    Ok(class.clone())
}

/// The native method for a declaration.
fn replacement<'py>(declaration: &Bound<'py, PyAny>, place: usize) -> PyResult<Bound<'py, PyAny>> {
    let py = declaration.py();
    let (name, function) = NAMED[place];
    let method = METHODS[place].get_or_try_init(py, || Method::new(declaration, name))?;
    let doc = method.documentation(py, name)?;
    let definition = ffi::PyMethodDef {
        ml_name: CString::new(name)?.into_raw(),
        // SAFETY: a field of the union for functions of this type, which the flags name.
        ml_meth: unsafe { transmute::<FastCall, ffi::PyMethodDefPointer>(function) },
        ml_flags: METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: CString::new(doc)?.into_raw(),
    };
    // SAFETY: the definition and its texts live as long as the process.
    unsafe {
        let definition = Box::leak(Box::new(definition));
        let method = ffi::PyDescr_NewMethod(Store::type_object_raw(py), definition);
        Bound::from_owned_ptr_or_err(py, method)
    }
}

/// # Safety
///
/// The caller follows `METH_FASTCALL | METH_KEYWORDS`: `store` is a `Store`; `values` has
/// `count` positional arguments, and then one for each of `names`, which is a tuple or null.
unsafe extern "C" fn run<const PLACE: usize>(
    store: *mut PyObject,
    values: *const *mut PyObject,
    count: ffi::Py_ssize_t,
    names: *mut PyObject,
) -> *mut PyObject {
    Python::attach(|py| {
        // SAFETY: the caller's promise; it keeps all of them during the call.
        let (store, arguments) = unsafe {
            let names = Borrowed::from_ptr_or_opt(py, names);
            let arguments = Arguments {
                values,
                count: count.cast_unsigned(),
                names: names.map(|names| names.cast_unchecked()),
            };
            (Borrowed::from_ptr(py, store).cast_unchecked(), arguments)
        };
        let call = || METHODS[PLACE].get(py).map(|method| method.run(&store, &arguments));
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Some(Ok(()))) => return py.None().into_ptr(),
            Ok(Some(Err(error))) => error.restore(py),
            _ => PanicException::new_err("a data call panicked").restore(py),
        }
        null_mut()
    })
}

/// Arguments of one call, `self` not among them.
struct Arguments<'a, 'py> {
    values: *const *mut PyObject,
    count: usize,
    names: Option<Borrowed<'a, 'py, PyTuple>>,
}

impl<'a, 'py> Arguments<'a, 'py> {
    /// One of the positional arguments or, behind them, of those with names.
    fn get(&self, py: Python<'py>, index: usize) -> Borrowed<'a, 'py, PyAny> {
        debug_assert!(index < self.count + self.named());
        // SAFETY: there are as many, which the caller of the method keeps.
        unsafe { Borrowed::from_ptr(py, *self.values.add(index)) }
    }

    fn named(&self) -> usize {
        self.names.map_or(0, |names| names.len())
    }

    fn name(&self, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let names = self.names.ok_or_else(|| PySystemError::new_err("no names"))?;
        names.get_item(index)
    }
}

struct Method {
    call: Call,
    declaration: Py<PyAny>,
    /// Names of the parameters; the first `required` have no default.
    names: Vec<Py<PyString>>,
    required: usize,
}

impl Method {
    fn new(declaration: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let code = declaration.getattr("__code__")?;
        let count: usize = code.getattr("co_argcount")?.extract()?;
        let names: Vec<Py<PyString>> = code.getattr("co_varnames")?.extract()?;
        let names: Vec<_> = names.into_iter().take(count).skip(1).collect();
        let defaults: Option<Vec<Py<PyAny>>> = declaration.getattr("__defaults__")?.extract()?;
        let required = names.len() - defaults.map_or(0, |defaults| defaults.len());
        let declaration = declaration.clone().unbind();
        Ok(Self { call: Call::new(name)?, declaration, names, required })
    }

    /// The documentation, behind the line from which `inspect.signature()` takes the parameters.
    fn documentation(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let declaration = self.declaration.bind(py);
        let defaults: Option<Vec<Bound<'_, PyAny>>> =
            declaration.getattr("__defaults__")?.extract()?;
        let defaults = defaults.unwrap_or_default();
        let parameter =
            |(index, name): (usize, &Py<PyString>)| match index.checked_sub(self.required) {
                Some(place) => Ok(format!(", {name}={}", defaults[place].repr()?)),
                None => Ok(format!(", {name}")),
            };
        let parameters: String =
            self.names.iter().enumerate().map(parameter).collect::<PyResult<_>>()?;
        Ok(format!("{name}($self{parameters})\n--\n\n{}", declaration.getattr("__doc__")?))
    }

    fn run<'py>(&self, store: &Bound<'py, Store>, arguments: &Arguments<'_, 'py>) -> PyResult<()> {
        // The parameters: a key, one or two lists of arrays, and for all but `init` a priority.
        let Some([key, arrays, second, last]) = self.bind(store.py(), arguments)? else {
            return Err(self.refusal(store, arguments)?);
        };
        let (second, priority) = match self.names.len() {
            PARAMETERS => (second.filter(|second| !second.is_none()), last),
            _ => (None, second),
        };
        let priority = priority.map_or(Ok(0), |priority| priority_of(&priority))?;
        let [key, arrays, second] = [&key, &arrays, &second].map(Option::as_deref);
        self.call.run(store, (key, arrays, second), priority)
    }

    /// Assigns arguments to parameters; none if they do not fit.
    fn bind<'a, 'py>(
        &self,
        py: Python<'py>,
        arguments: &Arguments<'a, 'py>,
    ) -> PyResult<Option<Slots<'a, 'py>>> {
        let mut slots = [None; PARAMETERS];
        if arguments.count > self.names.len() {
            return Ok(None);
        }
        for (index, slot) in slots[..arguments.count].iter_mut().enumerate() {
            *slot = Some(arguments.get(py, index));
        }
        for index in 0..arguments.named() {
            match self.place_of(&arguments.name(index)?)? {
                Some(place) if slots[place].is_none() => {
                    slots[place] = Some(arguments.get(py, arguments.count + index));
                }
                _ => return Ok(None),
            }
        }
        Ok(slots[..self.required].iter().all(Option::is_some).then_some(slots))
    }

    /// The place of a parameter. Names in a call are mostly the very objects of the declaration.
    fn place_of(&self, name: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        if let Some(place) = self.names.iter().position(|each| each.is(name)) {
            return Ok(Some(place));
        }
        for (place, each) in self.names.iter().enumerate() {
            if name.eq(each)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// What Python raises when the declaration gets these arguments.
    fn refusal<'py>(
        &self,
        store: &Bound<'py, Store>,
        arguments: &Arguments<'_, 'py>,
    ) -> PyResult<PyErr> {
        let py = store.py();
        let positional = (0..arguments.count).map(|index| arguments.get(py, index).to_owned());
        let positional: Vec<_> =
            std::iter::once(store.as_any().clone()).chain(positional).collect();
        let named = PyDict::new(py);
        for index in 0..arguments.named() {
            let value = arguments.get(py, arguments.count + index);
            named.set_item(arguments.name(index)?, value)?;
        }
        let called = self.declaration.bind(py).call(PyTuple::new(py, positional)?, Some(&named));
        Ok(called.err().unwrap_or_else(|| PySystemError::new_err("the arguments fit")))
    }
}

fn priority_of(priority: &Bound<'_, PyAny>) -> PyResult<i32> {
    priority.extract().inspect_err(|error: &PyErr| {
        // Exceptions have notes from Python 3.11 on.
        let note = ("while processing 'priority'",);
        let _ = error.value(priority.py()).call_method1(intern!(priority.py(), "add_note"), note);
    })
}
