//! `kv_bound`: calls that repeat with the same keys and tensors.

use std::slice;
use std::sync::{Arc, Weak};

use crate::Store;
use crate::capi::guard::guard;
use crate::capi::handle::{self, kv_store};
use crate::capi::types::{kv_key, kv_status, kv_tensor, kv_ticket};
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::call::DataCall;
use crate::local::fast::bound_calls::{BoundPairs, BoundPlan};
use crate::reentry::CallbackKind;
use crate::store::{Pairs, Tensors};
use crate::tensor::{RawTensor, RawTensors};

/// Keys with their values and outs, for calls that repeat; opaque.
pub struct kv_bound {
    store: Weak<Store>,
    values: BoundTensors,
    outs: BoundTensors,
    plan: BoundPlan,
}

/// Keys and tensors, with extents and strides of their own.
struct BoundTensors {
    keys: Vec<Key>,
    tensors: Vec<RawTensor>,
    /// The tensors point here, so it does not change.
    _extents: Vec<i64>,
}

impl BoundTensors {
    /// Copies keys and tensors, not elements.
    ///
    /// # Safety
    /// `start` has a tensor for each key, and these have been checked: extents and strides are there.
    unsafe fn copy(keys: &[Key], start: *const kv_tensor) -> Self {
        let tensors = if keys.is_empty() {
            &[]
        } else {
            // SAFETY: the caller's promise; a RawTensor has the layout of a kv_tensor.
            unsafe { slice::from_raw_parts(start.cast::<RawTensor>(), keys.len()) }
        };
        let mut tensors = tensors.to_vec();
        let numbers = |start: *const i64, tensor: &RawTensor| match usize::try_from(tensor.ndim) {
            // SAFETY: the caller's promise.
            Ok(ndim) if !start.is_null() => unsafe { slice::from_raw_parts(start, ndim) },
            _ => &[],
        };
        let mut extents = Vec::new();
        for tensor in &tensors {
            extents.extend_from_slice(numbers(tensor.shape, tensor));
            extents.extend_from_slice(numbers(tensor.strides, tensor));
        }
        let mut rest = &*extents;
        for tensor in &mut tensors {
            for place in [&mut tensor.shape, &mut tensor.strides] {
                if !place.is_null() {
                    let (own, more) = rest.split_at(usize::try_from(tensor.ndim).unwrap_or(0));
                    (*place, rest) = (own.as_ptr(), more);
                }
            }
        }
        Self { keys: keys.to_vec(), tensors, _extents: extents }
    }

    fn pairs(&self) -> Pairs<'_> {
        // SAFETY: the extents are kept beside the tensors, and the header has the caller keep the
        // memory until kv_bound_free().
        let tensors = unsafe { RawTensors::new(&self.tensors) };
        Pairs { keys: &self.keys, tensors: Tensors::Raw(tensors) }
    }
}

/// Checks keys with their values and outs once, for calls that repeat: each later kv_bound_push(),
/// kv_bound_pull() or kv_bound_pushpull() of a local store costs little beside the bytes.
///
/// The bits are those of kv_push(), kv_pull() and kv_pushpull() with the same lists, and so is the
/// order of calls. In a job and with arrays on GPUs, these are the calls that are made.
///
/// A key that has been removed is an error of the next call that uses it, and so is one that has been
/// initialised again with a dtype or a shape that does not fit; nothing has changed then.
///
/// @param keys       `count` keys, each initialised before; repeat a key for several values. Copied.
/// @param values     `count` tensors as for kv_push(). Shapes and strides are copied; the memory of the
///                   elements is lent until kv_bound_free(): write to it between calls, and neither
///                   free nor move it.
/// @param count      number of (key, value) pairs; with 0 the list is for pulls only.
/// @param out_keys   as the keys of kv_pull(); they need not be those of the values. Copied.
/// @param outs       `out_count` tensors as for kv_pull(), lent like the values: read them between
///                   calls. An out may be exactly a value of the same key.
/// @param out_count  number of (key, out) pairs; with 0 the list is for pushes only.
/// @param bound      receives the handle; free it with kv_bound_free().
/// @return as kv_pushpull() with these lists.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_bind(
    store: *mut kv_store,
    keys: *const kv_key,
    values: *const kv_tensor,
    count: usize,
    out_keys: *const kv_key,
    outs: *const kv_tensor,
    out_count: usize,
    bound: *mut *mut kv_bound,
) -> kv_status {
    guard(|| {
        // SAFETY: header rules 2 to 4: a live handle, a place, arrays of their counts.
        let (store, place, ins, fills) = unsafe {
            (
                handle::store_of_bound(store)?,
                handle::out(bound, "bound")?,
                handle::pairs("bind", keys, values, count)?,
                handle::pairs("bind", out_keys, outs, out_count)?,
            )
        };
        let plan = store.bind_pairs(&BoundPairs { values: ins, outs: fills })?;
        // SAFETY: as above; the tensors have been checked.
        let (values, outs) =
            unsafe { (BoundTensors::copy(ins.keys, values), BoundTensors::copy(fills.keys, outs)) };
        let store = Arc::downgrade(store);
        *place = Box::into_raw(Box::new(kv_bound { store, values, outs, plan }));
        Ok(())
    })
}

/// Makes kv_push() of the bound values.
///
/// @param bound     of kv_bind(), with values.
/// @param priority  as for kv_push().
/// @param ticket    receives a ticket for kv_wait(); NULL waits here. A call with a ticket is checked
///                  and planned like kv_push(). Its tensors are lent until it completes, also after
///                  kv_bound_free().
/// @return as kv_push(): a call that is refused has applied nothing. `KV_ERR_CLOSED` also after
///         kv_free(). `KV_ERR_TIMEOUT` also if another thread's call with this handle goes on.
///
/// Threads: any; calls with one handle are made one after the other. Blocks: only if `ticket` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_bound_push(
    bound: *mut kv_bound,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    // SAFETY: header rules 2 and 3: NULL or live, NULL or a place.
    guard(|| unsafe { call(DataCall::Push, bound, priority, ticket) })
}

/// Makes kv_pull() into the bound outs.
///
/// @param bound     of kv_bind(), with outs.
/// @param priority  as for kv_push().
/// @param ticket    as for kv_bound_push().
/// @return as kv_pull() and kv_bound_push().
///
/// Threads: as kv_bound_push(). Blocks: only if `ticket` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_bound_pull(
    bound: *mut kv_bound,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    // SAFETY: header rules 2 and 3: NULL or live, NULL or a place.
    guard(|| unsafe { call(DataCall::Pull, bound, priority, ticket) })
}

/// Makes kv_pushpull() of the bound values into the bound outs.
///
/// @param bound     of kv_bind(), with values and outs.
/// @param priority  as for kv_push().
/// @param ticket    as for kv_bound_push().
/// @return as kv_pushpull() and kv_bound_push().
///
/// Threads: as kv_bound_push(). Blocks: only if `ticket` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_bound_pushpull(
    bound: *mut kv_bound,
    priority: i32,
    ticket: *mut kv_ticket,
) -> kv_status {
    // SAFETY: header rules 2 and 3: NULL or live, NULL or a place.
    guard(|| unsafe { call(DataCall::PushPull, bound, priority, ticket) })
}

/// Frees the handle, and ends the loan of the tensors but for operations with a ticket. NULL does
/// nothing.
///
/// Before or after kv_free(); as long as the handle is there, so are the values of its keys.
///
/// Threads: no other call with this handle may be running. From inside an updater of the store it does
/// nothing but leave `KV_ERR_REENTRANT`'s text in kv_last_error().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_bound_free(bound: *mut kv_bound) {
    // SAFETY: header rule 3: NULL, or a handle of kv_bind() that is freed only once.
    guard(|| unsafe { free(bound) });
}

/// # Safety
/// `bound` is NULL or has not been freed; `ticket` is NULL or a valid place.
unsafe fn call(
    call: DataCall,
    bound: *mut kv_bound,
    priority: i32,
    ticket: *mut kv_ticket,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (bound, ticket) = unsafe { (bound.as_ref(), ticket.as_mut()) };
    let bound = bound.ok_or_else(|| handle::null("bound"))?;
    let store = bound.store.upgrade().ok_or_else(|| {
        fail!(Closed, "{}: the store of this bound list has been freed", call.name())
    })?;
    let pairs = BoundPairs { values: bound.values.pairs(), outs: bound.outs.pairs() };
    match ticket {
        None => store.call_bound(call, &bound.plan, &pairs),
        Some(ticket) => {
            let (values, outs) = pairs.of(call)?;
            *ticket = store.submit(call, &values, &outs, priority)?;
            Ok(())
        }
    }
}

/// # Safety
/// NULL, or a handle that is freed only once and that no other thread uses.
unsafe fn free(bound: *mut kv_bound) -> Result<()> {
    if bound.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let store = unsafe { &*bound }.store.upgrade();
    if store.as_ref().and_then(|store| store.callback()) == Some(CallbackKind::Updater) {
        // The updater may be called by this very handle.
        return Err(fail!(Reentrant, "bound_free: called from inside an updater of the store"));
    }
    // SAFETY: as above; it came from kv_bind().
    let bound = unsafe { Box::from_raw(bound) };
    if store.is_some_and(|store| store.is_of_parent()) {
        // Locks of the values may be as threads of the parent left them, as of the store.
        std::mem::forget(bound);
    }
    Ok(())
}
