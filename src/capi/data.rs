//! Keys, and the data that goes in and out.

// In the header behind the functions of this file.
mod bound;

mod collectives;

use std::ffi::c_char;

use super::guard::{guard_store, guard_store_in_callback};
use super::handle::{self, kv_store};
use super::types::{kv_dtype_in, kv_key, kv_key_digest, kv_round, kv_status, kv_tensor, kv_ticket};
use crate::deadline::Deadline;
use crate::error::fail;
use crate::key::KeyRound;
use crate::local::call::DataCall;
use crate::store::Pairs;

/// Gives the key of a name, and remembers the name in this store.
///
/// The key is the top bit plus the low 63 bits of SipHash-2-4 (zero key) over the name's bytes: the
/// same in every process. Interning a name again gives the same key.
///
/// @param name  NUL-terminated UTF-8, copied; may be empty.
/// @param key   receives the key.
/// @return `KV_ERR_NAME_COLLISION` if another name of this store has the same hash.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_intern(
    store: *mut kv_store,
    name: *const c_char,
    key: *mut kv_key,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string, NULL or a valid place.
        let (name, out) = unsafe { (handle::text(name, "name")?, handle::out(key, "key")?) };
        *out = store.intern(name)?.id();
        Ok(())
    })
}

/// Gives the name that a key was interned with.
///
/// @param name  receives a string of the library; it lives until kv_free().
/// @return `KV_ERR_KEY_NOT_FOUND` for an integer key, and for a name this store has never seen.
///
/// Threads: any, also from inside an updater.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_key_name(
    store: *mut kv_store,
    key: kv_key,
    name: *mut *const c_char,
) -> kv_status {
    guard_store_in_callback(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(name, "name") }?;
        *out = store.name_ptr(key.into())?;
        Ok(())
    })
}

/// Gives a key's dtype and shape. Each output may be NULL.
///
/// @param dtype     receives the dtype.
/// @param ndim      receives the number of dimensions, also with `KV_ERR_BUFFER_TOO_SMALL`.
/// @param shape     receives `ndim` extents; NULL with `capacity` 0 asks for the rest only.
/// @param capacity  how many extents `shape` has room for.
/// @return `KV_ERR_KEY_NOT_FOUND`; `KV_ERR_BUFFER_TOO_SMALL` if `shape` is not NULL and too small.
///
/// Threads: any, also from inside an updater.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_key_info(
    store: *mut kv_store,
    key: kv_key,
    dtype: *mut kv_dtype_in,
    ndim: *mut i32,
    shape: *mut i64,
    capacity: i32,
) -> kv_status {
    guard_store_in_callback(store, |store| {
        let info = store.key_info(key)?;
        // SAFETY: header rule 2: NULL or valid places, `shape` with room for `capacity`.
        unsafe { handle::write_info(&info, dtype, ndim, shape, capacity) }
    })
}

/// Lists the initialised keys: integers in ascending order, then names in order of their init.
///
/// @param keys      receives the keys; NULL with `capacity` 0 asks for the number only.
/// @param capacity  how many keys there is room for.
/// @param count     receives the number of keys, also with `KV_ERR_BUFFER_TOO_SMALL`.
/// @return `KV_ERR_BUFFER_TOO_SMALL` if `keys` is not NULL and too small; it is unchanged then.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_keys(
    store: *mut kv_store,
    keys: *mut kv_key,
    capacity: usize,
    count: *mut usize,
) -> kv_status {
    guard_store(store, |store| {
        let all = store.keys()?;
        // SAFETY: header rule 2: room for `capacity` keys, `count` is NULL or a place.
        unsafe { handle::write_keys(&all, keys, capacity, count) }
    })
}

/// Gives the round of each key, and digests of its value and of its optimizer's state.
///
/// Equal bits have equal digests, whatever servers, slices, transports, threads and instruction sets
/// have made them: to compare two runs, compare these numbers. A digest is the CRC-64/NVME of the
/// little-endian bytes; docs/use/semantics.md defines it.
///
/// Takes effect after the earlier operations of this thread. Each key is seen at one moment between
/// two pushes; in a job in the round of this worker's last push of it, as kv_pull() sees it.
///
/// @param keys     `count` initialised keys, in any order; a key may stand there twice.
/// @param digests  receives `count` digests; unchanged after an error.
/// @param count    number of keys; with 0 nothing happens.
/// @return `KV_ERR_KEY_NOT_FOUND`; `KV_ERR_TIMEOUT` if a key stays in use, or if in a job the push of
///         another worker is missing, or slices of the key are never of one round.
///
/// Threads: any. Blocks: like kv_pull(). Complexity: one pass over each value and its state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_digest(
    store: *mut kv_store,
    keys: *const kv_key,
    digests: *mut kv_key_digest,
    count: usize,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: an array of `count`, lent for the call.
        let keys = unsafe { handle::keys("digest", keys, count) }?;
        handle::check_room("digest", digests, count, "digests")?;
        let all = store.digest(keys)?;
        // SAFETY: header rule 2: NULL or room for `count`.
        unsafe { handle::write_digests(&all, digests, count) }
    })
}

/// Gives the last round of a key: how many workers took part in it, and the sum of their weights.
///
/// Takes effect after the earlier operations of this thread; in a job it is the round of this worker's last
/// push of the key, as kv_pull() sees it. With `on_worker_loss=continue` slices of a key may have the push of a
/// lost worker or not: the fewest contributors of a slice count.
///
/// @param key    an initialised key.
/// @param round  `struct_size` set by the caller; receives the rest, unchanged after an error.
/// @return `KV_ERR_KEY_NOT_FOUND`; `KV_ERR_INVALID_ARGUMENT` if `struct_size` is less than the first release's;
///         the error of the round if it was not merged, as from kv_pull(); `KV_ERR_TIMEOUT` if a key stays in
///         use, or if in a job the push of another worker is missing, or slices of the key are never of one
///         round; `KV_ERR_UNSUPPORTED` in a job with a server of an earlier release.
///
/// Threads: any. Blocks: like kv_pull().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_last_round(
    store: *mut kv_store,
    key: kv_key,
    round: *mut kv_round,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(round, "round") }?;
        if out.struct_size < size_of::<kv_round>() {
            return Err(fail!(
                InvalidArgument,
                "last_round: struct_size is {}; set it to sizeof(kv_round)",
                out.struct_size
            ));
        }
        let KeyRound { round, contributors, total_weight } = store.last_round(key)?;
        *out = kv_round { struct_size: out.struct_size, round, contributors, total_weight };
        Ok(())
    })
}

/// Stores the first value of each key; the value is copied.
///
/// @param keys    `count` different keys; a name's key must have been interned in this store.
/// @param values  `count` tensors that fix each key's dtype and shape. Lent until the call returns.
/// @param count   number of pairs; with 0 nothing happens.
/// @return `KV_ERR_KEY_EXISTS` (also for a key that stands twice in the list),
///         `KV_ERR_KEY_NOT_FOUND` (a name never interned), `KV_ERR_OUT_OF_MEMORY`; no key is
///         stored then. `KV_ERR_NAME_COLLISION` if another worker of the job has the key under
///         another name; so do other calls that use it.
///
/// Threads: any. Complexity: one pass over each value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_init(
    store: *mut kv_store,
    keys: *const kv_key,
    values: *const kv_tensor,
    count: usize,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of `count`, lent for the call.
        let list = unsafe { handle::pairs("init", keys, values, count) }?;
        store.init_pairs(&list)
    })
}

/// Adds up the values of each key and merges the sum into the stored value.
///
/// The values of one key (one per device) are added left to right in call order, or by the tree of
/// the option `sum_order`, and rounded once to the key's dtype; f16 and bf16 are added in f32;
/// integers wrap; one value is copied bit for bit. The sum then replaces the stored value, or goes
/// through the updater. Equal keys need not be adjacent. Keys are processed in ascending order of
/// integers, then names in order of their init. A value of another float dtype is converted to the
/// key's first. Values of opaque dtypes are never added: the only value of a key replaces the stored
/// one, and a call that would add two is `KV_ERR_UNSUPPORTED`; so is, in a job of several workers with
/// rounds, every push of such a key.
///
/// @param keys      `count` keys, each initialised before.
/// @param values    `count` tensors of their keys' shapes. Lent until the operation completes.
///                  Never written, kept or freed.
/// @param count     number of pairs; with 0 nothing happens.
/// @param priority  larger runs earlier among the operations that wait; only with a ticket.
/// @param ticket    receives a ticket for kv_wait(); NULL waits here, up to the option
///                  `timeout_ms`.
/// @return `KV_ERR_KEY_NOT_FOUND`, `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH`,
///         `KV_ERR_INVALID_ARGUMENT`, `KV_ERR_UNSUPPORTED`, `KV_ERR_OPTION` (a number of values of
///         one worker that `sum_order=tree` does not take): nothing has been applied.
///         `KV_ERR_CALLBACK`: keys before the one in the message are applied, it and those after
///         it are not. `KV_ERR_TIMEOUT`: in a store of one process nothing has been applied, if the
///         message says so; otherwise keys before the one in the message are applied, it and those
///         after it are not. In a job the push goes on and takes effect, once: do not repeat it.
///
/// Threads: any. Calls of one thread on one key take effect in call order. Blocks: only if
/// `ticket` is NULL. Complexity: one pass over each value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_push(
    store: *mut kv_store,
    keys: *const kv_key,
    values: *const kv_tensor,
    count: usize,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of `count`, lent until completion.
        let list = unsafe { handle::pairs("push", keys, values, count) }?;
        // SAFETY: as above; `ticket` is NULL or a valid place.
        unsafe { handle::submit(store, DataCall::Push, &list, &Pairs::NONE, priority, ticket) }
    })
}

/// Copies the stored values out. Sees every push that this thread made before.
///
/// One tensor may be the out of several keys: the last key in processing order wins, never a mix.
///
/// @param keys      `count` keys, each initialised before; equal keys fill several outs.
/// @param outs      `count` tensors of their keys' shapes, of the same or another float dtype
///                  (converted in one rounding). Lent, and written, until the operation completes.
/// @param count     number of pairs; with 0 nothing happens.
/// @param priority  as for kv_push().
/// @param ticket    as for kv_push().
/// @return `KV_ERR_KEY_NOT_FOUND`, `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH`,
///         `KV_ERR_OVERLAP` (outs that overlap in part, or have a stride of 0): nothing has been
///         written. Outs that interleave, and are not pieces at one distance as the columns of a
///         matrix are, are compared row by row, up to 65,536 rows a call: an overlap that takes
///         more to find is not seen, and gives a mix. `KV_ERR_TIMEOUT`: outs may be undefined.
///
/// Threads: any. Blocks: only if `ticket` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_pull(
    store: *mut kv_store,
    keys: *const kv_key,
    outs: *const kv_tensor,
    count: usize,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of `count`, lent until completion.
        let list = unsafe { handle::pairs("pull", keys, outs, count) }?;
        // SAFETY: as above; `ticket` is NULL or a valid place.
        unsafe { handle::submit(store, DataCall::Pull, &Pairs::NONE, &list, priority, ticket) }
    })
}

/// Pushes, then pulls, in one operation and with less traffic than the two calls.
///
/// Each key's outs are filled right after its push. An out may be exactly a value of the same key
/// (same address, dtype and strides): the result then replaces it.
///
/// @param keys       as for kv_push().
/// @param values     as for kv_push().
/// @param count      number of (key, value) pairs.
/// @param out_keys   as the keys of kv_pull(); they need not be those pushed.
/// @param outs       as for kv_pull().
/// @param out_count  number of (key, out) pairs.
/// @param priority   as for kv_push().
/// @param ticket     as for kv_push().
/// @return as kv_push() and kv_pull(). All pairs are checked before any is applied.
///
/// Threads: any. Blocks: only if `ticket` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_pushpull(
    store: *mut kv_store,
    keys: *const kv_key,
    values: *const kv_tensor,
    count: usize,
    out_keys: *const kv_key,
    outs: *const kv_tensor,
    out_count: usize,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of their counts, lent until completion.
        let (ins, outs) = unsafe {
            (
                handle::pairs("pushpull", keys, values, count)?,
                handle::pairs("pushpull", out_keys, outs, out_count)?,
            )
        };
        // SAFETY: as above; `ticket` is NULL or a valid place.
        unsafe { handle::submit(store, DataCall::PushPull, &ins, &outs, priority, ticket) }
    })
}

/// Initialises, then pulls: kv_init() of the values and kv_pull() into the outs.
///
/// The values are copied before the call returns, also with a ticket; the outs are lent until
/// completion.
///
/// @param keys       as for kv_init().
/// @param values     as for kv_init().
/// @param count      number of (key, value) pairs.
/// @param out_keys   keys to pull; they may have been initialised earlier.
/// @param outs       as for kv_pull().
/// @param out_count  number of (key, out) pairs.
/// @param priority   as for kv_push().
/// @param ticket     as for kv_push().
/// @return as kv_init() and kv_pull(). All pairs are checked before any is applied.
///
/// Threads: any. Blocks: only if `ticket` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_broadcast(
    store: *mut kv_store,
    keys: *const kv_key,
    values: *const kv_tensor,
    count: usize,
    out_keys: *const kv_key,
    outs: *const kv_tensor,
    out_count: usize,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of their counts, lent until completion.
        let (ins, outs) = unsafe {
            (
                handle::pairs("broadcast", keys, values, count)?,
                handle::pairs("broadcast", out_keys, outs, out_count)?,
            )
        };
        // SAFETY: as above; `ticket` is NULL or a valid place.
        unsafe { handle::submit(store, DataCall::Broadcast, &ins, &outs, priority, ticket) }
    })
}

/// Removes keys and frees their values; a removed key may be initialised again, with any shape.
///
/// Operations with a ticket that are pending on these keys, of any thread, finish first. A
/// call of another thread that meets a removed key fails with `KV_ERR_KEY_NOT_FOUND`.
///
/// @param keys   `count` different keys, each initialised before.
/// @param count  number of keys; with 0 nothing happens.
/// @return `KV_ERR_KEY_NOT_FOUND` (also for a key that stands twice in the list),
///         `KV_ERR_TIMEOUT` (operations on them still at work): nothing has been removed. In a
///         job `KV_ERR_TIMEOUT` takes back the removal of the keys that other workers have not
///         removed; the message names the first key that is kept.
///
/// Threads: any. Blocks: up to the option `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_remove(
    store: *mut kv_store,
    keys: *const kv_key,
    count: usize,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: an array of `count`.
        let keys = unsafe { handle::keys("remove", keys, count) }?;
        store.remove(keys)
    })
}

/// Waits for an operation, and gives its result. May be called again, and from any thread.
///
/// @param ticket      a ticket of this store.
/// @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
/// @return the operation's own error; `KV_ERR_TIMEOUT`: not known yet, the operation goes on and
///         its buffers stay lent (do not repeat a push because of it); `KV_ERR_CANCELLED`;
///         `KV_ERR_TICKET` for a ticket of another store, one never issued, and one older than
///         the last 65,536 operations that did not succeed (the last 1,024 keep their text).
///
/// Threads: any. Blocks: up to `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_wait(
    store: *mut kv_store,
    ticket: kv_ticket,
    timeout_ms: i64,
) -> kv_status {
    guard_store(store, |store| store.wait_ticket(ticket, Deadline::from_ms(timeout_ms)?))
}

/// Waits for every operation that was pending when the call was made.
///
/// @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
/// @return the first failure, by ticket, that no call has reported; the message counts the
///         others, and all of them count as told. `KV_ERR_TIMEOUT`: operations go on.
///
/// Threads: any. Blocks: up to `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_wait_all(store: *mut kv_store, timeout_ms: i64) -> kv_status {
    guard_store(store, |store| store.wait_all(Deadline::from_ms(timeout_ms)?))
}

/// Ends an operation's loan: once this returns `KV_OK`, its buffers are yours again.
///
/// An operation that has not begun is withdrawn. One at work stops after the key it is at (a push)
/// or within one piece of 256 KiB (a pull, whose outs are then undefined). One that has completed
/// stays as it is. kv_wait() on the ticket then gives `KV_ERR_CANCELLED`, or `KV_OK` if the
/// operation had taken effect in full.
///
/// @param ticket  a ticket of this store.
/// @return `KV_ERR_TICKET`; `KV_ERR_TIMEOUT` after `timeout_ms` of the store's options (an updater
///         that does not return): the buffers stay lent.
///
/// Threads: any. Blocks: as long as the operation is at work on one key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_cancel(store: *mut kv_store, ticket: kv_ticket) -> kv_status {
    guard_store(store, |store| store.cancel_ticket(ticket))
}
