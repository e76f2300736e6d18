//! Streams of CUDA devices, and the devices of keys.

use std::ffi::c_void;

use super::guard::{guard, guard_store};
use super::handle::{self, kv_store};
use super::types::{kv_device, kv_device_type, kv_key, kv_status};
use crate::error::{Result, fail};
use crate::store;

/// The number of a CUDA device.
fn ordinal(device: kv_device, call: &str) -> Result<u16> {
    let kv_device { r#type: kind, id } = device;
    match u16::try_from(id) {
        Ok(ordinal) if kind == kv_device_type::KV_CUDA as i32 => Ok(ordinal),
        _ => Err(fail!(
            InvalidArgument,
            "{call}: the device has the type {kind} and the id {id}; use type 2 (CUDA) and an id from 0"
        )),
    }
}

/// Names the stream on which this thread's calls use the memory of a CUDA device, from now on.
///
/// A call of this thread begins after everything that has been queued on this stream, and what is
/// queued there after the call has returned begins after it. Without it that is the legacy default
/// stream. Work on other streams is not waited for. The stream must not be destroyed while it is
/// named.
///
/// @param device  of the type `KV_CUDA`.
/// @param stream  a `CUstream` or `cudaStream_t` of the device's primary context; NULL or 1 is the
///                legacy default stream, 2 the default stream of this thread.
/// @return `KV_ERR_INVALID_ARGUMENT` if the device or the stream is another; `KV_ERR_DEVICE`
///         without a driver that can be used; `KV_ERR_UNSUPPORTED` in a build without CUDA.
///
/// Threads: any; each has streams of its own.
#[unsafe(no_mangle)]
pub extern "C" fn kv_set_stream(device: kv_device, stream: *mut c_void) -> kv_status {
    guard(|| {
        let ordinal = ordinal(device, "set_stream")?;
        // SAFETY: the function's contract: the stream exists while it is named.
        unsafe { store::set_stream(ordinal, stream) }
    })
}

/// Gives the stream on which this thread's calls use the memory of a CUDA device.
///
/// @param device  of the type `KV_CUDA`.
/// @param stream  receives what kv_set_stream() named, or NULL.
/// @return as kv_set_stream().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_stream(device: kv_device, stream: *mut *mut c_void) -> kv_status {
    guard(|| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(stream, "stream") }?;
        *out = store::stream(ordinal(device, "stream")?)?;
        Ok(())
    })
}

/// Gives the device on which the value of a key is.
///
/// In a `device` store that is the CUDA device of the tensor that initialised the key, or to which
/// it moved at its first call with a CUDA tensor; everywhere else it is host memory.
///
/// @param device  receives the device: `KV_CUDA` and its number, or `KV_CPU` and 0.
/// @return `KV_ERR_KEY_NOT_FOUND`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_key_device(
    store: *mut kv_store,
    key: kv_key,
    device: *mut kv_device,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(device, "device") }?;
        *out = match store.key_device(key)? {
            Some(ordinal) => {
                kv_device { r#type: kv_device_type::KV_CUDA as i32, id: ordinal.into() }
            }
            None => kv_device { r#type: kv_device_type::KV_CPU as i32, id: 0 },
        };
        Ok(())
    })
}
