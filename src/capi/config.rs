//! `kv_config`: options by name.

use std::ffi::c_char;

use super::guard::guard;
use super::handle::{self, kv_config};
use super::types::kv_status;

/// Creates an empty set of options.
///
/// @param config  receives the handle; free it with kv_config_free(). It may be freed as soon as
///                kv_create() has returned, and may serve several stores.
/// @return `KV_ERR_INVALID_ARGUMENT` if `config` is NULL.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_config_create(config: *mut *mut kv_config) -> kv_status {
    guard(|| {
        // SAFETY: header rule 2: `config` is NULL or a valid place for a pointer.
        let out = unsafe { handle::out(config, "config") }?;
        *out = handle::new_config();
        Ok(())
    })
}

/// Sets one option; the last value set for a name counts.
///
/// The table of options is in the header's first chapter and in docs/use/config.md. Options of another
/// store type are checked and otherwise ignored, so that one source serves all types.
///
/// @param config  the options to change.
/// @param name    NUL-terminated UTF-8, copied.
/// @param value   NUL-terminated UTF-8, copied.
/// @return `KV_ERR_OPTION` for an unknown name (the message lists near ones) or a value that does
///         not fit; nothing is changed then.
///
/// Threads: one at a time per `kv_config`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_config_set(
    config: *mut kv_config,
    name: *const c_char,
    value: *const c_char,
) -> kv_status {
    guard(|| {
        // SAFETY: header rules 2 and 4: a live handle, NUL-terminated strings.
        let (config, name, value) = unsafe {
            (
                handle::config_mut(config)?,
                handle::text(name, "name")?,
                handle::text(value, "value")?,
            )
        };
        config.set(name, value)
    })
}

/// Frees the options. Stores created with them are not affected. NULL does nothing.
///
/// Threads: no other call with this `config` may be running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_config_free(config: *mut kv_config) {
    // SAFETY: header rule 3: NULL, or a handle of kv_config_create() that is freed only once.
    unsafe { handle::free_config(config) }
}
