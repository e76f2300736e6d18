//! What the statistics of a store say of devices, against the counts of the stand-in.

use std::ffi::CStr;

use kvstore::DType;
use serde_json::Value;

use super::array::{Array, Place};
use super::store::{Call, GPU, Store, set_stream};
use super::{gpu, is_child};

const COUNT: i64 = 50;
const BYTES: u64 = 4 * COUNT as u64;
/// Of a table of `kernels/job.cuh` with one job of one input, one out and one chunk.
const TABLE: u64 = 56 + 2 * 8 + 8;

fn array(place: Place) -> Array {
    let one = u64::from(1.0f32.to_bits());
    Array::plain(place, DType::F32, &[COUNT]).with(&[one; COUNT as usize])
}

/// The members of the devices that the process uses.
fn devices(store: &Store) -> Vec<Value> {
    let stats: Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    stats["devices"].as_array().unwrap().clone()
}

fn pinned(store: &Store) -> u64 {
    let stats: Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    stats["pinned_bytes"].as_u64().unwrap()
}

/// How much the members of all devices have grown since.
struct Growth<'a> {
    store: &'a Store,
    before: Vec<Value>,
}

impl<'a> Growth<'a> {
    fn new(store: &'a Store) -> Self {
        gpu::forget_counts();
        Self { store, before: devices(store) }
    }

    fn of(&self, name: &str) -> u64 {
        let sum = |all: &[Value]| all.iter().map(|it| it[name].as_u64().unwrap()).sum::<u64>();
        sum(&devices(self.store)) - sum(&self.before)
    }

    /// Compares all counts with those of the stand-in, which has counted since as well.
    #[track_caller]
    fn equals_the_driver(&self, what: &str) {
        let counted: [(&str, &CStr); 5] = [
            ("launches", c"cuLaunchKernel"),
            ("allocations", c"cuMemAllocFromPoolAsync"),
            ("copies_to_device", c"cuMemcpyHtoDAsync_v2"),
            ("copies_to_host", c"cuMemcpyDtoHAsync_v2"),
            ("copies_between", c"cuMemcpyPeerAsync"),
        ];
        for (name, function) in counted {
            assert_eq!(self.of(name), gpu::calls(function), "{what}: {name}");
        }
    }
}

#[test]
fn a_process_without_cuda_tensors_has_no_devices() {
    if !is_child("counters::a_process_without_cuda_tensors_has_no_devices", &[]) {
        return;
    }
    let (store, value) = (Store::new("device"), array(Place::Host));
    store.init(&[(1, &value)]).unwrap();
    store.call(Call::PushPull, &[(1, &value)], &[(1, &value)]).unwrap();
    assert!(devices(&store).is_empty() && pinned(&store) == 0);
    assert_eq!(gpu::calls(c"cuInit"), 0);
}

#[test]
fn launches_copies_and_allocations_are_those_of_the_driver() {
    let test = "counters::launches_copies_and_allocations_are_those_of_the_driver";
    if !is_child(test, &[("KV_CUDA_STAND_IN_DEVICES", "2")]) {
        return;
    }
    gpu::start(0);
    let [here, other, host] = [Place::Gpu, Place::Other(1), Place::Host].map(array);
    for kind in ["device", "local"] {
        let store = Store::new(kind);
        store.init(&[(1, &here), (2, &other), (3, &host)]).unwrap();
        store.set_optimizer("adam", "").unwrap();
        for key in 1..=3 {
            for (from, value) in [("GPU 0", &here), ("GPU 1", &other), ("the host", &host)] {
                let growth = Growth::new(&store);
                store.call(Call::PushPull, &[(key, value), (key, &here)], &[(key, value)]).unwrap();
                growth.equals_the_driver(&format!("{kind}, key {key}, from {from}"));
            }
        }
        assert_eq!(devices(&store).len(), 2);
    }
}

#[test]
fn bytes_are_those_of_keys_values_and_tables() {
    if !is_child("counters::bytes_are_those_of_keys_values_and_tables", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, host) = (array(Place::Gpu), array(Place::Host));
    store.init(&[(1, &value)]).unwrap();
    let growth = Growth::new(&store);
    store.push(&[(1, &host)]).unwrap();
    assert_eq!((growth.of("bytes_to_device"), growth.of("copies_to_device")), (BYTES + TABLE, 2));
    assert_eq!((growth.of("bytes_to_host"), growth.of("waits")), (0, 0));
    store.pull(&[(1, &host)]).unwrap();
    assert_eq!((growth.of("bytes_to_host"), growth.of("waits")), (BYTES, 1));
    // The blocks of one page are all that was pinned.
    let fresh = array(Place::Gpu);
    assert_eq!(pinned(&store) % 4096, 0);
    let before = pinned(&store);
    gpu::forget_counts();
    store.init(&[(2, &fresh)]).unwrap();
    store.pull(&[(2, &host), (1, &host)]).unwrap();
    assert_eq!(pinned(&store) - before, 4096 * gpu::calls(c"cuMemHostAlloc"));

    let held = |store: &Store| devices(store)[0]["key_bytes"].as_u64().unwrap();
    assert_eq!(held(&store), 2 * BYTES);
    store.set_optimizer("adam", "").unwrap();
    store.push(&[(1, &value)]).unwrap();
    assert_eq!(held(&store), 4 * BYTES, "a value, and one with two states");
    let second = Store::new("device");
    assert_eq!(held(&second), 0);
    store.remove(&[1, 2]).unwrap();
    assert_eq!(held(&store), 0);
}

#[test]
fn pinned_memory_that_is_freed_is_no_longer_counted() {
    const CALLS: u64 = 20;
    const BYTES: u64 = 1 << 20;
    let none_kept = [("KV_PINNED_BYTES", "0")];
    let test = "counters::pinned_memory_that_is_freed_is_no_longer_counted";
    if !is_child(test, &none_kept) {
        return;
    }
    gpu::start(0);
    let (store, count) = (Store::new("device"), (BYTES / 4) as i64);
    let value = Array::plain(Place::Gpu, DType::F32, &[count]).with(&vec![0; count as usize]);
    let out = Array::plain(Place::Host, DType::F32, &[count]);
    store.init(&[(1, &value)]).unwrap();
    for _ in 0..CALLS {
        store.pull(&[(1, &out)]).unwrap();
    }
    assert!(pinned(&store) < 4 * BYTES, "{} bytes", pinned(&store));
}

#[test]
fn waits_are_counted_with_their_time() {
    if !is_child("counters::waits_are_counted_with_their_time", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::with("device", &[("timeout_ms", "100")]).unwrap();
    let (value, host) = (array(Place::Gpu), array(Place::Host));
    gpu::stream_wait(1);
    store.init(&[(1, &value)]).unwrap();
    let growth = Growth::new(&store);
    store.call(Call::PushPull, &[(1, &value)], &[(1, &value)]).unwrap();
    assert_eq!(growth.of("waits"), 0, "a call with CUDA tensors waits for nothing");
    let stream = gpu::stream();
    set_stream(GPU, stream).unwrap();
    gpu::fail(c"cuMemcpyHtoDAsync_v2:1=hang");
    gpu::write(gpu::memory(4), &[0; 4], stream);
    assert_eq!(store.pull(&[(1, &host)]).unwrap_err().status, 20);
    let waited = devices(&store)[0]["waited_s"].as_f64().unwrap();
    assert!(growth.of("waits") == 1 && (0.1..10.0).contains(&waited), "{waited} s");
}

#[test]
fn what_the_driver_refuses_is_not_counted() {
    if !is_child("counters::what_the_driver_refuses_is_not_counted", &[]) {
        return;
    }
    gpu::start(0);
    let (store, value, other) = (Store::new("device"), array(Place::Gpu), array(Place::Gpu));
    store.init(&[(1, &value)]).unwrap();
    let growth = Growth::new(&store);
    gpu::fail(c"cuLaunchKernel:1=701");
    store.push(&[(1, &other)]).unwrap_err();
    assert_eq!((growth.of("launches"), growth.of("copies_to_device")), (0, 1));
}

#[test]
fn a_forked_child_has_no_devices() {
    if !is_child("counters::a_forked_child_has_no_devices", &[]) {
        return;
    }
    gpu::start(0);
    let (store, value) = (Store::new("device"), array(Place::Gpu));
    store.init(&[(1, &value)]).unwrap();
    assert_eq!(devices(&store).len(), 1);
    assert!(gpu::in_fork(|| {
        let store = Store::new("device");
        devices(&store).is_empty() && pinned(&store) == 0
    }));
}
