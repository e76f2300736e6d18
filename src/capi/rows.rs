//! Rows of values.

use super::guard::guard_store;
use super::handle::{self, kv_store};
use super::types::{kv_key, kv_status, kv_tensor, kv_ticket};
use crate::local::call::DataCall;

/// Merges values into some rows of each key. A row is what one index of the first axis selects.
///
/// Row `row_ids[i]` of the key gets row `i` of the value. What is pushed to one row is added up: all
/// values of a key left to right in call order, each from its first row to its last, rounded once as
/// in kv_push(). Without updater and optimizer, the sums replace exactly these rows. An updater gets
/// the sum as a dense array with zeros in all other rows, and so does an optimizer, unless its
/// option `lazy_update` is true: it then changes the pushed rows, and their state, only. (`sgd`
/// without momentum and weight decay, and `adagrad` and `groupadagrad` without weight decay, change
/// no other row anyway, and look at none.)
///
/// @param keys      `count` keys, each initialised before.
/// @param row_ids   `count` tensors of int64, of any shape, each number from 0 to below the key's
///                  first extent, in any order, also repeated. Copied.
/// @param rows      `count` tensors; their shape is that of the row ids, followed by that of a row.
///                  Lent until the operation completes. Never written, kept or freed.
/// @param count     number of pairs; with 0 nothing happens.
/// @param priority  as for kv_push().
/// @param ticket    as for kv_push().
/// @return as kv_push(); `KV_ERR_INVALID_ARGUMENT` for a row id out of range,
///         `KV_ERR_DTYPE_MISMATCH` for row ids that are not int64, `KV_ERR_SHAPE_MISMATCH` for a key
///         without rows: nothing has been applied.
///
/// Threads: any. Blocks: only if `ticket` is NULL. Complexity: one pass over the pushed rows, and
/// one over the key where it says dense above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_push_rows(
    store: *mut kv_store,
    keys: *const kv_key,
    row_ids: *const kv_tensor,
    rows: *const kv_tensor,
    count: usize,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of `count`, lent until completion.
        let pairs = unsafe { handle::row_pairs("push_rows", keys, row_ids, rows, count) }?;
        // SAFETY: as above; `ticket` is NULL or a valid place.
        unsafe { handle::submit_rows(store, DataCall::PushRows, &pairs, priority, ticket) }
    })
}

/// Copies rows of the stored values out. Sees every push that this thread made before.
///
/// Row `i` of the out gets row `row_ids[i]` of the key.
///
/// @param keys      `count` keys, each initialised before; equal keys fill several outs.
/// @param row_ids   as for kv_push_rows().
/// @param outs      `count` tensors of the key's or another float dtype; their shape is that of the
///                  row ids, followed by that of a row. Lent, and written, until the operation
///                  completes.
/// @param count     number of pairs; with 0 nothing happens.
/// @param priority  as for kv_push().
/// @param ticket    as for kv_push().
/// @return as kv_pull() and, for row ids, as kv_push_rows(): nothing has been written.
///
/// Threads: any. Blocks: only if `ticket` is NULL. Complexity: one pass over the pulled rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_pull_rows(
    store: *mut kv_store,
    keys: *const kv_key,
    row_ids: *const kv_tensor,
    outs: *const kv_tensor,
    count: usize,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: arrays of `count`, lent until completion.
        let pairs = unsafe { handle::row_pairs("pull_rows", keys, row_ids, outs, count) }?;
        // SAFETY: as above; `ticket` is NULL or a valid place.
        unsafe { handle::submit_rows(store, DataCall::PullRows, &pairs, priority, ticket) }
    })
}
