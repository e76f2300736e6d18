//! Optimizers of keys on a GPU.

use kvstore::DType;

use super::array::{Array, Place};
use super::dense::Twins;
use super::store::{Call, GPU, Store, set_stream, stream_of};
use super::{gpu, is_child};
use settings::SETTINGS;

#[path = "../../src/optim/tests/settings.rs"]
pub mod settings;

pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Pushes of each number of values.
const ROUNDS: usize = 2;

#[test]
fn rules_have_the_bits_of_host_memory() {
    if !is_child("rules::rules_have_the_bits_of_host_memory", &[]) {
        return;
    }
    gpu::start(0);
    let shapes: [&[i64]; 2] = [&[3, 29], &[1]];
    for (name, params) in SETTINGS {
        for dtype in FLOATS {
            for masters in if dtype.size() == 2 { vec!["false", "true"] } else { vec!["false"] } {
                let separator = if params.is_empty() { "" } else { "," };
                let params = format!("{params}{separator}multi_precision={masters}");
                let mut twins = Twins::new("device", 23);
                twins.what = format!("{name} {params}, {dtype:?}");
                let keys: Vec<_> = (1..).zip(shapes).map(|(key, it)| (key, dtype, it)).collect();
                keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
                twins.set_optimizer(name, &params);
                for values in 1..=3 {
                    for _ in 0..ROUNDS {
                        twins.call(Call::PushPull, &keys, values, 1);
                    }
                }
                twins.call(Call::Push, &keys, 2, 0);
                twins.call(Call::Pull, &keys, 0, 1);
                twins.save_and_load();
                twins.call(Call::PushPull, &keys, 2, 1);
            }
        }
    }
}

#[test]
fn rules_of_single_keys_have_the_bits_of_host_memory() {
    if !is_child("rules::rules_of_single_keys_have_the_bits_of_host_memory", &[]) {
        return;
    }
    gpu::start(0);
    let mut twins = Twins::new("device", 31);
    twins.what = "rules of single keys".into();
    let shape: &[i64] = &[3, 29];
    let keys: Vec<_> = (1..=6).map(|key| (key, DType::F32, shape)).collect();
    twins.set_optimizer_for(&[2, 5], "adam", "learning_rate=0.1");
    twins.set_optimizer_for(&[3], "none", "");
    keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
    twins.set_optimizer("sgd", "learning_rate=0.2,momentum=0.9");
    for values in 1..=3 {
        twins.call(Call::PushPull, &keys, values, 1);
    }
    twins.set_optimizer_for(&[6], "lamb", "wd=0.1");
    twins.set_optimizer_for(&[2], "store", "");
    twins.call(Call::Push, &keys, 2, 0);
    twins.call(Call::Pull, &keys, 0, 1);
    twins.save_and_load();
    twins.call(Call::PushPull, &keys, 2, 1);
}

/// Keys of several blocks of a norm, and rows of several tiles and of several chunks.
#[test]
fn norms_of_long_keys_and_rows_have_the_bits_of_host_memory() {
    if !is_child("rules::norms_of_long_keys_and_rows_have_the_bits_of_host_memory", &[]) {
        return;
    }
    gpu::start(0);
    for (name, params) in [("lamb", "wd=0.1"), ("lars", "momentum=0.9"), ("groupadagrad", "")] {
        let mut twins = Twins::new("device", 43);
        twins.what = name.into();
        let keys: [(u64, DType, &[i64]); 3] = [
            (1, DType::F32, &[26, 5_100]),
            (2, DType::BF16, &[31, 700]),
            (3, DType::F64, &[300, 3]),
        ];
        keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
        twins.set_optimizer(name, params);
        for values in [1, 2] {
            twins.call(Call::PushPull, &keys, values, 1);
        }
        twins.save_and_load();
        twins.call(Call::PushPull, &keys, 1, 1);
    }
}

#[test]
fn an_updater_gets_copies_in_host_memory() {
    if !is_child("rules::an_updater_gets_copies_in_host_memory", &[]) {
        return;
    }
    gpu::start(0);
    for kind in ["device", "local"] {
        let mut twins = Twins::new(kind, 37);
        let keys: [(u64, DType, &[i64]); 2] = [(1, DType::F32, &[70]), (2, DType::F32, &[3, 5])];
        keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
        twins.store.set_adding_updater().unwrap();
        twins.peer.set_adding_updater().unwrap();
        for values in 1..=3 {
            twins.call(Call::PushPull, &keys, values, 2);
            twins.call(Call::Push, &keys, values, 0);
            twins.call(Call::Pull, &keys, 0, 1);
        }
        let large = vec![u64::from(2000.0f32.to_bits()); 70];
        let value = Array::plain(Place::Gpu, DType::F32, &[70]).with(&large);
        let twin = Array::plain(Place::Host, DType::F32, &[70]).with(&large);
        let failure = twins.store.push(&[(1, &value)]).unwrap_err();
        assert!(failure.status == 11 && failure.text.contains("push: key 1"), "{failure:?}");
        twins.peer.push(&[(1, &twin)]).unwrap_err();
        // What the updater has changed stays.
        twins.call(Call::Pull, &keys, 0, 1);
    }
}

#[test]
fn an_updater_may_get_the_arrays_on_the_gpu() {
    if !is_child("rules::an_updater_may_get_the_arrays_on_the_gpu", &[]) {
        return;
    }
    gpu::start(0);
    let filled = |place, number: f32| {
        Array::plain(place, DType::F32, &[70]).with(&vec![u64::from(number.to_bits()); 70])
    };
    let halves = |first: f32, rest: f32| {
        [vec![u64::from(first.to_bits()); 35], vec![u64::from(rest.to_bits()); 35]].concat()
    };
    for undo in ["no", "yes"] {
        let options = [("updater_memory", "device"), ("updater_undo", undo)];
        let store = Store::with("device", &options).unwrap();
        let value = filled(Place::Gpu, 1.0);
        store.init(&[(1, &value), (99, &value)]).unwrap();
        let stream = gpu::stream();
        // Behind the copies of the values, which are on the legacy stream.
        gpu::stream_wait(1);
        set_stream(GPU, stream).unwrap();
        store.set_halving_updater(stream).unwrap();
        let out = Array::on(stream, Place::Gpu, DType::F32, &[70], None);
        let values = [2.0, 3.0, 4.0].map(|number| filled(Place::Gpu, number));
        gpu::stream_wait(1);
        let pairs = values.each_ref().map(|value| (1, value));
        store.call(Call::PushPull, &pairs, &[(1, &out)]).unwrap();
        assert_eq!(out.get(), halves(9.0, 1.0));
        // With a ticket it is a stream of the library.
        store.set_halving_updater(0).unwrap();
        let ticket = store.submit(Call::PushPull, &pairs[..1], &[(1, &out)]).unwrap();
        store.wait(ticket, 60_000).unwrap();
        assert_eq!(out.get(), halves(2.0, 1.0));
        assert_eq!(stream_of(GPU), Ok(stream));
        let failure = store.push(&[(99, &values[0])]).unwrap_err();
        assert_eq!(failure.status, 11);
        for part in ["push: key 99", "the updater failed", "keys before it are applied"] {
            assert!(failure.text.contains(part), "{failure:?}");
        }
        store.pull(&[(99, &out)]).unwrap();
        assert_eq!(out.get(), if undo == "yes" { halves(1.0, 1.0) } else { halves(2.0, 1.0) });
        // The call waits for nothing: the stream never comes to its work.
        gpu::fail(c"cuMemcpyHtoDAsync_v2:1=hang");
        gpu::write(gpu::memory(4), &[0; 4], stream);
        store.push(&pairs).unwrap();
        gpu::seed(1);
        set_stream(GPU, 0).unwrap();
    }
}

#[test]
fn a_new_optimizer_begins_with_a_new_state() {
    if !is_child("rules::a_new_optimizer_begins_with_a_new_state", &[]) {
        return;
    }
    gpu::start(0);
    let mut twins = Twins::new("device", 29);
    let keys: [(u64, DType, &[i64]); 2] = [(1, DType::F32, &[70]), (2, DType::F16, &[9])];
    keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
    for (name, params) in [
        ("adam", "multi_precision=true"),
        ("sgd", "momentum=0.9"),
        ("adam", ""),
        ("nadam", "multi_precision=true"),
    ] {
        twins.set_optimizer(name, params);
        for _ in 0..3 {
            twins.call(Call::PushPull, &keys, 2, 1);
        }
    }
}

#[test]
fn keys_in_host_memory_take_every_rule_with_values_of_a_gpu() {
    if !is_child("rules::keys_in_host_memory_take_every_rule_with_values_of_a_gpu", &[]) {
        return;
    }
    gpu::start(0);
    for (name, params) in
        [("lamb", ""), ("lars", "momentum=0.9"), ("groupadagrad", ""), ("adam", "")]
    {
        let mut twins = Twins::new("local", 31);
        twins.what = name.into();
        let keys: [(u64, DType, &[i64]); 2] = [(1, DType::F32, &[7, 30]), (2, DType::F64, &[5])];
        keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
        twins.set_optimizer(name, params);
        for values in 1..=3 {
            twins.call(Call::PushPull, &keys, values, 2);
        }
    }
}
