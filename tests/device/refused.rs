//! What is refused, and failures of the driver: each with its status and a text.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use kvstore::DType;

use super::array::{Array, Place};
use super::store::{CUDA, GPU, Outcome, RawTensor, Store, set_stream};
use super::{gpu, is_child, is_skipped};

const INVALID: i32 = 1;
const UNSUPPORTED: i32 = 2;
const NO_MEMORY: i32 = 60;
const DEVICE: i32 = 64;

fn array(place: Place, count: i64) -> Array {
    let elements: Vec<_> = (0..count).map(|it| u64::from((it as f32).to_bits())).collect();
    Array::plain(place, DType::F32, &[count]).with(&elements)
}

#[track_caller]
fn assert_fails<T: std::fmt::Debug>(outcome: Outcome<T>, status: i32, parts: &[&str]) {
    let failure = outcome.unwrap_err();
    assert_eq!(failure.status, status, "{failure:?}");
    parts.iter().for_each(|part| assert!(failure.text.contains(part), "no {part:?}: {failure:?}"));
}

#[test]
fn wrong_pointers_and_devices_are_refused_before_anything_changes() {
    let test = "refused::wrong_pointers_and_devices_are_refused_before_anything_changes";
    if !is_child(test, &[("KV_CUDA_STAND_IN_DEVICES", "2")]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, host) = (array(Place::Gpu, 6), array(Place::Host, 6));
    store.init(&[(1, &value), (2, &value)]).unwrap();
    let good = value.tensor();
    gpu::start(1);
    let of_other = gpu::memory(24);
    gpu::start(0);
    let freed = gpu::memory(24);
    gpu::free(freed);
    let of = |data: u64| RawTensor { data, ..good };
    for (tensor, status, part) in [
        (of(host.tensor().data), INVALID, "and 0x"),
        (of(of_other), INVALID, "GPU 1"),
        (RawTensor { device_id: 1, ..good }, INVALID, "in that of GPU 0"),
        (of(freed), INVALID, "is not"),
        (of(gpu::memory(20)), INVALID, "4 bytes beyond"),
        (of(0), INVALID, "NULL"),
        (of(good.data + 2), INVALID, "misaligned"),
        (RawTensor { device_id: -1, ..good }, INVALID, "device -1"),
        (RawTensor { device_id: 2, ..good }, INVALID, "sees 2"),
        (RawTensor { device_id: 70_000, ..good }, INVALID, "70000"),
        (RawTensor { device_type: 13, ..good }, UNSUPPORTED, "managed"),
        (RawTensor { device_type: 10, ..good }, UNSUPPORTED, "type 10"),
    ] {
        // The pair before it is not applied either.
        assert_fails(store.push_raw(&[1, 2], &[good, tensor]), status, &["push: key 2", part]);
        assert_fails(store.pull_raw(&[1, 2], &[good, tensor]), status, &["pull: key 2", part]);
    }
    assert_fails(store.init_raw(&[3], &[of(freed)]), INVALID, &["init: key 3", "GPU 0"]);
    let out = array(Place::Host, 6);
    store.pull(&[(1, &out)]).unwrap();
    assert_eq!(out.get(), host.get());
}

#[test]
fn the_option_devices_leaves_gpus_out() {
    let two = [("KV_CUDA_STAND_IN_DEVICES", "2")];
    if !is_child("refused::the_option_devices_leaves_gpus_out", &two) {
        return;
    }
    gpu::start(0);
    let (value, other) = (array(Place::Gpu, 6), array(Place::Other(1), 6));
    let store = Store::with("device", &[("devices", "1,3")]).unwrap();
    let parts = ["init: key 1", "GPU 0", "option devices"];
    assert_fails(store.init(&[(1, &value)]), INVALID, &parts);
    store.init(&[(1, &other)]).unwrap();
    assert_fails(store.push(&[(1, &value)]), INVALID, &["push: key 1", "GPU 0"]);
    assert_fails(
        Store::with("device", &[("devices", "one")]).map(drop),
        3,
        &["devices", "numbers"],
    );
    let store = Store::with("device", &[("devices", "all")]).unwrap();
    store.init(&[(1, &value), (2, &other)]).unwrap();
}

/// Without checks a pointer that the driver knows as another GPU's reaches the GPU.
#[test]
fn the_option_device_checks_turns_the_checks_of_pointers_off() {
    if !is_child("refused::the_option_device_checks_turns_the_checks_of_pointers_off", &[]) {
        return;
    }
    gpu::start(0);
    let value = array(Place::Gpu, 6);
    for (checks, calls) in [("yes", 1), ("no", 0)] {
        let store = Store::with("device", &[("device_checks", checks)]).unwrap();
        store.init(&[(1, &value)]).unwrap();
        gpu::forget_counts();
        store.push(&[(1, &value)]).unwrap();
        assert_eq!(gpu::calls(c"cuPointerGetAttributes"), calls, "{checks}");
    }
}

#[test]
fn what_is_not_served_yet_names_the_way_around() {
    if !is_child("refused::what_is_not_served_yet_names_the_way_around", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, host) = (array(Place::Gpu, 6), array(Place::Host, 6));
    store.init(&[(1, &value), (2, &host)]).unwrap();
    let ids = Array::plain(Place::Host, DType::I64, &[1]).with(&[0]);
    let (row, row_here) = (array(Place::Gpu, 1), array(Place::Host, 1));
    assert_fails(store.push_rows(1, &ids, &row_here), UNSUPPORTED, &["key 1", "tensor.cpu()"]);
    assert_fails(store.push_rows(2, &ids, &row), UNSUPPORTED, &["key 2", "tensor.cpu()"]);
    store.set_compression("2bit").unwrap();
    assert_fails(
        store.push(&[(2, &value)]),
        UNSUPPORTED,
        &["key 2", "compression", "tensor.cpu()"],
    );
    store.set_compression("none").unwrap();
    // Key 1 is in GPU memory. A transaction has the other one alone, from host memory.
    store.begin().unwrap();
    for pushed in [(1, &value), (2, &value), (1, &host)] {
        let key = format!("key {}", pushed.0);
        assert_fails(store.push(&[pushed]), UNSUPPORTED, &[&key, "transaction", "host memory"]);
    }
    let here = array(Place::Host, 6);
    store.push(&[(2, &Array::plain(Place::Host, DType::F32, &[6]).with(&[0; 6]))]).unwrap();
    store.pull(&[(2, &here)]).unwrap();
    assert_eq!(here.get(), [0; 6]);
    store.rollback().unwrap();
    store.pull(&[(2, &here)]).unwrap();
    assert_eq!(here.get(), host.get());
    // A key that is replaced has no gradient.
    store.set_clipping(1.0).unwrap();
    store.push(&[(1, &value)]).unwrap();
    store.set_optimizer("sgd", "").unwrap();
    for pushed in [(1, &value), (2, &value), (1, &host)] {
        let key = format!("key {}", pushed.0);
        assert_fails(store.push(&[pushed]), UNSUPPORTED, &[&key, "set_clipping", "host memory"]);
    }
    store.push(&[(2, &array(Place::Host, 6))]).unwrap();
    let out = array(Place::Host, 6);
    store.pull(&[(1, &out)]).unwrap();
    assert_eq!(out.get(), host.get());
    let store = Store::with("local", &[("cuda", "no")]).unwrap();
    assert_fails(store.init(&[(1, &value)]), UNSUPPORTED, &["init: key 1", "cuda is no"]);
}

/// A tensor that is said to be on a GPU, without a driver to ask.
fn claimed() -> RawTensor {
    RawTensor { device_type: CUDA, ..array(Place::Host, 1).tensor() }
}

/// Whether CUDA tensors fail with a text, and tensors in host memory work.
fn fails_with(parts: &[&str]) {
    let store = Store::new("device");
    let host = array(Place::Host, 1);
    let tensor = RawTensor { shape: host.tensor().shape, ..claimed() };
    for _ in 0..2 {
        assert_fails(store.init_raw(&[1], &[tensor]), DEVICE, parts);
        assert_fails(store.init_raw(&[1], &[tensor]), DEVICE, &["init: key 1: the value"]);
    }
    store.init(&[(1, &host)]).unwrap();
    store.push(&[(1, &host)]).unwrap();
}

#[test]
fn a_missing_driver_is_named() {
    if is_child("refused::a_missing_driver_is_named", &[("KV_CUDA", "/no/such/driver.so")]) {
        fails_with(&["/no/such/driver.so", "install"]);
    }
}

#[test]
fn an_old_driver_is_named() {
    if is_child("refused::an_old_driver_is_named", &[("KV_CUDA_STAND_IN_VERSION", "11000")]) {
        fails_with(&["CUDA 11.0", "11.2"]);
    }
}

#[test]
fn a_driver_without_a_device_is_named() {
    if is_child("refused::a_driver_without_a_device_is_named", &[("KV_CUDA_STAND_IN_DEVICES", "0")])
    {
        fails_with(&["CUDA_ERROR_NO_DEVICE", "nvidia-smi"]);
    }
}

#[test]
fn a_missing_function_is_named() {
    if is_skipped("refused::a_missing_function_is_named", "needs the stand-in to hide a function") {
        return;
    }
    let mut library = fs::read(gpu::library()).unwrap();
    assert!(cuda_stand_in::hide(&mut library, "cuStreamIsCapturing"));
    let path = std::env::temp_dir().join(format!("kvstore-driver-{}.so", std::process::id()));
    if std::env::var_os(super::INSIDE).is_none() {
        fs::write(&path, library).unwrap();
    }
    let variables = [("KV_CUDA", path.to_str().unwrap())];
    if is_child("refused::a_missing_function_is_named", &variables) {
        fails_with(&["cuStreamIsCapturing", "release 460"]);
    } else {
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_driver_without_a_compiler_changes_nothing() {
    if !is_child("refused::a_driver_without_a_compiler_changes_nothing", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, more, out) = (array(Place::Gpu, 6), array(Place::Gpu, 6), array(Place::Host, 6));
    store.init(&[(1, &value)]).unwrap();
    store.set_optimizer("nadam", "").unwrap();
    gpu::fail(c"cuModuleLoadDataEx:1=221");
    assert_fails(store.push(&[(1, &more)]), DEVICE, &["GPU 0", "compute,utility"]);
    store.pull(&[(1, &out)]).unwrap();
    assert_eq!(out.get(), value.get());
    // The failed push has not counted as a step.
    let (peer, host) = (Store::new("local"), array(Place::Host, 6));
    peer.init(&[(1, &host)]).unwrap();
    peer.set_optimizer("nadam", "").unwrap();
    let wanted = array(Place::Host, 6);
    for _ in 0..2 {
        store.push(&[(1, &more)]).unwrap();
        peer.push(&[(1, &host)]).unwrap();
    }
    store.pull(&[(1, &out)]).unwrap();
    peer.pull(&[(1, &wanted)]).unwrap();
    assert_eq!(out.get(), wanted.get());
}

#[test]
fn a_full_gpu_is_named_and_nothing_changes() {
    if !is_child(
        "refused::a_full_gpu_is_named_and_nothing_changes",
        &[("KV_CUDA_STAND_IN_MEMORY", "4194304")],
    ) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (small, large) = (array(Place::Gpu, 4), array(Place::Gpu, 600_000));
    store.init(&[(1, &small)]).unwrap();
    let outcome = store.init(&[(2, &small), (3, &large)]);
    assert_fails(outcome, NO_MEMORY, &["init: key 3", "GPU 0 has", "3 MB are needed"]);
    assert_eq!(store.key_device(2).unwrap_err().status, 4);
    store.init(&[(2, &small)]).unwrap();
}

#[test]
fn keys_take_no_more_memory_than_a_store_may_have() {
    if !is_child("refused::keys_take_no_more_memory_than_a_store_may_have", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::with("device", &[("device_bytes", "8192")]).unwrap();
    let (value, out) = (array(Place::Gpu, 1000), array(Place::Host, 1000));
    store.init(&[(1, &value), (2, &value)]).unwrap();
    let parts = ["key 3", "device_bytes allows 8192", "hold 8000, 4000 more"];
    assert_fails(store.init(&[(3, &value)]), NO_MEMORY, &parts);
    store.set_optimizer("nadam", "").unwrap();
    assert_fails(store.push(&[(1, &value)]), NO_MEMORY, &["push: key 1", "device_bytes"]);
    store.pull(&[(1, &out)]).unwrap();
    assert_eq!(out.get(), value.get());
    store.remove(&[2]).unwrap();
    store.set_optimizer("sgd", "momentum=0.9").unwrap();
    store.push(&[(1, &value)]).unwrap();
    assert_fails(store.init(&[(2, &value)]), NO_MEMORY, &["key 2"]);
}

#[test]
fn a_lost_device_fails_by_name_and_keys_in_host_memory_live() {
    let test = "refused::a_lost_device_fails_by_name_and_keys_in_host_memory_live";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, host, out) = (array(Place::Gpu, 6), array(Place::Host, 6), array(Place::Host, 6));
    store.init(&[(1, &value), (2, &host)]).unwrap();
    gpu::fail(c"cuLaunchKernel:1=late700");
    store.push(&[(1, &value)]).unwrap();
    let name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    assert_fails(store.pull(&[(1, &out)]), DEVICE, &["pull: key 1", "GPU 0", name]);
    assert_fails(store.push(&[(1, &value)]), DEVICE, &["push: key 1", "GPU 0", name]);
    assert_fails(store.init(&[(3, &value)]), DEVICE, &["init: key 3", name]);
    store.push(&[(2, &host)]).unwrap();
    store.pull(&[(2, &out)]).unwrap();
    assert_eq!(out.get(), host.get());
    store.remove(&[1]).unwrap();
    store.init(&[(1, &host)]).unwrap();
}

#[test]
fn a_fault_behind_a_ticket_is_its_result() {
    if !is_child("refused::a_fault_behind_a_ticket_is_its_result", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let value = array(Place::Gpu, 6);
    store.init(&[(1, &value)]).unwrap();
    gpu::fail(c"cuLaunchKernel:1=late719");
    let ticket = store.submit(super::store::Call::Push, &[(1, &value)], &[]).unwrap();
    let parts = ["push: GPU 0", "CUDA_ERROR_LAUNCH_FAILED"];
    assert_fails(store.wait(ticket, 10_000), DEVICE, &parts);
}

/// Other threads of the parent hold its locks at most forks.
#[test]
fn a_child_of_a_busy_process_is_refused_at_once() {
    if !is_child("refused::a_child_of_a_busy_process_is_refused_at_once", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    store.init(&[(1, &array(Place::Gpu, 6))]).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    set_stream(GPU, 1).unwrap();
                }
            });
        }
        let refused = || set_stream(GPU, 1).unwrap_err().text.contains("spawn");
        let all = (0..100).all(|_| gpu::in_fork(refused));
        done.store(true, Ordering::Relaxed);
        assert!(all, "a child hangs, or is not refused");
    });
}

#[test]
fn a_forked_child_cannot_use_the_gpu_of_its_parent() {
    if !is_child("refused::a_forked_child_cannot_use_the_gpu_of_its_parent", &[]) {
        return;
    }
    gpu::start(0);
    let (value, host) = (array(Place::Gpu, 6), array(Place::Host, 6));
    let store = Store::new("device");
    store.init(&[(1, &value)]).unwrap();
    let holds = gpu::in_fork(|| {
        let store = Store::new("device");
        let failure = store.init(&[(1, &value)]).unwrap_err();
        let is_named = failure.status == DEVICE && failure.text.contains("spawn");
        is_named && store.init(&[(1, &host)]).is_ok()
    });
    assert!(holds);
}
