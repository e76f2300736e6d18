//! Bound lists through the Rust API: the bits of list calls, and what ends a list.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "small numbers are converted, and exact bits compared"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::sync::Barrier;

use kvstore::{Config, DType, ErrorKind, Key, Store, Tensor, TensorMut};
use kvstore_protocol::testing::Random;
use ndarray::Array2;

fn open(kind: &str) -> Store {
    Store::open(kind, &Config::new()).unwrap()
}

/// Arrays of some keys, which may stand there several times.
struct Case {
    keys: Vec<Key>,
    values: Vec<Vec<f32>>,
    outs: Vec<Vec<f32>>,
}

impl Case {
    /// Keys of names and integers in an order without pattern.
    fn new(random: &mut Random, store: &Store) -> Self {
        let mut pairs = Vec::new();
        for index in 0..=random.below(60) {
            let name = || store.intern(&format!("w{index}")).unwrap();
            let key = if random.below(2) == 0 { Key::from(index) } else { name() };
            let len = [0, 1, 37, 64, 4000][random.below(5) as usize];
            let value = vec![index as f32; len];
            store.init(key, &value).unwrap();
            pairs.extend((0..=random.below(4)).map(|_| (key, value.clone())));
        }
        random.shuffle(&mut pairs);
        let (keys, values): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        Self { keys, outs: values.clone(), values }
    }

    fn renew(&mut self, random: &mut Random) {
        for number in self.values.iter_mut().flatten() {
            *number = random.below(1 << 24) as f32 / 311.0;
        }
    }
}

fn muts(arrays: &mut [Vec<f32>]) -> Vec<TensorMut<'_>> {
    arrays.iter_mut().map(TensorMut::from).collect()
}

#[test]
fn bound_lists_have_the_bits_of_list_calls() {
    let seed = std::env::var("KV_TEST_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
    for seed in seed..seed + 20 {
        println!("KV_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let kind = if seed % 2 == 0 { "local" } else { "device" };
        let stores = [open(kind), open(kind)];
        let mut cases = [0, 1].map(|at| Case::new(&mut Random::new(seed + 1000), &stores[at]));
        for step in 0..8 {
            if step == 4 {
                stores.iter().for_each(|store| {
                    store.set_optimizer("adam", "learning_rate=0.1").unwrap();
                });
            }
            let mut twin = Random::new(random.next());
            cases[0].renew(&mut twin.clone());
            cases[1].renew(&mut twin);
            let call = random.below(3);
            let [bound, lists] = &mut cases;
            // A list is bound in the middle of the calls, too.
            let Case { keys, values, outs } = bound;
            let mut list = stores[0].bind(keys, muts(values), keys, muts(outs)).unwrap();
            let Case { keys, values, outs } = lists;
            let values: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
            let mut outs = muts(outs);
            for _ in 0..2 {
                match call {
                    0 => {
                        list.push().unwrap();
                        stores[1].push_list(keys, &values).unwrap();
                    }
                    1 => {
                        list.pull().unwrap();
                        stores[1].pull_list(keys, &mut outs).unwrap();
                    }
                    _ => {
                        list.pushpull().unwrap();
                        stores[1].pushpull_list(keys, &values, keys, &mut outs).unwrap();
                    }
                }
            }
            drop(list);
            assert_eq!(cases[0].outs, cases[1].outs, "seed {seed}, step {step}");
        }
        for &key in &cases[0].keys {
            assert_eq!(stores[0].digest(&[key]).unwrap(), stores[1].digest(&[key]).unwrap());
        }
    }
}

#[test]
fn values_and_outs_are_reached_through_the_list() {
    let store = open("local");
    store.init(1u64, &[0.0f32; 3]).unwrap();
    let (mut value, mut out) = ([1.0f32, 2.0, 3.0], [0.0f32; 3]);
    let mut list = store
        .bind(&[1u64.into()], vec![(&mut value).into()], &[1u64.into()], vec![(&mut out).into()])
        .unwrap();
    for step in 0..3 {
        list.value_mut::<f32>(0).unwrap()[1] = step as f32;
        assert_eq!(list.value_mut::<i32>(0), None);
        assert_eq!(list.value_mut::<f32>(1), None);
        list.pushpull().unwrap();
        assert_eq!(list.out::<f32>(0).unwrap(), [1.0, step as f32, 3.0]);
    }
    assert!(format!("{list:?}").contains("BoundList"));
    drop(list);
    assert_eq!(out, [1.0, 2.0, 3.0]);
}

#[test]
fn arrays_of_any_layout_and_dtype_are_bound() {
    let store = open("local");
    store.init(1u64, &Array2::<f32>::zeros((3, 4))).unwrap();
    let mut value = Array2::from_shape_fn((4, 3), |(row, column)| (row * 3 + column) as f32);
    let mut turned = value.view_mut().reversed_axes();
    let mut out = Array2::<f64>::zeros((3, 4));
    let mut list = store
        .bind(&[1u64.into()], vec![(&mut turned).into()], &[1u64.into()], vec![(&mut out).into()])
        .unwrap();
    list.pushpull().unwrap();
    list.pull().unwrap();
    assert_eq!(list.value_mut::<f32>(0), None);
    drop(list);
    assert_eq!(out, value.t().mapv(f64::from));
}

#[test]
fn what_a_list_lacks_is_refused() {
    let store = open("local");
    store.init(1u64, &[0.0f32; 3]).unwrap();
    let keys = [Key::from(1u64)];
    let kind = |result: kvstore::Result<()>| result.unwrap_err().kind();
    let (mut value, mut out, mut short) = ([1.0f32; 3], [0.0f32; 3], [0.0f32; 2]);
    let mut pushes = store.bind(&keys, vec![(&mut value).into()], &[], Vec::new()).unwrap();
    assert_eq!(kind(pushes.pull()), ErrorKind::InvalidArgument);
    pushes.push().unwrap();
    let mut pulls = store.bind(&[], Vec::new(), &keys, vec![(&mut out).into()]).unwrap();
    assert_eq!(kind(pulls.pushpull()), ErrorKind::InvalidArgument);
    pulls.pull().unwrap();
    assert_eq!(pulls.out::<f32>(0).unwrap(), [1.0; 3]);
    let bound = store.bind(&keys, vec![(&mut short).into()], &[], Vec::new());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::ShapeMismatch);
    let bound = store.bind(&[keys[0]; 2], vec![(&mut short).into()], &[], Vec::new());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_key_that_is_removed_or_another_one_is_an_error_with_its_name() {
    let store = open("local");
    let keys = [store.intern("first").unwrap(), store.intern("second").unwrap()];
    let first = [0.0f32; 2];
    store.init_list(&keys, &[(&first).into(), (&first).into()]).unwrap();
    let (mut one, mut two) = ([5.0f32; 2], [6.0f32; 2]);
    let mut list =
        store.bind(&keys, vec![(&mut one).into(), (&mut two).into()], &[], Vec::new()).unwrap();
    store.remove(&keys[1..]).unwrap();
    let error = list.push().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyNotFound);
    assert!(error.to_string().contains("second"), "{error}");
    store.init(keys[1], &[0.0f32; 3]).unwrap();
    let error = list.push().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShapeMismatch);
    assert!(error.to_string().contains("second"), "{error}");
    let mut got = [1.0f32; 2];
    store.pull(keys[0], &mut got).unwrap();
    assert_eq!(got, [0.0; 2], "nothing has changed");
    store.close(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(list.push().unwrap_err().kind(), ErrorKind::Closed);
}

/// Keys are removed and made again while bound lists are in use: a call succeeds or says so.
#[test]
fn lists_beside_removals() {
    let store = open("local");
    let keys: Vec<Key> = (0..50u64).map(Key::from).collect();
    let first = [1i64; 8];
    let firsts: Vec<Tensor<'_>> = keys.iter().map(|_| Tensor::from(&first)).collect();
    store.init_list(&keys, &firsts).unwrap();
    // No key is removed before both lists are bound.
    let bound = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut values = vec![vec![1i64; 8]; keys.len()];
                let mut outs = values.clone();
                let mut list = store
                    .bind(
                        &keys,
                        values.iter_mut().map(TensorMut::from).collect(),
                        &keys,
                        outs.iter_mut().map(TensorMut::from).collect(),
                    )
                    .unwrap();
                bound.wait();
                for _ in 0..500 {
                    if let Err(error) = list.pushpull() {
                        let kinds = [ErrorKind::KeyNotFound, ErrorKind::DtypeMismatch];
                        assert!(kinds.contains(&error.kind()), "{error}");
                    }
                }
            });
        }
        scope.spawn(|| {
            let last = keys[keys.len() - 1];
            bound.wait();
            for round in 0..200 {
                store.remove(&[last]).unwrap();
                if round % 2 == 0 {
                    store.init(last, &[1.0f32; 8]).unwrap();
                } else {
                    store.init(last, &first).unwrap();
                }
            }
        });
    });
    assert_eq!(store.key_info(keys[0]).unwrap().dtype, DType::I64);
}
