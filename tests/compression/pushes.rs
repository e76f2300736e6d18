//! What arrives of pushes: against scalar loops, and the same bits in every way to push.

use std::thread;
use std::time::Duration;

use kvstore::{Config, Key, Store, Tensor, TensorMut, f16};
use ndarray::{Array2, s};

use super::common::gate::Gate;
use super::common::random::{self, Random};
use super::common::updater::add;
use super::common::watchdog::bounded;
use super::{CODECS, bits, open, open_with, pull};

/// Numbers around 1.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    let number = |_| (random.below(4001) as f32 - 2000.0) / 1000.0;
    (0..count).map(number).collect()
}

/// The scalar loop of 2bit: what arrives of a value, and what is left.
fn two_bit(threshold: f32, value: &[f32], residual: &mut [f32]) -> Vec<f32> {
    let mut arrives = Vec::new();
    for (x, rest) in value.iter().zip(residual) {
        *rest += x;
        let sent = if *rest >= threshold {
            threshold
        } else if *rest <= -threshold {
            -threshold
        } else {
            0.0
        };
        *rest -= sent;
        arrives.push(sent);
    }
    arrives
}

#[test]
fn random_pushes_equal_a_scalar_loop() {
    let mut random = random::from_environment("random_pushes_equal_a_scalar_loop");
    for merger in ["assign", "updater", "sgd"] {
        let store = open();
        let counts = [1, 33, 5000];
        for (key, count) in (0u64..).zip(counts) {
            store.init(key, &vec![0.0f32; count]).unwrap();
        }
        store.set_compression("2bit", "threshold=0.75").unwrap();
        match merger {
            "updater" => store.set_updater(add::<f32>).unwrap(),
            "sgd" => store.set_optimizer("sgd", "learning_rate=0.5").unwrap(),
            _ => {}
        }
        let mut stored = counts.map(|count| vec![0.0f32; count]);
        let mut residuals = counts.map(|count| vec![vec![0.0f32; count]; 4]);
        for _ in 0..60 {
            let key = random.index(counts.len());
            let values: Vec<Vec<f32>> =
                (0..=random.below(4)).map(|_| numbers(&mut random, counts[key])).collect();
            let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
            store.push_list(&vec![Key::from(key as u64); values.len()], &tensors).unwrap();
            let arrived: Vec<Vec<f32>> = values
                .iter()
                .zip(&mut residuals[key])
                .map(|(value, residual)| two_bit(0.75, value, residual))
                .collect();
            for (i, stored) in stored[key].iter_mut().enumerate() {
                let sum = arrived.iter().map(|it| it[i]).reduce(|a, b| a + b).unwrap();
                *stored = match merger {
                    "assign" => sum,
                    "updater" => *stored + sum,
                    _ => *stored - 0.5 * sum,
                };
            }
            assert!(pull(&store, key as u64, counts[key]) == stored[key], "{merger}, key {key}");
        }
    }
}

/// How values are given to a store, and what becomes of them.
#[derive(Debug, Clone, Copy)]
struct Way {
    threads: &'static str,
    isa: &'static str,
    /// As every second column of an array of float64.
    odd: bool,
    /// Pulled by the same call.
    pulls: bool,
}

const REFERENCE: Way = Way { threads: "1", isa: "scalar", odd: false, pulls: false };

const WAYS: &[Way] = &[
    Way { threads: "2", isa: "auto", ..REFERENCE },
    Way { threads: "4", isa: "avx2", ..REFERENCE },
    Way { threads: "1", isa: "auto", odd: true, ..REFERENCE },
    Way { threads: "4", isa: "auto", odd: true, pulls: true },
    Way { threads: "2", isa: "auto", pulls: true, ..REFERENCE },
];

/// Rows and columns of the key: several pieces, and a part of a block at the end.
const ROWS: usize = 300;
const COLUMNS: usize = 1003;

/// The bits of the stored value after three pushes of two values; None without the instructions.
fn train(way: Way, (codec, params): (&str, &str), merger: &str) -> Option<Vec<u32>> {
    let config = Config::new().with("threads", way.threads).unwrap();
    let store = Store::open("local", &config.with("isa", way.isa).unwrap()).ok()?;
    let mut random = Random::new(7);
    let mut array = || {
        let elements = numbers(&mut random, ROWS * COLUMNS);
        Array2::from_shape_vec((ROWS, COLUMNS), elements).unwrap()
    };
    let (keys, mut out) = ([Key::from(1u64); 2], array());
    store.init(1u64, &out).unwrap();
    store.set_compression(codec, params).unwrap();
    match merger {
        "assign" => {}
        "updater" => store.set_updater(add::<f32>).unwrap(),
        rule => store.set_optimizer(rule, "").unwrap(),
    }
    for _ in 0..3 {
        let values = [array(), array()];
        let wide = values.each_ref().map(|value| {
            let mut wide = Array2::from_elem((ROWS, 2 * COLUMNS), 99.0);
            wide.slice_mut(s![.., ..;2]).assign(&value.mapv(f64::from));
            wide
        });
        let views = wide.each_ref().map(|wide| wide.slice(s![.., ..;2]));
        let tensors = if way.odd {
            views.each_ref().map(Tensor::from)
        } else {
            values.each_ref().map(Tensor::from)
        };
        if way.pulls {
            let outs = &mut [TensorMut::from(&mut out)];
            store.pushpull_list(&keys, &tensors, &keys[..1], outs).unwrap();
        } else {
            store.push_list(&keys, &tensors).unwrap();
        }
    }
    if !way.pulls {
        store.pull(1u64, &mut out).unwrap();
    }
    Some(bits(out.as_slice().unwrap()))
}

#[test]
fn threads_instructions_and_layouts_change_no_bit() {
    let with_params = [("topk", "ratio=0.1"), ("randomk", "ratio=0.1"), ("int8", "feedback=true")];
    let cases = CODECS.iter().map(|name| ((*name, ""), "assign"));
    let cases = cases.chain(with_params.map(|codec| (codec, "assign")));
    let mergers = ["updater", "momentum", "lamb", "groupadagrad"];
    for (codec, merger) in cases.chain(mergers.map(|merger| (("2bit", ""), merger))) {
        let expected = train(REFERENCE, codec, merger).unwrap();
        for &way in WAYS {
            let Some(found) = train(way, codec, merger) else { continue };
            assert!(found == expected, "{codec:?} with {merger}: {way:?}");
        }
    }
}

#[test]
fn only_pushes_are_compressed_and_single_values_too() {
    let store = open();
    let (value, mut out) = ([0.1f32, 0.7, -3.0], [0.0f32; 3]);
    store.set_compression("2bit", "threshold=0.5").unwrap();
    let keys = [Key::from(1u64)];
    store.broadcast_list(&keys, &[(&value).into()], &keys, &mut [(&mut out).into()]).unwrap();
    assert_eq!(out, value);
    store.init(2u64, &value).unwrap();
    assert_eq!(pull(&store, 2, 3), value);
    store.push(2u64, &value).unwrap();
    assert_eq!(pull(&store, 2, 3), [0.0, 0.5, -0.5]);
    // Rows pass as they are, and take no part in what is left.
    store.push_rows(2u64, &[1i64], &[0.3f32]).unwrap();
    assert_eq!(pull(&store, 2, 3), [0.0, 0.3, -0.5]);
    store.push(2u64, &[0.4f32, 0.3, 2.5]).unwrap();
    assert_eq!(pull(&store, 2, 3), [0.5, 0.5, 0.0]);
}

#[test]
fn integers_pass_as_they_are() {
    for codec in CODECS {
        let store = open();
        store.init(1u64, &[0i32; 3]).unwrap();
        store.set_compression(codec, "").unwrap();
        store.push(1u64, &[i32::MAX, -7, 3]).unwrap();
        let mut out = [0; 3];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [i32::MAX, -7, 3], "{codec}");
    }
}

#[test]
fn wide_and_empty_keys_are_served() {
    let store = open();
    store.init(1u64, &[0.0f64; 3]).unwrap();
    store.init(2u64, &[0.0f32; 0]).unwrap();
    store.set_compression("fp16", "").unwrap();
    // 2049 is between two f16, and 1e300 beyond.
    let key = Key::from(1u64);
    store
        .push_list(&[key; 2], &[(&[2049.0f64, 1e300, 0.1]).into(), (&[1.0f64; 3]).into()])
        .unwrap();
    let mut out = [0.0f64; 3];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [2049.0, f64::INFINITY, 1.0 + f16::from_f32(0.1).to_f64()]);
    store.push(2u64, &[0.0f32; 0]).unwrap();
}

#[test]
fn what_is_left_belongs_to_a_key_a_place_and_a_codec() {
    let store = open();
    let key = Key::from(1u64);
    let push = |values: &[f32]| {
        let values: Vec<[f32; 1]> = values.iter().map(|value| [*value]).collect();
        let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
        store.push_list(&vec![key; values.len()], &tensors).unwrap();
        pull(&store, 1, 1)[0]
    };
    let again = || {
        store.set_compression("2bit", "threshold=1").unwrap();
        assert_eq!(push(&[0.75]), 0.0);
    };
    store.init(1u64, &[0.0f32]).unwrap();
    store.init(2u64, &[0.0f32]).unwrap();
    again();
    // The first place has 0.75 left, the second one nothing.
    assert_eq!(push(&[0.0, 0.75]), 0.0);
    assert_eq!(push(&[0.25, 0.0]), 1.0);
    assert_eq!(push(&[0.0, 0.25]), 1.0);
    store.push(2u64, &[0.75f32]).unwrap();
    assert_eq!(pull(&store, 2, 1), [0.0], "another key");
    again();
    again();
    store.set_compression("none", "").unwrap();
    assert_eq!(push(&[0.75]), 0.75);
    again();
    store.remove(&[key]).unwrap();
    store.init(1u64, &[0.0f32]).unwrap();
    assert_eq!(push(&[0.75]), 0.0, "initialised again");
    // An optimizer is no reason to forget.
    store.set_optimizer("test", "").unwrap();
    assert_eq!(push(&[0.25]), 1.0);
}

#[test]
fn an_operation_with_a_ticket_keeps_the_codec_of_its_call() {
    let patience = Duration::from_secs(120);
    bounded("codec of a ticket", move || {
        let (store, gate) = (open_with("threads", "1"), Gate::default());
        store.init(0u64, &[0.0f32]).unwrap();
        store.init(1u64, &[0.0f32]).unwrap();
        let at_gate = gate.clone();
        let updater = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
            if key.id() == 0 {
                at_gate.pass();
            }
            add::<f32>(key, input, stored)
        };
        store.set_updater(updater).unwrap();
        let ahead = store.push_owned(0u64, vec![0.0f32], 0).unwrap();
        gate.wait_for_someone();
        let pending = store.push_owned(1u64, vec![0.75f32], 0).unwrap();
        store.set_compression("2bit", "").unwrap();
        gate.open();
        ahead.wait(patience).unwrap();
        pending.wait(patience).unwrap();
        assert_eq!(pull(&store, 1, 1), [0.75]);
        store.push(1u64, &[0.75f32]).unwrap();
        assert_eq!(pull(&store, 1, 1), [1.25]);
    });
}

#[test]
fn random_places_change_from_push_to_push_and_repeat_with_the_seed() {
    let run = |seed: u64| {
        let store = open();
        store.init(1u64, &[0.0f32; 2048]).unwrap();
        store.set_compression("randomk", &format!("ratio=0.1,feedback=false,seed={seed}")).unwrap();
        [0, 1].map(|_| {
            store.push(1u64, &[1.0f32; 2048]).unwrap();
            pull(&store, 1, 2048)
        })
    };
    let [first, second] = run(1);
    assert_eq!(first.iter().sum::<f32>(), 205.0);
    assert!(first != second);
    assert!(run(1) == [first.clone(), second]);
    assert!(run(2)[0] != first);
}

#[test]
fn codecs_may_change_while_threads_push() {
    bounded("codecs that change", || {
        const COUNT: usize = 3000;
        let store = open_with("threads", "2");
        for key in 0..4u64 {
            store.init(key, &[0.0f32; COUNT]).unwrap();
        }
        thread::scope(|threads| {
            for thread in 0..4u64 {
                let store = &store;
                threads.spawn(move || {
                    for round in 0..200 {
                        store.push((thread + round) % 4, &[0.75f32; COUNT]).unwrap();
                    }
                });
            }
            for codec in ["2bit", "none", "topk", "2bit", "1bit", "int8"].iter().cycle().take(60) {
                store.set_compression(codec, "").unwrap();
            }
        });
        store.set_compression("2bit", "threshold=1").unwrap();
        for key in 0..4u64 {
            // Nothing of another codec is left.
            store.push(key, &[0.75f32; COUNT]).unwrap();
            assert!(pull(&store, key, COUNT) == [0.0; COUNT]);
            store.push(key, &[0.75f32; COUNT]).unwrap();
            assert!(pull(&store, key, COUNT) == [1.0; COUNT]);
        }
    });
}
