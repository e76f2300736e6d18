//! Transactions: what a rollback leaves is what a store has that never made the pushes, and a step that is pushed key
//! by key and committed is that of one call.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    reason = "small numbers are converted, and exact bits compared"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::folder::Folder;
use common::norms::squares;
use kvstore::ErrorKind::{Callback, InvalidArgument, KeyNotFound, Timeout, Unsupported};
use kvstore::{
    Commit, Config, Deadline, Error, ErrorKind, Key, NonFinite, Scope, Store, Tensor, TensorMut,
    UpdaterError, bf16, f16,
};
use kvstore_protocol::testing::Random;

const RULES: &str = "sgd momentum nag adam adamw adamax nadam adagrad groupadagrad rmsprop adadelta ftrl ftml \
                     signum lamb lars dcasgd lion test";

fn open(options: &[(&str, &str)]) -> Store {
    let mut config = Config::new();
    options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    Store::open("local", &config).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

fn pulled(store: &Store, key: impl Into<Key>, count: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; count];
    store.pull(key, &mut out).unwrap();
    out
}

fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| (random.below(1 << 20) as f32 - 5e5) / 3e5).collect()
}

/// Sizes around those of lines, blocks and pieces.
const SIZES: [usize; 8] = [0, 1, 15, 2047, 2049, 16_384, 16_387, 140_001];

/// Keys of each float dtype, rows of four where the size allows it.
struct Model {
    store: Store,
    random: Random,
}

impl Model {
    fn new(store: Store) -> Self {
        let mut random = Random::new(11);
        for (key, size) in (0u64..).zip(SIZES) {
            let shape = Self::shape(size);
            let value = numbers(&mut random, size);
            match key % 4 {
                0 => store.init(key, Tensor::new(&value, &shape).unwrap()).unwrap(),
                1 => {
                    let value: Vec<f64> = value.into_iter().map(f64::from).collect();
                    store.init(key, Tensor::new(&value, &shape).unwrap()).unwrap();
                }
                2 => {
                    let value: Vec<bf16> = value.into_iter().map(bf16::from_f32).collect();
                    store.init(key, Tensor::new(&value, &shape).unwrap()).unwrap();
                }
                _ => {
                    let value: Vec<f16> = value.into_iter().map(f16::from_f32).collect();
                    store.init(key, Tensor::new(&value, &shape).unwrap()).unwrap();
                }
            }
        }
        Self { store, random }
    }

    fn shape(size: usize) -> Vec<i64> {
        let count = size as i64;
        if size.is_multiple_of(4) { vec![count / 4, 4] } else { vec![count] }
    }

    /// Pushes one or two values of each key, in some order, one by one or by one call.
    fn push(&mut self, one_by_one: bool) {
        let mut keys: Vec<usize> = (0..SIZES.len()).collect();
        for at in 0..keys.len() {
            let other = self.random.below(keys.len() as u64) as usize;
            keys.swap(at, other);
        }
        let keys: Vec<usize> = keys.iter().chain(&keys[..3]).copied().collect();
        let arrays: Vec<Vec<f32>> =
            keys.iter().map(|&key| numbers(&mut self.random, SIZES[key])).collect();
        let shapes = SIZES.map(Self::shape);
        let tensor = |at: usize| Tensor::new(&arrays[at], &shapes[keys[at]]).unwrap();
        if one_by_one {
            for (at, &key) in keys.iter().enumerate() {
                self.store.push(key as u64, tensor(at)).unwrap();
            }
        } else {
            let tensors: Vec<Tensor<'_>> = (0..keys.len()).map(tensor).collect();
            let keys: Vec<Key> = keys.iter().map(|&key| Key::from(key as u64)).collect();
            self.store.push_list(&keys, &tensors).unwrap();
        }
    }

    /// Values, states, masters and counts, as a file has them.
    fn everything(&self) -> Vec<u8> {
        let folder = Folder::new(&format!("transactions-{:p}", &raw const self.store));
        let path = folder.file("all");
        self.store.save(&path).unwrap();
        std::fs::read(path).unwrap()
    }
}

#[test]
fn a_rollback_leaves_values_and_states_of_every_rule_as_they_were() {
    for rule in RULES.split(' ') {
        for (options, threads) in [("", "1"), ("multi_precision=1", "3")] {
            let [mut plain, mut tried] = [0, 1].map(|_| {
                let model = Model::new(open(&[("threads", threads)]));
                model.store.set_optimizer(rule, options).unwrap();
                model
            });
            let place = format!("{rule} {options} x {threads}");
            for round in 0..3 {
                let before = tried.everything();
                // The same numbers in each round.
                plain.random = Random::new(100 + round);
                plain.push(true);
                for (one_by_one, seed) in [(true, 7), (false, 8)] {
                    tried.random = Random::new(seed);
                    tried.store.begin().unwrap();
                    tried.push(one_by_one);
                    tried.store.rollback().unwrap();
                }
                assert!(tried.everything() == before, "{place}: round {round}");
                tried.store.begin().unwrap();
                tried.random = Random::new(100 + round);
                tried.push(true);
                assert_eq!(tried.store.commit().unwrap(), Commit::Kept, "{place}");
                assert!(tried.everything() == plain.everything(), "{place}: round {round}");
            }
        }
    }
}

/// Doubles the value and adds the sum; fails at a sum of 13.
fn double(_: Key, sum: &Tensor<'_>, stored: &mut TensorMut<'_>) -> Result<(), UpdaterError> {
    let (sum, stored) = (sum.as_slice::<f32>().unwrap(), stored.as_mut_slice::<f32>().unwrap());
    stored.iter_mut().zip(sum).for_each(|(stored, sum)| *stored = *stored * 2.0 + sum);
    if sum.contains(&13.0) { Err("thirteen".into()) } else { Ok(()) }
}

#[test]
fn assigned_values_updaters_and_rows_are_taken_back() {
    let store = open(&[]);
    let (whole, rows) = ([1.0f32, 2.0, 3.0], [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    store.init(1u64, &whole).unwrap();
    store.init(2u64, Tensor::new(&rows, &[3, 2]).unwrap()).unwrap();
    store.init(3u64, &[5i64]).unwrap();
    store.set_optimizer_for(&[3u64.into()], "none", "").unwrap();
    let everything = || {
        let (mut number, mut found) = ([0i64], [0.0f32; 6]);
        store.pull(3u64, &mut number).unwrap();
        store.pull(2u64, TensorMut::new(&mut found, &[3, 2]).unwrap()).unwrap();
        let counts = [1u64, 2, 3].map(|key| store.last_round(key).unwrap().round);
        (pulled(&store, 1u64, 3), found, number, counts)
    };
    let some = [1.0f32, 1.0, -3.0, 0.5];
    let push_rows = || {
        store.push_rows(2u64, &[2i64, 0], Tensor::new(&some, &[2, 2]).unwrap()).unwrap();
    };
    let rules: [&dyn Fn() -> Result<(), Error>; 5] = [
        &|| store.clear_updater(),
        &|| store.set_updater(double),
        &|| store.set_optimizer("sgd", ""),
        &|| store.set_optimizer("sgd", "lazy_update=1"),
        &|| store.set_optimizer("adam", "lazy_update=1"),
    ];
    for (at, set) in rules.into_iter().enumerate() {
        set().unwrap();
        for _ in 0..2 {
            let before = everything();
            store.begin().unwrap();
            store.push(1u64, &[9.0f32, 8.0, 7.0]).unwrap();
            store.push(1u64, &[1.0f32, 1.0, 1.0]).unwrap();
            store.push(3u64, &[77i64]).unwrap();
            push_rows();
            let during = everything();
            assert_ne!(during, before, "rule {at}: other calls see the pushes at once");
            store.rollback().unwrap();
            assert_eq!(everything(), before, "rule {at}");
            // What was taken back can be made again.
            store.push(1u64, &[9.0f32, 8.0, 7.0]).unwrap();
            store.push(1u64, &[1.0f32, 1.0, 1.0]).unwrap();
            store.push(3u64, &[77i64]).unwrap();
            push_rows();
            assert_eq!(everything(), during, "rule {at}");
        }
    }
}

#[test]
fn what_a_failed_updater_has_changed_is_taken_back() {
    let store = open(&[]);
    store.init(1u64, &[1.0f32]).unwrap();
    store.set_updater(double).unwrap();
    store.begin().unwrap();
    refused(store.push(1u64, &[13.0f32]), Callback);
    assert_eq!(pulled(&store, 1u64, 1), [15.0]);
    store.rollback().unwrap();
    assert_eq!(pulled(&store, 1u64, 1), [1.0]);
}

#[test]
fn keys_that_come_or_go_in_a_transaction_do_so_for_good() {
    let store = open(&[]);
    let (first, second) = ([1.0f32], [2.0f32]);
    store.init(1u64, &first).unwrap();
    store.init(2u64, &first).unwrap();
    store.set_optimizer("sgd", "learning_rate=1").unwrap();
    store.begin().unwrap();
    store.push(1u64, &second).unwrap();
    store.push(2u64, &second).unwrap();
    store.remove(&[1u64.into(), 2u64.into()]).unwrap();
    store.init(2u64, &[4.0f32, 5.0]).unwrap();
    store.init(3u64, &[6.0f32]).unwrap();
    store.push(2u64, &[1.0f32, 1.0]).unwrap();
    store.push(3u64, &[1.0f32]).unwrap();
    store.rollback().unwrap();
    refused(store.pull(1u64, &mut [0.0f32]), KeyNotFound);
    assert_eq!((pulled(&store, 2u64, 2), pulled(&store, 3u64, 1)), (vec![4.0, 5.0], vec![6.0]));
}

/// Two equal stores with momentum and clipping.
fn pair(options: &[(&str, &str)], max_norm: f64) -> [Model; 2] {
    [0, 1].map(|_| {
        let model = Model::new(open(options));
        model.store.set_optimizer("adam", "multi_precision=1,rescale_grad=0.125").unwrap();
        model.store.set_clipping(max_norm, NonFinite::Skip).unwrap();
        model
    })
}

/// Pushes one value of each key: by one call, or one by one in this order.
fn push_once(store: &Store, seed: u64, order: Option<&[usize]>) -> Vec<Vec<f32>> {
    let mut random = Random::new(seed);
    let arrays: Vec<Vec<f32>> = SIZES.map(|size| numbers(&mut random, size)).into();
    let shapes = SIZES.map(Model::shape);
    let tensor = |key: usize| Tensor::new(&arrays[key], &shapes[key]).unwrap();
    if let Some(order) = order {
        order.iter().for_each(|&key| store.push(key as u64, tensor(key)).unwrap());
    } else {
        let keys: Vec<Key> = (0..SIZES.len()).map(|key| Key::from(key as u64)).collect();
        let tensors: Vec<Tensor<'_>> = (0..SIZES.len()).map(tensor).collect();
        store.push_list(&keys, &tensors).unwrap();
    }
    arrays
}

#[test]
fn the_norm_of_a_transaction_is_that_of_one_call() {
    for (threads, digests) in [("1", false), ("3", false), ("2", true)] {
        let folder = Folder::new(&format!("transactions-norm-{threads}"));
        let path = folder.file("digests");
        let mut options = vec![("threads", threads)];
        if digests {
            options.extend([("digests", "all"), ("digest_log", path.to_str().unwrap())]);
        }
        // An infinite norm only measures.
        let [listed, tried] = pair(&options, f64::INFINITY);
        for (seed, order) in [(1, [3, 1, 7, 0, 6, 5, 2, 4]), (2, [7, 6, 5, 4, 3, 2, 1, 0])] {
            let arrays = push_once(&listed.store, seed, None);
            tried.store.begin().unwrap();
            push_once(&tried.store, seed, Some(&order));
            assert_eq!(tried.store.commit().unwrap(), Commit::Kept);
            let [norm, of_call] =
                [&tried, &listed].map(|it| it.store.last_norm().unwrap().norm.to_bits());
            // As a rule gets them: in the dtype of the key.
            let sum = (0..).zip(&arrays).fold(0.0, |all, (key, array)| {
                let gradient: Vec<f64> = array
                    .iter()
                    .map(|&it| match key % 4 {
                        2 => bf16::from_f32(it).to_f64(),
                        3 => f16::from_f32(it).to_f64(),
                        _ => f64::from(it),
                    })
                    .collect();
                all + 0.125 * 0.125 * squares(&gradient)
            });
            assert_eq!((norm, norm), (of_call, sum.sqrt().to_bits()), "{threads}");
            assert!(listed.everything() == tried.everything(), "{threads}");
        }
    }
}

#[test]
fn a_transaction_above_the_norm_is_taken_back_and_one_that_is_not_finite_is_skipped() {
    let [listed, tried] = pair(&[], 3.0);
    let order = [0, 1, 2, 3, 4, 5, 6, 7];
    for seed in 0..3 {
        push_once(&listed.store, seed, None);
        tried.store.begin().unwrap();
        push_once(&tried.store, seed, Some(&order));
        assert_eq!(tried.store.commit().unwrap(), Commit::Exceeded);
        assert_eq!(tried.store.last_norm().unwrap(), listed.store.last_norm().unwrap());
        push_once(&tried.store, seed, None);
        assert!(listed.everything() == tried.everything(), "step {seed}");
    }
    let before = tried.everything();
    for flag in [NonFinite::Skip, NonFinite::Fail] {
        tried.store.set_clipping(3.0, flag).unwrap();
        let skips = tried.store.last_norm().unwrap().skips;
        tried.store.begin().unwrap();
        push_once(&tried.store, 9, Some(&order));
        tried.store.push(1u64, &[f64::NAN]).unwrap();
        if flag == NonFinite::Skip {
            assert_eq!(tried.store.commit().unwrap(), Commit::Skipped);
        } else {
            let text = refused(tried.store.commit(), InvalidArgument);
            assert!(text.contains("commit: key 1: the gradient is not finite"), "{text}");
        }
        assert_eq!(
            tried.store.last_norm().unwrap().skips,
            skips + u64::from(flag == NonFinite::Skip)
        );
        assert!(tried.everything() == before, "{flag:?}");
    }
    // Small ones are kept, and keys that are replaced are not measured.
    tried.store.init(20u64, &[0.0f32]).unwrap();
    tried.store.set_optimizer_for(&[20u64.into()], "none", "").unwrap();
    tried.store.begin().unwrap();
    tried.store.push(1u64, &[0.5f64]).unwrap();
    tried.store.push(20u64, &[1e9f32]).unwrap();
    assert_eq!(tried.store.commit().unwrap(), Commit::Kept);
    assert_eq!(tried.store.last_norm().unwrap().norm, 0.0625);
    assert_eq!(pulled(&tried.store, 20u64, 1), [1e9]);
}

#[test]
fn a_gradient_that_comes_with_a_weight_is_measured_as_its_mean() {
    let store = open(&[]);
    store.init(1u64, &[0.0f32, 0.0]).unwrap();
    store.set_optimizer("sgd", "learning_rate=1").unwrap();
    store.set_clipping(4.0, NonFinite::Skip).unwrap();
    store.set_weight(2.0).unwrap();
    let weight = || store.last_round(1u64).unwrap().total_weight;
    for _ in 0..2 {
        store.begin().unwrap();
        store.push(1u64, &[6.0f32, 8.0]).unwrap();
        assert_eq!(weight(), 2.0);
        assert_eq!(store.commit().unwrap(), Commit::Exceeded);
        assert_eq!((store.last_norm().unwrap().norm, weight()), (5.0, 0.0));
    }
    store.begin().unwrap();
    store.push(1u64, &[3.0f32, 4.0]).unwrap();
    assert_eq!(store.commit().unwrap(), Commit::Kept);
    assert_eq!(pulled(&store, 1u64, 2), [-1.5, -2.0]);
}

#[test]
fn what_cannot_be_taken_back_is_refused() {
    let folder = Folder::new("transactions-refused");
    let path = folder.file("saved");
    let store = open(&[]);
    store.init(1u64, &[1.0f32]).unwrap();
    store.save(&path).unwrap();
    for text in
        [refused(store.commit(), InvalidArgument), refused(store.rollback(), InvalidArgument)]
    {
        assert!(text.contains("no transaction has begun"), "{text}");
    }
    store.begin().unwrap();
    store.push(1u64, &[2.0f32]).unwrap();
    for text in [
        refused(store.begin(), InvalidArgument),
        refused(store.set_optimizer("sgd", ""), InvalidArgument),
        refused(store.set_optimizer_for(&[1u64.into()], "sgd", ""), InvalidArgument),
        refused(store.set_updater(double), InvalidArgument),
        refused(store.clear_updater(), InvalidArgument),
        refused(store.set_compression("2bit", ""), InvalidArgument),
        refused(store.set_clipping(1.0, NonFinite::Skip), InvalidArgument),
        refused(store.load(&path), InvalidArgument),
    ] {
        assert!(text.contains("a transaction has begun"), "{text}");
    }
    assert_eq!(pulled(&store, 1u64, 1), [2.0]);
    store.rollback().unwrap();
    assert_eq!(pulled(&store, 1u64, 1), [1.0]);
    store.set_compression("2bit", "").unwrap();
    let text = refused(store.begin(), Unsupported);
    assert!(text.contains("set_compression with none"), "{text}");
    store.set_compression("none", "").unwrap();
    // Hyperparameters may change, and stay.
    store.set_optimizer("sgd", "learning_rate=1").unwrap();
    store.begin().unwrap();
    store.push(1u64, &[1.0f32]).unwrap();
    store.set_hyperparameter("learning_rate", 0.5).unwrap();
    store.rollback().unwrap();
    store.push(1u64, &[1.0f32]).unwrap();
    assert_eq!(pulled(&store, 1u64, 1), [0.5]);
}

#[test]
fn the_end_of_a_transaction_waits_for_pushes_on_their_way() {
    let store = Arc::new(open(&[("timeout_ms", "300"), ("threads", "2")]));
    store.init(1u64, &[1.0f32]).unwrap();
    store.init(2u64, &[1.0f32]).unwrap();
    let (entered, has_entered) = channel();
    let (leave, may_leave) = channel::<()>();
    let (entered, may_leave) = (Mutex::new(entered), Mutex::new(may_leave));
    store
        .set_updater(move |_, sum, stored| {
            entered.lock().unwrap().send(()).unwrap();
            may_leave.lock().unwrap().recv().unwrap();
            stored.as_mut_slice::<f32>().unwrap()[0] = sum.as_slice::<f32>().unwrap()[0];
            Ok(())
        })
        .unwrap();
    store.begin().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| store.push(1u64, &[5.0f32]).unwrap());
        has_entered.recv().unwrap();
        for text in [refused(store.commit(), Timeout), refused(store.rollback(), Timeout)] {
            assert!(text.contains("a push of the transaction has not ended"), "{text}");
        }
        leave.send(()).unwrap();
    });
    let value = [6.0f32];
    store
        .scope(Duration::from_secs(60), |scope: &Scope<'_, '_>| {
            let pushed = scope.push_list(&[2u64.into()], &[Tensor::from(&value)], 0);
            has_entered.recv().unwrap();
            refused(store.commit(), Timeout);
            leave.send(()).unwrap();
            pushed
        })
        .unwrap();
    assert_eq!((pulled(&store, 1u64, 1), pulled(&store, 2u64, 1)), (vec![5.0], vec![6.0]));
    store.rollback().unwrap();
    assert_eq!((pulled(&store, 1u64, 1), pulled(&store, 2u64, 1)), (vec![1.0], vec![1.0]));
    store.close(Deadline::after(Duration::from_secs(60))).unwrap();
}

/// Threads that push all the time, while another one ends transactions: a push is kept or taken back as a whole.
#[test]
fn pushes_of_other_threads_are_within_a_transaction_or_outside() {
    const THREADS: u64 = 3;
    const PUSHES: u64 = 2000;
    for rolls_back in [false, true] {
        let store = open(&[("threads", "2")]);
        (0..THREADS).for_each(|key| store.init(key, &[0.0f32; 700]).unwrap());
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        let is_over = AtomicBool::new(false);
        let ends = std::thread::scope(|scope| {
            let push = |key| {
                let store = &store;
                move || (0..PUSHES).for_each(|_| store.push(key, &[-1.0f32; 700]).unwrap())
            };
            let pushers: Vec<_> = (0..THREADS).map(|key| scope.spawn(push(key))).collect();
            let ender = scope.spawn(|| {
                let mut ends = 0;
                while !is_over.load(Ordering::SeqCst) {
                    store.begin().unwrap();
                    std::thread::yield_now();
                    if rolls_back && ends % 2 == 0 {
                        store.rollback().unwrap();
                    } else {
                        assert_eq!(store.commit().unwrap(), Commit::Kept);
                    }
                    ends += 1;
                }
                ends
            });
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
            is_over.store(true, Ordering::SeqCst);
            ender.join().unwrap()
        });
        assert!(ends > 0);
        for key in 0..THREADS {
            let count = store.last_round(key).unwrap().round;
            assert!(count <= PUSHES && (rolls_back || count == PUSHES), "{count}");
            assert!(pulled(&store, key, 700).iter().all(|&it| it == count as f32), "{count}");
        }
    }
}
