//! Clipping by the norm of the gradients of a call: norms and steps against scalar loops, and calls that are skipped.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "small numbers are converted, and exact bits compared"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::norms::{factor, squares};
use kvstore::ErrorKind::{InvalidArgument, Unsupported};
use kvstore::{Config, Error, ErrorKind, Key, LastNorm, NonFinite, Store, Tensor, TensorMut, bf16};
use kvstore_protocol::testing::Random;

const LIMIT: Duration = Duration::from_secs(60);
const LR: f32 = 0.1;

fn open() -> Store {
    open_with(&[])
}

fn open_with(options: &[(&str, &str)]) -> Store {
    let mut config = Config::new();
    options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    Store::open("local", &config).unwrap()
}

fn refused(result: Result<(), Error>, kind: ErrorKind) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

/// A value of a key after a step of `sgd`.
fn stepped(value: f32, gradient: f32, rescale: f64) -> f32 {
    value - LR * (rescale as f32 * gradient + 0.0 * value)
}

fn pulled(store: &Store, key: Key, count: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; count];
    store.pull(key, &mut out).unwrap();
    out
}

fn norm_of(store: &Store) -> f64 {
    store.last_norm().unwrap().norm
}

/// Keys of f32 of sizes around those of blocks and pieces, in the order of the call, with their values. Some keys have
/// several.
struct Model {
    keys: Vec<(Key, Vec<f32>)>,
    pairs: Vec<(Key, Vec<f32>)>,
}

const SIZES: [usize; 9] = [0, 1, 7, 2047, 2048, 2049, 4097, 65_537, 300_001];

impl Model {
    fn new(store: &Store, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut number = || (random.below(1 << 20) as f32 - 5e5) / 3e5;
        let (mut keys, mut pairs) = (Vec::new(), Vec::new());
        for (index, size) in SIZES.into_iter().enumerate() {
            let name = || store.intern(&format!("layer{index}")).unwrap();
            let key = if index % 2 == 0 { Key::from(900 - index as u64) } else { name() };
            let mut array = || (0..size).map(|_| number()).collect::<Vec<f32>>();
            let first = array();
            store.init(key, &first).unwrap();
            keys.push((key, first));
            pairs.extend((0..=index % 3).map(|_| (key, array())));
        }
        Self { keys, pairs }
    }

    fn push(&self, store: &Store) {
        let keys: Vec<Key> = self.pairs.iter().map(|(key, _)| *key).collect();
        let values: Vec<Tensor<'_>> = self.pairs.iter().map(|(_, it)| Tensor::from(it)).collect();
        store.push_list(&keys, &values).unwrap();
    }

    /// The sums of the values of each key.
    fn gradient(&self, key: Key) -> Vec<f32> {
        let mut values = self.pairs.iter().filter(|(of, _)| *of == key).map(|(_, value)| value);
        let first = values.next().unwrap().clone();
        values.fold(first, |sum, value| sum.iter().zip(value).map(|(a, b)| a + b).collect())
    }

    /// The norm: integers in ascending order, then names in the order of their init.
    fn norm(&self, rescale: f64) -> f64 {
        let mut integers: Vec<Key> =
            self.keys.iter().map(|(key, _)| *key).filter(|key| !key.is_name()).collect();
        integers.sort();
        let names = self.keys.iter().map(|(key, _)| *key).filter(|key| key.is_name());
        let sum = integers.into_iter().chain(names).fold(0.0, |all, key| {
            let gradient: Vec<f64> = self.gradient(key).into_iter().map(f64::from).collect();
            all + rescale * rescale * squares(&gradient)
        });
        sum.sqrt()
    }

    fn bits(&self, store: &Store) -> Vec<Vec<u32>> {
        let of = |(key, first): &(Key, Vec<f32>)| {
            pulled(store, *key, first.len()).into_iter().map(f32::to_bits).collect()
        };
        self.keys.iter().map(of).collect()
    }

    /// The values after a step whose gradients are multiplied by this number.
    fn stepped(&self, rescale: f64) -> Vec<Vec<u32>> {
        let of = |(key, first): &(Key, Vec<f32>)| {
            let pairs = first.iter().zip(self.gradient(*key));
            pairs.map(|(value, it)| stepped(*value, it, rescale).to_bits()).collect()
        };
        self.keys.iter().map(of).collect()
    }
}

#[test]
fn norms_and_steps_are_those_of_scalar_loops_on_any_threads_and_instruction_set() {
    for rescale in [1.0, 0.125, -3.7] {
        let params = format!("learning_rate={LR},rescale_grad={rescale}");
        let mut builds = 0;
        for isa in ["scalar", "avx2", "avx512", "neon"] {
            for threads in ["1", "2", "4"] {
                let config = Config::new().with("isa", isa).unwrap();
                let config = config.with("threads", threads).unwrap();
                let Ok(store) = Store::open("local", &config) else { continue };
                let mut model = Model::new(&store, 7);
                store.set_optimizer("sgd", &params).unwrap();
                store.set_clipping(2.5, NonFinite::Skip).unwrap();
                model.push(&store);
                let norm = model.norm(rescale);
                assert_eq!(norm_of(&store).to_bits(), norm.to_bits(), "{isa} x {threads}");
                let by = rescale * factor(2.5, norm);
                assert!(by.abs() < 0.1, "the norm is clipped");
                assert_eq!(model.bits(&store), model.stepped(by), "{isa} x {threads}");
                // The order of the keys in a call changes no bit, that of the values of a key may.
                model.pairs.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
                let again = Store::open("local", &config).unwrap();
                let _ = Model::new(&again, 7);
                again.set_optimizer("sgd", &params).unwrap();
                again.set_clipping(2.5, NonFinite::Skip).unwrap();
                model.push(&again);
                assert_eq!(norm_of(&again).to_bits(), norm.to_bits());
                assert_eq!(model.bits(&again), model.bits(&store));
                builds += 1;
            }
        }
        assert!(builds >= 3, "the scalar build is everywhere");
    }
}

#[test]
fn gradients_of_every_dtype_and_layout_are_measured_as_rules_get_them() {
    let wide: Vec<f64> = (0..5000).map(|at| (f64::from(at) * 0.37).sin() * 3.0).collect();
    let (f32s, bf16s): (Vec<f32>, Vec<bf16>) =
        wide.iter().map(|it| (*it as f32, bf16::from_f64(*it))).unzip();
    for divisor in [None, Some(3.0)] {
        let store = open();
        store.init(1u64, &vec![0.0f64; 5000]).unwrap();
        store.init(2u64, &vec![bf16::ZERO; 5000]).unwrap();
        store.init(3u64, &vec![0.0f32; 5000]).unwrap();
        store.set_optimizer("test", "").unwrap();
        store.set_clipping(f64::INFINITY, NonFinite::Skip).unwrap();
        if let Some(weight) = divisor {
            store.set_weight(weight).unwrap();
        }
        // Two values of bf16, one of which is converted; one of f32 that is converted to f64; one of bf16 to f32.
        let keys = [2u64, 1, 2, 3].map(Key::from);
        let values =
            [Tensor::from(&bf16s), (&f32s).into(), Tensor::from(&f32s), Tensor::from(&bf16s)];
        store.push_list(&keys, &values).unwrap();
        let by = divisor.unwrap_or(1.0);
        let of_f64: Vec<f64> = f32s.iter().map(|it| f64::from(*it) / by).collect();
        let of_bf16 = bf16s.iter().map(|it| {
            let sum = it.to_f32() + it.to_f32();
            f64::from(bf16::from_f32(sum / by as f32).to_f32())
        });
        let of_bf16: Vec<f64> = of_bf16.collect();
        let of_f32: Vec<f64> = bf16s.iter().map(|it| f64::from(it.to_f32() / by as f32)).collect();
        let sum = squares(&of_f64) + squares(&of_bf16) + squares(&of_f32);
        assert_eq!(norm_of(&store).to_bits(), sum.sqrt().to_bits(), "{divisor:?}");
        let mut out = vec![0.0f64; 5000];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, of_f64, "an infinite norm scales nothing");
    }
}

#[test]
fn strided_values_and_trees_are_measured_too() {
    let grid = ndarray::Array2::from_shape_fn((60, 70), |(a, b)| ((a * 70 + b) as f32).sin());
    let across = grid.t();
    let store = open_with(&[("sum_order", "tree")]);
    store.init(1u64, &ndarray::Array2::<f32>::zeros((70, 60))).unwrap();
    store.set_optimizer("sgd", "").unwrap();
    store.set_clipping(1.0, NonFinite::Skip).unwrap();
    let keys = [Key::from(1u64); 5];
    let values = [(); 5].map(|()| Tensor::from(&across));
    store.push_list(&keys, &values).unwrap();
    let sums = across.iter().map(|it| f64::from(((it + it) + (it + it)) + it));
    assert_eq!(norm_of(&store).to_bits(), squares(&sums.collect::<Vec<_>>()).sqrt().to_bits());
}

#[test]
fn a_step_below_the_norm_has_the_bits_of_one_without_clipping() {
    let [clips, plain] = [open(), open()].map(|store| {
        store.set_optimizer("adam", "learning_rate=0.01").unwrap();
        store
    });
    let (model, same) = (Model::new(&clips, 3), Model::new(&plain, 3));
    clips.set_clipping(1e6, NonFinite::Skip).unwrap();
    for _ in 0..3 {
        model.push(&clips);
        same.push(&plain);
    }
    assert_eq!(model.bits(&clips), same.bits(&plain));
    // Off again: nothing is measured.
    let norm = clips.last_norm().unwrap();
    clips.set_clipping(0.0, NonFinite::Skip).unwrap();
    clips.push(model.keys[1].0, &[1e30f32]).unwrap();
    assert_eq!(clips.last_norm().unwrap(), norm);
}

/// The rules, each of which gets the scaled gradient where it would get the gradient.
#[test]
fn every_rule_makes_the_step_of_the_scaled_gradient() {
    let value: Vec<f32> = (0..3000).map(|at| (at as f32).cos()).collect();
    let gradient: Vec<f32> = (0..3000).map(|at| (at as f32 * 0.7).sin()).collect();
    let rules = "sgd momentum nag adam adamw adamax nadam adagrad groupadagrad rmsprop adadelta ftrl ftml signum \
                 lamb lars dcasgd lion test";
    for rule in rules.split(' ') {
        let [clips, plain] = [open(), open()];
        for store in [&clips, &plain] {
            store.init(1u64, Tensor::new(&value, &[30, 100]).unwrap()).unwrap();
            store.set_optimizer(rule, "clip_gradient=0.01,wd=0.1").unwrap();
        }
        clips.set_clipping(1.0, NonFinite::Skip).unwrap();
        let mut last = 0.0;
        for round in 1..4 {
            let gradient: Vec<f32> = gradient.iter().map(|it| it * round as f32).collect();
            let tensor = Tensor::new(&gradient, &[30, 100]).unwrap();
            clips.push(1u64, tensor).unwrap();
            let wide: Vec<f64> = gradient.iter().map(|it| f64::from(*it)).collect();
            let by = factor(1.0, squares(&wide).sqrt());
            assert!(by < 0.1 && by != last);
            last = by;
            plain.set_hyperparameter("rescale_grad", by).unwrap();
            plain.push(1u64, tensor).unwrap();
        }
        let all = [&clips, &plain].map(|store| {
            let mut out = vec![0.0f32; 3000];
            store.pull(1u64, TensorMut::new(&mut out, &[30, 100]).unwrap()).unwrap();
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert!(all[0] == all[1], "{rule}");
    }
}

#[test]
fn updaters_get_the_scaled_sum() {
    let store = open();
    store.init(1u64, &[0.0f32; 3]).unwrap();
    store.init(2u64, &[0i32; 1]).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    store
        .set_updater(move |_, sum, _| {
            notes.lock().unwrap().extend(sum.as_slice::<f32>().into_iter().flatten().copied());
            notes
                .lock()
                .unwrap()
                .extend(sum.as_slice::<i32>().into_iter().flatten().map(|it| *it as f32));
            Ok(())
        })
        .unwrap();
    store.set_clipping(1.0, NonFinite::Skip).unwrap();
    let keys = [1u64, 2, 1].map(Key::from);
    let (one, two) = ([1.0f32, 2.0, -4.0], [2.0f32, 4.0, 0.0]);
    let values = [Tensor::from(&one), Tensor::from(&[1000]), Tensor::from(&two)];
    store.push_list(&keys, &values).unwrap();
    let norm = (9.0f64 + 36.0 + 16.0).sqrt();
    assert_eq!(norm_of(&store), norm, "integers are no gradients");
    let divisor = (1.0 / factor(1.0, norm)) as f32;
    let found = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(found, [3.0 / divisor, 6.0 / divisor, -4.0 / divisor, 1000.0]);
    // With a weight the mean is measured and scaled; the weight of the round stays.
    store.remove(&[Key::from(2u64)]).unwrap();
    store.set_weight(4.0).unwrap();
    store.push(1u64, &[8.0f32, 0.0, 0.0]).unwrap();
    assert_eq!(norm_of(&store), 2.0);
    assert_eq!(seen.lock().unwrap()[0], 8.0 / (4.0 / factor(1.0, 2.0)) as f32);
    assert_eq!(store.last_round(1u64).unwrap().total_weight, 4.0);
}

#[test]
fn keys_without_a_rule_are_neither_counted_nor_scaled() {
    let store = open();
    store.init(1u64, &[0.0f32]).unwrap();
    store.init(2u64, &[7i64]).unwrap();
    store.init(3u64, &[0.0f32]).unwrap();
    store.set_clipping(1.0, NonFinite::Skip).unwrap();
    store.push(1u64, &[f32::NAN]).unwrap();
    assert!(norm_of(&store).is_nan() && store.last_norm().unwrap().skips == 0);
    assert!(pulled(&store, 1u64.into(), 1)[0].is_nan(), "it replaces the value");
    store.set_optimizer_for(&[3u64.into()], "sgd", "learning_rate=1").unwrap();
    let keys = [1u64, 2, 3].map(Key::from);
    let values = [Tensor::from(&[100f32]), Tensor::from(&[5i64]), Tensor::from(&[4f32])];
    store.push_list(&keys, &values).unwrap();
    assert_eq!(store.last_norm().unwrap(), LastNorm { norm: 4.0, skips: 0 });
    assert_eq!(pulled(&store, keys[0], 1), [100.0]);
    assert_eq!(pulled(&store, keys[2], 1), [-(factor(1.0, 4.0) as f32 * 4.0)]);
    store.push(2u64, &[6i64]).unwrap();
    assert_eq!(norm_of(&store), 4.0, "a call without gradients is not measured");
}

/// A push of both keys, the second of which may be of a number that is not finite.
fn push_two(store: &Store, number: f32) -> Result<Vec<f32>, Error> {
    let keys = [5u64, 4].map(Key::from);
    let values = [[0.5f32, number], [0.25, 0.5]];
    let mut outs = [[-1.0f32; 2]; 2];
    let [first, second] = &mut outs;
    store.pushpull_list(
        &keys,
        &values.each_ref().map(Tensor::from),
        &keys,
        &mut [TensorMut::from(first), TensorMut::from(second)],
    )?;
    Ok(outs.concat())
}

#[test]
fn a_norm_that_is_not_finite_changes_nothing_and_is_counted() {
    for rule in ["adam", "sgd", "lamb"] {
        let [skips, plain] = [open(), open()].map(|store| {
            store.init(4u64, &[1.0f32, 2.0]).unwrap();
            store.init(5u64, &[3.0f32, 4.0]).unwrap();
            store.set_optimizer(rule, "learning_rate=0.125").unwrap();
            store
        });
        skips.set_clipping(100.0, NonFinite::Skip).unwrap();
        let mut expected = vec![3.0, 4.0, 1.0, 2.0];
        for round in 0..4u64 {
            let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN][round as usize];
            assert_eq!(push_two(&skips, bad).unwrap(), expected, "outs are the unchanged values");
            let last = skips.last_norm().unwrap();
            assert!(last.skips == round + 1 && !last.norm.is_finite(), "{last:?}");
            let keys = [4u64, 5].map(Key::from);
            assert!(skips.digest(&keys).unwrap().iter().all(|digest| digest.round == round));
            expected = push_two(&skips, 0.125).unwrap();
            assert_eq!(expected, push_two(&plain, 0.125).unwrap(), "no count has advanced");
            assert_eq!(skips.digest(&keys).unwrap(), plain.digest(&keys).unwrap());
        }
    }
}

#[test]
fn a_failing_call_names_the_first_key_that_is_not_finite_and_changes_nothing() {
    let store = open();
    let [late, early] = ["late", "early"].map(|name| store.intern(name).unwrap());
    let keys = [late, Key::from(3u64), early];
    for key in [Key::from(3u64), early, late] {
        store.init(key, &[1.0f32]).unwrap();
    }
    store.set_optimizer("sgd", "learning_rate=1").unwrap();
    store.set_clipping(1.0, NonFinite::Fail).unwrap();
    let push = |numbers: [f32; 3]| {
        let numbers = numbers.map(|number| [number]);
        store.push_list(&keys, &numbers.each_ref().map(Tensor::from))
    };
    let text = refused(push([f32::NAN, 1.0, f32::INFINITY]), InvalidArgument);
    assert!(text.contains("push") && text.contains("early"), "in processing order: {text}");
    let text = refused(push([f32::NAN, f32::NAN, 1.0]), InvalidArgument);
    assert!(text.contains("key 3") && text.contains("NaN"), "{text}");
    assert_eq!(store.last_norm().unwrap().skips, 0, "it is no skip");
    assert!(norm_of(&store).is_nan());
    for key in keys {
        assert_eq!(pulled(&store, key, 1), [1.0]);
    }
    push([0.0, 0.5, 0.0]).unwrap();
    assert_eq!((norm_of(&store), pulled(&store, keys[1], 1)), (0.5, vec![0.5]));
}

#[test]
fn numbers_whose_squares_are_beyond_f32_are_clipped() {
    let store = open();
    store.init(1u64, &[0.0f32; 2]).unwrap();
    store.init(2u64, &[0.0f64]).unwrap();
    store.set_optimizer("sgd", "learning_rate=1").unwrap();
    store.set_clipping(1.0, NonFinite::Skip).unwrap();
    store.push(1u64, &[3e38f32, 0.0]).unwrap();
    assert!((pulled(&store, 1u64.into(), 2)[0] + 1.0).abs() < 1e-6);
    store.push(2u64, &[1e200f64]).unwrap();
    assert_eq!(store.last_norm().unwrap(), LastNorm { norm: f64::INFINITY, skips: 1 });
}

#[test]
fn tickets_keep_the_setting_of_their_call() {
    let store = open();
    let (one, two) = ([3.0f32, 4.0], [f32::NAN, 0.0]);
    store.init(1u64, &[0.0f32; 2]).unwrap();
    store.set_optimizer("test", "").unwrap();
    let gate = Arc::new(std::sync::Barrier::new(2));
    let held = Arc::clone(&gate);
    // An operation on the key that ends when all others have been queued.
    store.init(9u64, &[0.0f32]).unwrap();
    store
        .set_updater(move |_, _, _| {
            held.wait();
            Ok(())
        })
        .unwrap();
    let keys = [1u64.into()];
    store
        .scope(LIMIT, |scope| {
            let both = [1u64, 9].map(Key::from);
            scope.push_list(&both[1..], &[Tensor::from(&[1f32])], 0)?;
            scope.push_list(&both[1..], &[Tensor::from(&[1f32])], 0)?;
            store.set_optimizer("test", "")?;
            store.set_clipping(2.5, NonFinite::Skip)?;
            scope.push_list(&keys, &[Tensor::from(&one)], 0)?;
            scope.push_list(&keys, &[Tensor::from(&two)], 0)?;
            store.set_clipping(0.0, NonFinite::Skip)?;
            scope.push_list(&keys, &[Tensor::from(&one)], 0)?;
            gate.wait();
            gate.wait();
            Ok(())
        })
        .unwrap();
    let by = factor(2.5, 5.0) as f32;
    assert_eq!(pulled(&store, keys[0], 2), [3.0 * by + 3.0, 4.0 * by + 4.0]);
    assert_eq!(store.last_norm().unwrap().skips, 1);
}

#[test]
fn a_failing_call_with_a_ticket_fails_its_wait() {
    let store = open();
    store.init(1u64, &[1.0f32]).unwrap();
    store.set_optimizer("sgd", "").unwrap();
    store.set_clipping(1.0, NonFinite::Fail).unwrap();
    let value = [f32::INFINITY];
    let result =
        store.scope(LIMIT, |scope| scope.push_list(&[1u64.into()], &[Tensor::from(&value)], 0));
    assert!(refused(result, InvalidArgument).contains("key 1"));
    assert_eq!(pulled(&store, 1u64.into(), 1), [1.0]);
}

#[test]
fn bound_lists_are_clipped_as_list_calls() {
    let stores = [open(), open()].map(|store| {
        store.init(1u64, &[0.0f32; 3]).unwrap();
        store.init(2u64, &[0.0f32; 1]).unwrap();
        store.set_optimizer("adam", "").unwrap();
        store
    });
    let keys = [1u64, 2].map(Key::from);
    let (mut first, mut second) = ([1.0f32, 2.0, 3.0], [4.0f32]);
    let copies = (first, second);
    let mut outs = ([9.0f32; 3], [9.0f32; 1]);
    let values = vec![TensorMut::from(&mut first), TensorMut::from(&mut second)];
    let places = vec![TensorMut::from(&mut outs.0), TensorMut::from(&mut outs.1)];
    let mut bound = stores[0].bind(&keys, values, &keys, places).unwrap();
    bound.pushpull().unwrap();
    for store in &stores {
        store.set_clipping(0.5, NonFinite::Skip).unwrap();
    }
    bound.pushpull().unwrap();
    stores[1].set_clipping(0.0, NonFinite::Skip).unwrap();
    let values = [Tensor::from(&copies.0), Tensor::from(&copies.1)];
    stores[1].push_list(&keys, &values).unwrap();
    stores[1].set_clipping(0.5, NonFinite::Skip).unwrap();
    stores[1].push_list(&keys, &values).unwrap();
    assert_eq!(norm_of(&stores[0]), 30f64.sqrt());
    assert_eq!(bound.out::<f32>(0).unwrap(), pulled(&stores[1], keys[0], 3));
    bound.value_mut::<f32>(1).unwrap()[0] = f32::NAN;
    bound.pushpull().unwrap();
    assert_eq!(stores[0].last_norm().unwrap().skips, 1);
    assert_eq!(bound.out::<f32>(0).unwrap(), pulled(&stores[1], keys[0], 3));
}

#[test]
fn threads_do_not_mix_their_norms() {
    let store = open();
    for key in 0..4u64 {
        store.init(key, &vec![0.0f32; 3000]).unwrap();
    }
    store.set_optimizer("test", "").unwrap();
    store.set_clipping(1.0, NonFinite::Skip).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let store = &store;
            scope.spawn(move || {
                // Two keys of its own; each gradient is scaled to a norm of 1, or it is skipped.
                let own = [2 * thread, 2 * thread + 1].map(Key::from);
                let size = 10f32.powi(thread as i32 * 3);
                let (good, mut bad) = (vec![size; 3000], vec![size; 3000]);
                bad[17] = f32::NAN;
                for round in 0..200 {
                    let second = if round % 4 == 3 { &bad } else { &good };
                    store.push_list(&own, &[Tensor::from(&good), Tensor::from(second)]).unwrap();
                }
            });
        }
    });
    assert_eq!(store.last_norm().unwrap().skips, 100);
    for thread in 0..2u64 {
        let size = 10f32.powi(thread as i32 * 3);
        let squares = squares(&vec![f64::from(size); 3000]);
        let by = factor(1.0, (squares + squares).sqrt()) as f32;
        let expected = (0..150).fold(0.0f32, |value, _| value + by * size);
        for key in [2 * thread, 2 * thread + 1] {
            assert!(pulled(&store, key.into(), 3000).iter().all(|it| *it == expected));
        }
    }
}

#[test]
fn what_cannot_be_clipped_is_refused_before_anything_changes() {
    let store = open();
    store.init(1u64, &ndarray::Array2::<f32>::ones((4, 2))).unwrap();
    store.init(2u64, &ndarray::Array2::<f32>::ones((4, 2))).unwrap();
    store.set_optimizer_for(&[1u64.into()], "sgd", "").unwrap();
    for bad in [-1.0, -0.5f64, f64::NAN, f64::NEG_INFINITY] {
        let text = refused(store.set_clipping(bad, NonFinite::Skip), InvalidArgument);
        assert!(text.contains("max_norm"), "{text}");
    }
    assert!(norm_of(&store).is_nan(), "nothing has been measured");
    store.set_clipping(-0.0, NonFinite::Skip).unwrap();
    store.set_clipping(1.0, NonFinite::Skip).unwrap();
    let text = refused(store.set_compression("2bit", ""), Unsupported);
    assert!(text.contains("set_clipping"), "{text}");
    let (ids, rows) = ([1i64], ndarray::Array2::<f32>::ones((1, 2)));
    let text = refused(store.push_rows(1u64, &ids, &rows), Unsupported);
    assert!(text.contains("key 1") && text.contains("set_clipping"), "{text}");
    store.push_rows(2u64, &ids, &(rows.clone() * 5.0)).unwrap();
    let queued = store.scope(LIMIT, |scope| {
        scope.push_rows_list(&[1u64.into()], &[Tensor::from(&ids)], &[Tensor::from(&rows)], 0)
    });
    refused(queued, Unsupported);
    store.set_clipping(0.0, NonFinite::Skip).unwrap();
    store.set_compression("2bit", "").unwrap();
    let text = refused(store.set_clipping(1.0, NonFinite::Skip), Unsupported);
    assert!(text.contains("2bit"), "{text}");
    store.set_compression("none", "").unwrap();
    let mut out = ndarray::Array2::<f32>::zeros((4, 2));
    store.pull(1u64, &mut out).unwrap();
    assert!(out.iter().all(|it| *it == 1.0));
    assert!(kvstore::capable("clipping"));
}

#[test]
fn a_checkpoint_has_no_clipping() {
    let folder = std::env::temp_dir().join(format!("kvstore-clipping-{}", std::process::id()));
    let [from, to] = [open(), open()];
    from.init(1u64, &[0.0f32]).unwrap();
    from.set_optimizer("test", "").unwrap();
    from.set_clipping(1.0, NonFinite::Skip).unwrap();
    from.push(1u64, &[100f32]).unwrap();
    from.save(&folder).unwrap();
    to.load(&folder).unwrap();
    std::fs::remove_file(&folder).unwrap();
    to.push(1u64, &[100f32]).unwrap();
    assert!(norm_of(&to).is_nan());
    assert_eq!(pulled(&to, 1u64.into(), 1), [100.0 + factor(1.0, 100.0) as f32 * 100.0]);
}
