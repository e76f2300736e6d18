//! A panic of the library's own, made on purpose: the store is poisoned, and nobody waits for ever.
//!
//! `cargo test --features fault-injection`; without the feature there is nothing to make it with.
#![cfg(feature = "fault-injection")]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::time::Duration;

use common::watchdog::bounded;
use kvstore::{Config, ErrorKind, Key, Result, Store};

const PATIENCE: Duration = Duration::from_secs(120);

fn store_with_fault(point: &str) -> Store {
    let config = Config::new().with("fault", point).unwrap();
    let store = Store::open("local", &config).unwrap();
    store.init(1u64, &[1.0f32]).unwrap();
    store
}

fn kind_of<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// All that a poisoned store answers.
fn check_poisoned(store: &Store) {
    let poisoned = Some(ErrorKind::Poisoned);
    assert_eq!(kind_of(store.push(1u64, &[1.0f32])), poisoned);
    assert_eq!(kind_of(store.pull(1u64, &mut [1.0f32])), poisoned);
    assert_eq!(kind_of(store.init(2u64, &[1.0f32])), poisoned);
    assert_eq!(kind_of(store.pull_owned(1u64, vec![1.0f32], 0)), poisoned);
    assert_eq!(kind_of(store.key_info(Key::from(1u64))), poisoned);
    assert_eq!(kind_of(store.wait_all(PATIENCE)), poisoned);
    assert_eq!(kind_of(store.close(PATIENCE)), poisoned);
    store.abort();
    let other = Store::open("local", &Config::new()).unwrap();
    other.init(1u64, &[1.0f32]).unwrap();
    other.push(1u64, &[1.0f32]).unwrap();
}

#[test]
fn a_bug_in_a_call_poisons_the_store_and_no_other() {
    bounded("bug in a call", || {
        let store = store_with_fault("push");
        let error = store.push(1u64, &[1.0f32]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.message().contains("injected fault at push"), "{error}");
        check_poisoned(&store);
    });
}

#[test]
fn a_bug_on_a_thread_of_the_library_wakes_who_waits() {
    bounded("bug in a task", || {
        let store = store_with_fault("task");
        let first = store.push_owned(1u64, vec![1.0f32], 0).unwrap();
        let second = store.push_owned(1u64, vec![1.0f32], 0);
        let ours = [Some(ErrorKind::Internal), Some(ErrorKind::Poisoned)];
        assert!(ours.contains(&kind_of(first.wait(PATIENCE))));
        // The second one may have come too late to be queued.
        assert!(ours.contains(&kind_of(second.and_then(|pending| pending.wait(PATIENCE)))));
        check_poisoned(&store);
    });
}
