//! Values that workers exchange without keys.

use super::super::guard::guard_store;
use super::super::handle::{self, kv_store};
use super::super::types::{kv_status, kv_tensor, kv_ticket};
use crate::error::{Result, fail};
use crate::local::collective::{CollectiveHead, CollectiveKind, Reduction};
use crate::store::Store;

/// Arrays of tensors of a call, and the place of its ticket, as a C caller passes them.
struct CollectiveTensors {
    values: (*const kv_tensor, usize),
    outs: (*const kv_tensor, usize),
    ticket: *mut kv_ticket,
}

/// Makes a call without a reduction or a root, where it has none.
fn head(kind: CollectiveKind, reduction: i32, root: i32) -> Result<CollectiveHead> {
    let call = kind.name();
    let found = Reduction::ALL.into_iter().find(|it| *it as i32 == reduction);
    let reduction = found.ok_or_else(|| {
        fail!(InvalidArgument, "{call}: the reduction is {reduction}; use one of kv_reduction")
    })?;
    let root = u32::try_from(root)
        .map_err(|_| fail!(InvalidArgument, "{call}: the root is {root}; ranks begin at 0"))?;
    Ok(CollectiveHead { kind, reduction, root })
}

/// Makes a call here, or begins it if there is a place for a ticket.
///
/// # Safety
/// The arrays are NULL or have so many tensors, lent until completion; the ticket is NULL or a valid place.
unsafe fn make(
    store: &Store,
    head: Result<CollectiveHead>,
    arguments: &CollectiveTensors,
) -> Result<()> {
    let CollectiveTensors { values, outs, ticket } = *arguments;
    let head = head?;
    let call = head.kind.name();
    // SAFETY: the caller's promise.
    unsafe {
        let (values, outs) =
            (handle::tensors(call, values.0, values.1)?, handle::tensors(call, outs.0, outs.1)?);
        match ticket.as_mut() {
            None => store.collective(head, values, outs),
            Some(ticket) => {
                *ticket = store.submit_collective(head, values, outs)?;
                Ok(())
            }
        }
    }
}

/// Reduces values of all workers, and gives the result to all.
///
/// Of a local store, and of each worker, the values given are reduced first, left to right, and rounded
/// once to the dtype; then those of the workers, in the order of ranks, or by the tree of the option
/// `sum_order`, and rounded once. f16 and bf16 are added in f32; integers wrap.
///
/// COLLECTIVE CALLS, this one and those below, need no key and leave nothing behind, in this process or in
/// another one. Workers exchange the values directly. All workers make the same calls in the same order,
/// with the same dtype, reduction, root and lengths, one thread at a time. The first one of a store waits
/// until all workers have made one, also if it has a ticket. kv_done() and rounds do not concern them, and
/// a reader makes none. Tensors are in host memory.
///
/// @param reduction  one of `kv_reduction`. `KV_MEAN` is the sum of floats, divided once by the number of
///                   values of all workers, which give equally many; its rounding is that of the sum.
/// @param values     `count` tensors of one shape and dtype, at least one. Lent until the operation
///                   completes.
/// @param count      number of values.
/// @param outs       `out_count` tensors of the same shape and dtype, which receive the result. An out may
///                   be exactly a value (same address, shape, no strides) and overlaps nothing else. Lent.
/// @param out_count  number of outs; 0 if this worker needs no result.
/// @param ticket     receives a ticket for kv_wait(); NULL waits here, up to the option `timeout_ms`. With a
///                   ticket too the exchange fails `timeout_ms` after this call.
/// @return `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH`, `KV_ERR_OVERLAP`, `KV_ERR_INVALID_ARGUMENT`,
///         `KV_ERR_UNSUPPORTED` (opaque dtypes, the mean of integers, CUDA memory, a worker with a token of
///         its rank alone, a process of an earlier release), `KV_ERR_OPTION` (a number of values that
///         `sum_order=tree` does not take): nothing was sent.
///         `KV_ERR_DIFFERS` if another worker makes another call, `KV_ERR_TIMEOUT` (with a ticket
///         `KV_ERR_EXPIRED`), which names the workers that have not made the call, `KV_ERR_PEER_LOST`: outs
///         are undefined. The call then fails for all workers for which it has not ended, and counts as made.
///
/// Threads: any, one at a time. Blocks: if `ticket` is NULL; and the first collective call of the store.
/// Complexity: each worker sends and receives about twice the bytes of the value, whatever their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_allreduce(
    store: *mut kv_store,
    reduction: i32,
    values: *const kv_tensor,
    count: usize,
    outs: *const kv_tensor,
    out_count: usize,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments =
            CollectiveTensors { values: (values, count), outs: (outs, out_count), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::AllReduce, reduction, 0), &arguments) }
    })
}

/// Reduces values of all workers, and gives the result to one of them.
///
/// The bits are those of kv_allreduce().
///
/// @param reduction  as for kv_allreduce().
/// @param root       rank of the worker that gets the result.
/// @param values     as for kv_allreduce().
/// @param count      number of values.
/// @param outs       as for kv_allreduce(); not used on other workers than the root.
/// @param out_count  number of outs.
/// @param ticket     as for kv_allreduce().
/// @return as kv_allreduce().
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_reduce(
    store: *mut kv_store,
    reduction: i32,
    root: i32,
    values: *const kv_tensor,
    count: usize,
    outs: *const kv_tensor,
    out_count: usize,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments =
            CollectiveTensors { values: (values, count), outs: (outs, out_count), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::Reduce, reduction, root), &arguments) }
    })
}

/// Reduces the values that all workers give for a worker, and gives the result to that worker.
///
/// Worker r gets the reduction, in the order of ranks, of the value r of every worker. Values for different
/// workers may have different shapes.
///
/// @param reduction  as for kv_allreduce().
/// @param values     `count` tensors of one dtype, one for each worker, in the order of ranks. Lent until
///                   the operation completes.
/// @param count      number of workers.
/// @param out        receives the result; of the shape and dtype of this worker's own value, which it may be
///                   exactly. Lent.
/// @param ticket     as for kv_allreduce().
/// @return as kv_allreduce(); `KV_ERR_INVALID_ARGUMENT` for another number of values;
///         `KV_ERR_DIFFERS` also if another worker's value for this one has another length.
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_reduce_scatter(
    store: *mut kv_store,
    reduction: i32,
    values: *const kv_tensor,
    count: usize,
    out: *const kv_tensor,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments = CollectiveTensors { values: (values, count), outs: (out, 1), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::ReduceScatter, reduction, 0), &arguments) }
    })
}

/// Gives the value of one worker to all.
///
/// @param root     rank of the worker that has the value.
/// @param tensors  `count` tensors of one shape and dtype, at least one. On the root the first one is the
///                 value, which is copied to the others; on other workers all receive it. Lent until the
///                 operation completes.
/// @param count    number of tensors.
/// @param ticket   as for kv_allreduce().
/// @return as kv_allreduce(); any dtype is taken.
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_broadcast_from(
    store: *mut kv_store,
    root: i32,
    tensors: *const kv_tensor,
    count: usize,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let is_root = store.rank() == root && count > 0;
        let own = usize::from(is_root);
        let (values, outs) = ((tensors, own), (tensors.wrapping_add(own), count - own));
        let arguments = CollectiveTensors { values, outs, ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::BroadcastFrom, 0, root), &arguments) }
    })
}

/// Gives the values of all workers to all.
///
/// @param value      this worker's value. Lent until the operation completes.
/// @param outs       `out_count` tensors, one for each worker in the order of ranks: each receives that
///                   worker's value and has its number of elements. The out of this worker may be exactly
///                   the value. All of one dtype. Lent.
/// @param out_count  number of workers.
/// @param ticket     as for kv_allreduce().
/// @return as kv_allreduce(); any dtype is taken. `KV_ERR_INVALID_ARGUMENT` for another number of outs;
///         `KV_ERR_DIFFERS` also if the value of a worker has another length than its out here.
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_allgather(
    store: *mut kv_store,
    value: *const kv_tensor,
    outs: *const kv_tensor,
    out_count: usize,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments = CollectiveTensors { values: (value, 1), outs: (outs, out_count), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::AllGather, 0, 0), &arguments) }
    })
}

/// Gives the values of all workers to one of them.
///
/// @param root       rank of the worker that gets them.
/// @param value      as for kv_allgather().
/// @param outs       as for kv_allgather(); not used on other workers than the root.
/// @param out_count  number of workers, on the root.
/// @param ticket     as for kv_allreduce().
/// @return as kv_allgather().
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_gather(
    store: *mut kv_store,
    root: i32,
    value: *const kv_tensor,
    outs: *const kv_tensor,
    out_count: usize,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments = CollectiveTensors { values: (value, 1), outs: (outs, out_count), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::Gather, 0, root), &arguments) }
    })
}

/// Gives each worker one of the values of one worker.
///
/// @param root    rank of the worker that has the values.
/// @param values  on the root `count` tensors, one for each worker in the order of ranks; not used on other
///                workers. Lent until the operation completes.
/// @param count   number of workers, on the root.
/// @param out     receives this worker's value, of its number of elements; on the root it may be exactly that
///                value. All of one dtype. Lent.
/// @param ticket  as for kv_allreduce().
/// @return as kv_allgather().
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_scatter(
    store: *mut kv_store,
    root: i32,
    values: *const kv_tensor,
    count: usize,
    out: *const kv_tensor,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments = CollectiveTensors { values: (values, count), outs: (out, 1), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::Scatter, 0, root), &arguments) }
    })
}

/// Gives each worker one value of every worker.
///
/// Worker r receives the value r of worker s in its out s.
///
/// @param values     `count` tensors, one for each worker in the order of ranks. Lent until the operation
///                   completes.
/// @param count      number of workers.
/// @param outs       `out_count` tensors, one for each worker in the order of ranks, of the number of elements
///                   that it sends. The out of this worker may be exactly its value for itself. All of one
///                   dtype. Lent.
/// @param out_count  number of workers.
/// @param ticket     as for kv_allreduce().
/// @return as kv_allgather().
///
/// Threads: any, one at a time. Blocks: as kv_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_all_to_all(
    store: *mut kv_store,
    values: *const kv_tensor,
    count: usize,
    outs: *const kv_tensor,
    out_count: usize,
    ticket: *mut kv_ticket,
) -> kv_status {
    guard_store(store, |store| {
        let arguments =
            CollectiveTensors { values: (values, count), outs: (outs, out_count), ticket };
        // SAFETY: header rules 2 and 4.
        unsafe { make(store, head(CollectiveKind::AllToAll, 0, 0), &arguments) }
    })
}
