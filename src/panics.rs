//! Panics end at the borders of the library: they become error values, and the C interface does not
//! print them. Also called: unwind barrier.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

use crate::error::{Error, fail};
use crate::log::{Level, log};

thread_local! {
    /// Nesting depth of [`catch`] on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Location of the panic that is being caught.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`; a panic in it is returned as its message, with the location if it is known.
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    DEPTH.set(DEPTH.get() - 1);
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        match PLACE.take() {
            Some(place) => format!("{text} ({place})"),
            None => text.to_owned(),
        }
    })
}

/// The error of a panic of ours.
pub(crate) fn internal(panic: &str) -> Error {
    let error = fail!(Internal, "a bug of this library: {panic}; the store is poisoned");
    log(Level::Error, || error.message().to_owned());
    error
}

/// Stops the standard library from printing panics that [`catch`] will catch.
///
/// Only the C interface asks for this: in the shared and in the static library the hook belongs to
/// a standard library of our own, so that no Rust program's hook is touched.
pub(crate) fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                before(info);
            } else {
                let place = info.location().map(ToString::to_string);
                let _ = PLACE.try_with(|kept| *kept.borrow_mut() = place);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::catch;

    #[test]
    fn a_panic_comes_back_as_its_message() {
        assert_eq!(catch(|| 7), Ok(7));
        assert!(catch(|| panic!("the reason")).unwrap_err().starts_with("the reason"));
    }
}
