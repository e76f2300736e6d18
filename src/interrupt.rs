//! Interrupts: a thread may have a check, which its waiting calls ask every 50 ms whether to go on.
//!
//! A host with signals of its own, such as Python, handles them there: a thread that waits in here
//! does not return to it otherwise. An interrupt ends the time of the call, so that everything is
//! withdrawn as by a timeout; later waits of the same call end at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};

/// Interval between two questions, and how long a call waits before the first one: people notice
/// delays above 0.1 s, and 20 questions a second cost nothing.
const INTERVAL: Duration = Duration::from_millis(50);

type InterruptCheck = Rc<dyn Fn() -> bool>;

/// Where a call of a thread is.
#[derive(Clone, Copy)]
enum CallState {
    /// Outside of one, or inside of one that is not to be interrupted.
    Unwatched,
    /// It has a check; when that is asked next, once the call has begun to wait.
    Watched(Option<Instant>),
    Interrupted,
}

thread_local! {
    static CHECK: RefCell<Option<InterruptCheck>> = const { RefCell::new(None) };
    /// Whether there is a check: all that a call looks at which has none.
    static HAS_CHECK: Cell<bool> = const { Cell::new(false) };
    static CALL: Cell<CallState> = const { Cell::new(CallState::Unwatched) };
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Has the calls of this thread ask `check`, while they wait, whether they are to end; None asks
/// nothing, as in the beginning.
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

/// Puts the state of the call around this one back.
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

/// The same for a call that leaves nothing behind which goes on: it ends with `Cancelled`.
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

/// Whether this thread is inside of its check.
pub(crate) fn is_asking() -> bool {
    ASKING.get()
}

/// How long the next sleep of a wait may last, which has to end at `end`.
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

/// Whether the call of this thread is to end; asks its check if that is due. Locks that the check may
/// need must not be held.
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

/// Ends the question, also while a panic unwinds.
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
            // Calls inside of the check are not watched.
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
