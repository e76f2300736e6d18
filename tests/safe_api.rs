//! What only the Rust interface has: owned and borrowed operations with a ticket, closures as
//! updaters, panics, and the texts of errors.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exact bits are compared, and small numbers converted"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use common::gate::Gate;
use common::updater::add;
use common::watchdog::bounded;
use kvstore::{
    Config, DType, Deadline, Error, ErrorKind, Key, Level, Result, Store, StoreKind, Tensor,
    TensorMut, set_logger,
};
use ndarray::{Array1, Array2, ArrayView2, s};

const ZERO: Duration = Duration::ZERO;
const PATIENCE: Duration = Duration::from_secs(120);

fn open(options: &[(&str, &str)]) -> Store {
    let mut config = Config::new();
    for (name, value) in options {
        config.set(name, value).unwrap();
    }
    Store::open("local", &config).unwrap()
}

fn key(id: u64) -> Key {
    Key::from(id)
}

fn pulled(store: &Store, id: u64) -> f32 {
    let mut out = [f32::NAN];
    store.pull(id, &mut out).unwrap();
    out[0]
}

fn kind_of<T>(result: Result<T>) -> ErrorKind {
    result.map(|_| "success").unwrap_err().kind()
}

fn text_of<T>(result: Result<T>) -> String {
    result.map(|_| "success").unwrap_err().message().to_owned()
}

/// A store with one thread for tickets, whose updater stops at a gate for key 0 and adds.
fn gated(options: &[(&str, &str)]) -> (Store, Gate) {
    let store = open(&[&[("threads", "1")], options].concat());
    let gate = Gate::default();
    let at_gate = gate.clone();
    for id in 0..4u64 {
        store.init(id, &[0.0f32]).unwrap();
    }
    let updater = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        if key.id() == 0 {
            at_gate.pass();
        }
        add::<f32>(key, input, stored)
    };
    store.set_updater(updater).unwrap();
    (store, gate)
}

// Operations that own their buffers.

#[test]
fn an_owned_push_gives_its_buffer_back() {
    let store = open(&[]);
    store.init(1u64, &[0.0f32, 0.0]).unwrap();
    let pending = store.push_owned(1u64, vec![3.0f32, 4.0], 0).unwrap();
    assert_eq!(pending.wait(PATIENCE).unwrap(), [3.0, 4.0]);
    let pending = store.pull_owned(1u64, vec![0.0f32; 2], 0).unwrap();
    assert_eq!(pending.wait(PATIENCE).unwrap(), [3.0, 4.0]);
}

#[test]
fn an_owned_pull_sees_the_pushes_before_it() {
    let store = open(&[]);
    store.init(1u64, &[0.0f32]).unwrap();
    store.set_updater(add::<f32>).unwrap();
    let pushes: Vec<_> =
        (0..20).map(|_| store.push_owned(1u64, vec![1.0f32], -1).unwrap()).collect();
    let pull = store.pull_owned(1u64, vec![0.0f32], 100).unwrap();
    assert_eq!(pull.wait(PATIENCE).unwrap(), [20.0], "whatever its priority");
    for push in pushes {
        assert_eq!(push.wait(ZERO).unwrap(), [1.0]);
    }
}

#[test]
fn an_owned_buffer_must_have_the_elements_of_its_key() {
    let store = open(&[]);
    store.init(1u64, &[0.0f32; 3]).unwrap();
    assert_eq!(kind_of(store.push_owned(1u64, vec![1.0f32; 2], 0)), ErrorKind::ShapeMismatch);
    assert_eq!(kind_of(store.push_owned(1u64, vec![1i32; 3], 0)), ErrorKind::DtypeMismatch);
    assert_eq!(kind_of(store.pull_owned(2u64, vec![1.0f32; 3], 0)), ErrorKind::KeyNotFound);
}

#[test]
fn dropping_a_pending_operation_withdraws_it() {
    bounded("drop", || {
        let (store, gate) = gated(&[]);
        let blocking = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        gate.wait_for_someone();
        drop(store.push_owned(1u64, vec![1.0f32], 0).unwrap());
        let kept = store.push_owned(1u64, vec![10.0f32], 0).unwrap();
        drop(store.pull_owned(1u64, vec![0.0f32], 0).unwrap());
        gate.open();
        kept.wait(PATIENCE).unwrap();
        blocking.wait(PATIENCE).unwrap();
        assert_eq!((pulled(&store, 0), pulled(&store, 1)), (1.0, 10.0));
        assert!(store.close(PATIENCE).is_ok(), "a cancelled operation is no failure");
    });
}

#[test]
fn a_wait_that_is_late_cancels_an_owned_operation() {
    bounded("late wait", || {
        let (store, gate) = gated(&[]);
        let blocking = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        gate.wait_for_someone();
        let pending = store.push_owned(1u64, vec![1.0f32], 0).unwrap();
        assert!(!pending.is_done());
        let error = pending.wait(ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("push of key 1"), "{error}");
        gate.open();
        blocking.wait(PATIENCE).unwrap();
        assert_eq!(pulled(&store, 1), 0.0);
    });
}

// Operations that borrow their buffers.

#[test]
fn a_scope_waits_for_its_operations() {
    let store = open(&[]);
    let keys: Vec<Key> = (0..50).map(key).collect();
    let values: Vec<[f32; 2]> = (0..50u8).map(|id| [f32::from(id), 1.0]).collect();
    let mut outs = [[0.0f32; 2]; 50];
    for (key, value) in keys.iter().zip(&values) {
        store.init(*key, &value.map(|_| 0.0)).unwrap();
    }
    let count = store
        .scope(PATIENCE, |scope| {
            for (key, value) in keys.iter().zip(&values) {
                scope.push_list(&[*key], &[value.into()], 0)?;
            }
            scope.pull_list(&keys, outs.iter_mut().map(TensorMut::from).collect(), 0)?;
            Ok(keys.len())
        })
        .unwrap();
    assert_eq!(count, 50);
    assert_eq!(outs[..], values[..]);
}

#[test]
fn a_scope_gives_the_first_failure_of_its_operations() {
    let store = open(&[]);
    store.init_list(&[key(1), key(2)], &[(&[0.0f32]).into(), (&[0.0f32]).into()]).unwrap();
    store.set_updater(|key, _, _| Err(format!("no {}", key.id()).into())).unwrap();
    let value = [1.0f32];
    let result = store.scope(PATIENCE, |scope| {
        scope.push_list(&[key(2)], &[(&value).into()], 0)?;
        scope.push_list(&[key(1)], &[(&value).into()], 5)
    });
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert!(error.message().contains("key 2: the updater failed: no 2"), "{error}");
    assert!(store.wait_all(ZERO).is_ok(), "both have been waited for");
}

#[test]
fn the_error_of_a_scopes_body_cancels_what_is_pending() {
    bounded("scope error", || {
        let (store, gate) = gated(&[]);
        let blocking = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        gate.wait_for_someone();
        let value = [5.0f32];
        let result = store.scope(PATIENCE, |scope| {
            scope.push_list(&[key(1)], &[(&value).into()], 0)?;
            scope.push_list(&[key(9)], &[(&value).into()], 0)
        });
        assert_eq!(kind_of(result), ErrorKind::KeyNotFound);
        gate.open();
        blocking.wait(PATIENCE).unwrap();
        assert_eq!(pulled(&store, 1), 0.0);
    });
}

#[test]
fn a_scope_that_is_late_cancels_what_is_pending() {
    bounded("late scope", || {
        let (store, gate) = gated(&[]);
        let blocking = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        gate.wait_for_someone();
        let value = [5.0f32];
        let result = store.scope(ZERO, |scope| scope.push_list(&[key(1)], &[(&value).into()], 0));
        assert_eq!(kind_of(result), ErrorKind::Timeout);
        gate.open();
        blocking.wait(PATIENCE).unwrap();
        assert_eq!(pulled(&store, 1), 0.0);
    });
}

#[test]
fn a_panic_inside_a_scope_ends_its_loans_first() {
    bounded("scope panic", || {
        let (store, gate) = gated(&[]);
        let mut values = [[1.0f32], [2.0]];
        let mut out = [0.0f32];
        let opener = gate.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            store.scope(PATIENCE, |scope| -> Result<()> {
                scope.push_list(&[key(0)], &[(&values[0]).into()], 0)?;
                scope.push_list(&[key(1)], &[(&values[1]).into()], 0)?;
                scope.pull_list(&[key(2)], vec![(&mut out).into()], 0)?;
                gate.wait_for_someone();
                // Ending the loan of the push at work needs the gate open, later and elsewhere.
                thread::spawn(move || opener.open());
                panic!("in the body");
            })
        }));
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"in the body"));
        // The loans have ended: these are ours, and nothing reads or writes them any more.
        values = [[100.0], [100.0]];
        out = [7.0];
        store.wait_all(PATIENCE).unwrap();
        // The push behind the gate is withdrawn, or done if it could begin before.
        assert!(pulled(&store, 0) == 1.0 && [0.0, 2.0].contains(&pulled(&store, 1)));
        assert_eq!((values, out), ([[100.0], [100.0]], [7.0]));
        store.push(3u64, &[4.0f32]).unwrap();
        assert_eq!(pulled(&store, 3), 4.0);
    });
}

// Updaters.

#[test]
fn a_panic_in_an_updater_becomes_an_error_and_the_store_works_on() {
    let store = open(&[]);
    store.init(7u64, &[1.0f32]).unwrap();
    store.set_updater(|_, _, _| panic!("the {} reason", "very")).unwrap();
    let error = store.push(7u64, &[1.0f32]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    let text = error.message();
    assert!(text.starts_with("push: key 7: the updater panicked: the very reason"), "{text}");
    store.set_updater(|_, _, _| std::panic::panic_any(7)).unwrap();
    assert!(text_of(store.push(7u64, &[1.0f32])).contains("the updater panicked: no message"));
    store.set_updater(add::<f32>).unwrap();
    store.push(7u64, &[1.0f32]).unwrap();
    assert_eq!(pulled(&store, 7), 2.0);
}

#[test]
fn a_panic_in_an_updater_of_a_queued_push_reaches_who_waits() {
    let store = open(&[]);
    store.init(7u64, &[1.0f32]).unwrap();
    store.set_updater(|_, _, _| panic!("the reason")).unwrap();
    let error = store.push_owned(7u64, vec![1.0f32], 0).unwrap().wait(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert!(error.message().contains("the updater panicked: the reason"), "{error}");
    drop(store.push_owned(7u64, vec![1.0f32], 0).unwrap());
    store.clear_updater().unwrap();
    store.push(7u64, &[5.0f32]).unwrap();
    assert_eq!(pulled(&store, 7), 5.0);
}

fn push_with_failure(undo: &str) -> (f32, f32, f32) {
    let store = open(&[("updater_undo", undo)]);
    let keys = [key(1), key(2), key(3)];
    let ones = [[1.0f32]; 3];
    let values: Vec<Tensor<'_>> = ones.iter().map(Tensor::from).collect();
    store.init_list(&keys, &values).unwrap();
    let updater = |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        add::<f32>(key, input, stored)?;
        if key.id() == 2 { Err("not this one".into()) } else { Ok(()) }
    };
    store.set_updater(updater).unwrap();
    let text = text_of(store.push_list(&keys, &values));
    assert!(text.contains("key 2: the updater failed: not this one"), "{text}");
    (pulled(&store, 1), pulled(&store, 2), pulled(&store, 3))
}

#[test]
fn a_failing_updater_leaves_the_keys_before_it_applied_and_those_after_it_not() {
    assert_eq!(push_with_failure("no"), (2.0, 2.0, 1.0), "what it had changed stays");
    assert_eq!(push_with_failure("yes"), (2.0, 1.0, 1.0), "what it had changed is undone");
}

#[test]
fn an_updater_that_panics_is_undone_as_well() {
    let store = open(&[("updater_undo", "yes")]);
    store.init(1u64, &[1.0f32; 1000]).unwrap();
    let updater = |_: Key, _: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        stored.as_mut_slice::<f32>().unwrap()[..500].fill(9.0);
        panic!("half way");
    };
    store.set_updater(updater).unwrap();
    assert_eq!(kind_of(store.push(1u64, &[1.0f32; 1000])), ErrorKind::Callback);
    let mut out = [0.0f32; 1000];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [1.0; 1000]);
}

#[test]
fn an_updater_ends_with_its_store_or_its_successor() {
    let count = Arc::new(());
    let with = |count: &Arc<()>| {
        let held = Arc::clone(count);
        move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
            let _ = &held;
            add::<f32>(key, input, stored)
        }
    };
    let store = open(&[]);
    store.init(1u64, &[0.0f32]).unwrap();
    store.set_updater(with(&count)).unwrap();
    assert_eq!(Arc::strong_count(&count), 2);
    store.set_updater(with(&count)).unwrap();
    assert_eq!(Arc::strong_count(&count), 2, "the first one is gone");
    store.push_owned(1u64, vec![1.0f32], 0).unwrap().wait(PATIENCE).unwrap();
    drop(store);
    assert_eq!(Arc::strong_count(&count), 1, "the second one went with the store");
    let closed = open(&[]);
    closed.close(ZERO).unwrap();
    assert_eq!(kind_of(closed.set_updater(with(&count))), ErrorKind::Closed);
    assert_eq!(Arc::strong_count(&count), 1, "one that was refused is dropped");
}

#[test]
fn a_queued_push_keeps_the_updater_it_was_called_with() {
    bounded("kept updater", || {
        let (store, gate) = gated(&[]);
        let blocking = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        let queued = store.push_owned(1u64, vec![5.0f32], 0).unwrap();
        store.clear_updater().unwrap();
        store.push(2u64, &[7.0f32]).unwrap();
        store.push(2u64, &[7.0f32]).unwrap();
        gate.open();
        blocking.wait(PATIENCE).unwrap();
        queued.wait(PATIENCE).unwrap();
        let assigned = store.push_owned(1u64, vec![5.0f32], 0).unwrap();
        assigned.wait(PATIENCE).unwrap();
        assert_eq!((pulled(&store, 0), pulled(&store, 1), pulled(&store, 2)), (1.0, 5.0, 7.0));
    });
}

#[test]
fn an_updater_gets_the_keys_dtype_and_shape_without_gaps() {
    let store = open(&[]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&seen);
    let updater = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        assert_eq!((input.dtype(), input.shape()), (stored.dtype(), stored.shape()));
        let elements = input.as_slice::<f32>().map(<[f32]>::to_vec);
        shared.lock().unwrap().push((key.id(), input.shape().to_vec(), elements));
        assert!(stored.as_slice::<f64>().is_none() && stored.as_mut_slice::<i32>().is_none());
        Ok(())
    };
    store.set_updater(updater).unwrap();
    let columns = Array2::from_shape_fn((2, 3), |(i, j)| (i * 3 + j) as f64).reversed_axes();
    store.init(1u64, &columns.mapv(|it| it as f32)).unwrap();
    store.init(2u64, &Array1::<f32>::zeros(0)).unwrap();
    store.push_list(&[key(2), key(1)], &[(&[0.0f32; 0]).into(), (&columns).into()]).unwrap();
    let transposed = Some(vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let expected = [(1, vec![3, 2], transposed), (2, vec![0], Some(Vec::new()))];
    assert_eq!(*seen.lock().unwrap(), expected, "converted, gathered, in ascending order");
}

#[test]
fn inside_an_updater_the_store_only_answers_questions() {
    let store = Arc::new(open(&[]));
    let other = open(&[]);
    other.init(5u64, &[0.0f32]).unwrap();
    let name = store.intern("w").unwrap();
    store.init_list(&[key(1), name], &[(&[1.0f32]).into(), (&[1.0f32]).into()]).unwrap();
    let inside: Weak<Store> = Arc::downgrade(&store);
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    let updater = move |_: Key, _: &Tensor<'_>, _: &mut TensorMut<'_>| {
        let store = inside.upgrade().ok_or("gone")?;
        let mut out = [0.0f32];
        let calls: [Result<()>; 14] = [
            store.push(1u64, &[1.0f32]),
            store.pull(1u64, &mut out),
            store.init(3u64, &[1.0f32]),
            store.remove(&[key(1)]),
            store.push_owned(1u64, vec![1.0f32], 0).map(drop),
            store.intern("other").map(drop),
            store.keys().map(drop),
            store.stats().map(drop),
            store.clear_updater(),
            store.wait_all(ZERO),
            store.close(ZERO),
            store.barrier(ZERO),
            store.done(),
            store.broadcast_list(&[], &[], &[], &mut []),
        ];
        let reentrant =
            |result: &&Result<()>| matches!(result, Err(it) if it.kind() == ErrorKind::Reentrant);
        count.store(calls.iter().filter(reentrant).count(), Ordering::SeqCst);
        assert_eq!(store.key_info(1u64)?.dtype, DType::F32);
        assert_eq!(store.key_name(name)?, "w");
        assert_eq!((store.kind(), store.rank(), store.num_workers()), (StoreKind::Local, 0, 1));
        other.push(5u64, &[2.0f32])?;
        Ok(())
    };
    store.set_updater(updater).unwrap();
    store.push(1u64, &[1.0f32]).unwrap();
    assert_eq!(refused.load(Ordering::SeqCst), 14);
    store.push_owned(1u64, vec![1.0f32], 0).unwrap().wait(PATIENCE).unwrap();
    store.clear_updater().unwrap();
    assert_eq!(store.keys().unwrap(), [key(1), name]);
    assert_eq!(pulled(&store, 1), 1.0);
}

#[test]
fn aborting_from_inside_an_updater_is_allowed() {
    let store = Arc::new(open(&[]));
    store.init(1u64, &[1.0f32]).unwrap();
    let inside = Arc::downgrade(&store);
    let updater = move |_: Key, _: &Tensor<'_>, _: &mut TensorMut<'_>| {
        inside.upgrade().ok_or("gone")?.abort();
        Ok(())
    };
    store.set_updater(updater).unwrap();
    store.push(1u64, &[1.0f32]).unwrap();
    assert_eq!(kind_of(store.push(1u64, &[1.0f32])), ErrorKind::Closed);
}

// Deadlines and the end.

#[test]
fn a_call_behind_an_updater_that_does_not_return_times_out_and_changes_nothing() {
    bounded("timeout", || {
        let (store, gate) = gated(&[("timeout_ms", "40")]);
        thread::scope(|threads| {
            threads.spawn(|| store.push(0u64, &[1.0f32]).unwrap());
            gate.wait_for_someone();
            let error = store.push(0u64, &[1.0f32]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(error.message().starts_with("push: key 0"), "{error}");
            assert_eq!(kind_of(store.pull(0u64, &mut [0.0f32])), ErrorKind::Timeout);
            assert_eq!(kind_of(store.remove(&[key(0)])), ErrorKind::Timeout);
            store.push(1u64, &[1.0f32]).unwrap();
            gate.open();
        });
        assert_eq!((pulled(&store, 0), pulled(&store, 1)), (1.0, 1.0));
    });
}

#[test]
fn waits_that_are_late_say_what_they_wait_for() {
    bounded("late waits", || {
        let (store, gate) = gated(&[]);
        let blocking = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        gate.wait_for_someone();
        let text = text_of(store.wait_all(ZERO));
        assert_eq!(text, "wait_all: push of key 0 (at work) is not done yet; it goes on");
        let error = store.close(Deadline::after(ZERO)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        store.push(1u64, &[1.0f32]).unwrap();
        gate.open();
        blocking.wait(Deadline::Never).unwrap();
        store.wait_all(ZERO).unwrap();
        store.barrier(ZERO).unwrap();
        store.close(ZERO).unwrap();
    });
}

#[test]
fn after_a_close_calls_are_refused_and_a_second_close_is_fine() {
    let store = open(&[]);
    store.init(1u64, &[1.0f32]).unwrap();
    store.close(PATIENCE).unwrap();
    assert_eq!(kind_of(store.push(1u64, &[1.0f32])), ErrorKind::Closed);
    assert_eq!(kind_of(store.pull_owned(1u64, vec![1.0f32], 0)), ErrorKind::Closed);
    assert_eq!(kind_of(store.init(2u64, &[1.0f32])), ErrorKind::Closed);
    store.close(ZERO).unwrap();
    store.wait_all(ZERO).unwrap();
    assert_eq!(store.key_info(1u64).unwrap().dtype, DType::F32, "looking is still possible");
}

#[test]
fn a_failure_nobody_waited_for_is_reported_once() {
    let store = open(&[]);
    store.init(7u64, &[0.0f32]).unwrap();
    store.set_updater(|_, _, _| Err("no".into())).unwrap();
    let pending: Vec<_> =
        (0..3).map(|_| store.push_owned(7u64, vec![1.0f32], 0).unwrap()).collect();
    // A call on the key comes after them, so they have ended; dropping them asks for no result.
    pulled(&store, 7);
    drop(pending);
    let error = store.wait_all(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert!(error.message().contains("key 7: the updater failed: no"), "{error}");
    assert!(error.message().ends_with("(and 2 more operations failed)"), "{error}");
    store.wait_all(PATIENCE).unwrap();
    drop(store.push_owned(7u64, vec![1.0f32], 0).map(|pending| (pulled(&store, 7), pending)));
    assert_eq!(kind_of(store.close(PATIENCE)), ErrorKind::Callback);
    assert_eq!(
        kind_of(store.push(7u64, &[1.0f32])),
        ErrorKind::Closed,
        "it is closed all the same"
    );
}

#[test]
fn an_abort_fails_what_has_not_begun() {
    bounded("abort", || {
        let (store, gate) = gated(&[]);
        let at_work = store.push_owned(0u64, vec![1.0f32], 0).unwrap();
        gate.wait_for_someone();
        let queued = store.push_owned(1u64, vec![1.0f32], 0).unwrap();
        store.abort();
        assert_eq!(kind_of(queued.wait(ZERO)), ErrorKind::Closed);
        assert!(!at_work.is_done());
        gate.open();
        let result = at_work.wait(PATIENCE);
        assert!(result.is_ok() || result.is_err_and(|error| error.kind() == ErrorKind::Closed));
        assert_eq!(kind_of(store.push(1u64, &[1.0f32])), ErrorKind::Closed);
    });
}

// Values, keys and texts.

#[test]
fn one_value_is_stored_bit_for_bit() {
    let store = open(&[]);
    let odd = [f32::from_bits(0x7F80_0001), f32::from_bits(0xFFC1_2345), -0.0, f32::from_bits(1)];
    store.init(1u64, &[0.0f32; 4]).unwrap();
    store.push(1u64, &odd).unwrap();
    let mut out = [0.0f32; 4];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), odd.map(f32::to_bits));
}

#[test]
fn values_may_repeat_one_element_and_outs_may_be_slices_of_arrays() {
    let store = open(&[]);
    let one = [3.0f32];
    let repeated = ArrayView2::from_shape((1, 1), &one).unwrap();
    let repeated = repeated.broadcast((2, 3)).unwrap();
    store.init(1u64, &repeated).unwrap();
    store.push_list(&[key(1); 2], &[(&repeated).into(), (&repeated).into()]).unwrap();
    let mut image = Array2::from_elem((6, 4), -1.0f32);
    let mut part = image.slice_mut(s![1..6;3, 1..4;-1]);
    store.pull(1u64, &mut part).unwrap();
    assert!(image.slice(s![1..5;3, 1..4]).iter().all(|&it| it == 6.0));
    assert_eq!(image.iter().filter(|&&it| it == 6.0).count(), 6);
}

#[test]
fn a_view_must_cover_its_slice() {
    let data = [1.0f32; 6];
    assert_eq!(Tensor::new(&data, &[2, 3]).unwrap().shape(), [2, 3]);
    assert_eq!(kind_of(Tensor::new(&data, &[2, 2])), ErrorKind::ShapeMismatch);
    assert_eq!(kind_of(Tensor::new(&data, &[-2, -3])), ErrorKind::ShapeMismatch);
    assert_eq!(kind_of(TensorMut::new(&mut [0u8; 3], &[i64::MAX, 2])), ErrorKind::ShapeMismatch);
}

#[test]
fn keys_are_listed_as_integers_then_names_in_the_order_of_their_init() {
    let store = open(&[]);
    let names = ["z", "a", "m"].map(|name| store.intern(name).unwrap());
    let [z, a, m] = names;
    let order = [m, key(u64::MAX >> 1), z, key(3), a];
    let one = [1.0f32];
    for key in order {
        store.init(key, &one).unwrap();
    }
    assert_eq!(store.keys().unwrap(), [key(3), key(u64::MAX >> 1), m, z, a]);
    store.remove(&[m]).unwrap();
    store.init(m, &one).unwrap();
    assert_eq!(store.keys().unwrap(), [key(3), key(u64::MAX >> 1), z, a, m]);
    assert_eq!(store.key_name(a).unwrap(), "a");
    assert_eq!(kind_of(store.key_name(key(3))), ErrorKind::KeyNotFound);
}

#[test]
fn names_that_collide_are_told_apart() {
    // Found by search: equal low 63 bits of SipHash-2-4 with a zero key.
    let (first, second) = ("zydjx7v77kn7f", "57er3422k45qg");
    assert_eq!(Key::of_name(first), Key::of_name(second));
    let store = open(&[]);
    let key = store.intern(first).unwrap();
    store.init(key, &[1.0f32]).unwrap();
    let error = store.intern(second).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameCollision);
    assert!(error.message().contains(first) && error.message().contains(second), "{error}");
    assert_eq!(store.intern(first).unwrap(), key, "the first one keeps working");
    assert_eq!(open(&[]).intern(second).unwrap(), key, "and so does the other elsewhere");
}

#[test]
fn a_name_that_was_never_interned_is_refused() {
    let store = open(&[]);
    let key = Key::of_name("weight");
    assert_eq!(kind_of(store.init(key, &[1.0f32])), ErrorKind::KeyNotFound);
    store.intern("weight").unwrap();
    let text = text_of(store.pull(key, &mut [1.0f32]));
    assert!(text.contains("\"weight\""), "{text}");
    assert_eq!(kind_of(store.intern("a\0b")), ErrorKind::InvalidArgument);
}

#[test]
fn texts_name_the_call_the_key_and_the_shapes() {
    let store = open(&[]);
    let name = store.intern("fc1.weight").unwrap();
    store.init(7u64, &Array2::<f32>::zeros((3, 5))).unwrap();
    store.init(name, &Array2::<f32>::zeros((3, 5))).unwrap();
    let value = Array2::<f32>::zeros((3, 4));
    let shapes = "value is float32[3,4], stored is float32[3,5]";
    assert_eq!(text_of(store.push(7u64, &value)), format!("push: key 7: {shapes}"));
    assert_eq!(text_of(store.push(name, &value)), format!("push: key \"fc1.weight\": {shapes}"));
    let mut out = Array2::<i64>::zeros((3, 5));
    let text = "pull: key 7: out is int64[3,5], stored is float32[3,5]";
    assert_eq!(text_of(store.pull(7u64, &mut out)), text);
    assert_eq!(
        text_of(store.pull(8u64, &mut out)),
        "pull: key 8 is not there; initialise it first"
    );
    let text = "init: key 7 has been initialised before";
    assert_eq!(text_of(store.init(7u64, &[1.0f32])), text);
    let error = store.push(9u64, &value).unwrap_err();
    assert_eq!(error.to_string(), format!("{} (KV_ERR_KEY_NOT_FOUND)", error.message()));
}

#[test]
fn lists_of_different_lengths_are_refused() {
    let store = open(&[]);
    store.init(1u64, &[1.0f32]).unwrap();
    let one = [1.0f32];
    assert_eq!(
        kind_of(store.push_list(&[key(1); 2], &[(&one).into()])),
        ErrorKind::InvalidArgument
    );
    assert_eq!(kind_of(store.pull_list(&[key(1)], &mut [])), ErrorKind::InvalidArgument);
    assert_eq!(kind_of(store.init_list(&[], &[(&one).into()])), ErrorKind::InvalidArgument);
    store.push_list(&[], &[]).unwrap();
}

#[test]
fn negative_keys_are_refused() {
    assert_eq!(kind_of(Key::try_from(-4i64)), ErrorKind::InvalidArgument);
    assert_eq!(Key::try_from(4i64).unwrap(), key(4));
}

#[test]
fn types_and_options_are_checked_when_a_store_is_opened() {
    let config = Config::new();
    for (text, kind) in [
        ("LOCAL", StoreKind::Local),
        ("local_update_cpu", StoreKind::Local),
        ("local_allreduce_cpu", StoreKind::Local),
        ("Device", StoreKind::Device),
        ("local_allreduce_device", StoreKind::Device),
    ] {
        assert_eq!(Store::open(text, &config).unwrap().kind(), kind);
    }
    // With the distributed stores an option is missing.
    let distributed = kind_of(Store::open("dist_sync", &config));
    assert!(matches!(distributed, ErrorKind::Option | ErrorKind::Unsupported), "{distributed:?}");
    let error = Store::open("locall", &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("local, ") && error.message().contains("device"), "{error}");
    assert_eq!(kind_of(Config::new().set("thread", "2")), ErrorKind::Option);
    assert_eq!(kind_of(Config::new().with("updater_undo", "true")), ErrorKind::Option);
}

#[test]
fn stores_and_errors_go_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Store>();
    shared::<Error>();
    shared::<Tensor<'static>>();
    shared::<TensorMut<'static>>();
}

#[test]
fn statistics_count_values_and_outs() {
    let store = open(&[("threads", "2"), ("isa", "scalar")]);
    store.init(1u64, &[0.0f32; 3]).unwrap();
    store.set_updater(add::<f32>).unwrap();
    let value = [1.0f32; 3];
    store.push_list(&[key(1); 2], &[(&value).into(), (&value).into()]).unwrap();
    store.pull(1u64, &mut [0.0f32; 3]).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    for (name, value) in [
        ("keys", 1),
        ("bytes", 12),
        ("pushes", 2),
        ("pulls", 1),
        ("push_bytes", 24),
        ("pull_bytes", 12),
        ("updater_calls", 1),
        ("pending", 0),
        ("failed", 0),
        ("threads", 2),
    ] {
        assert_eq!(stats[name], value, "{name} in {stats}");
    }
    assert_eq!((&stats["type"], &stats["isa"]), (&"local".into(), &"scalar".into()));
}

#[test]
fn a_logger_hears_of_stores() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&lines);
    let sink = move |level: Level, line: &str| heard.lock().unwrap().push((level, line.to_owned()));
    set_logger(Level::Info, Some(Arc::new(sink)));
    drop(Store::open("device", &Config::new()).unwrap());
    set_logger(Level::Off, None);
    assert_eq!(Arc::strong_count(&lines), 1, "the sink has been dropped");
    let lines = lines.lock().unwrap();
    let opened = |(level, line): &(Level, String)| *level == Level::Info && line.contains("device");
    assert!(lines.iter().any(opened), "{lines:?}");
}
