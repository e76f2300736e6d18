//! Large arrays in pinned memory of the caller's: copied as they are, and free again when a call returns.
#![allow(unsafe_code, reason = "pinned memory of the driver")]

use std::ffi::CStr;

use kvstore::DType;

use super::array::{Array, Place};
use super::store::{CPU, Call, GPU, RawTensor, Store, set_stream};
use super::{gpu, is_child};

/// Pieces of 256 bytes: an array of more than three is large.
const SMALL: [(&str, &str); 1] = [("KV_TEST_PIECE_BYTES", "256")];
const COUNT: usize = 333;
const TIMEOUT: i32 = 20;

const TO_DEVICE: &CStr = c"cuMemcpyHtoDAsync_v2";
const TO_HOST: &CStr = c"cuMemcpyDtoHAsync_v2";

/// Floats in pinned memory.
struct PinnedArray {
    start: *mut f32,
    shape: [i64; 1],
}

impl PinnedArray {
    fn new() -> Self {
        let address = gpu::pinned(4 * COUNT);
        let start = std::ptr::with_exposed_provenance_mut::<f32>(address as usize);
        Self { start, shape: [COUNT as i64] }
    }

    fn fill(&self, first: f32) {
        // SAFETY: so many floats were allocated, and no call uses them meanwhile.
        (0..COUNT).for_each(|at| unsafe { self.start.add(at).write_volatile(first + at as f32) });
    }

    fn content(&self) -> Vec<f32> {
        // SAFETY: as in `fill`.
        (0..COUNT).map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    fn tensor(&self) -> RawTensor {
        RawTensor {
            data: self.start.expose_provenance() as u64,
            device_type: CPU,
            device_id: 0,
            ndim: 1,
            dtype: DType::F32.code(),
            shape: self.shape.as_ptr(),
            strides: std::ptr::null(),
            byte_offset: 0,
        }
    }
}

fn rising(first: f32) -> Vec<f32> {
    (0..COUNT).map(|at| first + at as f32).collect()
}

fn array(place: Place, first: f32) -> Array {
    let bits = rising(first).iter().map(|it| u64::from(it.to_bits())).collect::<Vec<_>>();
    Array::plain(place, DType::F32, &[COUNT as i64]).with(&bits)
}

#[test]
fn an_array_is_free_when_the_call_returns_and_no_piece_is_copied() {
    let test = "direct::an_array_is_free_when_the_call_returns_and_no_piece_is_copied";
    if !is_child(test, &SMALL) {
        return;
    }
    gpu::start(0);
    let (value, out) = (PinnedArray::new(), PinnedArray::new());
    for seed in 1..=50 {
        gpu::seed(seed);
        set_stream(GPU, 1).unwrap();
        let store = Store::new("device");
        store.init(&[(7, &array(Place::Gpu, 1.0))]).unwrap();
        gpu::stream_wait(1);
        set_stream(GPU, gpu::stream()).unwrap();
        gpu::forget_counts();
        value.fill(100.0 * seed as f32);
        store.push_raw(&[7], &[value.tensor()]).unwrap();
        value.fill(-1.0);
        // The value, and a table unless an earlier call had it.
        let copies = gpu::is_stand_in().then(|| gpu::calls(TO_DEVICE));
        assert!(copies.is_none_or(|it| (1..=2).contains(&it)), "{copies:?} copies");
        out.fill(-2.0);
        gpu::forget_counts();
        store.pull_raw(&[7], &[out.tensor()]).unwrap();
        assert_eq!(out.content(), rising(100.0 * seed as f32), "seed {seed}");
        let copies = gpu::is_stand_in().then(|| gpu::calls(TO_HOST));
        assert!(copies.is_none_or(|it| it == 1), "{copies:?} copies");
        value.fill(3.0);
        store.pushpull_raw((&[7], &[value.tensor()]), (&[7], &[out.tensor()])).unwrap();
        value.fill(-1.0);
        assert_eq!(out.content(), rising(3.0), "seed {seed}");
    }
}

#[test]
fn arrays_beside_others_and_under_an_optimizer_have_the_bits_of_host_memory() {
    let test = "direct::arrays_beside_others_and_under_an_optimizer_have_the_bits_of_host_memory";
    if !is_child(test, &SMALL) {
        return;
    }
    gpu::start(0);
    let (value, out) = (PinnedArray::new(), PinnedArray::new());
    let [plain, same] = [0.5, 0.25].map(|first| array(Place::Host, first));
    let (on_gpu, beside) = (array(Place::Gpu, 0.25), array(Place::Host, 0.0));
    for kind in ["device", "local"] {
        let [store, host] = [kind, "local"].map(Store::new);
        let first = array(if kind == "device" { Place::Gpu } else { Place::Host }, 1.0);
        gpu::stream_wait(1);
        store.init(&[(7, &first)]).unwrap();
        value.fill(1.0);
        host.init_raw(&[7], &[value.tensor()]).unwrap();
        for store in [&store, &host] {
            store.set_optimizer("adam", "").unwrap();
        }
        for round in 0..3 {
            value.fill(0.125 * round as f32);
            let values = [value.tensor(), plain.tensor(), on_gpu.tensor()];
            let outs = [out.tensor(), beside.tensor()];
            store.pushpull_raw((&[7; 3], &values), (&[7; 2], &outs)).unwrap();
            let bits = out.content().iter().map(|it| u64::from(it.to_bits())).collect::<Vec<_>>();
            assert_eq!(bits, beside.get(), "{kind}, round {round}");
            let values = [value.tensor(), plain.tensor(), same.tensor()];
            host.pushpull_raw((&[7; 3], &values), (&[7], &outs[1..])).unwrap();
            assert_eq!(bits, beside.get(), "{kind}, round {round}");
        }
    }
}

#[test]
fn a_copy_that_hangs_ends_at_the_deadline_and_names_the_key() {
    if !is_child("direct::a_copy_that_hangs_ends_at_the_deadline_and_names_the_key", &SMALL) {
        return;
    }
    gpu::start(0);
    for (call, plan, what) in [
        (Call::Push, c"cuMemcpyHtoDAsync_v2:1=hang", "it is applied when the GPU comes to it"),
        (Call::Pull, c"cuMemcpyDtoHAsync_v2:1=hang", "outs are undefined"),
    ] {
        let store = Store::with("device", &[("timeout_ms", "300")]).unwrap();
        set_stream(GPU, 1).unwrap();
        store.init(&[(7, &array(Place::Gpu, 1.0))]).unwrap();
        gpu::stream_wait(1);
        set_stream(GPU, gpu::stream()).unwrap();
        let array = PinnedArray::new();
        gpu::fail(plan);
        let result = match call {
            Call::Push => store.push_raw(&[7], &[array.tensor()]),
            _ => store.pull_raw(&[7], &[array.tensor()]),
        };
        let failure = result.unwrap_err();
        assert_eq!(failure.status, TIMEOUT, "{failure:?}");
        for part in ["key 7", "GPU 0", what] {
            assert!(failure.text.contains(part), "{call:?}: {failure:?}");
        }
        gpu::seed(1);
    }
}
