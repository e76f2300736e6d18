//! A door that tests hold shut in front of an updater.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads stop at it until it is opened, once and for all.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    waiting: usize,
    open: bool,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops here until the gate is open.
    pub fn pass(&self) {
        let mut state = self.state();
        state.waiting += 1;
        self.0.1.notify_all();
        while !state.open {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }

    /// Waits until somebody stands at the gate.
    pub fn wait_for_someone(&self) {
        let mut state = self.state();
        while state.waiting == 0 {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn open(&self) {
        self.state().open = true;
        self.0.1.notify_all();
    }
}
