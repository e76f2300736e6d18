//! What keys keep: state, update counts, masters; and what leaves them alone.

use kvstore::{Config, DType, Element, ErrorKind, Key, Store, Tensor, TensorMut, bf16, f16};

use super::model::Model;
use super::{RULES, open};

const COUNT: usize = 12;

/// The n-th gradient of these tests.
fn gradient(n: usize) -> Vec<f32> {
    (0..COUNT).map(|i| ((i * 7 + n * 5) % 13) as f32 / 4.0 - 1.375).collect()
}

fn first() -> Vec<f32> {
    (0..COUNT).map(|i| i as f32 / 8.0 - 0.5625).collect()
}

fn with_key(key: u64, rule: &str, options: &str) -> Store {
    let store = open();
    store.init(key, &first()).unwrap();
    store.set_optimizer(rule, options).unwrap();
    store
}

fn pull(store: &Store, key: impl Into<Key>) -> Vec<f32> {
    let mut out = vec![0.0f32; COUNT];
    store.pull(key, &mut out).unwrap();
    out
}

/// What pushes of the gradients in a range make of a key.
fn train(store: &Store, key: u64, range: std::ops::Range<usize>) -> Vec<f32> {
    range.for_each(|n| store.push(key, &gradient(n)).unwrap());
    pull(store, key)
}

#[test]
fn a_new_optimizer_starts_anew_even_of_the_same_name() {
    for rule in RULES {
        let old = with_key(1, rule, "");
        let value = train(&old, 1, 0..5);
        old.set_optimizer(rule, "").unwrap();
        let fresh = open();
        fresh.init(1u64, &value).unwrap();
        fresh.set_optimizer(rule, "").unwrap();
        assert_eq!(train(&old, 1, 5..9), train(&fresh, 1, 5..9), "{rule}");
    }
}

#[test]
fn state_goes_on_under_changed_options() {
    // Momentum 0.5 of a step of 1, which the first push left behind.
    let (store, one) = (open(), [1.0f32]);
    let value = |store: &Store| {
        let mut out = [0.0f32];
        store.pull(1u64, &mut out).unwrap();
        out[0]
    };
    store.init(1u64, &[0.0f32]).unwrap();
    store.set_optimizer("momentum", "learning_rate=1").unwrap();
    store.push(1u64, &one).unwrap();
    store.set_hyperparameter("momentum", 0.5).unwrap();
    store.set_hyperparameter("learning_rate", 0.0).unwrap();
    store.push(1u64, &one).unwrap();
    assert_eq!(value(&store), -1.5);
    // Switched off and on again, it is where it was.
    store.set_hyperparameter("momentum", 0.0).unwrap();
    store.push(1u64, &one).unwrap();
    store.set_hyperparameter("momentum", 0.5).unwrap();
    store.push(1u64, &one).unwrap();
    assert_eq!(value(&store), -1.75);
}

#[test]
fn state_that_an_option_asks_for_later_begins_as_zero() {
    let plain = with_key(1, "rmsprop", "");
    train(&plain, 1, 0..3);
    plain.set_hyperparameter("centered", 1.0).unwrap();
    let value = train(&plain, 1, 3..5);
    assert!(value.iter().all(|it| it.is_finite()));
    assert_ne!(value, train(&with_key(1, "rmsprop", ""), 1, 0..5));
}

#[test]
fn counts_are_the_keys_own_whatever_other_keys_do() {
    let options = "lr_scheduler=cosine,max_update=10";
    for rule in RULES {
        let alone = with_key(1, rule, options);
        let expected = train(&alone, 1, 0..6);
        let store = with_key(1, rule, options);
        store.init(2u64, &first()).unwrap();
        for n in 0..6 {
            (0..n).for_each(|m| store.push(2u64, &gradient(m)).unwrap());
            store.push(1u64, &gradient(n)).unwrap();
        }
        assert_eq!(pull(&store, 1u64), expected, "{rule}");
    }
}

#[test]
fn a_removed_key_leaves_no_state_behind() {
    for rule in RULES {
        let store = with_key(1, rule, "");
        train(&store, 1, 0..3);
        store.remove(&[Key::from(1u64)]).unwrap();
        store.init(1u64, &first()).unwrap();
        assert_eq!(train(&store, 1, 0..3), train(&with_key(1, rule, ""), 1, 0..3), "{rule}");
    }
}

#[test]
fn multipliers_are_the_keys_own() {
    for rule in RULES {
        let store = with_key(1, rule, "learning_rate=0.01,wd=0.1");
        store.init(2u64, &first()).unwrap();
        store.set_key_hyperparameter(1u64, "lr_mult", 2.0).unwrap();
        store.set_key_hyperparameter(1u64, "wd_mult", 0.5).unwrap();
        let multiplied = with_key(1, rule, "learning_rate=0.02,wd=0.05");
        let plain = with_key(1, rule, "learning_rate=0.01,wd=0.1");
        assert_eq!(train(&store, 1, 0..4), train(&multiplied, 1, 0..4), "{rule}");
        assert_eq!(train(&store, 2, 0..4), train(&plain, 1, 0..4), "{rule}");
    }
}

#[test]
fn a_learning_rate_of_0_freezes_a_key() {
    for rule in RULES.iter().filter(|rule| !["adadelta", "test"].contains(rule)) {
        let store = with_key(1, rule, "wd=0.1");
        store.set_key_hyperparameter(1u64, "lr_mult", 0.0).unwrap();
        assert_eq!(train(&store, 1, 0..3), first(), "{rule}");
        store.set_key_hyperparameter(1u64, "lr_mult", 1.0).unwrap();
        let value = train(&store, 1, 3..6);
        assert!(value != first() && value.iter().all(|it| it.is_finite()), "{rule}");
    }
}

#[test]
fn refused_calls_change_nothing() {
    for rule in RULES {
        let store = with_key(1, rule, "wd=0.1");
        let name = store.intern("numbers").unwrap();
        train(&store, 1, 0..3);
        for (option, value) in
            [("learning_rate", -1.0), ("wd", f64::NAN), ("no_such", 1.0), ("lr_scheduler", 1.0)]
        {
            let error = store.set_hyperparameter(option, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option, "{rule} {option}");
        }
        store.set_hyperparameter("step", 3.0).unwrap_err();
        store.set_key_hyperparameter(1u64, "lr_mult", -1.0).unwrap_err();
        store.set_key_hyperparameter(1u64, "momentum", 0.5).unwrap_err();
        store.set_optimizer("no_such", "").unwrap_err();
        store.set_optimizer(rule, "wd=0.1,no_such=1").unwrap_err();
        store.set_optimizer(rule, "learning_rate=fast").unwrap_err();
        let error = store.init(name, &[1i32]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DtypeMismatch);
        assert_eq!(train(&store, 1, 3..6), train(&with_key(1, rule, "wd=0.1"), 1, 0..6), "{rule}");
    }
}

#[test]
fn integer_keys_are_refused_when_it_is_set_and_at_init() {
    let store = open();
    store.init(1u64, &[1.0f32]).unwrap();
    store.init(2u64, &[1i64]).unwrap();
    for rule in RULES {
        let error = store.set_optimizer(rule, "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DtypeMismatch);
        let text = format!("key 2 is int64[1]: the optimizer {rule} cannot change int64");
        assert!(error.message().contains(&text), "{error}");
    }
    // Still the assignment that it was.
    store.push(1u64, &[5.0f32]).unwrap();
    store.push(2u64, &[7i64]).unwrap();
    let (mut float, mut integer) = ([0.0f32], [0i64]);
    store.pull(1u64, &mut float).unwrap();
    store.pull(2u64, &mut integer).unwrap();
    assert_eq!((float[0], integer[0]), (5.0, 7));
    store.remove(&[Key::from(2u64)]).unwrap();
    store.set_optimizer("sgd", "").unwrap();
    for refused in [store.init(2u64, &[1u8]), store.init(3u64, &[1i32])] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::DtypeMismatch);
    }
    assert_eq!(store.keys().unwrap(), [Key::from(1u64)]);
}

#[test]
fn without_an_optimizer_there_are_no_options_to_change() {
    let store = open();
    let set = |store: &Store| store.set_hyperparameter("learning_rate", 0.1).unwrap_err().kind();
    assert_eq!(set(&store), ErrorKind::InvalidArgument);
    let error = store.set_key_hyperparameter(1u64, "lr_mult", 1.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    store.set_optimizer("sgd", "").unwrap();
    store.clear_updater().unwrap();
    assert_eq!(set(&store), ErrorKind::InvalidArgument);
}

/// A half type.
trait Half: Element + Default + PartialEq + std::fmt::Debug {
    fn round(number: f32) -> Self;
    fn widen(self) -> f32;
}

impl Half for f16 {
    fn round(number: f32) -> Self {
        f16::from_f32(number)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Half for bf16 {
    fn round(number: f32) -> Self {
        bf16::from_f32(number)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// A key of halves with a master is a key of f32 whose pulls are rounded: bit for bit.
fn check_master<T: Half>(rule: &str) {
    let rounded = |array: Vec<f32>| array.into_iter().map(T::round).collect::<Vec<T>>();
    let start = rounded(first());
    let halves = open();
    halves.init(1u64, &start).unwrap();
    halves.set_optimizer(rule, "wd=0.01,multi_precision=true").unwrap();
    let floats = open();
    floats.init(1u64, &start.iter().map(|it| it.widen()).collect::<Vec<f32>>()).unwrap();
    floats.set_optimizer(rule, "wd=0.01,multi_precision=true").unwrap();
    for n in 0..40 {
        let pushed = rounded(gradient(n));
        // The f32 key takes the halves as they are.
        floats.push(1u64, &pushed).unwrap();
        let mut out = vec![T::default(); COUNT];
        if n % 2 == 0 {
            halves.push(1u64, &pushed).unwrap();
            halves.pull(1u64, &mut out).unwrap();
        } else {
            let outs = &mut [TensorMut::from(&mut out)];
            halves
                .pushpull_list(&[1u64.into()], &[(&pushed).into()], &[1u64.into()], outs)
                .unwrap();
        }
        let mut converted = vec![T::default(); COUNT];
        floats.pull(1u64, &mut converted).unwrap();
        assert_eq!(out, converted, "{rule} of {}, push {n}", T::DTYPE.name());
        assert_eq!(out, rounded(pull(&floats, 1u64)), "{rule}");
    }
}

#[test]
fn a_master_makes_halves_train_as_floats_do() {
    for rule in RULES {
        check_master::<f16>(rule);
        check_master::<bf16>(rule);
    }
}

/// The sum of several values is rounded to the dtype of the key before it meets the master.
#[test]
fn with_several_values_a_master_is_pushed_their_rounded_sum() {
    let (halves, floats, sums) = (open(), open(), open());
    // In f16 numbers above 2048 are two apart: the sum is 2052, or 2051 without a rounding.
    let pushed = [f16::from_f32(2048.0), f16::from_f32(3.0)].map(|it| [it]);
    halves.init(1u64, &[f16::ZERO]).unwrap();
    for store in [&floats, &sums] {
        store.init(1u64, &[0.0f32]).unwrap();
    }
    let values = pushed.each_ref().map(Tensor::from);
    for store in [&halves, &floats, &sums] {
        store.set_optimizer("sgd", "learning_rate=0.5,multi_precision=true").unwrap();
    }
    halves.push_list(&[1u64.into(), 1u64.into()], &values).unwrap();
    floats.push_list(&[1u64.into(), 1u64.into()], &values).unwrap();
    sums.push(1u64, &[2052.0f32]).unwrap();
    let pulled = [&halves, &floats, &sums].map(|store| {
        let mut out = [0.0f32];
        store.pull(1u64, &mut out).unwrap();
        out[0]
    });
    assert_eq!(pulled, [-1026.0, -1025.5, -1026.0]);
}

#[test]
fn without_a_master_small_steps_are_lost() {
    let train = |options: &str| {
        let store = open();
        store.init(1u64, &[f16::from_f32(1.0)]).unwrap();
        store.set_optimizer("sgd", options).unwrap();
        (0..100).for_each(|_| store.push(1u64, &[f16::from_f32(-1.0)]).unwrap());
        let mut out = [0.0f32];
        store.pull(1u64, &mut out).unwrap();
        out[0]
    };
    // A step is a tenth of the distance to the next f16.
    assert_eq!(train("learning_rate=0.0001"), 1.0);
    assert_eq!(train("learning_rate=0.0001,multi_precision=true"), f16::from_f32(1.01).to_f32());
}

#[test]
fn a_master_that_is_given_up_leaves_its_rounded_value() {
    let store = open();
    store.init(1u64, &[f16::from_f32(1.0)]).unwrap();
    store.set_optimizer("sgd", "learning_rate=0.0003,multi_precision=true").unwrap();
    store.push(1u64, &[f16::from_f32(-1.0)]).unwrap();
    store.set_hyperparameter("multi_precision", 0.0).unwrap();
    store.push(1u64, &[f16::from_f32(-1.0)]).unwrap();
    store.set_hyperparameter("multi_precision", 1.0).unwrap();
    (0..2).for_each(|_| store.push(1u64, &[f16::from_f32(-1.0)]).unwrap());
    let mut out = [f16::ZERO];
    store.pull(1u64, &mut out).unwrap();
    // Two steps of a new master, rounded; those before were lost.
    assert_eq!(out[0], f16::from_f32(1.0006));
}

#[test]
fn rows_are_what_is_below_the_first_axis() {
    let run = |rule: &str, shape: &[i64]| {
        let (store, value) = (open(), first());
        store.init(1u64, Tensor::new(&value, shape).unwrap()).unwrap();
        store.set_optimizer(rule, "learning_rate=0.1,float_stable_eps=0.001").unwrap();
        for n in 0..5 {
            store.push(1u64, Tensor::new(&gradient(n), shape).unwrap()).unwrap();
        }
        let mut out = vec![0.0f32; COUNT];
        store.pull(1u64, TensorMut::new(&mut out, shape).unwrap()).unwrap();
        out
    };
    assert_eq!(run("groupadagrad", &[3, 2, 2]), run("groupadagrad", &[3, 4]));
    assert_ne!(run("groupadagrad", &[4, 3]), run("groupadagrad", &[3, 4]));
    let near = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near(run("groupadagrad", &[COUNT as i64]), run("adagrad", &[COUNT as i64])));
}

#[test]
fn rows_may_be_of_any_length() {
    for (rows, length) in [(2, 10_001), (3, 513), (40, 512), (700, 2), (513, 1)] {
        let (store, shape) = (open(), [rows as i64, length as i64]);
        let number = |i: usize| (i * i % 97) as f32 / 48.0 - 1.0;
        let value: Vec<f32> = (0..rows * length).map(number).collect();
        let mut model =
            Model::new("groupadagrad", value.iter().map(|it| (*it).into()).collect(), length);
        model.options =
            [("learning_rate", 0.1), ("wd", 0.01), ("rescale_grad", 1.0), ("eps", 0.001)].into();
        store.init(1u64, Tensor::new(&value, &shape).unwrap()).unwrap();
        store.set_optimizer("groupadagrad", "learning_rate=0.1,wd=0.01,eps=0.001").unwrap();
        for n in 0..3 {
            let pushed: Vec<f32> = (0..rows * length).map(|i| number(i + n)).collect();
            store.push(1u64, Tensor::new(&pushed, &shape).unwrap()).unwrap();
            model.push(&pushed.iter().map(|it| f64::from(*it)).collect::<Vec<f64>>());
        }
        let mut out = value;
        store.pull(1u64, TensorMut::new(&mut out, &shape).unwrap()).unwrap();
        let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-6;
        assert!(out.iter().zip(&model.value).all(near), "{rows} x {length}");
    }
}

#[test]
fn scalars_and_empty_keys_take_every_rule() {
    for rule in RULES {
        for shape in [&[][..], &[0], &[0, 3], &[3, 0], &[1, 1]] {
            let count = shape.iter().product::<i64>() as usize;
            let (store, ones) = (open(), vec![1.0f32; count]);
            store.set_optimizer(rule, "learning_rate=0.5").unwrap();
            store.init(1u64, Tensor::new(&ones, shape).unwrap()).unwrap();
            store.push(1u64, Tensor::new(&ones, shape).unwrap()).unwrap();
            let mut out = ones.clone();
            store.pull(1u64, TensorMut::new(&mut out, shape).unwrap()).unwrap();
            assert!(out.iter().all(|it| it.is_finite() && *it != 1.0), "{rule} {shape:?}: {out:?}");
        }
    }
}

#[test]
fn a_nan_that_goes_in_comes_out() {
    for rule in RULES {
        let store = with_key(1, rule, "");
        let mut pushed = gradient(1);
        pushed[3] = f32::NAN;
        store.push(1u64, &pushed).unwrap();
        assert!(pull(&store, 1u64)[3].is_nan(), "{rule} of a gradient");
        let store = open();
        let mut value = first();
        value[5] = f32::NAN;
        store.init(1u64, &value).unwrap();
        store.set_optimizer(rule, "").unwrap();
        let value = train(&store, 1, 0..1);
        assert!(value[5].is_nan(), "{rule} of a value");
        // A norm of the whole key is one too.
        if !["lamb", "lars"].contains(rule) {
            assert!(value.iter().enumerate().all(|(i, it)| i == 5 || it.is_finite()), "{rule}");
        }
    }
}

#[test]
fn gradients_of_zero_make_no_nan() {
    for rule in RULES {
        let store = with_key(1, rule, "");
        (0..3).for_each(|_| store.push(1u64, &vec![0.0f32; COUNT]).unwrap());
        assert!(pull(&store, 1u64).iter().all(|it| it.is_finite()), "{rule}");
    }
}

#[test]
fn an_average_that_does_not_vary_makes_no_nan() {
    // The variance of the centered rmsprop is 0. Rounding makes it a little less for a tenth of
    // these numbers, 1.21 among them.
    let steady: Vec<f32> = (0..200).map(|i| 0.1 + 0.37 * i as f32).collect();
    let store = open();
    store.init(1u64, &steady).unwrap();
    store.set_optimizer("rmsprop", "centered=true,epsilon=1e-30").unwrap();
    (0..1500).for_each(|_| store.push(1u64, &steady).unwrap());
    let mut out = steady.clone();
    store.pull(1u64, &mut out).unwrap();
    assert!(out.iter().all(|it| !it.is_nan()));
}

#[test]
fn pushes_with_tickets_keep_the_optimizer_of_their_call() {
    let store = Store::open("local", &Config::new()).unwrap();
    store.init(1u64, &[0.0f32]).unwrap();
    store.set_optimizer("test", "rescale_grad=1").unwrap();
    let first = store.push_owned(1u64, vec![1.0f32], 0).unwrap();
    store.set_hyperparameter("rescale_grad", 10.0).unwrap();
    let second = store.push_owned(1u64, vec![1.0f32], 0).unwrap();
    let patience = std::time::Duration::from_secs(120);
    first.wait(patience).unwrap();
    second.wait(patience).unwrap();
    let mut out = [0.0f32];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [11.0]);
    assert_eq!(store.key_info(1u64).unwrap().dtype, DType::F32);
}

/// Lists of small keys go another way than single keys, and than tensors with strides.
#[test]
fn lists_of_small_keys_do_what_single_pushes_do() {
    const KEYS: u64 = 300;
    let keys: Vec<Key> = (0..KEYS).rev().map(Key::from).collect();
    let number = |n: usize| (n * 7919 % 64) as f32 / 16.0 - 2.0;
    let value = |n: usize, at: u64| -> Vec<f32> {
        (0..at % 40).map(|i| number(n * 31 + at as usize * 3 + i as usize)).collect()
    };
    for (rule, options) in
        [("sgd", "wd=0.1"), ("adam", ""), ("groupadagrad", ""), ("lamb", ""), ("ftml", "")]
    {
        let stores = [open(), open()];
        for store in &stores {
            for &key in &keys {
                store.init(key, &value(1000, key.id())).unwrap();
            }
            store.set_optimizer(rule, options).unwrap();
        }
        for n in 0..4 {
            let values: Vec<Vec<f32>> = keys.iter().map(|key| value(n, key.id())).collect();
            let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
            let mut outs: Vec<Vec<f32>> = values.iter().map(|it| vec![0.0; it.len()]).collect();
            let out_tensors = &mut outs.iter_mut().map(TensorMut::from).collect::<Vec<_>>();
            if n % 2 == 0 {
                stores[0].push_list(&keys, &tensors).unwrap();
                stores[0].pull_list(&keys, out_tensors).unwrap();
            } else {
                stores[0].pushpull_list(&keys, &tensors, &keys, out_tensors).unwrap();
            }
            for ((&key, value), found) in keys.iter().zip(&values).zip(&outs) {
                let spread: Vec<f32> = value.iter().flat_map(|&it| [it, f32::NAN]).collect();
                let spread = ndarray::ArrayView1::from(&spread);
                stores[1].push(key, &spread.slice(ndarray::s![..;2])).unwrap();
                let mut expected = vec![0f32; value.len()];
                stores[1].pull(key, &mut expected).unwrap();
                let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{rule}, key {}: {found:?}, not {expected:?}", key.id());
            }
        }
    }
}

/// A key that is in use sends the rest of a list another way.
#[test]
fn lists_of_several_threads_lose_no_push() {
    const ROUNDS: i64 = 200;
    let keys: Vec<Key> = (0..64u64).map(Key::from).collect();
    let store = open();
    for &key in &keys {
        store.init(key, &[0f32; 5]).unwrap();
    }
    store.set_optimizer("sgd", "learning_rate=1").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let gradient = [-1f32; 5];
                let tensors = vec![Tensor::from(&gradient); keys.len()];
                (0..ROUNDS).for_each(|_| store.push_list(&keys, &tensors).unwrap());
            });
        }
    });
    for &key in &keys {
        let mut out = [0f32; 5];
        store.pull(key, &mut out).unwrap();
        assert_eq!(out, [(4 * ROUNDS) as f32; 5]);
    }
}
