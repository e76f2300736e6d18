//! A call without a ticket on contiguous tensors allocates nothing, once it has been made before;
//! and one that gets no memory for the state of a key leaves the key as it was.
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
#[path = "common/counting.rs"]
mod counting;

use common::updater::add;
use counting::{ALLOCATIONS, ALLOWED, REFUSED, allocations};
use kvstore::{Config, Key, Store, Tensor, TensorMut};

/// Elements of a key: several, in an odd number.
const ELEMENTS: usize = 37;

/// Makes all calls on `count` keys. With one thread the library works on the calling thread only,
/// so that its count is the whole.
fn check(count: u64, with_names: bool) {
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let key =
        |id| if with_names { store.intern(&format!("w{id}")).unwrap() } else { Key::from(id) };
    let keys: Vec<Key> = (0..count).map(key).collect();
    let (value, other) = (vec![1.0f32; ELEMENTS], vec![2.0f32; ELEMENTS]);
    let values: Vec<Tensor<'_>> = keys.iter().map(|_| Tensor::from(&value)).collect();
    let twice: Vec<Tensor<'_>> =
        keys.iter().flat_map(|_| [Tensor::from(&value), Tensor::from(&other)]).collect();
    let keys_twice: Vec<Key> = keys.iter().flat_map(|key| [*key, *key]).collect();
    store.init_list(&keys, &values).unwrap();
    let mut outs = vec![[0.0f32; ELEMENTS]; keys.len()];
    let mut outs: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
    for merger in ["assign", "an updater", "sgd", "momentum", "adam"] {
        let case = |call: &str| format!("{call} of {count} keys with {merger}");
        match merger {
            "assign" => {}
            "an updater" => store.set_updater(add::<f32>).unwrap(),
            rule => store.set_optimizer(rule, "learning_rate=0.1").unwrap(),
        }
        allocations(&case("push"), || store.push_list(&keys, &values).unwrap());
        allocations(&case("push of two values"), || store.push_list(&keys_twice, &twice).unwrap());
        allocations(&case("pull"), || store.pull_list(&keys, &mut outs).unwrap());
        allocations(&case("pushpull"), || {
            store.pushpull_list(&keys_twice, &twice, &keys, &mut outs).unwrap();
        });
    }
}

/// Calls of bound lists, whose keys stand there twice.
fn check_bound(threads: &str, length: usize) {
    let store = Store::open("local", &Config::new().with("threads", threads).unwrap()).unwrap();
    let keys: Vec<Key> = (0..1_000u64).rev().flat_map(|id| [Key::from(id); 2]).collect();
    for &key in keys.iter().step_by(2) {
        store.init(key, &vec![1.0f32; length]).unwrap();
    }
    let mut values = vec![vec![1.0f32; length]; keys.len()];
    let mut outs = values.clone();
    let values = values.iter_mut().map(TensorMut::from).collect();
    let mut list =
        store.bind(&keys, values, &keys, outs.iter_mut().map(TensorMut::from).collect()).unwrap();
    for rule in ["assign", "momentum", "lamb"] {
        if rule != "assign" {
            store.set_optimizer(rule, "").unwrap();
        }
        allocations(&format!("bound push with {rule}"), || list.push().unwrap());
        allocations(&format!("bound pull with {rule}"), || list.pull().unwrap());
        allocations(&format!("bound pushpull with {rule}"), || list.pushpull().unwrap());
    }
}

#[test]
fn calls_of_bound_lists_allocate_nothing() {
    check_bound("1", ELEMENTS);
    check_bound("1", 3_000);
}

#[test]
fn tensors_of_other_dtypes_allocate_nothing() {
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let (value, wide) = (vec![1.0f32; 9_000], vec![1.0f64; 9_000]);
    store.init(1u64, &value).unwrap();
    let (mut out, mut wide_out) = (value.clone(), wide.clone());
    let keys = [Key::from(1u64); 2];
    for merger in ["assign", "momentum"] {
        if merger != "assign" {
            store.set_optimizer(merger, "").unwrap();
        }
        allocations(&format!("push with {merger}"), || {
            store.push_list(&keys, &[(&value).into(), (&wide).into()]).unwrap();
        });
        allocations(&format!("pull with {merger}"), || {
            store.pull_list(&keys, &mut [(&mut out).into(), (&mut wide_out).into()]).unwrap();
        });
    }
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert!(ALLOCATIONS.get() > before);
}

#[test]
fn calls_with_one_key_allocate_nothing() {
    check(1, false);
    check(1, true);
}

#[test]
fn calls_with_a_thousand_keys_allocate_nothing() {
    check(1_000, false);
    check(1_000, true);
}

/// The calling thread shares the keys out, and does not allocate for it. A list as large as this has
/// helpers whenever there is a second processor.
#[test]
fn lists_that_threads_share_allocate_nothing() {
    const LENGTH: usize = 2_000;
    let store = Store::open("local", &Config::new().with("threads", "2").unwrap()).unwrap();
    let keys: Vec<Key> = (0..1_000u64).map(Key::from).collect();
    let value = vec![1.0f32; LENGTH];
    let values: Vec<Tensor<'_>> = keys.iter().map(|_| Tensor::from(&value)).collect();
    store.init_list(&keys, &values).unwrap();
    let mut outs = vec![vec![0.0f32; LENGTH]; keys.len()];
    let mut outs: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
    for rule in ["assign", "momentum"] {
        if rule != "assign" {
            store.set_optimizer(rule, "").unwrap();
        }
        allocations(&format!("push with {rule}"), || store.push_list(&keys, &values).unwrap());
        allocations(&format!("pull with {rule}"), || store.pull_list(&keys, &mut outs).unwrap());
    }
    // Not beside the calls above: helpers are lent only while a processor is free.
    check_bound("2", 1_000);
}

#[test]
fn the_short_forms_for_one_key_allocate_nothing() {
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let (value, mut out) = ([1.0f32; ELEMENTS], [0.0f32; ELEMENTS]);
    store.init(1u64, &value).unwrap();
    allocations("push", || store.push(1u64, &value).unwrap());
    allocations("pull", || store.pull(1u64, &mut out).unwrap());
}

const RULES: &[(&str, &str)] = &[
    ("sgd", ""),
    ("momentum", ""),
    ("nag", "momentum=0.9"),
    ("adam", ""),
    ("adamw", ""),
    ("adamax", ""),
    ("nadam", ""),
    ("adagrad", ""),
    ("groupadagrad", ""),
    ("rmsprop", "centered=true"),
    ("adadelta", ""),
    ("ftrl", ""),
    ("ftml", ""),
    ("signum", ""),
    ("lamb", ""),
    ("lars", "momentum=0.9,eta=1"),
    ("dcasgd", "momentum=0.9"),
    ("lion", ""),
    ("test", ""),
];

#[test]
fn rules_allocate_nothing_after_the_first_push() {
    // One of several blocks, of which halves take several tiles.
    const COUNT: usize = 70_000;
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let keys = [Key::from(1u64), Key::from(2u64), Key::from(3u64)];
    let small = [0.5f32; ELEMENTS];
    let large = vec![0.5f32; COUNT];
    let halves = vec![kvstore::f16::from_f32(0.5); COUNT];
    let values = [Tensor::from(&small), Tensor::from(&large), Tensor::from(&halves)];
    store.init_list(&keys, &values).unwrap();
    let keys = keys.map(|key| [key; 2]).concat();
    let values: Vec<Tensor<'_>> = values.iter().flat_map(|it| [*it, *it]).collect();
    for (rule, options) in RULES {
        store.set_optimizer(rule, &format!("multi_precision=true,{options}")).unwrap();
        store.set_key_hyperparameter(1u64, "lr_mult", 0.5).unwrap();
        allocations(&format!("push under {rule}"), || store.push_list(&keys, &values).unwrap());
        store.set_hyperparameter("multi_precision", 0.0).unwrap();
        allocations(&format!("push under {rule}"), || store.push_list(&keys, &values).unwrap());
    }
}

const CODECS: &[(&str, &str)] = &[
    ("1bit", ""),
    ("2bit", ""),
    ("fp16", "feedback=true"),
    ("bf16", ""),
    ("int8", ""),
    ("topk", ""),
    ("randomk", ""),
];

#[test]
fn codecs_allocate_nothing_after_the_first_push() {
    const COUNT: usize = 70_000;
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let keys = [Key::from(1u64), Key::from(2u64)];
    let (small, large, wide) = ([0.5f32; ELEMENTS], vec![0.5f32; COUNT], vec![0.5f64; COUNT]);
    store.init_list(&keys, &[Tensor::from(&small), Tensor::from(&large)]).unwrap();
    let keys = keys.map(|key| [key; 6]).concat();
    let [small, large, wide] = [Tensor::from(&small), Tensor::from(&large), Tensor::from(&wide)];
    let values = [[small; 6], [large, large, wide, large, large, wide]].concat();
    for (codec, params) in CODECS {
        for merger in ["assign", "an updater", "momentum"] {
            match merger {
                "assign" => store.clear_updater().unwrap(),
                "an updater" => store.set_updater(add::<f32>).unwrap(),
                rule => store.set_optimizer(rule, "").unwrap(),
            }
            store.set_compression(codec, params).unwrap();
            let case = format!("push through {codec} with {merger}");
            allocations(&case, || store.push_list(&keys, &values).unwrap());
        }
    }
}

#[test]
fn without_memory_for_its_residual_a_key_is_as_it_was() {
    const COUNT: usize = 1 << 18;
    let pushed = vec![0.4f32; COUNT];
    let pull = |store: &Store| {
        let mut out = vec![0.0f32; COUNT];
        store.pull(1u64, &mut out).unwrap();
        out
    };
    for merger in ["assign", "an updater", "momentum"] {
        let open = || {
            let store = Store::open("local", &Config::new()).unwrap();
            store.init(1u64, &vec![3.0f32; COUNT]).unwrap();
            match merger {
                "assign" => {}
                "an updater" => store.set_updater(add::<f32>).unwrap(),
                rule => store.set_optimizer(rule, "").unwrap(),
            }
            store.set_compression("2bit", "").unwrap();
            store
        };
        let (store, fresh) = (open(), open());
        // The first push has four arrays to make: the sum, two residuals, and perhaps a state. One
        // more is refused each time.
        for allowed in 0.. {
            ALLOWED.set(allowed);
            REFUSED.set(4 * COUNT);
            let keys = [Key::from(1u64); 2];
            let result = store.push_list(&keys, &[(&pushed).into(), (&pushed).into()]);
            REFUSED.set(usize::MAX);
            let Err(error) = result else {
                assert!(allowed > 0);
                break;
            };
            assert_eq!(error.kind(), kvstore::ErrorKind::OutOfMemory, "{merger}");
            assert!(error.message().starts_with("push: key 1: cannot allocate"), "{error}");
            assert!(pull(&store) == vec![3.0; COUNT], "{merger} {allowed}");
        }
        // What failed has left nothing behind, also not in the residuals.
        let twice = |store: &Store| {
            let keys = [Key::from(1u64); 2];
            store.push_list(&keys, &[(&pushed).into(), (&pushed).into()]).unwrap();
            pull(store)
        };
        twice(&fresh);
        assert!(twice(&store) == twice(&fresh), "{merger}");
    }
}

#[test]
fn rows_allocate_nothing_after_the_first_push() {
    let store = Store::open("local", &Config::new().with("threads", "1").unwrap()).unwrap();
    let table = vec![0.5f32; 1000 * 8];
    store.init(1u64, Tensor::new(&table, &[1000, 8]).unwrap()).unwrap();
    let ids: Vec<i64> = (0..400).map(|i| i * 37 % 1000).chain([3, 3]).collect();
    let mut rows = vec![0.5f32; ids.len() * 8];
    let shape = [402, 8];
    let mut calls = |what: &str| {
        allocations(&format!("push of rows, {what}"), || {
            store.push_rows(1u64, &ids, Tensor::new(&rows, &shape).unwrap()).unwrap();
        });
        allocations(&format!("pull of rows, {what}"), || {
            store.pull_rows(1u64, &ids, TensorMut::new(&mut rows, &shape).unwrap()).unwrap();
        });
    };
    calls("assign");
    for rule in ["sgd", "adagrad", "groupadagrad", "adam"] {
        for lazy in [true, false] {
            store.set_optimizer(rule, &format!("wd=0.01,lazy_update={lazy}")).unwrap();
            calls(rule);
        }
    }
}

#[test]
fn without_memory_for_its_state_a_key_is_as_it_was() {
    const COUNT: usize = 1 << 18;
    let first = vec![kvstore::bf16::from_f32(0.5); COUNT];
    let pushed = vec![kvstore::bf16::from_f32(0.25); COUNT];
    let pull = |store: &Store| {
        let mut out = vec![kvstore::bf16::ZERO; COUNT];
        store.pull(1u64, &mut out).unwrap();
        out
    };
    let open = |rule: &str, options: &str| {
        let store = Store::open("local", &Config::new()).unwrap();
        store.init(1u64, &first).unwrap();
        store
            .set_optimizer(rule, &format!("learning_rate=0.1,multi_precision=true,{options}"))
            .unwrap();
        store
    };
    for (rule, options) in RULES {
        let store = open(rule, options);
        // A state has four times as many bytes as elements, that of rows here has too.
        REFUSED.set(4 * COUNT);
        let error = store.push(1u64, &pushed).unwrap_err();
        REFUSED.set(usize::MAX);
        assert_eq!(error.kind(), kvstore::ErrorKind::OutOfMemory, "{rule}");
        assert!(error.message().starts_with("push: key 1: cannot allocate"), "{error}");
        assert!(pull(&store) == first, "{rule}");
        // The push that failed has not been counted, and left nothing behind.
        let fresh = open(rule, options);
        for store in [&store, &fresh] {
            (0..2).for_each(|_| store.push(1u64, &pushed).unwrap());
        }
        assert!(pull(&store) == pull(&fresh), "{rule}");
        assert!(pull(&store) != first, "{rule}");
    }
}
