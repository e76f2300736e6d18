//! A call with tensors in the memory of a GPU allocates nothing, neither in host memory nor on the
//! GPU, once equal calls have been made. The driver is the stand-in of `tests/cuda`, whose own
//! allocations do not go through the allocator of this program.
#![allow(unsafe_code, reason = "memory of a GPU, by its address")]
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    reason = "parts of shared files, small numbers, and counts for readers"
)]

#[path = "common/counting.rs"]
mod counting;
#[path = "device/gpu.rs"]
mod gpu;

use std::ffi::CStr;

use counting::{ALLOCATIONS, allocations};
use kvstore::{Config, DType, DeviceSlice, Key, Store, Tensor, TensorMut};

/// Elements of a key: several, in an odd number.
const ELEMENTS: usize = 37;

/// Functions of the driver that allocate or free, or wait for the device.
const NONE: [&CStr; 12] = [
    c"cuMemAllocFromPoolAsync",
    c"cuMemAlloc_v2",
    c"cuMemFreeAsync",
    c"cuMemFree_v2",
    c"cuMemHostAlloc",
    c"cuMemFreeHost",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuStreamCreate",
    c"cuStreamCreateWithPriority",
    c"cuModuleLoadDataEx",
    c"cuStreamSynchronize",
];

/// The other ones that a call may use.
const SOME: [&CStr; 9] = [
    c"cuStreamIsCapturing",
    c"cuPointerGetAttributes",
    c"cuCtxPushCurrent_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuLaunchKernel",
    c"cuMemcpyDtoHAsync_v2",
    c"cuEventRecord",
    c"cuStreamWaitEvent",
    c"cuEventQuery",
];

fn slices(count: usize, number: f32) -> Vec<DeviceSlice> {
    let bytes = number.to_le_bytes().repeat(ELEMENTS);
    let slice = |_| {
        let address = gpu::memory(bytes.len());
        gpu::write(address, &bytes, 1);
        let start = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: memory of GPU 0, which lives until the process ends.
        unsafe { DeviceSlice::new(start, ELEMENTS, DType::F32, 0) }.unwrap()
    };
    (0..count).map(slice).collect()
}

/// The keys and tensors of calls.
struct Lists<'a> {
    store: &'a Store,
    keys: &'a [Key],
    values: Vec<Tensor<'a>>,
    outs: Vec<TensorMut<'a>>,
}

impl Lists<'_> {
    /// Makes all calls, each many times; the GPU finishes between them.
    fn check(&mut self, what: &str) {
        let Self { store, keys, values, outs } = self;
        check(&format!("push of {what}"), || store.push_list(keys, values).unwrap());
        check(&format!("pull of {what}"), || store.pull_list(keys, outs).unwrap());
        check(&format!("pushpull of {what}"), || {
            store.pushpull_list(keys, values, keys, outs).unwrap();
        });
    }
}

fn check(what: &str, mut call: impl FnMut()) {
    let finish = || assert_eq!(gpu::stream_wait(1), 0, "{}", gpu::message());
    allocations(what, || {
        call();
        finish();
    });
    gpu::forget_counts();
    call();
    let counts = SOME.iter().map(|name| format!("{} {}", gpu::calls(name), name.to_str().unwrap()));
    println!("{what}: {}", counts.collect::<Vec<_>>().join(", "));
    for name in [c"cuStreamIsCapturing", c"cuEventRecord"] {
        assert_eq!(gpu::calls(name), 1, "{what}: {name:?}");
    }
    for name in NONE {
        assert_eq!(gpu::calls(name), 0, "{what}: {name:?}");
    }
    finish();
}

fn check_all(count: usize, in_host_memory: bool) {
    let driver = gpu::library();
    let config = Config::new().with("threads", "1").unwrap();
    let config = config.with("cuda", driver.to_str().unwrap()).unwrap();
    let store = Store::open("device", &config).unwrap();
    let keys: Vec<Key> = (0..count as u64).map(Key::from).collect();
    let (first, values, mut outs) = (slices(count, 1.0), slices(count, 2.0), slices(count, 0.0));
    gpu::stream_wait(1);
    store.init_list(&keys, &first.iter().map(Tensor::from).collect::<Vec<_>>()).unwrap();
    let here = vec![0.5f32; ELEMENTS];
    let mut outs_here = vec![[0.0f32; ELEMENTS]; count];
    let mut lists = if in_host_memory {
        let values = keys.iter().map(|_| Tensor::from(&here)).collect();
        let outs = outs_here.iter_mut().map(TensorMut::from).collect();
        Lists { store: &store, keys: &keys, values, outs }
    } else {
        let values = values.iter().map(Tensor::from).collect();
        Lists {
            store: &store,
            keys: &keys,
            values,
            outs: outs.iter_mut().map(TensorMut::from).collect(),
        }
    };
    let place = if in_host_memory { "host memory" } else { "GPU memory" };
    for (rule, params) in [("", ""), ("sgd", "momentum=0.9"), ("adam", ""), ("lamb", "")] {
        if !rule.is_empty() {
            store.set_optimizer(rule, params).unwrap();
        }
        let rule = if rule.is_empty() { "the last value" } else { rule };
        lists.check(&format!("{count} keys, tensors in {place}, {rule}"));
    }
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert!(ALLOCATIONS.get() > before);
}

#[test]
fn calls_with_tensors_on_a_gpu_allocate_nothing() {
    // One test for all: a driver has one state, and one list of counts, for its process.
    gpu::start(0);
    for in_host_memory in [false, true] {
        for count in [1, 100] {
            check_all(count, in_host_memory);
        }
    }
}
