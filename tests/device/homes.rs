//! Where the values of keys are in a `device` store.

use std::thread;

use kvstore::DType;

use super::array::{Array, Place};
use super::dense::{Twins, assert_same};
use super::store::{CPU, Call, Device, GPU, Store};
use super::{gpu, is_child};

const FOUR: &[(&str, &str)] = &[("KV_CUDA_STAND_IN_DEVICES", "4")];

const OUT_OF_MEMORY: i32 = 60;

const HOST: Device = Device { kind: CPU, id: 0 };

fn filled(place: Place, count: i64, number: f32) -> Array {
    let elements = vec![u64::from(number.to_bits()); count as usize];
    Array::plain(place, DType::F32, &[count]).with(&elements)
}

/// Initialises keys of both stores from host memory.
fn init(twins: &mut Twins, keys: &[(u64, DType, &[i64])]) {
    for &(key, dtype, shape) in keys {
        let elements = twins.random.elements(dtype, shape.iter().product::<i64>() as usize);
        let value = Array::plain(Place::Host, dtype, shape).with(&elements);
        twins.store.init(&[(key, &value)]).unwrap();
        twins.peer.init(&[(key, &value)]).unwrap();
    }
}

#[test]
fn a_key_from_host_memory_moves_with_its_state_at_its_first_call_with_a_tensor_of_a_gpu() {
    let test = "homes::a_key_from_host_memory_moves_with_its_state_at_its_first_call_with_a_tensor_of_a_gpu";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    let keys: [(u64, DType, &[i64]); 3] =
        [(1, DType::F32, &[70]), (2, DType::F16, &[9, 3]), (3, DType::F64, &[4, 5])];
    for (seed, params) in [(51, ""), (52, "multi_precision=true")] {
        for (name, first) in [("adam", Call::Push), ("lars", Call::Pull), ("adamw", Call::PushPull)]
        {
            let mut twins = Twins::new("device", seed);
            init(&mut twins, &keys);
            twins.set_optimizer(name, params);
            // No tensor of a GPU yet.
            twins.gpus = 0;
            twins.call(Call::PushPull, &keys, 2, 1);
            for (key, ..) in keys {
                assert_eq!(twins.store.key_device(key), Ok(HOST), "key {key}");
            }
            twins.gpus = 1;
            for (key, dtype, shape) in keys {
                let count = shape.iter().product::<i64>() as usize;
                let elements = twins.random.elements(dtype, count);
                let value = Array::plain(Place::Gpu, dtype, shape).with(&elements);
                let twin = Array::plain(Place::Host, dtype, shape).with(&elements);
                let (out, wanted) = (
                    Array::plain(Place::Gpu, dtype, shape),
                    Array::plain(Place::Host, dtype, shape),
                );
                let (values, outs) = match first {
                    Call::Push => (vec![(key, &value)], vec![]),
                    Call::Pull => (vec![], vec![(key, &out)]),
                    _ => (vec![(key, &value)], vec![(key, &out)]),
                };
                twins.store.call(first, &values, &outs).unwrap();
                let values = values.iter().map(|_| (key, &twin)).collect::<Vec<_>>();
                let outs = outs.iter().map(|_| (key, &wanted)).collect::<Vec<_>>();
                twins.peer.call(first, &values, &outs).unwrap();
                if first != Call::Push {
                    assert_same(&out, &wanted, &format!("{name}, key {key}"));
                }
                assert_eq!(twins.store.key_device(key), Ok(GPU), "key {key}");
            }
            twins.call(Call::PushPull, &keys, 3, 2);
            twins.save_and_load();
            twins.call(Call::PushPull, &keys, 1, 2);
        }
    }
}

#[test]
fn a_key_stays_in_host_memory_where_its_merge_works_there() {
    if !is_child("homes::a_key_stays_in_host_memory_where_its_merge_works_there", &[]) {
        return;
    }
    gpu::start(0);
    let keys: [(u64, DType, &[i64]); 1] = [(1, DType::F32, &[70])];
    let mut twins = Twins::new("local", 61);
    init(&mut twins, &keys);
    twins.call(Call::PushPull, &keys, 4, 2);
    assert_eq!(twins.store.key_device(1), Ok(HOST), "a local store");
    let mut twins = Twins::new("device", 62);
    init(&mut twins, &keys);
    twins.store.set_adding_updater().unwrap();
    twins.peer.set_adding_updater().unwrap();
    twins.call(Call::PushPull, &keys, 4, 2);
    assert_eq!(twins.store.key_device(1), Ok(HOST), "an updater");
}

/// The first call has values on four GPUs for each of several keys: each key goes to the GPU with
/// the fewest bytes, larger keys first.
#[test]
fn keys_settle_on_the_gpu_with_the_fewest_bytes() {
    if !is_child("homes::keys_settle_on_the_gpu_with_the_fewest_bytes", FOUR) {
        return;
    }
    for device in 0..4 {
        gpu::start(device);
    }
    let mut twins = Twins::new("device", 71);
    twins.gpus = 4;
    let counts: Vec<i64> = vec![10, 500, 40, 300, 20, 200, 90, 60, 30];
    let shapes: Vec<[i64; 1]> = counts.iter().map(|&count| [count]).collect();
    let keys: Vec<(u64, DType, &[i64])> =
        (1..).zip(&shapes).map(|(key, shape)| (key, DType::F32, &shape[..])).collect();
    init(&mut twins, &keys);
    let mut arrays = Vec::new();
    for &(key, dtype, shape) in &keys {
        for device in 0..4 {
            let elements = twins.random.elements(dtype, shape[0] as usize);
            let value = Array::plain(Place::Other(device), dtype, shape).with(&elements);
            let twin = Array::plain(Place::Host, dtype, shape).with(&elements);
            arrays.push((key, value, twin));
        }
    }
    let here: Vec<_> = arrays.iter().map(|(key, value, _)| (*key, value)).collect();
    let there: Vec<_> = arrays.iter().map(|(key, _, twin)| (*key, twin)).collect();
    twins.store.push(&here).unwrap();
    twins.peer.push(&there).unwrap();
    let (mut held, mut wanted) = ([0; 4], vec![0; counts.len()]);
    let mut by_size: Vec<usize> = (0..counts.len()).collect();
    by_size.sort_by_key(|&index| -counts[index]);
    for index in by_size {
        let home = (0..4).min_by_key(|&device| (held[device], device)).unwrap();
        held[home] += counts[index];
        wanted[index] = home as i32;
    }
    for (&(key, ..), &device) in keys.iter().zip(&wanted) {
        let home = twins.store.key_device(key).unwrap();
        assert_eq!(home, Device { id: device, ..GPU }, "key {key}");
    }
    twins.call(Call::PushPull, &keys, 4, 4);
}

/// Threads push from host memory while another one pushes from a GPU.
#[test]
fn a_key_may_move_while_other_threads_use_it() {
    const ROUNDS: u64 = 60;
    const THREADS: usize = 3;
    const PUSHES: usize = 8;
    if !is_child("homes::a_key_may_move_while_other_threads_use_it", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    store.set_optimizer("test", "").unwrap();
    for key in 1..=ROUNDS {
        store.init(&[(key, &filled(Place::Host, 40, 0.0))]).unwrap();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let (one, out) = (filled(Place::Host, 40, 1.0), filled(Place::Host, 40, 0.0));
                    for _ in 0..PUSHES {
                        store.push(&[(key, &one)]).unwrap();
                        store.pull(&[(key, &out)]).unwrap();
                    }
                });
            }
            gpu::on(0, || store.push(&[(key, &filled(Place::Gpu, 40, 1.0))]).unwrap());
        });
        let out = filled(Place::Host, 40, 0.0);
        store.pull(&[(key, &out)]).unwrap();
        let wanted = filled(Place::Host, 40, (THREADS * PUSHES + 1) as f32);
        assert_same(&out, &wanted, &format!("key {key}"));
        assert_eq!(store.key_device(key), Ok(GPU));
    }
}

/// Operations with tickets are planned before the one that moves the key has run.
#[test]
fn operations_that_were_queued_before_a_key_moved_find_it() {
    const ROUNDS: u64 = 60;
    if !is_child("homes::operations_that_were_queued_before_a_key_moved_find_it", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    store.set_optimizer("test", "").unwrap();
    let (one, out) = (filled(Place::Host, 40, 1.0), filled(Place::Host, 40, 0.0));
    let two = filled(Place::Gpu, 40, 2.0);
    for key in 1..=ROUNDS {
        store.init(&[(key, &filled(Place::Host, 40, 0.0))]).unwrap();
        let (values, host) = ([(key, &two)], [(key, &one)]);
        let mut tickets = vec![store.submit(Call::Push, &values, &[]).unwrap()];
        tickets.extend((0..3).map(|_| store.submit(Call::Push, &host, &[]).unwrap()));
        tickets.push(store.submit(Call::PushPull, &host, &[(key, &out)]).unwrap());
        tickets.into_iter().for_each(|ticket| store.wait(ticket, 60_000).unwrap());
        assert_same(&out, &filled(Place::Host, 40, 6.0), &format!("key {key}"));
        assert_eq!(store.key_device(key), Ok(GPU));
    }
}

#[test]
fn a_key_that_does_not_fit_stays_in_host_memory() {
    if !is_child("homes::a_key_that_does_not_fit_stays_in_host_memory", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::with("device", &[("device_bytes", "4096")]).unwrap();
    store.init(&[(1, &filled(Place::Host, 2000, 3.0))]).unwrap();
    let failure = store.push(&[(1, &filled(Place::Gpu, 2000, 4.0))]).unwrap_err();
    assert_eq!(failure.status, OUT_OF_MEMORY, "{failure:?}");
    for part in ["push: key 1", "device_bytes", "4096", "8000"] {
        assert!(failure.text.contains(part), "{failure:?}");
    }
    assert_eq!(store.key_device(1), Ok(HOST));
    let out = filled(Place::Host, 2000, 0.0);
    store.pull(&[(1, &out)]).unwrap();
    assert_same(&out, &filled(Place::Host, 2000, 3.0), "the value");
}

#[test]
fn a_bound_list_goes_on_when_its_keys_have_moved() {
    let test = "homes::a_bound_list_goes_on_when_its_keys_have_moved";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    let stores = [Store::new("device"), Store::new("local")];
    let here = |number| filled(Place::Host, 50, number);
    stores.iter().for_each(|store| store.init(&[(1, &here(0.0)), (2, &here(0.0))]).unwrap());
    stores.iter().for_each(|store| store.set_optimizer("adam", "learning_rate=0.1").unwrap());
    let (values, outs) =
        ([here(3.0), here(-4.0)], [[here(0.0), here(0.0)], [here(0.0), here(0.0)]]);
    let lists: Vec<_> = stores
        .iter()
        .zip(&outs)
        .map(|(store, outs)| {
            let values = [(2, &values[1]), (1, &values[0])];
            store.bind(&values, &[(1, &outs[0]), (2, &outs[1])]).unwrap()
        })
        .collect();
    let on_gpu = filled(Place::Gpu, 50, 7.0);
    for round in 0..6 {
        if round == 2 {
            stores[0].push(&[(1, &on_gpu)]).unwrap();
            stores[1].push(&[(1, &here(7.0))]).unwrap();
            assert_eq!(stores[0].key_device(1), Ok(GPU));
            assert_eq!(stores[0].key_device(2), Ok(HOST));
        }
        let call = [Call::PushPull, Call::Push, Call::Pull][round % 3];
        lists.iter().for_each(|list| list.call(call).unwrap());
        for (own, peer) in outs[0].iter().zip(&outs[1]) {
            assert_same(own, peer, &format!("round {round}"));
        }
    }
}
