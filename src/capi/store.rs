//! The life of a store, its place in a job, and insight into it.

use std::ffi::{c_char, c_void};

use super::callback;
use super::guard::{guard, guard_store, guard_store_in_callback};
use super::handle::{self, kv_config, kv_store};
use super::types::{kv_drop, kv_interrupt_check, kv_logger, kv_node_role, kv_status};
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::{Config, Role, Store};

/// Creates a store.
///
/// Types, in any case: `local` (aliases `local_update_cpu`, `local_allreduce_cpu`) and `device`
/// (alias `local_allreduce_device`) live in this process; on CPU memory they give the same results.
/// `dist_sync` (alias `dist`), `dist_async`, `dist_device_sync` (`dist_sync_device`, `dist_device`)
/// and `dist_device_async` are one job of many processes; the option `role` says what this one is,
/// and the call returns when the whole job is there. A build without them answers
/// `KV_ERR_UNSUPPORTED`.
///
/// @param type    NUL-terminated type string.
/// @param config  options, or NULL for the defaults; copied.
/// @param store   receives the handle; free it with kv_free().
/// @return `KV_ERR_INVALID_ARGUMENT` for an unknown type (the message lists the valid ones),
///         `KV_ERR_UNSUPPORTED`, `KV_ERR_OPTION` (an option of the type is missing, or an
///         environment variable has a bad value). Distributed: `KV_ERR_TIMEOUT` (the message names
///         who is missing), `KV_ERR_REFUSED`, `KV_ERR_NETWORK`.
///
/// Threads: any. Local stores start no thread and open no socket. Blocks: distributed stores, up to
/// the option `start_timeout_ms`. The system looks up the names of hosts in a time of its own, which
/// neither this option nor kv_set_interrupt() ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_create(
    r#type: *const c_char,
    config: *const kv_config,
    store: *mut *mut kv_store,
) -> kv_status {
    guard(|| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string, a live or NULL handle, a place.
        let (kind, config, out) = unsafe {
            (
                handle::text(r#type, "type")?,
                handle::config_ref(config),
                handle::out(store, "store")?,
            )
        };
        let opened = match config {
            Some(config) => Store::open(kind, config)?,
            None => Store::open(kind, &Config::new())?,
        };
        *out = handle::new_store(opened);
        Ok(())
    })
}

/// Opens the store of a group: some of the workers of a job, with keys, rounds, rules, barriers and
/// collective calls of their own, over the processes and connections of the job.
///
/// The workers of the group make this call, in any order, and no others. It returns when all servers
/// know the group, and does not wait for the other workers: the first call that needs them does.
/// In the group, kv_rank() is the place of this worker among the ascending `ranks`, kv_num_workers()
/// is `count`, and roots of collective calls are such places. Errors name workers by their rank in
/// the job; a lost worker ends the rounds and barriers of its groups, not those of others. Sums are
/// in the order of ranks.
///
/// The new store has the options of `store`, no rule, no codec and no keys; its keys are others than
/// those of the same name in the job or in other groups. It has no updater. A worker that closes or
/// frees it leaves the group, and the others go on without it; once all have left, the servers drop
/// its keys. The end of the job's store ends those of its groups: their calls give `KV_ERR_CLOSED`.
/// A local store has groups of worker 0 alone.
///
/// @param name   NUL-terminated, not empty, at most 255 bytes; the same in all workers of the group.
/// @param ranks  `count` ranks in the job, in any order, with that of this worker; copied.
/// @param group  receives the handle; free it with kv_free(), before or after that of the job.
/// @return `KV_ERR_INVALID_ARGUMENT`: a bad name, one that is open in this process, or ranks that are
///         no workers, there twice, or without this worker. `KV_ERR_DIFFERS`: another worker has made
///         the group with other ranks. `KV_ERR_UNSUPPORTED`: `store` is of a group, or a server is of
///         an earlier release. `KV_ERR_ROLE` on a server, a scheduler or a reader.
///         `KV_ERR_TIMEOUT`, `KV_ERR_PEER_LOST`.
///
/// Threads: any. Blocks: up to the option `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_group(
    store: *mut kv_store,
    name: *const c_char,
    ranks: *const i32,
    count: usize,
    group: *mut *mut kv_store,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rules 2 and 4: a NUL-terminated string, an array of `count` numbers, a place.
        let (name, ranks, out) = unsafe {
            (
                handle::text(name, "name")?,
                handle::array(ranks, count, "group", "ranks")?,
                handle::out(group, "group")?,
            )
        };
        let rank = |rank: &i32| {
            u32::try_from(*rank)
                .map_err(|_| fail!(InvalidArgument, "group: rank {rank}; ranks begin at 0"))
        };
        let ranks = ranks.iter().map(rank).collect::<Result<Vec<_>>>()?;
        *out = handle::new_store(store.group(name, &ranks)?);
        Ok(())
    })
}

/// Finishes all pending operations and closes the store; afterwards only kv_free() is of use.
///
/// @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
/// @return `KV_ERR_TIMEOUT`: operations, or functions of kv_on_done(), are still at work, the store
///         stays open. Any other error is the first failure that no call has reported:
///         the store is closed then. Closing a closed store succeeds.
///
/// Threads: any. Blocks: up to `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_close(store: *mut kv_store, timeout_ms: i64) -> kv_status {
    guard_store(store, |store| store.close(Deadline::from_ms(timeout_ms)?))
}

/// Fails every pending operation with `KV_ERR_CLOSED`, now, and closes the store. Never waits.
///
/// Buffers of an operation that is at work at this moment stay lent until kv_wait() on its ticket
/// has returned anything but `KV_ERR_TIMEOUT`, or until kv_free() has returned. NULL does nothing.
///
/// Threads: any, also from inside an updater.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_abort(store: *mut kv_store) {
    guard_store_in_callback(store, |store| {
        store.abort();
        Ok(())
    });
}

/// Frees the store and all its values. NULL does nothing.
///
/// Pending operations are cancelled; the one at work is waited for, at most `timeout_ms` of the
/// store's options. When this returns, the updater's `drop` and the functions of kv_on_done() have
/// run. Only if an operation is still at work then (an updater that never returns), its part of the
/// store is given up, not freed.
///
/// Threads: no other call with this store may be running. From inside an updater of the store, or a
/// function of kv_on_done(), it does nothing but leave `KV_ERR_REENTRANT`'s text in kv_last_error().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_free(store: *mut kv_store) {
    guard(|| {
        // SAFETY: header rule 3: NULL, or a handle of kv_create() that is freed only once.
        unsafe { handle::free_store(store) }
    });
}

/// Gives the canonical name of the store's type, such as `local`.
///
/// @param type  receives a string of the library; it lives for ever.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_type(store: *mut kv_store, r#type: *mut *const c_char) -> kv_status {
    guard_store_in_callback(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(r#type, "type") }?;
        *out = store.kind().c_name().as_ptr();
        Ok(())
    })
}

/// Gives the role of this process in the job, one of `kv_node_role`. Local stores: a worker.
///
/// @param role  receives the role.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_role(store: *mut kv_store, role: *mut i32) -> kv_status {
    guard_store_in_callback(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(role, "role") }?;
        *out = match store.role() {
            Role::Worker => kv_node_role::KV_ROLE_WORKER,
            Role::Server => kv_node_role::KV_ROLE_SERVER,
            Role::Scheduler => kv_node_role::KV_ROLE_SCHEDULER,
        } as i32;
        Ok(())
    })
}

/// Gives the rank of this process among those of its role, from 0. Local stores: 0.
///
/// @param rank  receives the rank.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_rank(store: *mut kv_store, rank: *mut i32) -> kv_status {
    guard_store_in_callback(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(rank, "rank") }?;
        *out = store.rank();
        Ok(())
    })
}

/// Gives the number of workers. Local stores: 1.
///
/// @param count  receives the number.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_num_workers(store: *mut kv_store, count: *mut i32) -> kv_status {
    guard_store_in_callback(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(count, "count") }?;
        *out = store.num_workers();
        Ok(())
    })
}

/// Gives the number of workers and servers that the job has declared lost, as far as this process has been
/// told: it asks no other process. With `on_worker_loss=fail` other calls fail once it is not 0. Local
/// stores: 0.
///
/// @param count  receives the number.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_num_lost(store: *mut kv_store, count: *mut i32) -> kv_status {
    guard_store_in_callback(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let out = unsafe { handle::out(count, "count") }?;
        *out = store.num_lost();
        Ok(())
    })
}

/// Waits until all workers have arrived here. Local stores: returns at once.
///
/// Workers that have called kv_done() or kv_close() are not waited for.
///
/// @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
/// @return `KV_ERR_TIMEOUT` (the message names the workers that have not come; called again, it
///         waits for the same barrier),
///         `KV_ERR_PEER_LOST`, `KV_ERR_EVICTED`, `KV_ERR_ROLE` on a server or scheduler.
///
/// Threads: any. Blocks: up to `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_barrier(store: *mut kv_store, timeout_ms: i64) -> kv_status {
    guard_store(store, |store| store.barrier(Deadline::from_ms(timeout_ms)?))
}

/// Says that this worker pushes no more: no round waits for it from now on. It may still pull, and
/// save what there is when the others push no more either. Local stores: no effect.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_done(store: *mut kv_store) -> kv_status {
    guard_store(store, Store::done)
}

/// Waits until all workers have made this call, whether they have called kv_done() or not. Then none of them is
/// done: rounds and barriers wait for all again. So a worker with fewer batches calls kv_done() at its end of
/// an epoch, and all call kv_resume() before the next one. Local stores: no effect.
///
/// Waits for the operations of this worker first; all rounds have closed when it returns. The numbers of rounds go
/// on with the largest one of all keys, so some may be left out. A worker that was done gets the settings that
/// other workers have changed meanwhile; a key that they have removed is missing at its next use.
///
/// @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
/// @return `KV_ERR_TIMEOUT` (the message names the workers that have not made the call; this one is done then,
///         and joins the same resume when it is called again), `KV_ERR_PEER_LOST`, `KV_ERR_EVICTED`,
///         `KV_ERR_ROLE` on a server, a scheduler or a reader, `KV_ERR_UNSUPPORTED` in a job with a server or a
///         scheduler of an earlier release.
///
/// Threads: any. Blocks: up to `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_resume(store: *mut kv_store, timeout_ms: i64) -> kv_status {
    guard_store(store, |store| store.resume(Deadline::from_ms(timeout_ms)?))
}

/// Serves as a server or a scheduler until the job ends.
///
/// On a server pushes merge here, by the updater that kv_set_updater() has set on this store, or by
/// the optimizer that the workers set. The updater runs on threads of the library. kv_abort(), on
/// another thread, ends the call.
///
/// @return `KV_OK` when all workers have left. `KV_ERR_ROLE` on a worker and on local stores,
///         `KV_ERR_TIMEOUT` (the job did not start; the message names who is missing),
///         `KV_ERR_REFUSED`, `KV_ERR_EVICTED`, `KV_ERR_PEER_LOST` (the scheduler is gone and was
///         not started again), `KV_ERR_CLOSED` after kv_abort().
///
/// Threads: any, one at a time. Blocks: until the job ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_serve(store: *mut kv_store) -> kv_status {
    guard_store(store, Store::serve)
}

/// Writes counters and settings of the store as one JSON object, UTF-8.
///
/// Members are added over time, never renamed: `type`, `keys`, `bytes` (stored values), `pushes`,
/// `pulls` (per key), `push_bytes`, `pull_bytes`, `updater_calls`, `pending`, `failed` (kept for
/// kv_wait_all()), `threads`, `isa`, `compression` (the codec, or `none`), `compression_params`,
/// `pinned_bytes`, `devices` (the GPUs that this process uses; docs/operate/operations.md has their
/// members), with the option `digest_log` that name with `rounds` and `lost` (written, and not);
/// in jobs also `role`, `rank`, `num_workers` and `node` (as `kvstore status` shows it).
///
/// @param buffer    receives at most `capacity` bytes with a terminating NUL. NULL with
///                  `capacity` 0 asks for the length only.
/// @param capacity  size of `buffer` in bytes.
/// @param length    receives the length without the NUL, also with `KV_ERR_BUFFER_TOO_SMALL`.
///                  May be NULL.
/// @return `KV_ERR_BUFFER_TOO_SMALL` if `capacity` is not 0 and too small; `buffer` is unchanged.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_stats(
    store: *mut kv_store,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> kv_status {
    guard_store(store, |store| {
        let text = store.stats()?;
        // SAFETY: header rule 2: `buffer` has `capacity` bytes, `length` is NULL or a place.
        unsafe { handle::write_text(&text, buffer, capacity, length) }
    })
}

/// Sends what the library has to say to a function of yours; process-wide, silent by default.
///
/// @param level    how much to hear, one of `kv_log_level`.
/// @param log      the function, or NULL to be silent again. Called from any thread, several at a
///                 time.
/// @param context  passed to `log` as it is.
/// @param drop     called once with `context` when it is no longer used, also when this call
///                 fails; may be NULL.
/// @return `KV_ERR_INVALID_ARGUMENT` for an unknown level.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_logger(
    level: i32,
    log: kv_logger,
    context: *mut c_void,
    drop: kv_drop,
) -> kv_status {
    // SAFETY: header rule 6: `log` and `drop` accept `context` from any thread.
    let sink = unsafe { callback::CLogSink::new(log, context, drop) };
    guard(|| callback::install_logger(level, sink))
}

/// Has the calls of this thread ask a function of yours, while they wait, whether to go on.
///
/// For hosts that handle signals between their own steps, as Python does, or that have a button to
/// stop: a call that waits asks every 50 ms, on the thread that waits. A call that is told to end
/// withdraws what it has begun, as a timeout does, and gives `KV_ERR_CANCELLED`: kv_create(),
/// kv_init(), every data call with `ticket` NULL, kv_remove(), kv_barrier(), kv_done(), the settings,
/// kv_save(), kv_load(), kv_serve(). kv_wait(), kv_wait_all(), kv_cancel() and kv_close() give
/// `KV_ERR_TIMEOUT`, because the operations that they wait for go on. A call that does not wait asks
/// nothing, and costs what it does without a check.
///
/// @param check    the function, or NULL to ask nothing, as in the beginning. It stays in use by this
///                 thread until the next kv_set_interrupt() or the thread's end. Inside of it,
///                 kv_abort() and the calls that work inside of an updater work; all others give
///                 `KV_ERR_REENTRANT`, with every store.
/// @param context  passed to `check` as it is.
///
/// Threads: any; each has its own check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_set_interrupt(
    check: kv_interrupt_check,
    context: *mut c_void,
) -> kv_status {
    guard(|| {
        crate::set_interrupt(check.map(|check| {
            // SAFETY: the caller's promise: this thread may call it until it sets another one.
            Box::new(move || unsafe { check(context) } != 0) as Box<dyn Fn() -> bool>
        }));
        Ok(())
    })
}
