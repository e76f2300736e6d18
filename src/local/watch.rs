//! Operations with tickets that devices do: a thread asks whether they are done, and ends them. Also
//! called: completion queues.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::device::CallMarks;
use crate::error::Result;
use crate::log::{Level, log};
use crate::pool::without_signals;

/// Interval of questions to the driver, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// The store of an operation.
pub(super) trait OperationOwner: Send + Sync {
    /// Ends an operation.
    fn end(self: Arc<Self>, sequence: u64, result: Result<()>);
}

/// An operation whose work has been queued.
pub(super) struct WatchedOperation {
    pub(super) owner: Weak<dyn OperationOwner>,
    /// Its call, for errors.
    pub(super) call: &'static str,
    pub(super) sequence: u64,
    /// Of queueing.
    pub(super) result: Result<()>,
    /// Behind its work on each device.
    pub(super) marks: CallMarks,
}

impl WatchedOperation {
    /// Whether no device works on it any more; a device that is lost does not.
    fn is_done(&mut self) -> bool {
        let (call, result) = (self.call, &mut self.result);
        self.marks.retain(|mark| match mark.has_passed() {
            Ok(passed) => !passed,
            Err(error) => {
                if result.is_ok() {
                    *result = Err(error.at(call));
                }
                false
            }
        });
        self.marks.is_empty()
    }

    fn end(self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.end(self.sequence, self.result);
        }
    }
}

/// The operations of all stores.
struct Watch {
    operations: Vec<WatchedOperation>,
    has_thread: bool,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { operations: Vec::new(), has_thread: false });
static ADDED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends an operation, which has been handed over, when the devices are done.
pub(super) fn watch(mut operation: WatchedOperation) {
    let mut watch = lock();
    if !watch.has_thread {
        let name = "kvstore-devices".into();
        let started = without_signals(|| thread::Builder::new().name(name).spawn(serve));
        if let Err(error) = started {
            drop(watch);
            log(Level::Warn, || format!("cannot start a thread: {error}"));
            while !operation.is_done() {
                thread::sleep(PAUSE.1);
            }
            return operation.end();
        }
        watch.has_thread = true;
    }
    watch.operations.push(operation);
    drop(watch);
    ADDED.notify_one();
}

/// The thread.
fn serve() {
    let mut pause = PAUSE.0;
    loop {
        let mut watch = lock();
        while watch.operations.is_empty() {
            watch = ADDED.wait(watch).unwrap_or_else(PoisonError::into_inner);
            pause = PAUSE.0;
        }
        let done = watch.operations.extract_if(.., WatchedOperation::is_done).collect::<Vec<_>>();
        drop(watch);
        if done.is_empty() {
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSE.1);
        } else {
            pause = PAUSE.0;
            done.into_iter().for_each(WatchedOperation::end);
        }
    }
}
