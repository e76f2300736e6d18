//! Wrappers of all exported bodies: panics stop here, and failures store their text.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use super::handle::{self, kv_store};
use super::types::kv_status;
use crate::Store;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::panics;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function.
pub(super) fn guard(body: impl FnOnce() -> Result<()>) -> kv_status {
    panics::silence();
    let result = panics::catch(body)
        .unwrap_or_else(|panic| Err(fail!(Internal, "a bug of this library: {panic}")));
    keep_text(&result)
}

/// Runs the body of an exported function on a store.
pub(super) fn guard_store(
    store: *mut kv_store,
    body: impl FnOnce(&Store) -> Result<()>,
) -> kv_status {
    guard(|| {
        // SAFETY: header rule 3: NULL, or a handle that has not been freed.
        let store = unsafe { handle::store(store) }?;
        body(store)
    })
}

/// As [`guard_store`], for functions that also work inside the store's updaters. They make the
/// checks of every call, and none but a bug of ours makes them fail.
pub(super) fn guard_store_in_callback(
    store: *mut kv_store,
    body: impl FnOnce(&Store) -> Result<()>,
) -> kv_status {
    guard_store(store, |store| {
        store.look()?;
        body(store)
    })
}

/// The status of an operation's result; keeps the text of an error for kv_last_error().
pub(super) fn keep_text(result: &Result<()>) -> kv_status {
    match result {
        Ok(()) => kv_status::KV_OK,
        Err(error) => {
            remember(error);
            status_of(error.kind())
        }
    }
}

/// Stores the text for this thread's next kv_last_error(). While the thread ends there is no slot
/// for it any more.
fn remember(error: &Error) {
    let text = CString::new(error.message().replace('\0', " ")).unwrap_or_default();
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

pub(super) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Declares, once, which status each kind of error becomes.
macro_rules! statuses {
    ($($kind:ident => $status:ident,)+) => {
        fn status_of(kind: ErrorKind) -> kv_status {
            match kind { $(ErrorKind::$kind => kv_status::$status,)+ }
        }

        /// The names of all statuses, for C.
        pub(super) fn status_name(status: i32) -> Option<&'static CStr> {
            let names = [
                (kv_status::KV_OK as i32, c"KV_OK"),
                $((kv_status::$status as i32, const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($status), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                }),)+
            ];
            names.iter().find(|(code, _)| *code == status).map(|(_, name)| *name)
        }
    };
}

statuses! {
    InvalidArgument => KV_ERR_INVALID_ARGUMENT,
    Unsupported => KV_ERR_UNSUPPORTED,
    Option => KV_ERR_OPTION,
    KeyNotFound => KV_ERR_KEY_NOT_FOUND,
    KeyExists => KV_ERR_KEY_EXISTS,
    NameCollision => KV_ERR_NAME_COLLISION,
    ShapeMismatch => KV_ERR_SHAPE_MISMATCH,
    DtypeMismatch => KV_ERR_DTYPE_MISMATCH,
    Overlap => KV_ERR_OVERLAP,
    Ticket => KV_ERR_TICKET,
    Callback => KV_ERR_CALLBACK,
    Reentrant => KV_ERR_REENTRANT,
    BufferTooSmall => KV_ERR_BUFFER_TOO_SMALL,
    Closed => KV_ERR_CLOSED,
    Forked => KV_ERR_FORKED,
    Role => KV_ERR_ROLE,
    Differs => KV_ERR_DIFFERS,
    Timeout => KV_ERR_TIMEOUT,
    Cancelled => KV_ERR_CANCELLED,
    Expired => KV_ERR_EXPIRED,
    PeerLost => KV_ERR_PEER_LOST,
    Evicted => KV_ERR_EVICTED,
    Refused => KV_ERR_REFUSED,
    OutOfMemory => KV_ERR_OUT_OF_MEMORY,
    Io => KV_ERR_IO,
    Corrupt => KV_ERR_CORRUPT,
    Network => KV_ERR_NETWORK,
    Device => KV_ERR_DEVICE,
    Internal => KV_ERR_INTERNAL,
    Poisoned => KV_ERR_POISONED,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_the_kinds_of_errors_with_the_same_numbers_and_names() {
        for &kind in ErrorKind::ALL {
            assert_eq!(status_of(kind) as i32, kind.code());
            assert_eq!(status_name(kind.code()).unwrap().to_str().unwrap(), kind.name());
        }
        assert_eq!(status_name(-1), None);
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        let status = guard(|| panic!("the reason"));
        assert_eq!(status, kv_status::KV_ERR_INTERNAL);
        // SAFETY: never NULL, and no call has been made since.
        let text = unsafe { CStr::from_ptr(last_error()) };
        assert!(text.to_str().unwrap().contains("the reason"));
    }
}
