//! Interrupts: a thread may have a check, which its waiting calls run every 50 ms to learn whether
//! to go on. Also called: cancellation hook.
//!
//! A host with signals of its own, such as Python, handles them in the check: a thread that waits
//! in the library does not return to it otherwise. An interrupt ends the time of the call, so that
//! all its work is withdrawn as by a timeout; later waits of this call end at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};

/// Interval between two checks, and delay of the first one in a call. People notice delays above
/// 0.1 s, and 20 checks a second cost nothing.
const INTERVAL: Duration = Duration::from_millis(50);

type InterruptCheck = Rc<dyn Fn() -> bool>;

/// The state of a thread's current call.
#[derive(Clone, Copy)]
enum CallState {
    /// No call, or a call that is not to be interrupted.
    Unwatched,
    /// A call with a check; when the check is due next, once the call has begun to wait.
    Watched(Option<Instant>),
    Interrupted,
}

thread_local! {
    static CHECK: RefCell<Option<InterruptCheck>> = const { RefCell::new(None) };
    /// Whether there is a check: the only access of a call without one.
    static HAS_CHECK: Cell<bool> = const { Cell::new(false) };
    static CALL: Cell<CallState> = const { Cell::new(CallState::Unwatched) };
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Makes waiting calls of this thread run `check`, which says whether they are to end. None removes
/// the check, as at start.
///
/// A call that is interrupted ends as by a timeout, with `Cancelled`. Waits for operations in the
/// background end with `Timeout`, because these go on. Inside the check, this thread's calls that
/// could wait are refused with `Reentrant`.
pub fn set_interrupt(check: Option<Box<dyn Fn() -> bool>>) {
    HAS_CHECK.set(check.is_some());
    let old = CHECK.replace(check.map(InterruptCheck::from));
    // Outside of the cell: it may run code of the host.
    drop(old);
}

/// Restores the state of the enclosing call.
struct CallScope(CallState);

impl Drop for CallScope {
    fn drop(&mut self) {
        CALL.set(self.0);
    }
}

/// Runs a call whose waits this thread's check may end early, with `Timeout`.
pub(crate) fn watch<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    if !HAS_CHECK.get() {
        return call();
    }
    let state = if ASKING.get() { CallState::Unwatched } else { CallState::Watched(None) };
    let _scope = CallScope(CALL.replace(state));
    call()
}

/// Runs a call without background work, so that an interrupt ends it with `Cancelled`.
pub(crate) fn watch_whole<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    watch(|| {
        call().map_err(|error| {
            if matches!(CALL.get(), CallState::Interrupted) && error.kind() == ErrorKind::Timeout {
                return Error::new(ErrorKind::Cancelled, format!("interrupted: {error}"));
            }
            error
        })
    })
}

/// Whether this thread is inside its check.
pub(crate) fn is_asking() -> bool {
    ASKING.get()
}

/// Maximum duration of the next sleep of a wait that ends at `end`.
pub(crate) fn next(end: Option<Instant>) -> Option<Instant> {
    let due = match CALL.get() {
        CallState::Unwatched => return end,
        CallState::Watched(Some(due)) => due,
        CallState::Watched(None) => {
            let due = Instant::now() + INTERVAL;
            CALL.set(CallState::Watched(Some(due)));
            due
        }
        CallState::Interrupted => Instant::now(),
    };
    Some(end.map_or(due, |end| end.min(due)))
}

/// Whether the call of this thread is to end; runs its check if that is due. The caller must not
/// hold locks that the check may need.
pub(crate) fn requested() -> bool {
    match CALL.get() {
        CallState::Unwatched => false,
        CallState::Interrupted => true,
        CallState::Watched(None) => {
            next(None);
            false
        }
        CallState::Watched(Some(due)) => Instant::now() >= due && ask(),
    }
}

fn ask() -> bool {
    let check = CHECK.with_borrow(Clone::clone);
    ASKING.set(true);
    let _asked = QuestionGuard;
    let ends = check.is_some_and(|check| check());
    let due = Instant::now() + INTERVAL;
    CALL.set(if ends { CallState::Interrupted } else { CallState::Watched(Some(due)) });
    ends
}

/// Leaves the check on drop, also while a panic unwinds.
struct QuestionGuard;

impl Drop for QuestionGuard {
    fn drop(&mut self) {
        ASKING.set(false);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::fail;

    fn wait() -> Result<()> {
        while !requested() {
            let end = next(None).expect("a wait without a check would last for ever");
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
        Err(fail!(Timeout, "the time is over"))
    }

    #[test]
    fn a_check_ends_the_call_and_nothing_else() {
        let asked = Rc::new(Cell::new(0));
        let counted = Rc::clone(&asked);
        set_interrupt(Some(Box::new(move || {
            counted.set(counted.get() + 1);
            assert!(is_asking());
            // Calls inside the check have no check.
            assert!(!watch(|| Ok(requested())).unwrap());
            counted.get() == 3
        })));
        let end = Some(Instant::now());
        assert_eq!(next(end), end, "outside of a call nothing is asked");
        let result = watch_whole(|| {
            let first = wait();
            assert!(requested(), "later waits of the call end at once");
            first
        });
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(asked.get(), 3);
        asked.set(2);
        assert_eq!(watch(wait).unwrap_err().kind(), ErrorKind::Timeout);
        set_interrupt(None);
        assert!(!watch(|| Ok(requested())).unwrap());
    }
}
