//! Copies between host memory and a GPU in pieces: how much is pinned, how many are in flight, and what
//! a key is when a copy ends early.

use std::ffi::CStr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs, thread};

use kvstore::DType;

use super::array::{Array, Place};
use super::store::{CPU, CUDA, Call, GPU, RawTensor, Store, set_stream};
use super::{gpu, is_child};

const TIMEOUT: i32 = 20;
const CANCELLED: i32 = 21;

/// Pieces of 256 bytes, so that a key takes several.
const SMALL: [(&str, &str); 1] = [("KV_TEST_PIECE_BYTES", "256")];
/// Elements of a key of 5 such pieces and a part.
const COUNT: usize = 333;
const PIECES: u64 = 6;

const TO_DEVICE: &CStr = c"cuMemcpyHtoDAsync_v2";
const TO_HOST: &CStr = c"cuMemcpyDtoHAsync_v2";

fn bits(number: f32) -> u64 {
    u64::from(number.to_bits())
}

/// A key of numbers that begin at one.
fn rising(place: Place, first: f32) -> Array {
    let elements = (0..COUNT).map(|at| bits(first + at as f32)).collect::<Vec<_>>();
    Array::plain(place, DType::F32, &[COUNT as i64]).with(&elements)
}

fn empty(place: Place) -> Array {
    Array::plain(place, DType::F32, &[COUNT as i64])
}

/// Bytes of a large key, and its tensors in host memory and on the GPU.
const LARGE: usize = 64 << 20;

struct LargeKey {
    words: Vec<u64>,
    address: u64,
    shape: [i64; 1],
}

impl LargeKey {
    fn new(seed: u64) -> Self {
        let count = LARGE / 8;
        let words = (0..count as u64).map(|at| ((at ^ seed) as f64).to_bits()).collect();
        Self { words, address: gpu::memory(LARGE), shape: [count as i64] }
    }

    fn tensor(&self, device_type: i32) -> RawTensor {
        let host = self.words.as_ptr().expose_provenance() as u64;
        RawTensor {
            data: if device_type == CPU { host } else { self.address },
            device_type,
            device_id: 0,
            ndim: 1,
            dtype: DType::F64.code(),
            shape: self.shape.as_ptr(),
            strides: std::ptr::null(),
            byte_offset: 0,
        }
    }
}

/// Three pieces of a call, and those of the call before it, if the device has not come to them yet; beside
/// them there are tables of launches.
const PINNED: u64 = 12 << 20;
const TABLES: u64 = 128 << 10;

#[test]
fn a_key_of_64_mib_pins_three_pieces() {
    let fast = [("KV_CUDA_STAND_IN_RACES", "no")];
    if !is_child("pieces::a_key_of_64_mib_pins_three_pieces", &fast) {
        return;
    }
    gpu::start(0);
    let (key, out) = (LargeKey::new(1), LargeKey::new(2));
    let path = env::temp_dir().join(format!("kvstore-pieces-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let check = |what: &str, pieces: [u64; 2]| {
        let copies = [TO_DEVICE, TO_HOST].map(gpu::calls);
        let pinned = gpu::pinned_bytes();
        assert!(pinned <= 2 * PINNED + TABLES, "{what}: {pinned} bytes");
        for (copies, pieces) in copies.into_iter().zip(pieces) {
            // A call may have a table of jobs too.
            assert!((pieces..=pieces + 1).contains(&copies), "{what}: {copies} copies");
        }
        gpu::forget_counts();
    };
    gpu::forget_counts();
    let store = Store::new("device");
    store.init_raw(&[1], &[key.tensor(CPU)]).unwrap();
    store.pull_raw(&[1], &[out.tensor(CUDA)]).unwrap();
    check("a key that moves to the GPU", [16, 0]);
    store.pull_raw(&[1], &[out.tensor(CPU)]).unwrap();
    assert!(out.words == key.words, "pull");
    check("a pull into host memory", [0, 16]);
    store.save(path).unwrap();
    check("save", [0, 16]);
    let other = LargeKey::new(3);
    store.push_raw(&[1], &[other.tensor(CPU)]).unwrap();
    check("a push from host memory", [16, 0]);
    store.load(path).unwrap();
    check("load", [16, 0]);
    store.pull_raw(&[1], &[out.tensor(CPU)]).unwrap();
    assert!(out.words == key.words, "load");
    check("a pull after load", [0, 16]);
    store.remove(&[1]).unwrap();
    fs::remove_file(path).unwrap();

    let local = Store::new("local");
    local.init_raw(&[1], &[other.tensor(CPU)]).unwrap();
    local.push_raw(&[1], &[out.tensor(CUDA)]).unwrap();
    check("a push to a key in host memory", [0, 16]);
    local.pull_raw(&[1], &[out.tensor(CUDA)]).unwrap();
    check("a pull from a key in host memory", [16, 0]);
    assert!(gpu::pinned_bytes() >= PINNED, "all pieces have been used");
}

/// A store with the key 7 on the GPU, a stream that this thread names, and a host array.
fn with_key(kind: &str) -> (Store, u64) {
    let store = Store::with(kind, &[("timeout_ms", "300")]).unwrap();
    let place = if kind == "device" { Place::Gpu } else { Place::Host };
    set_stream(GPU, 1).unwrap();
    store.init(&[(7, &rising(place, 1.0))]).unwrap();
    gpu::stream_wait(1);
    let stream = gpu::stream();
    set_stream(GPU, stream).unwrap();
    (store, stream)
}

/// The elements of key 7, behind a reset of the driver that ends what hangs.
fn after_reset(store: &Store) -> Vec<u64> {
    gpu::seed(1);
    set_stream(GPU, 1).unwrap();
    let out = empty(Place::Host);
    store.pull(&[(7, &out)]).unwrap();
    out.get()
}

#[test]
fn three_pieces_are_in_flight_and_a_hang_ends_at_the_deadline() {
    if !is_child("pieces::three_pieces_are_in_flight_and_a_hang_ends_at_the_deadline", &SMALL) {
        return;
    }
    gpu::start(0);
    let before = rising(Place::Host, 1.0).get();
    for (kind, call, copy, plan) in [
        ("device", Call::Push, TO_DEVICE, c"cuMemcpyHtoDAsync_v2:1=hang"),
        ("device", Call::Pull, TO_HOST, c"cuMemcpyDtoHAsync_v2:1=hang"),
        ("local", Call::Push, TO_HOST, c"cuMemcpyDtoHAsync_v2:1=hang"),
        ("local", Call::Pull, TO_DEVICE, c"cuMemcpyHtoDAsync_v2:1=hang"),
    ] {
        let (store, _) = with_key(kind);
        let place = if kind == "device" { Place::Host } else { Place::Gpu };
        let (value, out) = (rising(place, 9.0), empty(place));
        gpu::stream_wait(1);
        let make = || match call {
            Call::Push => store.push(&[(7, &value)]),
            _ => store.pull(&[(7, &out)]),
        };
        gpu::fail(plan);
        let failure = make().unwrap_err();
        assert_eq!(failure.status, TIMEOUT, "{failure:?}");
        for part in ["key 7", "GPU 0", "your stream"] {
            assert!(failure.text.contains(part), "{kind}, {call:?}: {failure:?}");
        }
        assert_eq!(gpu::calls(copy), 3, "{kind}, {call:?}: pieces in flight");
        assert_eq!(after_reset(&store), before, "{kind}, {call:?}");
        gpu::forget_counts();
        make().unwrap();
        // The copy of a table is one more.
        let copies = gpu::calls(copy);
        assert!((PIECES..=PIECES + 1).contains(&copies), "{kind}, {call:?}: {copies} copies");
    }
}

#[test]
fn a_cancelled_ticket_ends_its_wait_for_a_piece() {
    if !is_child("pieces::a_cancelled_ticket_ends_its_wait_for_a_piece", &SMALL) {
        return;
    }
    gpu::start(0);
    for (call, plan) in
        [(Call::Push, c"cuMemcpyHtoDAsync_v2:1=hang"), (Call::Pull, c"cuMemcpyDtoHAsync_v2:1=hang")]
    {
        let store = Store::with("device", &[("timeout_ms", "2000")]).unwrap();
        store.init(&[(7, &rising(Place::Gpu, 1.0))]).unwrap();
        gpu::stream_wait(1);
        let (value, out) = (rising(Place::Host, 9.0), empty(Place::Host));
        gpu::fail(plan);
        let ticket = match call {
            Call::Push => store.submit(call, &[(7, &value)], &[]),
            _ => store.submit(call, &[], &[(7, &out)]),
        };
        let ticket = ticket.unwrap();
        while gpu::calls(TO_DEVICE) + gpu::calls(TO_HOST) < 2 {
            thread::yield_now();
        }
        // The pieces in flight use the buffers until the GPU is done.
        assert_eq!(store.cancel(ticket).unwrap_err().status, TIMEOUT);
        gpu::seed(1);
        let failure = store.wait(ticket, 10_000).unwrap_err();
        assert_eq!(failure.status, CANCELLED, "{call:?}: {failure:?}");
        assert!(failure.text.contains("key 7"), "{failure:?}");
        assert_eq!(after_reset(&store), rising(Place::Host, 1.0).get(), "{call:?}");
    }
}

/// The new value is on its way when the deadline comes: the key keeps the old one as a whole.
#[test]
fn an_updated_value_that_does_not_arrive_in_time_changes_nothing() {
    if !is_child("pieces::an_updated_value_that_does_not_arrive_in_time_changes_nothing", &SMALL) {
        return;
    }
    gpu::start(0);
    let (store, stream) = with_key("device");
    store.set_adding_updater().unwrap();
    let value = rising(Place::Gpu, 1.0);
    gpu::stream_wait(1);
    // The first piece arrives.
    gpu::fail(c"cuMemcpyHtoDAsync_v2:2=hang");
    let failure = store.push(&[(7, &value)]).unwrap_err();
    assert_eq!(failure.status, TIMEOUT, "{failure:?}");
    assert!(failure.text.contains("key 7"), "{failure:?}");
    assert_eq!(after_reset(&store), rising(Place::Host, 1.0).get());
    set_stream(GPU, stream).unwrap();
    store.push(&[(7, &value)]).unwrap();
    let out = empty(Place::Host);
    store.pull(&[(7, &out)]).unwrap();
    let doubled = (0..COUNT).map(|at| bits(2.0 * (1.0 + at as f32))).collect::<Vec<_>>();
    assert_eq!(out.get(), doubled);
}

/// A pull in pieces and pushes of other threads on other streams.
#[test]
fn a_pull_in_pieces_is_of_one_value() {
    if !is_child("pieces::a_pull_in_pieces_is_of_one_value", &SMALL) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let all = |number: f32| empty(Place::Gpu).with(&[bits(number); COUNT]);
    store.init(&[(7, &all(0.0))]).unwrap();
    gpu::stream_wait(1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            gpu::start(0);
            set_stream(GPU, gpu::stream()).unwrap();
            let values = [1.0, 2.0, 3.0].map(all);
            gpu::stream_wait(1);
            while !is_over.load(Ordering::Relaxed) {
                values.iter().for_each(|value| store.push(&[(7, value)]).unwrap());
            }
        });
        set_stream(GPU, gpu::stream()).unwrap();
        for seed in 0..200 {
            let out = empty(Place::Host);
            let pulled = store.pull(&[(7, &out)]);
            let elements = out.get();
            if pulled.is_err() || elements.iter().any(|it| *it != elements[0]) {
                is_over.store(true, Ordering::Relaxed);
            }
            pulled.unwrap();
            assert_eq!(elements, vec![elements[0]; COUNT], "pull {seed}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Two threads on one stream: the memory of a sum is not used again while it has pieces to be copied.
#[test]
fn sums_of_two_threads_do_not_mix() {
    if !is_child("pieces::sums_of_two_threads_do_not_mix", &SMALL) {
        return;
    }
    gpu::start(0);
    let store = Store::new("local");
    let work = |key: u64| {
        gpu::start(0);
        let number = key as f32;
        let value = empty(Place::Gpu).with(&[bits(number); COUNT]);
        gpu::stream_wait(1);
        for round in 0..100 {
            store.push(&[(key, &value), (key, &value)]).unwrap();
            let out = empty(Place::Host);
            store.pull(&[(key, &out)]).unwrap();
            assert!(out.get() == vec![bits(2.0 * number); COUNT], "key {key}, round {round}");
        }
    };
    store.init(&[(1, &empty(Place::Host)), (2, &empty(Place::Host))]).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(2);
    });
}

/// Whole keys with all layouts, dtypes, rules and places.
#[test]
fn other_tests_pass_in_small_pieces() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["dense::", "layouts::", "rules::", "homes::", "slices::"]).envs(SMALL);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("test result: ok"), "{text}");
}
