//! Devices of a store: where values are, and the streams of callers.

use std::ffi::c_void;

use super::{CallClass, Store};
#[cfg(feature = "cuda")]
use crate::config::{Config, CudaChoice};
#[cfg(feature = "cuda")]
use crate::device;
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::Local;

impl Store {
    /// The number of the CUDA device on which the value of a key is; None for host memory.
    ///
    /// In a `device` store it is the device of the tensor that initialised the key.
    ///
    /// # Errors
    /// `KeyNotFound`.
    pub fn key_device(&self, key: impl Into<Key>) -> Result<Option<u16>> {
        let key = key.into();
        if let Some(remote) = &self.remote {
            self.enter(CallClass::Work, |_| remote.look_up("key_device", key))?;
        }
        self.enter(CallClass::Work, |local| match local.keys.table.get(key) {
            Some(slot) => Ok(slot.device()),
            None => {
                Err(fail!(KeyNotFound, "key_device: {} is not there", local.keys.names.label(key)))
            }
        })
    }
}

/// The members of a store's statistics that are about devices.
#[cfg(feature = "cuda")]
pub(super) fn statistics(local: &Local) -> String {
    device::statistics(&local.devices.budget)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn statistics(_: &Local) -> String {
    ",\"pinned_bytes\":0,\"devices\":[]".into()
}

/// Names the stream on which this thread's calls use the memory of a CUDA device, from now on.
///
/// A call begins after everything that has been queued on this stream, and what is queued there
/// after the call has returned begins after it. Without it that is the legacy default stream.
///
/// `stream` is a `CUstream` or `cudaStream_t` of the device's primary context; null or 1 is the
/// legacy default stream, 2 the default stream of this thread.
///
/// # Safety
/// The stream exists while it is named: until this thread names another one, or ends.
///
/// # Errors
/// `InvalidArgument` if the device or the stream is another; `Device` without a driver that can be
/// used; `Unsupported` in a build without the feature `cuda`.
#[allow(unsafe_code, reason = "later calls hand the stream to the driver")]
pub unsafe fn set_stream(device: u16, stream: *mut c_void) -> Result<()> {
    name(device, stream)
}

#[cfg(feature = "cuda")]
fn name(device: u16, stream: *mut c_void) -> Result<()> {
    let choice = CudaChoice::new(&Config::new()).map_err(|error| error.at("set_stream"))?;
    device::set_stream(&choice, device, stream.addr() as u64)
}

#[cfg(not(feature = "cuda"))]
fn name(_: u16, _: *mut c_void) -> Result<()> {
    Err(fail!(Unsupported, "set_stream: this build has no CUDA devices"))
}

/// The stream on which this thread's calls use the memory of a CUDA device: what [`set_stream`]
/// named, or null.
///
/// # Errors
/// As [`set_stream`].
#[cfg(feature = "cuda")]
pub fn stream(device: u16) -> Result<*mut c_void> {
    let choice = CudaChoice::new(&Config::new()).map_err(|error| error.at("stream"))?;
    let handle = device::stream_of(&choice, device)?;
    Ok(std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0)))
}

/// Gives an error: this build has no CUDA devices.
///
/// # Errors
/// `Unsupported`.
#[cfg(not(feature = "cuda"))]
pub fn stream(_: u16) -> Result<*mut c_void> {
    Err(fail!(Unsupported, "stream: this build has no CUDA devices"))
}
