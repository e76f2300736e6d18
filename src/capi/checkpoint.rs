//! Checkpoints.

use std::ffi::{c_char, c_void};

use super::callback::key_name;
use super::guard::guard_store;
use super::handle::{self, kv_store};
use super::types::{kv_key_namer, kv_status};
use crate::error::fail;

/// Writes the keys, their values, the optimizer with its options and state, and the codec with what
/// it has left unsent, to a file.
///
/// The file is one of safetensors, see docs/use/checkpoints.md. It takes the place of the one at `path`
/// as a whole: whenever the process or the machine stops, the old or the new one is there. What
/// this thread started before is waited for. Each key is as it was between two pushes; all are of
/// one moment if no other thread pushes meanwhile. An updater of yours is not saved, its values
/// are.
///
/// In a job it is a call of all workers, and the lowest rank that is neither lost nor done writes the
/// file. After kv_done(), and after the loss of a worker under `on_worker_loss=fail`, it is a call of
/// one, which writes what the servers have: see docs/use/distributed.md.
///
/// @param path  NUL-terminated, as the system takes it, not necessarily UTF-8. A symbolic link is
///              replaced, not followed.
/// @return `KV_ERR_IO` (the message has the system's reason), `KV_ERR_TIMEOUT` if a key stays in
///         use; the old file is as it was.
///
/// Threads: any. Blocks: until the file is on the disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_save(store: *mut kv_store, path: *const c_char) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string.
        store.save(unsafe { handle::path(path) }?)
    })
}

/// Takes over what a file of kv_save() has.
///
/// Everything is read and checked first, then takes effect as one. Keys that are there get the
/// values of the file, others are added, names after those that are there; keys that the file does
/// not have stay as they are. The optimizer of the file takes the place of what is set, with its
/// options and state: training goes on as if it had not stopped. Without one, what is set stays,
/// and the loaded keys start anew under it.
///
/// A file of safetensors that another program has written has values only, under names: floats become
/// those of the keys that are there, what is set stays, and the loaded keys start anew under it. A
/// path that ends with `.json` is the index of such files, as Hugging Face writes it.
///
/// @param path  as for kv_save(); a symbolic link is followed.
/// @return `KV_ERR_IO`; `KV_ERR_CORRUPT` for a file that is cut off or altered (the message says
///         where); `KV_ERR_UNSUPPORTED` for one of a later version, or with a dtype that no key can
///         have;
///         `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH` if a key of the store is another one,
///         or cannot have the optimizer; `KV_ERR_NAME_COLLISION`, `KV_ERR_OUT_OF_MEMORY`,
///         `KV_ERR_TIMEOUT`. The store is as it was.
///
/// Threads: any. Blocks: until the file has been read, and for pending operations on its keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_load(store: *mut kv_store, path: *const c_char) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string.
        store.load(unsafe { handle::path(path) }?)
    })
}

/// Takes over the values of a file that another program has written, or of all files of an index, for the keys
/// that a function names: kv_load() with a mapping of keys.
///
/// The function is called once for each tensor, on this thread, before anything changes. In a job it is a
/// call of all workers, as kv_load() is, and the function of one is asked, of the lowest rank that is
/// neither lost nor done.
///
/// @param path     as for kv_load().
/// @param namer    gives a tensor the name of its key, or leaves it out.
/// @param context  passed to `namer` as it is.
/// @return as kv_load(), and `KV_ERR_CALLBACK` with the text of kv_set_callback_error();
///         `KV_ERR_INVALID_ARGUMENT` if two tensors get one name, or a name is empty;
///         `KV_ERR_UNSUPPORTED` for a file of kv_save(). The store is as it was.
///
/// Threads: any. Blocks: as kv_load().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_load_values(
    store: *mut kv_store,
    path: *const c_char,
    namer: kv_key_namer,
    context: *mut c_void,
) -> kv_status {
    guard_store(store, |store| {
        let Some(namer) = namer else {
            return Err(fail!(InvalidArgument, "load_values: namer is NULL; kv_load() needs none"));
        };
        // SAFETY: header rules 2 and 4: a NUL-terminated string.
        let path = unsafe { handle::path(path) }?;
        // SAFETY: header rule 6: `namer` accepts the context.
        store.load_values(path, |tensor| unsafe { key_name(namer, context, tensor) })
    })
}
