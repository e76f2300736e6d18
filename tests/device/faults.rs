//! Faults that a program has with any driver: wrong pointers, and a kernel that writes where it may not.

use kvstore::DType;

use super::array::{Array, Place};
use super::store::{RawTensor, Store};
use super::{gpu, is_child};

const INVALID: i32 = 1;
const DEVICE: i32 = 64;

/// A kernel that writes to an address.
const WRITER: &std::ffi::CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry write_to(
    .param .u64 address
)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [address];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r1, 7;
    st.global.u32 [%d2], %r1;
    ret;
}
";

fn array(place: Place) -> Array {
    Array::plain(place, DType::F32, &[6]).with(&[1, 2, 3, 4, 5, 6])
}

#[test]
fn wrong_and_freed_pointers_are_refused_and_the_gpu_goes_on() {
    if !is_child("faults::wrong_and_freed_pointers_are_refused_and_the_gpu_goes_on", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, host) = (array(Place::Gpu), array(Place::Host));
    store.init(&[(1, &value)]).unwrap();
    let freed = gpu::memory(1 << 21);
    gpu::free(freed);
    let wrong = [host.tensor().data, freed, 4096, 1 << 60];
    for data in wrong {
        let tensor = RawTensor { data, ..value.tensor() };
        for outcome in [store.push_raw(&[1], &[tensor]), store.pull_raw(&[1], &[tensor])] {
            let failure = outcome.unwrap_err();
            assert_eq!(failure.status, INVALID, "{data:#x}: {failure:?}");
            assert!(failure.text.contains("key 1"), "{failure:?}");
        }
    }
    store.push(&[(1, &value)]).unwrap();
    let out = array(Place::Gpu);
    store.pull(&[(1, &out)]).unwrap();
    assert_eq!(out.get(), value.get());
}

#[test]
fn a_kernel_of_the_caller_that_writes_astray_loses_the_gpu_and_keys_in_host_memory_live() {
    let test = "faults::a_kernel_of_the_caller_that_writes_astray_loses_the_gpu_and_keys_in_host_memory_live";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    let writer = gpu::kernel(WRITER, c"write_to");
    let good = array(Place::Gpu);
    assert_eq!(gpu::run(writer, 1, 1, 1, &[good.tensor().data]), 0);
    assert_eq!(good.get()[0], 7);

    let store = Store::new("device");
    let (host, out) = (array(Place::Host), array(Place::Host));
    store.init(&[(1, &good), (2, &host)]).unwrap();
    store.pull(&[(1, &out)]).unwrap();
    assert_eq!(out.get(), good.get());
    assert_eq!(gpu::run(writer, 1, 1, 1, &[1 << 44]), 0);
    let failure = store.pull(&[(1, &out)]).unwrap_err();
    assert_eq!(failure.status, DEVICE, "{failure:?}");
    assert!(failure.text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{failure:?}");
    assert_eq!(store.push(&[(1, &good)]).unwrap_err().status, DEVICE);
    store.push(&[(2, &host)]).unwrap();
    store.pull(&[(2, &out)]).unwrap();
    assert_eq!(out.get(), host.get());
    // A remove calls no function of the lost GPU.
    store.remove(&[1]).unwrap();
}
