//! Calls into the library: which threads are inside of one, and signals that end a waiting one.
//!
//! Python runs the handlers of signals, one of which raises `KeyboardInterrupt`, on its main thread.
//! The library asks a waiting thread every 50 ms whether to end the call; the answer runs handlers,
//! and what a handler raises ends the call.
#![allow(unsafe_code, reason = "the library asks through a C function")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::library::{self, SetInterrupt};
use crate::python::closed;

/// Interval at which `end_calls` looks at the counters.
const LOOK: Duration = Duration::from_millis(1);

/// Number of calls that one thread is inside of: a callback or a handler may call again.
///
/// Only that thread changes it, and every thread holds the GIL when it reads or changes one: the GIL
/// orders all accesses, and `IS_OVER`'s as well, so they are relaxed. A call from inside of LightGBM
/// holds none; only code of Python on the same thread has to see it.
type Depth = AtomicUsize;

/// The counters of all threads that have made a call. Locked with the GIL held only, so a fork finds
/// it unlocked.
static THREADS: Mutex<Vec<Weak<Depth>>> = Mutex::new(Vec::new());
/// Set when the program ends: no call begins any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread's counter; none before its first call.
    static DEPTH: RefCell<Option<Arc<Depth>>> = const { RefCell::new(None) };
    /// What the handler of a signal raised while this thread waited.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// A call that has begun; ends when it is dropped.
pub struct Inside(Arc<Depth>);

impl Inside {
    /// Begins a call, unless the program is ending.
    pub fn enter(py: Python<'_>) -> PyResult<Self> {
        let depth = match DEPTH.with_borrow(Clone::clone) {
            Some(depth) => depth,
            None => register(py)?,
        };
        if IS_OVER.load(Relaxed) {
            return Err(closed(py, "the program is ending"));
        }
        Ok(Self::begin(depth))
    }

    /// Begins a call of a thread without the GIL, if it has made one before.
    pub fn enter_without_gil() -> Option<Self> {
        DEPTH.with_borrow(Clone::clone).map(Self::begin)
    }

    fn begin(depth: Arc<Depth>) -> Self {
        depth.store(depth.load(Relaxed) + 1, Relaxed);
        Self(depth)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.store(self.0.load(Relaxed) - 1, Relaxed);
    }
}

fn threads() -> MutexGuard<'static, Vec<Weak<Depth>>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a thread its counter at its first call; on Python's main thread waits run handlers.
fn register(py: Python<'_>) -> PyResult<Arc<Depth>> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    if threading.call_method0("get_ident")?.eq(main)? {
        set_interrupt(Some(is_interrupted))?;
    }
    let depth = Arc::new(Depth::new(0));
    let mut threads = threads();
    threads.retain(|each| each.strong_count() > 0);
    threads.push(Arc::downgrade(&depth));
    DEPTH.set(Some(depth.clone()));
    Ok(depth)
}

fn set_interrupt(check: Option<library::InterruptCheck>) -> PyResult<()> {
    // SAFETY: the header declares it so; the check needs no context and is never unloaded.
    unsafe { library::function::<SetInterrupt>("kv_set_interrupt")?(check, null_mut()) };
    Ok(())
}

/// Runs the handlers of pending signals; 1 if one of them has raised.
unsafe extern "C" fn is_interrupted(_: *mut c_void) -> i32 {
    // SAFETY: only a waiting call of the main thread asks, and `unwatch` ends that before the
    // interpreter ends. The thread may have released the GIL without pyo3, as ctypes does: then
    // pyo3's own count would be wrong.
    unsafe {
        let state = ffi::PyGILState_Ensure();
        if let Err(error) = Python::assume_attached().check_signals() {
            RAISED.set(Some(error));
        }
        ffi::PyGILState_Release(state);
    }
    i32::from(has_raised())
}

/// What a handler raised while this thread waited.
pub fn take_raised() -> Option<PyErr> {
    RAISED.take()
}

/// Whether a handler has raised while this thread waited.
pub fn has_raised() -> bool {
    let raised = RAISED.take();
    let has_raised = raised.is_some();
    RAISED.set(raised);
    has_raised
}

/// Raises what a handler raised while this thread waited.
#[pyfunction]
pub fn raise_interrupt() -> PyResult<()> {
    take_raised().map_or(Ok(()), Err)
}

/// Calls a function of the library that ctypes has declared.
#[pyfunction]
#[pyo3(signature = (function, *arguments))]
pub fn counted<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let inside = Inside::enter(function.py())?;
    let result = function.call1(arguments)?;
    drop(inside);
    raise_interrupt()?;
    Ok(result)
}

/// Whether this thread has made calls and is inside of none.
#[pyfunction]
pub fn is_between_calls() -> bool {
    DEPTH.with_borrow(|depth| depth.as_ref().is_some_and(|depth| depth.load(Relaxed) == 0))
}

/// Lets no thread begin a call any more, and waits for those that are inside of one.
///
/// A thread that the interpreter ends inside a callback, as it does while the program ends, would take
/// the process down: it has the library's frames on its stack.
#[pyfunction]
pub fn end_calls(py: Python<'_>, seconds: f64) {
    IS_OVER.store(true, Relaxed);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let is_inside = |each: &Weak<Depth>| each.upgrade().is_some_and(|it| it.load(Relaxed) > 0);
    while threads().iter().any(is_inside) && Instant::now() < end {
        py.detach(|| std::thread::sleep(LOOK));
    }
}

/// Asks the main thread nothing any more: the interpreter is about to end.
#[pyfunction]
pub fn unwatch() -> PyResult<()> {
    set_interrupt(None)
}

/// In the child of a fork the other threads do not exist, and this one is the main thread.
#[pyfunction]
pub fn begin_in_child() {
    threads().clear();
    DEPTH.set(None);
    RAISED.set(None);
}
