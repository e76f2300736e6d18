//! Rules of single keys: each key of such a store has the bits of a store in which its rule is the only one.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "small numbers")]
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::path::PathBuf;

use kvstore::ErrorKind::DtypeMismatch;
use kvstore::{Config, Key, Store, bf16};

/// Longer than what short calls take, and a small one.
const COUNTS: [usize; 2] = [40_003, 5];
const RULES: [(&str, &str); 5] = [
    ("sgd", "learning_rate=0.1,momentum=0.9,wd=0.01"),
    ("adam", "learning_rate=0.05"),
    ("lamb", "learning_rate=0.05,wd=0.1"),
    ("adagrad", "learning_rate=0.2,lazy_update=true"),
    ("none", ""),
];

fn open() -> Store {
    Store::open("local", &Config::new()).unwrap()
}

fn number(key: u64, round: usize, at: usize) -> f32 {
    ((at * 7 + round * 3 + key as usize * 5) as f32 * 0.13).sin()
}

fn gradient(key: u64, round: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| number(key, round, at)).collect()
}

fn bits(store: &Store, key: u64, count: usize) -> Vec<u32> {
    let mut out = vec![0.0f32; count];
    store.pull(key, &mut out).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

/// The store with this rule alone.
fn of_one(rule: &str, params: &str) -> Store {
    let store = open();
    if rule != "none" {
        store.set_optimizer(rule, params).unwrap();
    }
    store
}

/// The key of a rule with this many elements.
fn key_of(rule: usize, size: usize) -> u64 {
    (rule * COUNTS.len() + size) as u64
}

fn keys() -> impl Iterator<Item = (u64, usize, usize)> {
    let of_rule =
        |rule| (0..COUNTS.len()).map(move |size| (key_of(rule, size), rule, COUNTS[size]));
    (0..RULES.len()).flat_map(of_rule)
}

fn init(store: &Store) {
    for (key, _, count) in keys() {
        store.init(key, &gradient(key, 99, count)).unwrap();
    }
}

fn with_rules() -> Store {
    let store = open();
    init(&store);
    store.set_optimizer("nag", "learning_rate=0.3,momentum=0.5").unwrap();
    for (rule, (name, params)) in RULES.iter().enumerate() {
        let own: Vec<Key> = (0..COUNTS.len()).map(|size| key_of(rule, size).into()).collect();
        store.set_optimizer_for(&own, name, params).unwrap();
    }
    store
}

/// A step of all keys in one call, and of some in calls of their own.
fn step(store: &Store, round: usize) {
    let values: Vec<Vec<f32>> = keys().map(|(key, _, count)| gradient(key, round, count)).collect();
    if round.is_multiple_of(2) {
        let all: Vec<Key> = keys().map(|(key, ..)| key.into()).collect();
        let tensors: Vec<_> = values.iter().map(kvstore::Tensor::from).collect();
        store.push_list(&all, &tensors).unwrap();
    } else {
        for ((key, ..), value) in keys().zip(&values) {
            store.push(key, value).unwrap();
        }
    }
}

fn check(store: &Store, rounds: usize) {
    for (index, (rule, params)) in RULES.into_iter().enumerate() {
        let alone = of_one(rule, params);
        init(&alone);
        (0..rounds).for_each(|round| step(&alone, round));
        for (key, _, count) in keys().filter(|(_, of, _)| *of == index) {
            assert!(bits(store, key, count) == bits(&alone, key, count), "{rule}, key {key}");
        }
    }
}

#[test]
fn each_key_has_the_bits_of_its_rule_alone() {
    let store = with_rules();
    (0..4).for_each(|round| step(&store, round));
    check(&store, 4);
}

#[test]
fn with_an_updater_for_the_others_each_key_has_them_too() {
    let store = with_rules();
    store.init(1_000u64, &[1.0f32]).unwrap();
    let add = |_: Key, input: &kvstore::Tensor<'_>, stored: &mut kvstore::TensorMut<'_>| {
        let sum = stored.as_slice::<f32>().unwrap()[0] + input.as_slice::<f32>().unwrap()[0];
        stored.as_mut_slice::<f32>().unwrap()[0] = sum;
        Ok(())
    };
    store.set_updater(add).unwrap();
    (0..4).for_each(|round| step(&store, round));
    check(&store, 4);
    store.push(1_000u64, &[2.0f32]).unwrap();
    assert_eq!(bits(&store, 1_000, 1), [3.0f32.to_bits()]);
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvstore-key-rules-{}-{name}", std::process::id()))
}

#[test]
fn a_file_has_the_rules_and_training_goes_on_from_it() {
    let (first, second) = (file("a"), file("b"));
    let store = with_rules();
    store.set_key_hyperparameter(key_of(1, 0), "lr_mult", 0.5).unwrap();
    store.set_key_hyperparameter(key_of(0, 1), "learning_rate", 0.25).unwrap();
    (0..3).for_each(|round| step(&store, round));
    store.save(&first).unwrap();
    // Another rule, and one of a key that the file gives another one.
    let other = of_one("signum", "");
    other.set_optimizer_for(&[key_of(2, 0).into(), Key::from(500u64)], "sgd", "").unwrap();
    other.load(&first).unwrap();
    for store in [&store, &other] {
        (3..6).for_each(|round| step(store, round));
    }
    for (key, _, count) in keys() {
        assert!(bits(&store, key, count) == bits(&other, key, count), "key {key}");
    }
    let digests = |store: &Store| {
        let all: Vec<Key> = keys().map(|(key, ..)| key.into()).collect();
        let digests = store.digest(&all).unwrap();
        digests.into_iter().map(|it| (it.value, it.state)).collect::<Vec<_>>()
    };
    assert_eq!(digests(&store), digests(&other));
    store.save(&first).unwrap();
    other.save(&second).unwrap();
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap());
    [first, second].iter().for_each(|file| std::fs::remove_file(file).unwrap());
}

#[test]
fn rows_and_halves_take_the_rule_of_their_key() {
    let store = open();
    let alone = of_one("adam", "multi_precision=true");
    let value: Vec<bf16> = (0..12).map(|at| bf16::from_f32(number(1, 0, at))).collect();
    store.set_optimizer_for(&[Key::from(1u64)], "adam", "multi_precision=true").unwrap();
    for store in [&store, &alone] {
        store.init(1u64, kvstore::Tensor::new(&value, &[4, 3]).unwrap()).unwrap();
        for round in 1..4 {
            let rows: Vec<bf16> = (0..6).map(|at| bf16::from_f32(number(1, round, at))).collect();
            let rows = kvstore::Tensor::new(&rows, &[2, 3]).unwrap();
            store.push_rows(1u64, &[3i64, 1], rows).unwrap();
        }
    }
    let pulled = |store: &Store| {
        let mut out = vec![bf16::ZERO; 12];
        store.pull(1u64, kvstore::TensorMut::new(&mut out, &[4, 3]).unwrap()).unwrap();
        out.into_iter().map(bf16::to_bits).collect::<Vec<_>>()
    };
    assert_eq!(pulled(&store), pulled(&alone));
}

#[test]
fn a_key_of_integers_lives_beside_an_optimizer() {
    let store = of_one("sgd", "");
    let refused = store.init(3u64, &[1i64]).unwrap_err();
    assert_eq!(refused.kind(), DtypeMismatch, "{refused}");
    store.set_optimizer_for(&[Key::from(3u64)], "none", "").unwrap();
    store.init(3u64, &[1i64]).unwrap();
    store.push(3u64, &[7i64]).unwrap();
    let mut out = [0i64];
    store.pull(3u64, &mut out).unwrap();
    assert_eq!(out, [7]);
    // As the others again, the key would be the optimizer's.
    let refused = store.set_optimizer_for(&[Key::from(3u64)], "store", "").unwrap_err();
    assert_eq!(refused.kind(), DtypeMismatch, "{refused}");
    store.push(3u64, &[8i64]).unwrap();
}
