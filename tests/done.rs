//! Ends of operations in Rust: functions that are called, and tasks that are woken.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(clippy::float_cmp, reason = "exact bits are compared")]

mod common;

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use common::gate::Gate;
use common::updater::add;
use common::watchdog::bounded;
use kvstore::{Config, ErrorKind, Level, Pending, Result, Store, set_logger};

const PATIENCE: Duration = Duration::from_secs(120);

/// A store whose updater stops at a gate for key 0, and adds.
fn gated() -> (Store, Gate) {
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let gate = Gate::default();
    let updaters = gate.clone();
    store.init(0u64, &[0.0f32]).unwrap();
    store
        .set_updater(move |key, input, stored| {
            if key.id() == 0 {
                updaters.pass();
            }
            add::<f32>(key, input, stored)
        })
        .unwrap();
    (store, gate)
}

/// Where the end of an operation is told, with the thread that tells.
fn listen(
    pending: &Pending<'_, f32>,
) -> mpsc::Receiver<(std::result::Result<(), ErrorKind>, ThreadId)> {
    let (sender, receiver) = mpsc::channel();
    let tell = move |result: &Result<()>| {
        let result = result.as_ref().copied().map_err(kvstore::Error::kind);
        sender.send((result, thread::current().id())).unwrap();
    };
    pending.on_done(tell).unwrap();
    receiver
}

#[test]
fn a_function_is_called_at_the_end_of_its_operation() {
    bounded("on_done", || {
        let (store, gate) = gated();
        let pending = store.push_owned(0u64, vec![3.0f32], 0).unwrap();
        let told = listen(&pending);
        let cancelled = listen(&store.push_owned(0u64, vec![3.0f32], 0).unwrap());
        assert_eq!(cancelled.recv_timeout(PATIENCE).unwrap().0, Err(ErrorKind::Cancelled));
        assert!(told.try_recv().is_err());
        gate.open();
        let (result, thread) = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(result, Ok(()));
        assert_ne!(thread, thread::current().id());
        let (result, thread) = listen(&pending).recv().unwrap();
        assert_eq!((result, thread), (Ok(()), thread::current().id()));
    });
}

#[test]
fn a_store_may_be_dropped_by_a_function_of_its_own() {
    bounded("a drop by on_done", || {
        let (store, gate) = gated();
        let store = Arc::new(store);
        let pending = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        let (sender, dropped) = mpsc::channel();
        let last = Arc::clone(&store);
        let tell = move |_: &Result<()>| {
            // The other owner has let go by then.
            while Arc::strong_count(&last) > 1 {
                thread::yield_now();
            }
            drop(last);
            sender.send(()).unwrap();
        };
        pending.on_done(tell).unwrap();
        gate.open();
        pending.wait(PATIENCE).unwrap();
        drop(store);
        dropped.recv_timeout(PATIENCE).unwrap();
    });
}

#[test]
fn a_panic_of_a_function_is_logged_and_ends_nothing_else() {
    bounded("a panic", || {
        let (store, gate) = gated();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&lines);
        set_logger(
            Level::Error,
            Some(Arc::new(move |_, text: &str| log.lock().unwrap().push(text.to_owned()))),
        );
        let pending = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        pending.on_done(|_| panic!("not mine")).unwrap();
        let told = listen(&pending);
        gate.open();
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().0, Ok(()));
        set_logger(Level::Off, None);
        assert!(lines.lock().unwrap().iter().any(|line| line.contains("not mine")));
    });
}

/// Counts, and wakes the thread that waits.
struct Woken(AtomicUsize, thread::Thread);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.unpark();
    }
}

#[test]
fn a_task_that_awaits_an_operation_is_woken_once() {
    bounded("await", || {
        let (store, gate) = gated();
        let woken = Arc::new(Woken(AtomicUsize::new(0), thread::current()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut pending = pin!(store.push_owned(0u64, vec![3.0f32], 0).unwrap());
        let mut poll = |context: &mut Context<'_>| Pin::as_mut(&mut pending).poll(context);
        assert!(poll(&mut context).is_pending());
        assert!(poll(&mut context).is_pending());
        gate.open();
        let result = loop {
            match poll(&mut context) {
                Poll::Ready(result) => break result,
                Poll::Pending => thread::park_timeout(PATIENCE),
            }
        };
        assert_eq!(result.unwrap(), [3.0]);
        assert!(woken.0.load(Ordering::SeqCst) <= 1);
        let mut refused = pin!(store.push_owned(0u64, vec![3.0f32], 0).unwrap());
        store.abort();
        loop {
            match refused.as_mut().poll(&mut context) {
                Poll::Ready(result) => break drop(result),
                Poll::Pending => thread::park_timeout(PATIENCE),
            }
        }
    });
}
