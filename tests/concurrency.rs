//! Eight threads at one store: nothing is lost, nothing is torn, nobody waits for ever.
//!
//! A watchdog ends the program if a test hangs. `KV_TEST_SCALE=small` does less.
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

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use common::gate::Gate;
use common::random::{self, Random, reduction};
use common::updater::add;
use common::watchdog::bounded;
use kvstore::{Config, ErrorKind, Key, Result, Store, Tensor, TensorMut, UpdaterError};

const THREADS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(120);
const ZERO: Duration = Duration::ZERO;

/// Elements of a value that is copied in several pieces.
const LARGE: usize = 100_000;

fn open(threads: &str) -> Store {
    let config = Config::new().with("threads", threads).unwrap();
    Store::open("local", &config).unwrap()
}

fn key(id: usize) -> Key {
    Key::from(id as u64)
}

fn pulled(store: &Store, id: usize) -> i64 {
    let mut out = [0i64];
    store.pull(key(id), &mut out).unwrap();
    out[0]
}

/// Runs `work(rank)` on eight threads that start together.
fn together(work: impl Fn(usize) + Sync) {
    let start = Barrier::new(THREADS);
    thread::scope(|threads| {
        for rank in 0..THREADS {
            let (start, work) = (&start, &work);
            threads.spawn(move || {
                start.wait();
                work(rank);
            });
        }
    });
}

/// 1 + 2 + ... + 8, in the type of the values.
const SUM_OF_RANKS: i64 = 36;

fn value_of(rank: usize) -> i64 {
    i64::try_from(rank).unwrap() + 1
}

#[test]
fn pushes_to_one_key_are_all_counted() {
    bounded("one key", || {
        let store = open("2");
        let rounds = 20_000 / reduction();
        store.init(key(0), &[0i64]).unwrap();
        store.set_updater(add::<i64>).unwrap();
        together(|rank| {
            let value = [value_of(rank)];
            for _ in 0..rounds {
                store.push(key(0), &value).unwrap();
            }
        });
        assert_eq!(pulled(&store, 0), SUM_OF_RANKS * i64::try_from(rounds).unwrap());
    });
}

#[test]
fn threads_that_push_one_key_take_turns() {
    bounded("turns", || {
        let store = open("2");
        let total = 4_000 / reduction();
        store.init(key(0), &[0i64]).unwrap();
        // Long enough for all others to come and wait for the key.
        store
            .set_updater(|_, _, _| {
                thread::sleep(Duration::from_micros(50));
                Ok(())
            })
            .unwrap();
        let (begun, counts) = (AtomicUsize::new(0), [const { AtomicUsize::new(0) }; THREADS]);
        together(|rank| {
            while begun.fetch_add(1, Ordering::SeqCst) < total {
                store.push(key(0), &[1i64]).unwrap();
                counts[rank].fetch_add(1, Ordering::SeqCst);
            }
        });
        let counts = counts.map(AtomicUsize::into_inner);
        let share = total / THREADS;
        assert!(counts.iter().all(|&count| count >= share / 8), "{counts:?}, {share} is fair");
    });
}

#[test]
fn threads_on_different_keys_do_not_mix() {
    bounded("different keys", || {
        let store = open("2");
        let rounds = 20_000 / reduction();
        store.set_updater(add::<i64>).unwrap();
        together(|rank| {
            store.init(key(rank), &[0i64]).unwrap();
            let value = [value_of(rank)];
            for round in 0..rounds {
                store.push(key(rank), &value).unwrap();
                let expected = value[0] * (i64::try_from(round).unwrap() + 1);
                assert_eq!(pulled(&store, rank), expected, "a thread sees its own pushes");
            }
        });
        assert_eq!(store.keys().unwrap().len(), THREADS);
    });
}

#[test]
fn lists_in_any_order_do_not_deadlock() {
    bounded("lists", || {
        let store = open("2");
        let rounds = 2_000 / reduction();
        let zero = [0i64];
        let keys: Vec<Key> = (0..16).map(key).collect();
        store.init_list(&keys, &vec![Tensor::from(&zero); 16]).unwrap();
        store.set_updater(add::<i64>).unwrap();
        together(|rank| {
            let mut random = Random::new(rank as u64);
            let value = [value_of(rank)];
            let mut keys = keys.clone();
            for round in 0..rounds {
                random.shuffle(&mut keys);
                let values = vec![Tensor::from(&value); 16];
                if round % 2 == 0 {
                    store.push_list(&keys, &values).unwrap();
                    continue;
                }
                let mut outs = [[0i64]; 16];
                let mut tensors: Vec<TensorMut<'_>> = outs.iter_mut().map(Into::into).collect();
                store.pushpull_list(&keys, &values, &keys, &mut tensors).unwrap();
                assert!(outs.iter().all(|out| out[0] >= value[0]));
            }
        });
        let expected = SUM_OF_RANKS * i64::try_from(rounds).unwrap();
        (0..16).for_each(|id| assert_eq!(pulled(&store, id), expected));
    });
}

/// Lists large enough that each call shares its keys out among threads. Calls of others use some of
/// the keys at that time, so that the rest of a list goes the way of calls that wait.
#[test]
fn lists_that_threads_share_are_all_counted() {
    const KEYS: usize = 700;
    const LENGTH: usize = 2_000;
    bounded("shared lists", || {
        let store = open("3");
        let rounds = 64 / reduction().min(16);
        let keys: Vec<Key> = (0..KEYS).map(key).collect();
        let zeros = vec![0.0f32; LENGTH];
        store.init_list(&keys, &vec![Tensor::from(&zeros); KEYS]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        together(|rank| {
            let gradient = vec![-(value_of(rank) as f32); LENGTH];
            let values = vec![Tensor::from(&gradient); KEYS];
            let mut outs = vec![vec![0.0f32; LENGTH]; KEYS];
            for round in 0..rounds {
                let mut outs: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
                match (rank + round) % 3 {
                    0 => {
                        store.pull_list(&keys, &mut outs).unwrap();
                        store.push_list(&keys, &values).unwrap();
                    }
                    1 => store.push_list(&keys, &values).unwrap(),
                    _ => store.pushpull_list(&keys, &values, &keys, &mut outs).unwrap(),
                }
            }
            let whole = |out: &Vec<f32>| out.iter().all(|element| *element == out[0]);
            assert!(outs.iter().all(whole), "an out is a mix of two pushes");
        });
        let mut outs = vec![vec![0.0f32; LENGTH]; KEYS];
        let mut places: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
        store.pull_list(&keys, &mut places).unwrap();
        let sum = (SUM_OF_RANKS * rounds as i64) as f32;
        assert!(outs.iter().flatten().all(|element| *element == sum));
        let pushes = THREADS * rounds * KEYS;
        assert!(store.stats().unwrap().contains(&format!("\"pushes\":{pushes},")));
    });
}

#[test]
fn a_pull_never_sees_half_a_push() {
    bounded("torn", || {
        let store = open("3");
        let rounds = 300 / reduction() + 5;
        store.init(key(0), &vec![0i64; LARGE]).unwrap();
        let done = AtomicUsize::new(0);
        together(|rank| {
            if rank % 2 == 0 {
                let value = vec![value_of(rank); LARGE];
                for _ in 0..rounds {
                    store.push(key(0), &value).unwrap();
                }
                done.fetch_add(1, Ordering::SeqCst);
                return;
            }
            let mut out = vec![-1i64; LARGE];
            while done.load(Ordering::SeqCst) < THREADS / 2 {
                store.pull(key(0), &mut out).unwrap();
                assert!(out.iter().all(|it| *it == out[0]), "a mix of two pushes");
            }
        });
    });
}

#[test]
fn large_pushes_that_share_the_pool_are_all_counted() {
    bounded("large", || {
        let store = open("4");
        let rounds = 20 / reduction() + 2;
        let elements = 10 * LARGE;
        store.init(key(0), &vec![0i64; elements]).unwrap();
        store.init(key(1), &vec![0i64; elements]).unwrap();
        store.set_updater(add::<i64>).unwrap();
        together(|rank| {
            let value = vec![value_of(rank); elements];
            for _ in 0..rounds {
                store.push_list(&[key(rank % 2); 2], &[(&value).into(), (&value).into()]).unwrap();
            }
        });
        let mut out = vec![0i64; elements];
        for (id, ranks) in [(0, 1 + 3 + 5 + 7), (1, 2 + 4 + 6 + 8)] {
            store.pull(key(id), &mut out).unwrap();
            assert!(out.iter().all(|&it| it == 2 * ranks * i64::try_from(rounds).unwrap()));
        }
    });
}

#[test]
fn large_pushes_to_own_keys_share_the_pool() {
    bounded("own keys", || {
        let store = open("2");
        let rounds = 20 / reduction() + 2;
        let elements = 5 * LARGE;
        together(|rank| {
            let (value, mut out) = (vec![value_of(rank); elements], vec![0i64; elements]);
            store.init(key(rank), &out).unwrap();
            for round in 1..=rounds {
                let values = vec![Tensor::from(&value); round % 4 + 1];
                store.push_list(&vec![key(rank); values.len()], &values).unwrap();
                store.pull(key(rank), &mut out).unwrap();
                let expected = value[0] * i64::try_from(values.len()).unwrap();
                assert!(out.iter().all(|&it| it == expected), "a piece is missing");
            }
        });
    });
}

/// An updater that adds, and counts by itself what it added and how often.
fn counting(
    calls: &Arc<AtomicUsize>,
    total: &Arc<AtomicI64>,
) -> impl Fn(Key, &Tensor<'_>, &mut TensorMut<'_>) -> std::result::Result<(), UpdaterError> + use<>
{
    let (calls, total) = (Arc::clone(calls), Arc::clone(total));
    move |key, input, stored| {
        calls.fetch_add(1, Ordering::SeqCst);
        total.fetch_add(input.as_slice::<i64>().ok_or("not int64")?[0], Ordering::SeqCst);
        add::<i64>(key, input, stored)
    }
}

#[test]
fn operations_with_tickets_are_applied_once_or_cancelled() {
    bounded("cancels", || {
        let store = open("3");
        let rounds = 3_000 / reduction();
        let (calls, total) = (Arc::default(), Arc::default());
        (0..4).for_each(|id| store.init(key(id), &[0i64]).unwrap());
        store.set_updater(counting(&calls, &total)).unwrap();
        let (finished, submitted) = (AtomicI64::new(0), AtomicUsize::new(0));
        let seed = random::from_environment("cancels").next();
        together(|rank| {
            let mut random = Random::new(seed ^ rank as u64);
            let mut waiting = Vec::new();
            for round in 0..rounds {
                let value = i64::try_from(round).unwrap();
                let priority = random.pick(&[-1, 0, 1]);
                let pending =
                    store.push_owned(key(random.index(4)), vec![value], priority).unwrap();
                submitted.fetch_add(1, Ordering::SeqCst);
                match random.below(4) {
                    0 => drop(pending),
                    1 => match pending.wait(ZERO) {
                        Ok(buffer) => _ = finished.fetch_add(buffer[0], Ordering::SeqCst),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout),
                    },
                    _ => waiting.push(pending),
                }
                if waiting.len() > 20 {
                    random.shuffle(&mut waiting);
                    for pending in waiting.drain(5..) {
                        let buffer = pending.wait(PATIENCE).unwrap();
                        finished.fetch_add(buffer[0], Ordering::SeqCst);
                    }
                }
            }
            for pending in waiting {
                finished.fetch_add(pending.wait(PATIENCE).unwrap()[0], Ordering::SeqCst);
            }
        });
        store.wait_all(PATIENCE).unwrap();
        let stored: i64 = (0..4).map(|id| pulled(&store, id)).sum();
        assert_eq!(
            stored,
            total.load(Ordering::SeqCst),
            "what the updater added, no more, no less"
        );
        assert!(finished.load(Ordering::SeqCst) <= stored, "what was reported done is in it");
        assert!(calls.load(Ordering::SeqCst) <= submitted.load(Ordering::SeqCst));
        store.close(PATIENCE).unwrap();
    });
}

#[test]
fn scopes_of_many_threads_keep_the_order_of_each() {
    bounded("scopes", || {
        let store = open("3");
        let rounds = 200 / reduction() + 2;
        store.set_updater(add::<i64>).unwrap();
        (0..THREADS).for_each(|id| store.init(key(id), &[0i64]).unwrap());
        store.init(key(THREADS), &[0i64]).unwrap();
        together(|rank| {
            let value = [value_of(rank)];
            let mut expected = 0;
            for _ in 0..rounds {
                let mut outs = [[0i64]; 10];
                store
                    .scope(PATIENCE, |scope| {
                        for (i, out) in outs.iter_mut().enumerate() {
                            let keys = [key(rank), key(THREADS)];
                            let values = [Tensor::from(&value), (&value).into()];
                            scope.push_list(&keys, &values, i32::from(i % 3 == 0))?;
                            scope.pull_list(&keys[..1], vec![out.into()], 9)?;
                        }
                        Ok(())
                    })
                    .unwrap();
                for out in outs {
                    expected += value[0];
                    assert_eq!(out, [expected], "each pull sees exactly the pushes before it");
                }
            }
        });
        assert_eq!(pulled(&store, THREADS), SUM_OF_RANKS * 10 * i64::try_from(rounds).unwrap());
    });
}

#[test]
fn each_push_meets_exactly_one_updater_while_they_are_exchanged() {
    bounded("exchange", || {
        let store = open("2");
        let rounds = 3_000 / reduction();
        let (calls, total): (Arc<AtomicUsize>, Arc<AtomicI64>) = (Arc::default(), Arc::default());
        store.init(key(0), &[0i64]).unwrap();
        store.set_updater(counting(&calls, &total)).unwrap();
        together(|rank| {
            for round in 0..rounds {
                if rank == 0 {
                    store.set_updater(counting(&calls, &total)).unwrap();
                } else if round % 3 == 0 {
                    let pending = store.push_owned(key(0), vec![1i64], 0).unwrap();
                    pending.wait(PATIENCE).unwrap();
                } else {
                    store.push(key(0), &[1i64]).unwrap();
                }
            }
        });
        let pushes = (THREADS - 1) * rounds;
        assert_eq!(calls.load(Ordering::SeqCst), pushes);
        assert_eq!(pulled(&store, 0), i64::try_from(pushes).unwrap());
        drop(store);
        assert_eq!(Arc::strong_count(&calls), 1, "every updater has been dropped");
    });
}

#[test]
fn one_of_many_inits_wins() {
    bounded("inits", || {
        let store = open("2");
        for id in 0..2_000 / reduction() {
            let winners = AtomicI64::new(0);
            together(|rank| {
                match store.init(key(id), &[value_of(rank); 64]) {
                    Ok(()) => _ = winners.fetch_add(value_of(rank), Ordering::SeqCst),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::KeyExists),
                }
                let mut out = [0i64; 64];
                store.pull(key(id), &mut out).unwrap();
                assert!(out[0] > 0 && out == [out[0]; 64]);
            });
            let mut out = [0i64; 64];
            store.pull(key(id), &mut out).unwrap();
            assert_eq!(out[0], winners.load(Ordering::SeqCst), "exactly one, and its value");
        }
    });
}

/// Accepts what a race with removals may give.
fn gone_or<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let kinds = [ErrorKind::KeyNotFound, ErrorKind::KeyExists, ErrorKind::ShapeMismatch];
            assert!(kinds.contains(&error.kind()), "{error}");
            None
        }
    }
}

#[test]
fn keys_may_come_and_go_under_pushes_and_pulls() {
    bounded("removals", || {
        let store = open("2");
        let rounds = 4_000 / reduction();
        let names: Vec<Key> = ["w", "b"]
            .iter()
            .map(|name| store.intern(name).unwrap())
            .chain([key(0), key(1)])
            .collect();
        let seed = random::from_environment("removals").next();
        together(|rank| {
            let mut random = Random::new(seed ^ rank as u64);
            for _ in 0..rounds {
                let (key, size) = (random.pick(&names), random.pick(&[64, 65]));
                let value = vec![value_of(rank); size];
                match random.below(6) {
                    0 => _ = gone_or(store.remove(&[key])),
                    1 => _ = gone_or(store.init(key, &value)),
                    2 => _ = gone_or(store.push(key, &value)),
                    3 => {
                        let pending = gone_or(store.push_owned(key, value, 0));
                        pending.and_then(|pending| gone_or(pending.wait(PATIENCE)));
                    }
                    4 => drop(gone_or(store.pull_owned(key, value, 0))),
                    _ => {
                        let mut out = vec![0i64; size];
                        if gone_or(store.pull(key, &mut out)).is_some() {
                            assert!(out[0] > 0 && out.iter().all(|it| *it == out[0]), "{out:?}");
                        }
                    }
                }
            }
        });
        // A pull that was dropped may have failed before: nobody has been told.
        gone_or(store.close(PATIENCE));
    });
}

#[test]
fn all_threads_get_one_key_for_one_name() {
    bounded("names", || {
        let store = open("1");
        let names: Vec<String> = (0..500).map(|i| format!("layer.{i}")).collect();
        together(|rank| {
            let mut random = Random::new(rank as u64);
            let mut names: Vec<&String> = names.iter().collect();
            random.shuffle(&mut names);
            for name in names {
                let key = store.intern(name).unwrap();
                assert_eq!(key, Key::of_name(name));
                assert_eq!(store.key_name(key).unwrap(), *name);
            }
        });
    });
}

#[test]
fn an_abort_wakes_everybody() {
    bounded("abort", || {
        for _ in 0..=50 / reduction() {
            let store = open("2");
            let gate = Gate::default();
            let at_gate = gate.clone();
            store.init(key(0), &[0i64]).unwrap();
            let updater = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
                at_gate.pass();
                add::<i64>(key, input, stored)
            };
            store.set_updater(updater).unwrap();
            let at_work = store.push_owned(key(0), vec![1i64], 0).unwrap();
            gate.wait_for_someone();
            let queued = AtomicUsize::new(0);
            together(|rank| {
                if rank == 0 {
                    while queued.load(Ordering::SeqCst) < THREADS - 1 {
                        thread::yield_now();
                    }
                    store.abort();
                    return;
                }
                let pending = store.push_owned(key(0), vec![1i64], 0).unwrap();
                queued.fetch_add(1, Ordering::SeqCst);
                let error = pending.wait(PATIENCE).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            });
            gate.open();
            drop(at_work);
        }
    });
}

#[test]
fn what_is_accepted_before_a_close_is_applied() {
    bounded("close", || {
        for _ in 0..=50 / reduction() {
            let store = open("2");
            let (calls, total) = (Arc::default(), Arc::default());
            store.init(key(0), &[0i64]).unwrap();
            store.set_updater(counting(&calls, &total)).unwrap();
            let (accepted, closing) = (AtomicUsize::new(0), AtomicBool::new(false));
            together(|rank| {
                if rank == 0 {
                    while accepted.load(Ordering::SeqCst) < 30 {
                        thread::yield_now();
                    }
                    closing.store(true, Ordering::SeqCst);
                    store.close(PATIENCE).unwrap();
                    return;
                }
                loop {
                    let result =
                        store.push_owned(key(0), vec![1i64], 0).and_then(|it| it.wait(PATIENCE));
                    match result {
                        Ok(_) => _ = accepted.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                            assert!(closing.load(Ordering::SeqCst));
                            return;
                        }
                    }
                }
            });
            assert_eq!(calls.load(Ordering::SeqCst), accepted.load(Ordering::SeqCst));
        }
    });
}
