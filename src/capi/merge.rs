//! How pushes merge.

use std::ffi::{c_char, c_void};

use super::callback::CUpdater;
use super::guard::guard_store;
use super::handle::{self, kv_store};
use super::types::{
    KV_CLIP_FAIL, KV_COMMIT_EXCEEDED, KV_COMMIT_KEPT, KV_COMMIT_SKIPPED, kv_drop, kv_key,
    kv_status, kv_updater,
};
use crate::error::fail;
use crate::{Commit, NonFinite};

/// Sets the function that merges sums into stored values, for all pushes after this call.
///
/// Within a call it runs for one key after the other, on the calling thread; with a ticket, on a
/// thread of the library. Across calls it may run concurrently for different keys, never for one
/// key. If it fails, keys before it stay applied, it and those after are not; what it half-changed
/// stays, unless the option `updater_undo` is `yes`.
///
/// @param updater  the function, or NULL to assign again, as in the beginning.
/// @param context  passed to `updater` as it is.
/// @param drop     called once with `context` when no push can use it any more (at the latest in
///                 kv_free()), also when this call fails; may be NULL.
/// @return `KV_ERR_CLOSED` and the other states of a store that refuses work.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_updater(
    store: *mut kv_store,
    updater: kv_updater,
    context: *mut c_void,
    drop: kv_drop,
) -> kv_status {
    // SAFETY: header rule 6: `updater` and `drop` accept `context` from any thread.
    let updater = unsafe { CUpdater::new(updater, context, drop) };
    guard_store(store, |store| store.install_updater(updater.map(CUpdater::into_core)))
}

/// Merges sums into stored values by a rule of the library, for all pushes after this call.
///
/// An updater set before is dropped, and an optimizer set before with its state. The state of a
/// key is made by its first push. Rules calculate in f32 (f64 for f64 keys) and round once.
///
/// @param name    the rule, in any case; docs/use/optimizers.md lists the rules and their options.
/// @param params  options as `name=value,...`, e.g. `"learning_rate=0.1,momentum=0.9"`; NULL or
///                empty for the defaults. Copied.
/// @return `KV_ERR_OPTION` for an unknown name or a value that does not fit (the message lists near
///         names), `KV_ERR_DTYPE_MISMATCH` if a key holds integers or opaque values; nothing
///         has changed then. While an optimizer is set, kv_init() refuses such keys with
///         `KV_ERR_DTYPE_MISMATCH`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_optimizer(
    store: *mut kv_store,
    name: *const c_char,
    params: *const c_char,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: NUL-terminated strings, `params` may be NULL.
        let (name, params) = unsafe { handle::name_and_params(name, params) }?;
        store.set_optimizer(name, params)
    })
}

/// Merges single keys by a rule of their own, for all pushes after this call: a store can hold weights
/// under one rule, embeddings under another, and counters under none.
///
/// The keys need not be there yet, and keep the rule when they are removed. What kv_set_updater() and
/// kv_set_optimizer() set holds for all other keys. The state that a key has under its present rule
/// ends. kv_set_hyperparameter() changes the rule of the store, kv_set_key_hyperparameter() that of a
/// key.
///
/// @param keys    `count` keys; a name's key must have been interned in this store. Copied.
/// @param count   number of keys; with 0 nothing happens.
/// @param name    as for kv_set_optimizer(); or `none`: pushes replace the stored value; or `store`:
///                the keys merge as all others again.
/// @param params  options as `name=value,...`; NULL or empty for the defaults, and with `none` and
///                `store`. Copied.
/// @return `KV_ERR_OPTION` for an unknown name or a value that does not fit (the message lists near
///         names), `KV_ERR_DTYPE_MISMATCH` if one of the keys holds elements that the rule cannot
///         change; nothing has changed then. In a job all workers make the call, with equal
///         arguments: `KV_ERR_DIFFERS` otherwise.
///
/// Threads: any. Blocks: in a job up to the option `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_optimizer_for(
    store: *mut kv_store,
    keys: *const kv_key,
    count: usize,
    name: *const c_char,
    params: *const c_char,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: an array of `count`.
        let keys = unsafe { handle::keys("set_optimizer_for", keys, count) }?;
        // SAFETY: header rules 2 and 4: NUL-terminated strings, `params` may be NULL.
        let (name, params) = unsafe { handle::name_and_params(name, params) }?;
        store.set_optimizer_for(keys, name, params)
    })
}

/// Changes an option of the optimizer, for all pushes after this call. Its state stays.
///
/// @param name   the option, e.g. `learning_rate`.
/// @param value  its value; 1 and 0 stand for true and false.
/// @return `KV_ERR_OPTION` for an unknown name or a value that does not fit,
///         `KV_ERR_INVALID_ARGUMENT` if no optimizer is set; nothing has changed then.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_hyperparameter(
    store: *mut kv_store,
    name: *const c_char,
    value: f64,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string.
        store.set_hyperparameter(unsafe { handle::text(name, "name") }?, value)
    })
}

/// Changes what an option of the optimizer is multiplied by for one key, for all pushes after this
/// call. The key need not be there yet.
///
/// @param key    the key.
/// @param name   `lr_mult` for the learning rate, `wd_mult` for the weight decay; for a key with a
///               rule of its own also an option of that rule, such as `learning_rate`.
/// @param value  the factor, from 0; or the value of the option.
/// @return as kv_set_hyperparameter().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_key_hyperparameter(
    store: *mut kv_store,
    key: kv_key,
    name: *const c_char,
    value: f64,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string.
        store.set_key_hyperparameter(key, unsafe { handle::text(name, "name") }?, value)
    })
}

/// Gives each push after this call a weight, such as the number of samples in its batch, for means over
/// batches of unequal sizes. The sum of a round is divided by the sum of its weights, once, before a rule or
/// an updater gets it. So push sums over samples, not means.
///
/// The weight belongs to the push of a key with all its values in the call, and to this worker alone: other
/// workers set theirs. In one round all pushes have a weight, or none has; else it is not merged, and pulls
/// of it are `KV_ERR_DIFFERS`. A worker without samples pushes zeros with weight 0; a round whose weights are all
/// 0 is not merged, and pulls of it are `KV_ERR_INVALID_ARGUMENT`. kv_clear_weight() ends it.
///
/// While it is set, pushes to keys of integers are `KV_ERR_DTYPE_MISMATCH`, and with tensors or keys in GPU
/// memory `KV_ERR_UNSUPPORTED`; where a push is a round by itself (local stores, `dist_async`), one with weight 0 is
/// `KV_ERR_INVALID_ARGUMENT`. Nothing is pushed then.
///
/// @param weight  0, or from 2^-100 to 2^100.
/// @return `KV_ERR_INVALID_ARGUMENT` for another number, `KV_ERR_UNSUPPORTED` in a job with a server of an
///         earlier release; nothing has changed then.
///
/// Threads: any; it holds for the pushes of all threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_weight(store: *mut kv_store, weight: f64) -> kv_status {
    guard_store(store, |store| store.set_weight(weight))
}

/// Ends kv_set_weight(): the sums of later pushes are not divided.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_clear_weight(store: *mut kv_store) -> kv_status {
    guard_store(store, crate::Store::clear_weight)
}

/// Clips the gradients of each push or pushpull after this call by their global norm.
///
/// A gradient is the sum of a key's values as its rule gets it, times the rule's `rescale_grad`, or the sum as an
/// updater gets it. The norm is the square root of the sum of the squares of all gradients of one call. If it is
/// above max_norm, each gradient is multiplied by max_norm / (norm + 1e-6) before its rule or updater uses it, as
/// by clip_grad_norm_ of PyTorch; `clip_gradient` and weight decay come after. So push all gradients of a model
/// by one call. Keys whose pushes replace the value are neither counted nor scaled, nor are keys of integers.
///
/// A norm that is not finite skips the push: no key of the call changes, its outs get the values as they are, and
/// the call is KV_OK; kv_last_norm() counts it. With `KV_CLIP_FAIL` the call is `KV_ERR_INVALID_ARGUMENT` instead
/// and names the first key, in processing order, with which the norm is not finite.
///
/// The squares are added in f64, in an order that docs/use/semantics.md gives: neither threads nor the order of the list
/// change a bit of the norm. Pushes queued before this call keep the setting of the time of their call. The
/// setting is in no checkpoint. While it is on, kv_push_rows() to a key with a gradient is `KV_ERR_UNSUPPORTED`, as
/// are gradients or such keys in GPU memory.
///
/// In a job all workers make this call alike, and the gradients are the sums of a round: each push of a key with a
/// gradient waits for the other workers, which push the same keys, and counts as a collective call. All skip or
/// none does. What then differs is in docs/use/semantics.md, "Clipping in a job".
///
/// @param max_norm  above 0; infinite to measure, and skip, without clipping; 0 ends clipping.
/// @param flags     0, or `KV_CLIP_FAIL`.
/// @return `KV_ERR_INVALID_ARGUMENT` for a negative number, a NaN or another flag; `KV_ERR_UNSUPPORTED` while a
///         codec is set (kv_set_compression() is refused likewise); in a job also without rounds, with
///         `sum_order=tree`, while pushes have a weight, and for pushes with a ticket. Nothing has changed then.
///         In a job `KV_ERR_DIFFERS` if another worker sets another norm, which is in force then; `KV_ERR_TIMEOUT`.
///
/// Threads: any; it holds for the pushes of all threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_clipping(
    store: *mut kv_store,
    max_norm: f64,
    flags: u32,
) -> kv_status {
    guard_store(store, |store| {
        let non_finite = match flags {
            0 => NonFinite::Skip,
            KV_CLIP_FAIL => NonFinite::Fail,
            _ => {
                return Err(fail!(
                    InvalidArgument,
                    "set_clipping: flags is {flags}; it must be 0 or KV_CLIP_FAIL"
                ));
            }
        };
        store.set_clipping(max_norm, non_finite)
    })
}

/// Gives the norm of the last push that was measured, see kv_set_clipping(), and how many were skipped.
///
/// It is that before clipping, also of a push that was skipped or has failed: infinite or a NaN then. Waits for
/// nothing: a push with a ticket counts when it has completed.
///
/// @param norm   receives the norm, a NaN before the first push that was measured.
/// @param skips  receives the number of pushes that were skipped since kv_create().
/// @return `KV_ERR_ROLE` on a server and the scheduler.
///
/// Threads: any. Both numbers are of one moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_last_norm(
    store: *mut kv_store,
    norm: *mut f64,
    skips: *mut u64,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: NULL or valid places.
        let (norm, skips) = unsafe { (handle::out(norm, "norm")?, handle::out(skips, "skips")?) };
        let last = store.last_norm()?;
        (*norm, *skips) = (last.norm, last.skips);
        Ok(())
    })
}

/// Begins a transaction: kv_rollback() takes back what pushes after this call change, until kv_commit() keeps it.
///
/// It has the pushes of all threads, with tickets or without, whose calls come after this one. Other calls see
/// what they change at once. The first push of a key in it copies the value and the state of its rule; that memory
/// is as large as they are, and is used by later transactions too, until the key is removed.
///
/// While kv_set_clipping() is on, no push in a transaction is scaled or skipped: the transaction has one norm, of
/// the gradients of all its pushes, added as one push of all of them adds them, and kv_commit() looks at it. So a
/// program pushes each gradient as soon as it is there, and pushes them again where their norm turns out to be too
/// large (also called: speculation). A key that is pushed twice has two gradients.
///
/// In a transaction the calls that change how pushes merge are `KV_ERR_INVALID_ARGUMENT`: those that set updaters,
/// optimizers, codecs and clipping, and kv_load(); hyperparameters may change. Pushes from or to GPU memory are
/// `KV_ERR_UNSUPPORTED`. A digest log has the pushes, also those that are taken back.
///
/// @return `KV_ERR_INVALID_ARGUMENT` if a transaction has begun; `KV_ERR_UNSUPPORTED` in a job, and while a codec
///         is set.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_begin(store: *mut kv_store) -> kv_status {
    guard_store(store, crate::Store::begin)
}

/// Ends the transaction: keeps its pushes, or takes them back as kv_rollback() does if the norm of their gradients is
/// above that of kv_set_clipping(), or not finite. kv_last_norm() gives it.
///
/// Waits, at most `timeout_ms`, for pushes of the transaction that are on their way.
///
/// @param outcome  receives `KV_COMMIT_KEPT`, `KV_COMMIT_EXCEEDED` or `KV_COMMIT_SKIPPED`.
/// @return `KV_ERR_INVALID_ARGUMENT` without a transaction; also, with `KV_CLIP_FAIL`, for a norm that is not finite:
///         the pushes are taken back then. `KV_ERR_TIMEOUT` if a push has not ended: the transaction goes on.
///         `KV_ERR_UNSUPPORTED` in a job.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_commit(store: *mut kv_store, outcome: *mut i32) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let outcome = unsafe { handle::out(outcome, "outcome")? };
        *outcome = match store.commit()? {
            Commit::Kept => KV_COMMIT_KEPT,
            Commit::Exceeded => KV_COMMIT_EXCEEDED,
            Commit::Skipped => KV_COMMIT_SKIPPED,
        };
        Ok(())
    })
}

/// Ends the transaction: the values of all keys that were pushed in it, the states of their rules and their counts
/// are what they were before, to the bit. Keys that were initialised or removed stay so. What an updater keeps
/// beside the values stays as well.
///
/// Waits as kv_commit() does.
///
/// @return as kv_commit().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_rollback(store: *mut kv_store) -> kv_status {
    guard_store(store, crate::Store::rollback)
}

/// Sends each value of every push after this call through a codec, as workers would: what is added
/// up is what the codec's bytes decode to. Pulls, kv_init() and kv_broadcast() are not compressed,
/// nor are keys of integers.
///
/// What a push could not send is kept for each key and place among its values, and added to the
/// value that the key's next push has there; see docs/use/compression.md. It goes with the key, and
/// with the codec: a call that succeeds starts anew.
///
/// @param name    the codec, in any case: `1bit`, `2bit`, `fp16`, `bf16`, `int8`, `topk`,
///                `randomk`, or `none`.
/// @param params  options as `name=value,...`, e.g. `"threshold=0.5"`; NULL or empty for the
///                defaults. Copied.
/// @return `KV_ERR_OPTION` for an unknown name or a value that does not fit (the message lists near
///         names), `KV_ERR_DTYPE_MISMATCH` if a key holds floats that the codec does not take: all
///         take f32, `fp16` and `bf16` also f64; nothing has changed then. While a codec is set,
///         kv_init() refuses such keys with `KV_ERR_DTYPE_MISMATCH`. `KV_ERR_UNSUPPORTED` in a
///         store with `sum_order=tree`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_compression(
    store: *mut kv_store,
    name: *const c_char,
    params: *const c_char,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: NUL-terminated strings, `params` may be NULL.
        let (name, params) = unsafe { handle::name_and_params(name, params) }?;
        store.set_compression(name, params)
    })
}
