//! Callbacks into the caller's code: updaters, ends of operations, and the logger.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use smallvec::SmallVec;

use super::guard::keep_text;
use super::types::{
    kv_device, kv_device_type, kv_done_callback, kv_drop, kv_logger, kv_status, kv_status_in,
    kv_tensor, kv_ticket, kv_updater,
};
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::ticket::DoneCallback;
use crate::log::{Level, set_logger};
use crate::store::{Updater as CoreUpdater, UpdaterError};
use crate::tensor::{Tensor, TensorMut};

/// A callback's context; dropping this value ends it.
struct Context {
    pointer: *mut c_void,
    drop: kv_drop,
}

// SAFETY: header rule 6: callbacks accept their context from any thread.
unsafe impl Send for Context {}
// SAFETY: header rule 6: callbacks accept their context from any thread.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: header rule 6: `drop` accepts the context, and this is the only call.
            unsafe { drop(self.pointer) }
        }
    }
}

pub(super) type KeyNamerFunction =
    unsafe extern "C" fn(*mut c_void, *const c_char, *mut *const c_char) -> kv_status_in;

/// An updater of the C interface.
pub(super) struct CUpdater {
    function:
        unsafe extern "C" fn(*mut c_void, u64, *const kv_tensor, *const kv_tensor) -> kv_status_in,
    context: Context,
}

thread_local! {
    /// The failure text of the updater, or of the namer of keys, that runs on this thread.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the failure text of an updater, or of a namer of keys.
pub(super) fn set_error(text: Option<&CStr>) {
    let text = text.map(|text| text.to_string_lossy().into_owned());
    let _ = REASON.try_with(|reason| *reason.borrow_mut() = text);
}

impl CUpdater {
    /// None without a function; the context has then been dropped.
    ///
    /// # Safety
    /// `function` and `drop` accept `context`, from any thread, until `drop` has run.
    pub(super) unsafe fn new(
        function: kv_updater,
        context: *mut c_void,
        drop: kv_drop,
    ) -> Option<Self> {
        let context = Context { pointer: context, drop };
        function.map(|function| Self { function, context })
    }

    pub(super) fn into_core(self) -> CoreUpdater {
        CoreUpdater::new(move |key, input, stored| self.call(key, input, stored))
    }

    fn call(
        &self,
        key: Key,
        input: &Tensor<'_>,
        stored: &mut TensorMut<'_>,
    ) -> std::result::Result<(), UpdaterError> {
        // A copy, because C may write to it.
        let mut shape = SmallVec::<[i64; 8]>::from_slice(input.shape());
        let (input, stored) = (to_c(input, &mut shape), to_c(stored.as_tensor(), &mut shape));
        set_error(None);
        // SAFETY: header rule 6; the tensors are lent for the call.
        let status = unsafe {
            (self.function)(self.context.pointer, key.id(), &raw const input, &raw const stored)
        };
        outcome_of(status)
    }
}

/// What a callback has returned, with the text that it has set.
fn outcome_of(status: kv_status_in) -> std::result::Result<(), UpdaterError> {
    let reason = REASON.try_with(RefCell::take).ok().flatten();
    if status == kv_status::KV_OK as i32 {
        return Ok(());
    }
    Err(reason.unwrap_or_else(|| format!("it returned {status}")).into())
}

/// The name that a function of the C interface gives the key of a tensor.
///
/// # Safety
/// `function` accepts `context`.
pub(super) unsafe fn key_name(
    function: KeyNamerFunction,
    context: *mut c_void,
    tensor: &str,
) -> std::result::Result<Option<String>, UpdaterError> {
    let tensor = CString::new(tensor)?;
    let mut key = tensor.as_ptr();
    set_error(None);
    // SAFETY: the caller's promise; both texts outlive the call.
    let status = unsafe { function(context, tensor.as_ptr(), &raw mut key) };
    outcome_of(status)?;
    if key.is_null() {
        return Ok(None);
    }
    // SAFETY: the header's comment: a NUL-terminated string that is valid until the next call.
    let name = unsafe { CStr::from_ptr(key) };
    match name.to_str() {
        Ok(name) => Ok(Some(name.to_owned())),
        Err(error) => Err(format!("its name {name:?} is not UTF-8: {error}").into()),
    }
}

/// Where a tensor's elements are.
fn device_of(tensor: &Tensor<'_>) -> kv_device {
    match tensor.device() {
        Some(ordinal) => kv_device { r#type: kv_device_type::KV_CUDA as i32, id: ordinal.into() },
        None => kv_device { r#type: kv_device_type::KV_CPU as i32, id: 0 },
    }
}

/// A row-major tensor in C's form; `shape` must outlive it.
fn to_c(tensor: &Tensor<'_>, shape: &mut [i64]) -> kv_tensor {
    kv_tensor {
        data: tensor.as_ptr().cast_mut().cast(),
        device: device_of(tensor),
        ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
        dtype: tensor.dtype().code(),
        shape: shape.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

/// A function of the C interface for the end of an operation.
pub(super) struct CDoneCallback {
    function: unsafe extern "C" fn(*mut c_void, kv_ticket, kv_status),
    context: Context,
}

impl CDoneCallback {
    /// None without a function; the context has then been dropped.
    ///
    /// # Safety
    /// `function` and `drop` accept `context`, from any thread, until `drop` has run.
    pub(super) unsafe fn new(
        function: kv_done_callback,
        context: *mut c_void,
        drop: kv_drop,
    ) -> Option<Self> {
        let context = Context { pointer: context, drop };
        function.map(|function| Self { function, context })
    }

    pub(super) fn into_core(self) -> DoneCallback {
        Box::new(move |ticket, result| {
            // As a whole: its context is dropped after the call.
            let this = self;
            let status = keep_text(result);
            // SAFETY: header rule 6.
            unsafe { (this.function)(this.context.pointer, ticket, status) }
        })
    }
}

/// A log function of the C interface.
pub(super) struct CLogSink {
    function: kv_logger,
    context: Context,
}

impl CLogSink {
    /// # Safety
    /// `function` and `drop` accept `context`, from any thread, until `drop` has run.
    pub(super) unsafe fn new(function: kv_logger, context: *mut c_void, drop: kv_drop) -> Self {
        Self { function, context: Context { pointer: context, drop } }
    }

    fn write(&self, level: Level, text: &str) {
        let (Some(function), Ok(text)) = (self.function, CString::new(text.replace('\n', " ")))
        else {
            return;
        };
        // SAFETY: header rule 6; the text is lent for the call.
        unsafe { function(self.context.pointer, level as i32, text.as_ptr()) }
    }
}

pub(super) fn install_logger(level: i32, sink: CLogSink) -> Result<()> {
    let Some(level) = Level::from_number(level) else {
        return Err(fail!(
            InvalidArgument,
            "set_logger: the level is {level}; use 0 (off) to 4 (debug)"
        ));
    };
    if sink.function.is_none() {
        set_logger(Level::Off, None);
        return Ok(());
    }
    let write = move |level: Level, text: &str| sink.write(level, text);
    set_logger(level, Some(Arc::new(write)));
    Ok(())
}
