//! Questions to the library itself.

use std::ffi::{CStr, c_char, c_int};

use super::guard;
use super::types::{KV_ABI_VERSION, kv_status_in};

/// Gives the text of this thread's last failed call: key, shapes, peer, and what to do.
///
/// Never NULL; empty if no call has failed on this thread. Valid until the next call of this
/// library on this thread.
///
/// Threads: any; each has its own text.
#[unsafe(no_mangle)]
pub extern "C" fn kv_last_error() -> *const c_char {
    guard::last_error()
}

/// Says why an updater fails: call it inside the updater, before returning an error status.
///
/// The text becomes part of the message that the failing push, or kv_load_values(), leaves in
/// kv_last_error().
///
/// @param message  NUL-terminated text, copied; invalid UTF-8 is replaced. NULL removes the text.
///
/// Threads: the one that the updater runs on; elsewhere it has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_callback_error(message: *const c_char) {
    guard::guard(|| {
        // SAFETY: header rule 5: NULL or a NUL-terminated string.
        let text = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) });
        super::callback::set_error(text);
        Ok(())
    });
}

/// Gives the name of a status, such as `KV_ERR_TIMEOUT`; `unknown status` for any other number.
///
/// @return a string that lives for ever, never NULL.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn kv_status_name(status: kv_status_in) -> *const c_char {
    guard::status_name(status).unwrap_or(c"unknown status").as_ptr()
}

/// Gives the version of the library, such as `0.1.0`.
///
/// @return a string that lives for ever, never NULL.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn kv_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Whether this build of the library has a feature: 1 or 0, also 0 for a name that it does not know. The
/// names are `optimizer`, `updater`, `compression`, `rows`, `tickets`, `checkpoint`, `digests`,
/// `sum_order`, `weights`, `clipping`, `transactions`, `dist`, `tls`, `shm`, `ucx` and `cuda`. What a
/// machine has, such as a GPU, is not asked.
///
/// @param feature  the name, in lower case.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_capable(feature: *const c_char) -> c_int {
    if feature.is_null() {
        return 0;
    }
    // SAFETY: header rule 2: a text that ends with a zero byte.
    let feature = unsafe { CStr::from_ptr(feature) };
    c_int::from(feature.to_str().is_ok_and(crate::capable))
}

/// Gives the version of the binary interface; compare it with `KV_ABI_VERSION`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn kv_abi_version() -> u32 {
    KV_ABI_VERSION
}
