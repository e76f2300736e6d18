//! The data calls: arguments become lists, and a C function runs with the GIL released.
#![allow(unsafe_code, reason = "calls of the C library")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use crate::calls::{Inside, has_raised, take_raised};
use crate::exchange::ExchangeCall;
use crate::lent::{Lent, Life, Role};
use crate::library::{OK, Store, Tensor, function, may_have_written};
use crate::mappings::{self, Arguments};
use crate::pairs::Lender;
use crate::python::{failure_of, invalid, rare};
use crate::store::{Handle, Store as PyStore, open};

type Init = unsafe extern "C" fn(Store, *const u64, *const Tensor, usize) -> i32;
type One = unsafe extern "C" fn(Store, *const u64, *const Tensor, usize, i32, *mut u64) -> i32;
type Rows = unsafe extern "C" fn(
    Store,
    *const u64,
    *const Tensor,
    *const Tensor,
    usize,
    i32,
    *mut u64,
) -> i32;
type Two = unsafe extern "C" fn(
    Store,
    *const u64,
    *const Tensor,
    usize,
    *const u64,
    *const Tensor,
    usize,
    i32,
    *mut u64,
) -> i32;

/// A C function, by its parameters.
#[derive(Clone, Copy)]
pub enum Function {
    Init(Init),
    One(One),
    /// Rows, with an array of ids for each.
    Rows(Rows),
    /// Values and outs.
    Two(Two),
    /// Values and outs without keys.
    Exchange(ExchangeCall),
}

/// A data call of the library.
#[pyclass(frozen, module = "kvstore._native")]
pub struct Call {
    name: String,
    function: Function,
    /// What the library does with the arrays of the last list.
    role: Role,
}

#[pymethods]
impl Call {
    #[new]
    pub fn new(name: &str) -> PyResult<Self> {
        let symbol = format!("kv_{name}");
        // SAFETY: the header declares these functions with these parameters.
        let function = unsafe {
            match name {
                "init" => Function::Init(function(&symbol)?),
                "push" | "pull" => Function::One(function(&symbol)?),
                "pushpull" | "broadcast" => Function::Two(function(&symbol)?),
                "push_rows" | "pull_rows" => Function::Rows(function(&symbol)?),
                _ => return Err(PyValueError::new_err(format!("{symbol} is no data call"))),
            }
        };
        let role = match name {
            "init" | "push" | "push_rows" => Role::Value,
            _ => Role::Out,
        };
        Ok(Self { name: name.to_owned(), function, role })
    }

    /// Describes a call for a ticket, without starting it. The arguments are those of `run`.
    #[pyo3(signature = (store, key, arrays, second=None))]
    fn prepare<'py>(
        &self,
        store: &Bound<'py, PyStore>,
        key: &Bound<'py, PyAny>,
        arrays: &Bound<'py, PyAny>,
        second: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Operation> {
        let handle = &open(store)?;
        let arguments = (Some(key), Some(arrays), second);
        let lent = self.describe(handle, arguments, Life::Ticket)?;
        Ok(Operation::new(self.function, handle, lent))
    }
}

impl Call {
    /// Makes the call.
    ///
    /// The arguments are a key, and what the call takes: of two lists the second one is the last. A pushpull
    /// without it writes into the values.
    pub fn run<'py>(
        &self,
        store: &Bound<'py, PyStore>,
        arguments: Arguments<'_, 'py>,
        priority: i32,
    ) -> PyResult<()> {
        let handle = &open(store)?;
        let lent = self.describe(handle, arguments, Life::Call)?;
        carry_out(&lent, self.function, handle, priority, null_mut())
    }

    fn describe<'py>(
        &self,
        handle: &Bound<'py, Handle>,
        arguments: Arguments<'_, 'py>,
        life: Life,
    ) -> PyResult<Lent> {
        let lists = mappings::lists(&self.name, arguments)?;
        let (key, arrays, second) = (&lists.key, &lists.arrays, lists.second.as_ref());
        let mut lender = Lender::new(&self.name, handle, life);
        if matches!(self.function, Function::Init(_) | Function::One(_)) {
            lender.lend(key, arrays, self.role)?;
            return Ok(lender.finish());
        }
        let row_ids;
        let arrays = if let Function::Rows(_) = self.function {
            row_ids = rare(intern!(handle.py(), "row_ids_of"), (arrays,))?;
            &row_ids
        } else {
            arrays
        };
        lender.lend(key, arrays, Role::Value)?;
        lender.begin_second();
        match second {
            Some(second) => lender.lend(key, second, self.role)?,
            None if self.name == "pushpull" => lender.lend(key, arrays, Role::ValueAndOut)?,
            None => lender.lend(key, handle.py().None().bind(handle.py()), self.role)?,
        }
        let lent = lender.finish();
        let [(_, _, ids), (_, _, rows)] = lent.lists();
        if matches!(self.function, Function::Rows(_)) && ids != rows {
            let text = format!("{}: {rows} arrays of rows, but {ids} of row ids", self.name);
            return Err(invalid(handle.py(), text));
        }
        Ok(lent)
    }
}

/// Calls the library; raises what it fails with.
pub fn carry_out(
    lent: &Lent,
    function: Function,
    handle: &Bound<'_, Handle>,
    priority: i32,
    ticket: *mut u64,
) -> PyResult<()> {
    let py = handle.py();
    let store = handle.get().address();
    let ticket = ticket.expose_provenance();
    let inside = Inside::enter(py)?;
    if lent.uses_devices() {
        return carry_out_on_devices(inside, lent, function, handle, (priority, ticket));
    }
    // SAFETY: the caller holds the handle, which frees the store when it goes, and these lists.
    let status = py.detach(|| unsafe { call(lent, function, store, priority, ticket) });
    drop(inside);
    finish(py, status, None, || lent.note_written(py))
}

/// The same on the streams of the arrays.
#[cold]
fn carry_out_on_devices(
    inside: Inside,
    lent: &Lent,
    function: Function,
    handle: &Bound<'_, Handle>,
    (priority, ticket): (i32, usize),
) -> PyResult<()> {
    let py = handle.py();
    let store = handle.get().address();
    let named = lent.name_streams(py)?;
    let waits = if ticket == 0 && lent.is_unordered() { Some(Waits::find()?) } else { None };
    // SAFETY: the caller holds the handle, which frees the store when it goes, and these lists.
    let status = py.detach(|| unsafe {
        match &waits {
            Some(waits) => waits.call(lent, function, store, priority),
            None => call(lent, function, store, priority, ticket),
        }
    });
    // Before the library is called again: its text is that of the last call.
    let failure = (status != OK).then(|| failure_of(py, status));
    if waits.is_some_and(|waits| waits.is_lent.load(SeqCst)) {
        lent.keep_until_free(handle)?;
    }
    drop(named);
    drop(inside);
    finish(py, status, failure, || lent.note_written(py))
}

/// The result of a call; `note_written` tells PyTorch of the outs.
pub fn finish(
    py: Python<'_>,
    status: i32,
    failure: Option<PyErr>,
    note_written: impl FnOnce() -> PyResult<()>,
) -> PyResult<()> {
    let raised = take_raised();
    if raised.is_some() || may_have_written(status) {
        note_written()?;
    }
    match raised {
        Some(error) => Err(error),
        None if status == OK => Ok(()),
        None => Err(failure.unwrap_or_else(|| failure_of(py, status))),
    }
}

/// # Safety
///
/// The store is open, and `ticket` is null or the address of a number that is not gone before the
/// return.
unsafe fn call(lent: &Lent, function: Function, store: usize, priority: i32, ticket: usize) -> i32 {
    let store = std::ptr::with_exposed_provenance_mut(store);
    let ticket = std::ptr::with_exposed_provenance_mut(ticket);
    let [(keys, tensors, count), (other_keys, others, other_count)] = lent.lists();
    // SAFETY: the lists are complete, and the caller's promise.
    unsafe {
        match function {
            Function::Init(call) => call(store, keys, tensors, count),
            Function::One(call) => call(store, keys, tensors, count, priority, ticket),
            Function::Rows(call) => {
                call(store, other_keys, tensors, others, count, priority, ticket)
            }
            Function::Exchange(call) => {
                call.call(store, (tensors, count), (others, other_count), ticket)
            }
            Function::Two(call) => {
                call(store, keys, tensors, count, other_keys, others, other_count, priority, ticket)
            }
        }
    }
}

/// Calls with arrays on GPUs whose package orders none of its work behind the library's: such a call
/// returns when the GPUs are done, so that the package may use the memory again.
struct Waits {
    wait: unsafe extern "C" fn(Store, u64, i64) -> i32,
    cancel: unsafe extern "C" fn(Store, u64) -> i32,
    pull: One,
    /// Whether a call has ended before its operation, which still uses the arrays.
    is_lent: AtomicBool,
}

impl Waits {
    fn find() -> PyResult<Self> {
        // SAFETY: the header declares these functions with these parameters.
        unsafe {
            Ok(Self {
                wait: function("kv_wait")?,
                cancel: function("kv_cancel")?,
                pull: function("kv_pull")?,
                is_lent: AtomicBool::new(false),
            })
        }
    }

    /// Makes a call and waits for the GPUs.
    ///
    /// # Safety
    ///
    /// As for `call`.
    unsafe fn call(&self, lent: &Lent, function: Function, store: usize, priority: i32) -> i32 {
        const FOR_EVER: i64 = -1;
        let ticket = AtomicU64::new(0);
        // SAFETY: the caller's promise; the ticket is not gone before the return.
        unsafe {
            let place = ticket.as_ptr().expose_provenance();
            let status = call(lent, function, store, priority, place);
            let store = std::ptr::with_exposed_provenance_mut(store);
            match (status, function) {
                (OK, Function::Init(_)) => self.wait_for_values(lent, store),
                (OK, _) => {
                    let status = (self.wait)(store, ticket.load(SeqCst), FOR_EVER);
                    if has_raised() {
                        // Ends soon: the handler's error is asked for again.
                        let ended = (self.cancel)(store, ticket.load(SeqCst));
                        self.is_lent.store(ended != OK, SeqCst);
                    }
                    status
                }
                _ => status,
            }
        }
    }

    /// An init has no ticket. Pulls into host memory, one for each GPU, come behind it.
    ///
    /// # Safety
    ///
    /// The store is open.
    unsafe fn wait_for_values(&self, lent: &Lent, store: Store) -> i32 {
        for (key, tensor) in lent.unordered() {
            // SAFETY: a tensor of the list has a shape of so many extents.
            let bytes = unsafe { tensor.row_major_bytes() };
            let mut copy = vec![0_u64; bytes.div_ceil(8)];
            let out = tensor.in_host_memory(copy.as_mut_ptr().cast());
            // SAFETY: the copy has room for the tensor and lives until the pull has ended.
            let status =
                unsafe { (self.pull)(store, &raw const key, &raw const out, 1, 0, null_mut()) };
            if status != OK {
                return status;
            }
        }
        OK
    }
}

/// A call in the background with its arrays, which it keeps.
#[pyclass(frozen, module = "kvstore._native")]
pub struct Operation {
    function: Function,
    #[pyo3(get)]
    handle: Py<Handle>,
    lent: Lent,
    /// The library itself writes the number here: nothing comes between the start of an operation and
    /// the ticket that ends it, not even the handler of a signal.
    ticket: AtomicU64,
}

impl Operation {
    pub fn new(function: Function, handle: &Bound<'_, Handle>, lent: Lent) -> Self {
        Self { function, handle: handle.clone().unbind(), lent, ticket: AtomicU64::new(0) }
    }
}

#[pymethods]
impl Operation {
    /// Starts it.
    fn start(&self, py: Python<'_>, priority: i32) -> PyResult<()> {
        let ticket = self.ticket.as_ptr();
        carry_out(&self.lent, self.function, self.handle.bind(py), priority, ticket)
    }

    /// The number of the ticket, 0 before the start.
    #[getter]
    fn ticket(&self) -> u64 {
        self.ticket.load(SeqCst)
    }

    /// Says that outs have changed, or may have.
    fn note_written(&self, py: Python<'_>) -> PyResult<()> {
        self.lent.note_written(py)
    }

    /// Shows references to the garbage collector. It breaks cycles elsewhere: the library may still
    /// use the arrays.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.handle)?;
        self.lent.traverse(&visit)
    }
}
