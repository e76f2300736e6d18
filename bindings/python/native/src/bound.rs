//! Bound lists: arrays that the library has checked once, and that each call finds at their place.
#![allow(unsafe_code, reason = "calls of the C library")]

use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::Inside;
use crate::lent::{Lent, Life, Role, note_written};
use crate::library::{OK, Store as StoreAddress, Tensor, function};
use crate::mappings::{is_mapping, lists};
use crate::operation::finish;
use crate::pairs::Lender;
use crate::python::{closed, failure_of, invalid, unsupported};
use crate::store::{Handle, Store, open};
use crate::watched::Watched;

type Bind = unsafe extern "C" fn(
    StoreAddress,
    *const u64,
    *const Tensor,
    usize,
    *const u64,
    *const Tensor,
    usize,
    *mut usize,
) -> i32;
type Call = unsafe extern "C" fn(usize, i32, *mut u64) -> i32;
type Free = unsafe extern "C" fn(usize);

/// The base of `kvstore/_bound.py: Bound`, with a `kv_bound`.
#[pyclass(frozen, subclass, module = "kvstore._native")]
pub struct BoundLists {
    store: Py<Store>,
    /// The address of the `kv_bound`, 0 once it has been closed. Like the two below, read and written
    /// with the GIL held.
    address: AtomicUsize,
    /// Calls that other threads are inside of; the last one frees a list that has been closed.
    calls: AtomicUsize,
    is_closed: AtomicBool,
    functions: [Call; 3],
    free: Free,
    values: Vec<Watched>,
    outs: Vec<Watched>,
    /// Outs whose changes PyTorch counts.
    tracked: Py<PyList>,
    /// Keeps the memory.
    lent: Lent,
}

/// The calls, by their places in `functions`.
#[derive(Clone, Copy)]
enum Kind {
    Push,
    Pull,
    PushPull,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::PushPull => "pushpull",
        }
    }
}

#[pymethods]
impl BoundLists {
    #[new]
    #[pyo3(signature = (store, key=None, value=None, out=None))]
    fn new<'py>(
        store: &Bound<'py, Store>,
        key: Option<&Bound<'py, PyAny>>,
        value: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = store.py();
        let handle = &open(store)?;
        let lent = describe(handle, key, value, out)?;
        if lent.uses_devices() {
            let text = "bind: arrays in GPU memory cannot be bound: call push(), pull() or pushpull() \
                        of the store with them";
            return Err(unsupported(py, text));
        }
        let [values, outs] = lent.watch(py)?;
        let tracked = lent.tracked(py)?.unbind();
        // SAFETY: the header declares these functions with these parameters.
        let (functions, free) = unsafe {
            let calls = ["kv_bound_push", "kv_bound_pull", "kv_bound_pushpull"];
            let [push, pull, pushpull] = calls.map(|name| function(name));
            ([push?, pull?, pushpull?], function("kv_bound_free")?)
        };
        let address = AtomicUsize::new(bind(&lent, handle)?);
        let (store, calls, is_closed) = (store.clone().unbind(), AtomicUsize::new(0), false.into());
        Ok(Self { store, address, calls, is_closed, functions, free, values, outs, tracked, lent })
    }

    /// Adds up the values of each key and merges the sums into what is stored.
    fn push(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Kind::Push)
    }

    /// Copies what is stored into the outs.
    fn pull(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Kind::Pull)
    }

    /// Pushes, then pulls, in one operation.
    fn pushpull(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Kind::PushPull)
    }

    /// Ends the list; a call of another thread goes on.
    fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.free_if_unused();
    }

    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Shows references to the garbage collector. It breaks cycles elsewhere: the library may still
    /// use the arrays.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.store)?;
        visit.call(&self.tracked)?;
        self.values.iter().chain(&self.outs).try_for_each(|each| each.traverse(&visit))?;
        self.lent.traverse(&visit)
    }
}

impl BoundLists {
    fn call(&self, py: Python<'_>, kind: Kind) -> PyResult<()> {
        let store = self.store.bind(py);
        // Held during the call: it frees the store when it goes.
        let handle = open(store)?;
        if self.closed() {
            return Err(closed(py, "the bound list is closed"));
        }
        let (values, outs): (&[_], &[_]) = match kind {
            Kind::Push => (&self.values, &[]),
            Kind::Pull => (&[], &self.outs),
            Kind::PushPull => (&self.values, &self.outs),
        };
        for (list, name) in [(values, "value"), (outs, "out")] {
            for each in list {
                if !each.is_in_place(py)? {
                    return Err(moved(&handle, kind, name, each.key));
                }
            }
        }
        let (address, function) = (self.address.load(Relaxed), self.functions[kind as usize]);
        let inside = Inside::enter(py)?;
        self.calls.fetch_add(1, Relaxed);
        // SAFETY: it is not freed while a call is inside, and its arrays are at their places.
        let status = py.detach(|| unsafe { function(address, 0, null_mut()) });
        self.calls.fetch_sub(1, Relaxed);
        // Before the library is called again: its text is that of the last call.
        let failure = (status != OK).then(|| failure_of(py, status));
        self.free_if_unused();
        drop(inside);
        finish(py, status, failure, || match kind {
            Kind::Push => Ok(()),
            Kind::Pull | Kind::PushPull => note_written(self.tracked.bind(py)),
        })
    }

    fn free_if_unused(&self) {
        if self.closed() && self.calls.load(Relaxed) == 0 {
            let address = self.address.swap(0, Relaxed);
            // SAFETY: made by kv_bind(), freed once, and no call is inside; 0 does nothing.
            unsafe { (self.free)(address) };
        }
    }
}

/// The arrays of both lists, with their keys.
fn describe<'py>(
    handle: &Bound<'py, Handle>,
    key: Option<&Bound<'py, PyAny>>,
    value: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Lent> {
    let [key, value, out] = [key, value, out].map(|it| it.filter(|it| !it.is_none()));
    let mut lender = Lender::new("bind", handle, Life::Bound);
    // A mapping stands for its keys and, in their place, its arrays.
    let arguments = match (key, value) {
        (None, Some(value)) if is_mapping(value) => (Some(value), None, out),
        _ => (key, value, out),
    };
    if value.is_none() && out.is_some() && !key.is_some_and(is_mapping) {
        let lists = lists("bind", (key, out, None))?;
        lender.begin_second();
        lender.lend(&lists.key, &lists.arrays, Role::Out)?;
        return Ok(lender.finish());
    }
    let lists = lists("bind", arguments)?;
    lender.lend(&lists.key, &lists.arrays, Role::Value)?;
    lender.begin_second();
    if let Some(outs) = &lists.second {
        lender.lend(&lists.key, outs, Role::Out)?;
    }
    Ok(lender.finish())
}

/// Has the library check the lists; gives the address of the `kv_bound`.
fn bind(lent: &Lent, handle: &Bound<'_, Handle>) -> PyResult<usize> {
    let py = handle.py();
    // SAFETY: the header declares it so, and the lists are complete.
    let (function, mut bound) = (unsafe { function::<Bind>("kv_bind")? }, 0);
    let store = handle.get().address();
    let place = (&raw mut bound).expose_provenance();
    let inside = Inside::enter(py)?;
    let status = py.detach(|| {
        let [(keys, values, count), (out_keys, outs, out_count)] = lent.lists();
        let store = with_exposed_provenance_mut(store);
        // SAFETY: the caller holds the handle, which frees the store when it goes, and these lists.
        unsafe {
            let place = with_exposed_provenance_mut(place);
            function(store, keys, values, count, out_keys, outs, out_count, place)
        }
    });
    let failure = (status != OK).then(|| failure_of(py, status));
    drop(inside);
    finish(py, status, failure, || Ok(())).map(|()| bound)
}

fn moved(handle: &Bound<'_, Handle>, kind: Kind, what: &str, key: u64) -> PyErr {
    let py = handle.py();
    let label = handle.call_method1(intern!(py, "key_of"), (key,)).and_then(|key| key.repr());
    match label {
        Ok(key) => {
            let call = kind.name();
            let text = format!(
                "{call}: key {key}: the memory of the {what} is not what was bound (it was resized, \
                 replaced or freed): bind the arrays again"
            );
            invalid(py, text)
        }
        Err(error) => error,
    }
}
