//! Being told of the ends of operations that have a ticket.

use std::ffi::c_void;

use super::callback::CDoneCallback;
use super::guard::{guard_store, keep_text};
use super::handle::{self, kv_store};
use super::types::{kv_done_callback, kv_drop, kv_status, kv_ticket};
use crate::error::fail;

/// Has a function called when an operation has ended, whether well or not; no thread waits for it.
///
/// It is called exactly once, unless this call fails, and then `drop`. If the operation has ended
/// already, that happens at once, on the calling thread; inside another callback of the store, after
/// that one has returned. Otherwise a thread of the store calls the functions of all its operations,
/// one after the other, as the operations end: a function that takes long delays the others. Its
/// status is what kv_wait() gives, counts as told, and its text is in kv_last_error() inside the
/// function. The operation's buffers are yours again.
///
/// Every operation ends: also by kv_cancel(), kv_abort() (`KV_ERR_CLOSED`), kv_free(), and when the
/// store is poisoned. kv_close() and kv_free() return after the last function has returned, or after
/// their time. After a fork() only the parent's functions are called.
///
/// @param ticket    a ticket of this store; several functions may be given for one.
/// @param callback  the function.
/// @param context   passed to `callback` as it is.
/// @param drop      called once with `context` after `callback`, on the same thread, and when this
///                  call fails; may be NULL.
/// @return `KV_ERR_TICKET` as for kv_wait(), `KV_ERR_OUT_OF_MEMORY` (no thread can be started).
///
/// Threads: any, also inside such a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_on_done(
    store: *mut kv_store,
    ticket: kv_ticket,
    callback: kv_done_callback,
    context: *mut c_void,
    drop: kv_drop,
) -> kv_status {
    // SAFETY: header rule 6. From here on the context is dropped in any case.
    let callback = unsafe { CDoneCallback::new(callback, context, drop) };
    guard_store(store, |store| {
        let callback = callback.ok_or_else(|| fail!(InvalidArgument, "callback is NULL"))?;
        store.on_done(ticket, callback.into_core())
    })
}

/// Has an operation given by kv_next_done() when it has ended, whether well or not.
///
/// Each call makes it be given once. Nothing of the store is kept for an operation that is not
/// watched; take what you watch.
///
/// @param ticket  a ticket of this store.
/// @return `KV_ERR_TICKET` as for kv_wait().
///
/// Threads: any, also inside a function of kv_on_done().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_watch(store: *mut kv_store, ticket: kv_ticket) -> kv_status {
    guard_store(store, |store| store.watch_ticket(ticket))
}

/// Takes a watched operation that has ended, in the order of the ends; never waits.
///
/// @param ticket  receives the ticket, 0 if there is none.
/// @param status  receives what kv_wait() gives for it; it counts as told, and an error's text is in
///                kv_last_error(). `KV_OK` if there is none.
///
/// Threads: any, also inside a function of kv_on_done().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_next_done(
    store: *mut kv_store,
    ticket: *mut kv_ticket,
    status: *mut kv_status,
) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: NULL or valid places.
        let places = unsafe { (handle::out(ticket, "ticket")?, handle::out(status, "status")?) };
        let next = store.next_done()?;
        (*places.0, *places.1) =
            next.map_or((0, kv_status::KV_OK), |(ticket, result)| (ticket, keep_text(&result)));
        Ok(())
    })
}

/// Gives a descriptor that is readable while kv_next_done() has an operation to give.
///
/// For poll(), epoll and event loops. There is one for each store, made by the first call. Only wait
/// for it: do not read from it, write to it or close it; kv_free() closes it. It is closed by exec;
/// the child of a fork() must leave it alone.
///
/// @param fd  receives the descriptor.
/// @return `KV_ERR_OUT_OF_MEMORY` (too many files are open).
///
/// Threads: any, also inside a function of kv_on_done().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_event_fd(store: *mut kv_store, fd: *mut i32) -> kv_status {
    guard_store(store, |store| {
        // SAFETY: header rule 2: NULL or a valid place.
        let fd = unsafe { handle::out(fd, "fd") }?;
        *fd = store.event_fd()?;
        Ok(())
    })
}
