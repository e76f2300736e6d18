//! What the driver knows of the calling thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// How a thread's calls stand to captures that other threads began: global.
const GLOBAL: u32 = 0;

#[derive(Debug)]
struct State {
    number: u64,
    /// Devices of the contexts, the current one last.
    contexts: Vec<Option<usize>>,
    capture_mode: u32,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        contexts: Vec::new(),
        capture_mode: GLOBAL,
    });
}

/// The calling thread.
pub(crate) struct Thread;

impl Thread {
    pub(crate) fn number() -> u64 {
        STATE.with_borrow(|state| state.number)
    }

    /// The device of the current context.
    pub(crate) fn current() -> Option<usize> {
        STATE.with_borrow(|state| state.contexts.last().copied().flatten())
    }

    pub(crate) fn push(device: usize) {
        STATE.with_borrow_mut(|state| state.contexts.push(Some(device)));
    }

    pub(crate) fn pop() -> Option<usize> {
        STATE.with_borrow_mut(|state| state.contexts.pop().flatten())
    }

    /// Replaces the current context.
    pub(crate) fn set(device: Option<usize>) {
        STATE.with_borrow_mut(|state| {
            state.contexts.pop();
            state.contexts.push(device);
        });
    }

    pub(crate) fn capture_mode() -> u32 {
        STATE.with_borrow(|state| state.capture_mode)
    }

    /// Sets the mode of the thread; returns the one before.
    pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
        STATE.with_borrow_mut(|state| std::mem::replace(&mut state.capture_mode, mode))
    }
}
