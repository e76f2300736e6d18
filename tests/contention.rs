//! Lists of small values, which calls copy in passing, while other threads use the same keys.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "sizes and numbers of a test"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

use common::gate::Gate;
use common::random::{Random, reduction};
use common::watchdog::bounded;
use kvstore::{Config, ErrorKind, Key, Store, Tensor, TensorMut};

fn open(options: &[(&str, &str)]) -> Store {
    let mut config = Config::new();
    options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    Store::open("local", &config).unwrap()
}

/// What the statistics say under a name.
fn stat(store: &Store, name: &str) -> u64 {
    let text = store.stats().unwrap();
    let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap();
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

const THREADS: usize = 8;
const KEYS: usize = 64;

#[test]
fn lists_of_many_threads_are_neither_torn_nor_lost() {
    bounded("lists of many threads", || {
        let store = open(&[("threads", "2")]);
        let rounds = 2_000 / reduction();
        let keys: Vec<Key> = (0..KEYS as u64).map(Key::from).collect();
        let zero = [0i64; 24];
        store.init_list(&keys, &vec![Tensor::from(&zero); KEYS]).unwrap();
        let (start, done) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
        thread::scope(|threads| {
            let pushers: Vec<_> = (0..THREADS)
                .map(|rank| {
                    let (store, start, mut keys) = (&store, &start, keys.clone());
                    threads.spawn(move || {
                        start.wait();
                        let mut random = Random::new(rank as u64);
                        for round in 0..rounds {
                            random.shuffle(&mut keys);
                            exchange(store, &keys, (rank * rounds + round) as i64);
                        }
                    })
                })
                .collect();
            // Keys next to theirs come and go meanwhile.
            let (store, start, done) = (&store, &start, &done);
            threads.spawn(move || {
                start.wait();
                while !done.load(Ordering::SeqCst) {
                    store.init(KEYS as u64, &zero).unwrap();
                    store.remove(&[Key::from(KEYS as u64)]).unwrap();
                }
            });
            let results: Vec<_> = pushers.into_iter().map(ScopedJoinHandle::join).collect();
            done.store(true, Ordering::SeqCst);
            results.into_iter().for_each(|result| result.unwrap());
        });
        let pairs = (THREADS * rounds * KEYS) as u64;
        assert_eq!((stat(&store, "pushes"), stat(&store, "pulls")), (2 * pairs, 2 * pairs));
        assert_eq!(stat(&store, "push_bytes"), 2 * pairs * 24 * 8);
        assert_eq!(stat(&store, "pull_bytes"), 2 * pairs * 24 * 8);
    });
}

/// Pushes and pulls a list twice, in one call and in two; no value may be a mix.
fn exchange(store: &Store, keys: &[Key], number: i64) {
    let value = [number; 24];
    let values = vec![Tensor::from(&value); keys.len()];
    let mut outs = vec![[-1i64; 24]; keys.len()];
    store.push_list(keys, &values).unwrap();
    store.pull_list(keys, &mut tensors(&mut outs)).unwrap();
    assert!(outs.iter().all(|out| out[0] >= 0 && *out == [out[0]; 24]), "a mix of two pushes");
    store.pushpull_list(keys, &values, keys, &mut tensors(&mut outs)).unwrap();
    assert!(outs.iter().all(|out| *out == value), "a pushpull sees its own push");
}

fn tensors<const N: usize>(outs: &mut [[i64; N]]) -> Vec<TensorMut<'_>> {
    outs.iter_mut().map(TensorMut::from).collect()
}

/// Keys before the one in use are done, it and those after it are not, in whatever order they
/// stand in the list.
#[test]
fn a_list_ends_at_a_key_that_stays_in_use() {
    bounded("a key in use", || {
        let store = open(&[("threads", "1"), ("timeout_ms", "50")]);
        let keys: Vec<Key> = [7u64, 2, 9, 5, 4, 1].map(Key::from).into();
        let (old, new) = ([1i64], [2i64]);
        store.init_list(&keys, &vec![Tensor::from(&old); keys.len()]).unwrap();
        let gate = Gate::default();
        let door = gate.clone();
        let wait = move |_: Key, _: &Tensor<'_>, _: &mut TensorMut<'_>| {
            door.pass();
            Ok(())
        };
        store.set_updater(wait).unwrap();
        thread::scope(|threads| {
            threads.spawn(|| store.push(5u64, &old).unwrap());
            gate.wait_for_someone();
            store.clear_updater().unwrap();
            let error = store.push_list(&keys, &vec![Tensor::from(&new); keys.len()]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(error.message().contains("key 5 is still in use"), "{error}");
            let mut outs = [[0i64]; 6];
            let error = store.pull_list(&keys, &mut tensors(&mut outs)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert_eq!(outs, [[0], [2], [0], [0], [2], [2]], "keys 1, 2 and 4");
            assert_eq!(store.push(5u64, &new).unwrap_err().kind(), ErrorKind::Timeout);
            assert_eq!((stat(&store, "pushes"), stat(&store, "pulls")), (3, 3));
            gate.open();
        });
        for (key, expected) in [(7u64, old), (9, old), (5, old), (2, new)] {
            let mut out = [0i64];
            store.pull(key, &mut out).unwrap();
            assert_eq!(out, expected, "key {key}");
        }
    });
}
