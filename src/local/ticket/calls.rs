//! Callbacks at the end of operations, and the thread of a store that runs them, one after the other.
//! Also called: completion handlers, continuations.
//!
//! The thread starts with the first callback. No thread that ends operations runs code of the user:
//! it may be one that receives for the whole job.

use std::collections::VecDeque;

use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::panics;
use crate::pool::without_signals;
use crate::reentry::{CallbackKind, CallbackScope, inside};
use crate::sys::sync::{Arc, Condvar, Mutex};

/// Gets the ticket and the result of an operation that has ended.
pub(crate) type DoneCallback = Box<dyn FnOnce(u64, &Result<()>) + Send>;

/// A callback whose operation has ended.
pub(super) struct DoneCall {
    pub(super) ticket: u64,
    pub(super) result: Result<()>,
    pub(super) callback: DoneCallback,
}

/// The callbacks of a store.
pub(super) struct CallThread(Arc<SharedQueue>);

struct SharedQueue {
    /// Serial number of the store.
    store: u64,
    state: Mutex<CallQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct CallQueue {
    waiting: VecDeque<DoneCall>,
    is_running: bool,
    has_thread: bool,
    /// No callback will come.
    ends: bool,
}

impl CallQueue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_running
    }
}

impl CallThread {
    pub(super) fn new(store: u64) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(SharedQueue { store, state, changed }))
    }

    /// Starts the thread, unless there is one.
    pub(super) fn start(&self) -> Result<()> {
        let mut queue = self.0.state.lock();
        if queue.has_thread {
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("kvstore-done".into());
        without_signals(|| thread.spawn(move || shared.serve()))
            .map_err(|error| fail!(OutOfMemory, "on_done: cannot start a thread: {error}"))?;
        queue.has_thread = true;
        Ok(())
    }

    /// Queues a callback for the thread, which [`CallThread::start`] has started.
    pub(super) fn queue(&self, call: DoneCall) {
        self.0.state.lock().waiting.push_back(call);
        self.0.changed.notify_all();
    }

    /// Runs a callback on the calling thread; inside of another callback of the store it is queued, so
    /// that a chain of them does not grow the stack.
    pub(super) fn run(&self, call: DoneCall) -> Result<()> {
        if inside(self.0.store).is_none() {
            self.0.run(call);
            return Ok(());
        }
        self.start()?;
        self.queue(call);
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.state.lock().is_idle()
    }

    /// Waits until no callback is queued or running; false if the deadline passed first, and on the
    /// thread itself.
    pub(super) fn wait_idle(&self, deadline: Deadline) -> bool {
        self.wait(deadline, CallQueue::is_idle)
    }

    /// Ends the thread after the callbacks that are queued, and waits for that.
    pub(super) fn end(&self, deadline: Deadline) {
        self.let_end();
        self.wait(deadline, |queue| !queue.has_thread);
    }

    fn let_end(&self) {
        self.0.state.lock().ends = true;
        self.0.changed.notify_all();
    }

    fn wait(&self, deadline: Deadline, is_over: impl Fn(&CallQueue) -> bool) -> bool {
        let SharedQueue { store, state, changed } = &*self.0;
        let mut queue = state.lock();
        while !is_over(&queue) {
            if inside(*store).is_some() || changed.pause(state, &mut queue, deadline) {
                return false;
            }
        }
        true
    }
}

impl Drop for CallThread {
    /// The last operation of the store has ended: its callback may still be running.
    fn drop(&mut self) {
        self.let_end();
    }
}

impl SharedQueue {
    /// The thread.
    fn serve(&self) {
        let mut queue = self.state.lock();
        loop {
            if let Some(call) = queue.waiting.pop_front() {
                queue.is_running = true;
                self.state.unlocked(&mut queue, || self.run(call));
                queue.is_running = false;
                self.changed.notify_all();
            } else if queue.ends {
                queue.has_thread = false;
                self.changed.notify_all();
                return;
            } else {
                self.changed.wait(&mut queue);
            }
        }
    }

    /// Runs a callback, and drops what it has captured, both as code of the user inside the store.
    fn run(&self, DoneCall { ticket, result, callback }: DoneCall) {
        let _inside = CallbackScope::enter(self.store, CallbackKind::Done);
        if let Err(panic) = panics::catch(|| callback(ticket, &result)) {
            log(Level::Error, || format!("a callback of on_done panicked: {panic}"));
        }
    }
}
