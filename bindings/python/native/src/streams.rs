//! Streams of CUDA devices: those of a call's arrays, which are named for the call.
//!
//! A framework queues its work on a current stream of each thread. The library begins a call behind the
//! stream that its thread has named, and work that is queued there later comes behind the call. So a
//! call names the current streams of its arrays' frameworks, and restores the former names at its end:
//! no name is left of a stream that the framework destroys later.
#![allow(unsafe_code, reason = "functions of the C library")]

use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::OnceLock;

use pyo3::intern;
use pyo3::prelude::*;

use crate::library::{OK, function};
use crate::python::{failure_of, invalid, rare};

/// The type of CUDA devices, in DLPack's numbers.
pub const CUDA: i32 = 2;
/// The legacy default stream in DLPack's numbers; the library takes 0 for it as well.
const LEGACY: u64 = 1;

/// A `kv_device`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

#[derive(Clone, Copy)]
struct Functions {
    set: unsafe extern "C" fn(Device, *mut c_void) -> i32,
    get: unsafe extern "C" fn(Device, *mut *mut c_void) -> i32,
}

impl Functions {
    fn find() -> PyResult<Self> {
        static FOUND: OnceLock<Functions> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(*found);
        }
        // SAFETY: the header declares both functions with these parameters.
        let found =
            unsafe { Self { set: function("kv_set_stream")?, get: function("kv_stream")? } };
        Ok(*FOUND.get_or_init(|| found))
    }

    /// Names a stream of a device for this thread; gives the status.
    fn set(&self, id: i32, stream: u64) -> i32 {
        let handle = with_exposed_provenance_mut(usize::try_from(stream).unwrap_or(0));
        // SAFETY: the library checks the handle; a framework's stream lives during the call.
        unsafe { (self.set)(Device { kind: CUDA, id }, handle) }
    }

    /// The stream that this thread has named; none if the device cannot be used.
    fn get(&self, id: i32) -> Option<u64> {
        let mut handle = null_mut();
        // SAFETY: a place for the handle.
        let status = unsafe { (self.get)(Device { kind: CUDA, id }, &raw mut handle) };
        (status == OK).then(|| handle.addr() as u64)
    }
}

fn in_numbers_of_dlpack(stream: u64) -> u64 {
    stream.max(LEGACY)
}

/// The stream of a device that the arrays of a call share.
struct Shared {
    device: i32,
    stream: u64,
    /// The call and the key that brought it, for texts of errors.
    label: Option<String>,
    /// Whether an array's package queues its work on a stream that is not known.
    is_unordered: bool,
}

/// The streams of the arrays of a call, by device. Empty for arrays in host memory.
#[derive(Default)]
pub struct Streams(Vec<Shared>);

impl Streams {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds an array on a device, whose framework uses a stream, if that is known. Gives the stream
    /// of the call, in DLPack's numbers.
    pub fn join(&mut self, py: Python<'_>, device: i32, known: Option<u64>) -> PyResult<u64> {
        let known = known.map(in_numbers_of_dlpack);
        let Some(shared) = self.0.iter_mut().find(|shared| shared.device == device) else {
            let functions = Functions::find()?;
            let named = || py.detach(|| functions.get(device)).map_or(LEGACY, in_numbers_of_dlpack);
            let (stream, is_unordered) = (known.unwrap_or_else(named), known.is_none());
            self.0.push(Shared { device, stream, label: None, is_unordered });
            return Ok(stream);
        };
        shared.is_unordered |= known.is_none();
        match known {
            Some(known) if known != shared.stream => {
                let text = format!(
                    "its stream on GPU {device} is {known:#x}, and an earlier array of this call \
                     uses the stream {:#x}: make one stream current for both packages, or name it \
                     by kvstore.set_stream() for a package whose stream is not known",
                    shared.stream
                );
                Err(invalid(py, text))
            }
            _ => Ok(shared.stream),
        }
    }

    /// Names the call and the key of the array that was added last.
    pub fn label(&mut self, label: impl FnOnce() -> PyResult<String>) -> PyResult<()> {
        match self.0.last_mut() {
            Some(last) if last.label.is_none() => last.label = Some(label()?),
            _ => {}
        }
        Ok(())
    }

    /// Devices with arrays whose package does not order its work behind the call's.
    pub fn unordered(&self) -> impl Iterator<Item = i32> {
        self.0.iter().filter(|shared| shared.is_unordered).map(|shared| shared.device)
    }

    /// Names the streams for this thread, until the result is dropped.
    pub fn name(&self, py: Python<'_>) -> PyResult<Named> {
        let functions = Functions::find()?;
        let mut named = Named { functions, before: Vec::new() };
        for Shared { device, stream, label, .. } in &self.0 {
            let status = py.detach(|| {
                let before = functions.get(*device).unwrap_or(LEGACY);
                if in_numbers_of_dlpack(before) == *stream {
                    // What is wrong with a device, the call itself tells.
                    return OK;
                }
                let status = functions.set(*device, *stream);
                if status == OK {
                    named.before.push((*device, before));
                }
                status
            });
            if status != OK {
                let error = failure_of(py, status).into_value(py);
                let labelled = rare(intern!(py, "labelled"), (label.as_deref(), error))?;
                return Err(PyErr::from_value(labelled));
            }
        }
        Ok(named)
    }
}

/// Streams that are named for a call.
pub struct Named {
    functions: Functions,
    /// What was named before, by device.
    before: Vec<(i32, u64)>,
}

impl Drop for Named {
    fn drop(&mut self) {
        for &(device, stream) in &self.before {
            // It was named before; on a device that was lost meanwhile it makes no difference.
            self.functions.set(device, stream);
        }
    }
}
