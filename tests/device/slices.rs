//! The Rust interface: slices of GPU memory, streams, the devices of keys.
#![allow(unsafe_code, reason = "streams of the driver are named")]

use std::ffi::c_void;
use std::time::Duration;

use kvstore::{Config, DType, DeviceSlice, ErrorKind, Key, Store, Tensor, TensorMut};
use kvstore::{set_stream, stream};

use super::array::{Array, Place};
use super::{gpu, is_child};

const PATIENCE: Duration = Duration::from_secs(60);
const COUNT: usize = 40;

fn open(kind: &str) -> Store {
    Store::open(kind, &Config::new()).unwrap()
}

fn bits(number: f32) -> Vec<u64> {
    vec![u64::from(number.to_bits()); COUNT]
}

/// Floats on GPU 0 that a stream writes and reads.
fn on(stream: u64, number: f32) -> Array {
    let mut array = Array::on(stream, Place::Gpu, DType::F32, &[COUNT as i64], None);
    array.set(&bits(number));
    array
}

/// Names a stream of GPU 0 for this thread.
fn name(stream: u64) {
    let stream = std::ptr::without_provenance_mut::<c_void>(stream as usize);
    // SAFETY: the tests destroy no stream.
    unsafe { set_stream(0, stream) }.unwrap();
}

#[test]
fn slices_are_values_and_outs() {
    if !is_child("slices::slices_are_values_and_outs", &[]) {
        return;
    }
    gpu::start(0);
    for kind in ["local", "device"] {
        let store = open(kind);
        let (first, value, out) = (on(1, 2.0), on(1, 3.0), on(1, 0.0));
        store.init(1u64, &first.slice()).unwrap();
        assert_eq!(store.key_device(1u64).unwrap(), (kind == "device").then_some(0));
        store.pull(1u64, &mut out.slice()).unwrap();
        assert_eq!(out.get(), bits(2.0), "{kind}");
        // The short way of small keys must not take it for memory of the host.
        store.push(1u64, &value.slice()).unwrap();
        store.pull(1u64, &mut out.slice()).unwrap();
        assert_eq!(out.get(), bits(3.0), "{kind}");
        let (slice, mut host) = (value.slice(), [0.5f32; COUNT]);
        let keys = [Key::from(1u64); 2];
        store.push_list(&keys, &[(&slice).into(), (&host).into()]).unwrap();
        let mut whole = out.slice();
        let outs = &mut [TensorMut::from(&mut whole), TensorMut::from(&mut host)];
        store.pull_list(&keys, outs).unwrap();
        assert_eq!(out.get(), bits(3.5), "{kind}");
        assert_eq!(host.map(f32::to_bits), [3.5f32.to_bits(); COUNT], "{kind}");
        let new = [Key::from(2u64)];
        let outs = &mut [TensorMut::from(&mut whole)];
        store.broadcast_list(&new, &[(&slice).into()], &new, outs).unwrap();
        assert_eq!(out.get(), bits(3.0), "{kind}");
        store.pushpull_list(&new, &[(&slice).into()], &new, outs).unwrap();
        assert_eq!(store.key_device(9u64).unwrap_err().kind(), ErrorKind::KeyNotFound);
    }
}

#[test]
fn a_call_is_queued_on_the_stream_that_its_thread_names() {
    if !is_child("slices::a_call_is_queued_on_the_stream_that_its_thread_names", &[]) {
        return;
    }
    gpu::start(0);
    let store = open("device");
    let first = on(1, 0.0);
    store.init(1u64, &first.slice()).unwrap();
    let side = gpu::stream();
    let pushed = |named: bool, seed: u64| {
        let (mut gradient, out) = (on(side, 1.0), on(side, 7.0));
        gpu::stream_wait(side);
        gpu::stream_wait(1);
        gpu::seed(seed);
        gradient.set(&bits(5.0));
        name(if named { side } else { 0 });
        assert_eq!(stream(0).unwrap().addr() as u64, if named { side } else { 0 });
        store.push(1u64, &gradient.slice()).unwrap();
        store.pull(1u64, &mut out.slice()).unwrap();
        gradient.set(&bits(9.0));
        let result = out.get();
        gpu::stream_wait(1);
        result
    };
    assert!((1..=20).all(|seed| pushed(true, seed) == bits(5.0)));
    if gpu::is_stand_in() {
        // Where the stream is not named, a GPU may still come to the write in time.
        assert!((1..=20).any(|seed| pushed(false, seed) != bits(5.0)));
    }
    name(side);
    let of_another_thread = std::thread::spawn(|| stream(0).unwrap().addr());
    assert_eq!(of_another_thread.join().unwrap(), 0);
    if gpu::is_stand_in() {
        // Other drivers follow any handle.
        let wrong = std::ptr::without_provenance_mut::<c_void>(0xABCD);
        // SAFETY: the stand-in knows no such stream, so it is not named.
        let refused = unsafe { set_stream(0, wrong) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(stream(7).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(stream(0).unwrap().addr() as u64, side);
}

#[test]
fn operations_of_a_scope_are_done_when_it_ends() {
    if !is_child("slices::operations_of_a_scope_are_done_when_it_ends", &[]) {
        return;
    }
    gpu::start(0);
    let store = open("device");
    let side = gpu::stream();
    name(side);
    let (first, value, out) = (on(side, 0.0), on(side, 3.0), on(side, 0.0));
    store.init(1u64, &first.slice()).unwrap();
    store.set_optimizer("test", "").unwrap();
    let (slice, mut whole, key) = (value.slice(), out.slice(), [Key::from(1u64); 2]);
    store
        .scope(PATIENCE, |scope| {
            scope.push_list(&key, &[(&slice).into(), (&slice).into()], 0)?;
            scope.pull_list(&key[..1], vec![(&mut whole).into()], 5)
        })
        .unwrap();
    // On a stream that waits for nothing.
    let free = gpu::stream();
    let mut out = out;
    out.stream = free;
    assert_eq!(out.get(), bits(6.0));
}

#[test]
fn the_host_cannot_touch_a_slice() {
    if !is_child("slices::the_host_cannot_touch_a_slice", &[]) {
        return;
    }
    gpu::start(0);
    let array = on(1, 1.0);
    let mut slice = array.slice();
    assert_eq!((slice.len(), slice.is_empty(), slice.device()), (COUNT, false, 0));
    assert_eq!(slice.dtype(), DType::F32);
    assert!(Tensor::from(&slice).as_slice::<f32>().is_none());
    assert!(TensorMut::from(&mut slice).as_mut_slice::<f32>().is_none());
    assert_eq!(slice.tensor(&[5, 8]).unwrap().shape(), [5, 8]);
    for shape in [[5, 9], [-5, -8], [1 << 62, 1 << 62]] {
        let refused = slice.tensor(&shape).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ShapeMismatch);
        assert_eq!(slice.tensor_mut(&shape).unwrap_err().message(), refused.message());
    }
    let store = open("device");
    store.init(1u64, slice.tensor(&[5, 8]).unwrap()).unwrap();
    assert_eq!(&*store.key_info(1u64).unwrap().shape, [5, 8]);
    let (ids, rows) = ([0i64; 2], [1.0f32; 16]);
    let two = [2, 8];
    let of_host = Tensor::new(&rows, &two).unwrap();
    store.init(2u64, Tensor::new(&[0.0f32; 40], &[5, 8]).unwrap()).unwrap();
    let numbers = Array::plain(Place::Gpu, DType::I64, &[2]).with(&[0, 0]);
    let on_gpu = numbers.slice();
    let refused = store.push_rows(2u64, &on_gpu, of_host).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.message().contains("row ids"), "{refused}");
    let config = Config::new().with("sum_order", "tree").unwrap();
    for kind in ["local", "device"] {
        let by_tree = Store::open(kind, &config).unwrap();
        let refused = by_tree.init(1u64, slice.tensor(&[5, 8]).unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        for word in ["sum_order=tree", "copy the tensor to host memory first"] {
            assert!(refused.message().contains(word), "{refused}");
        }
        assert!(by_tree.keys().unwrap().is_empty());
    }
    let sixteen = Array::plain(Place::Gpu, DType::F32, &[16]).with(&[0; 16]);
    let mut sixteen = sixteen.slice();
    let refused = store.push_rows(2u64, &ids, sixteen.tensor(&two).unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let refused = store.pull_rows(2u64, &ids, sixteen.tensor_mut(&two).unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let at = |address: usize, len: usize, dtype: DType| {
        let start = std::ptr::without_provenance_mut::<c_void>(address);
        // SAFETY: no call uses it.
        unsafe { DeviceSlice::new(start, len, dtype, 0) }.map_err(|error| error.kind())
    };
    assert!(at(0, 0, DType::F32).is_ok() && at(64, 5, DType::F64).is_ok());
    let refused = [(0, 1, DType::I8), (66, 1, DType::F32), (64, usize::MAX, DType::F64)];
    for (address, len, dtype) in refused.into_iter().chain([(usize::MAX - 3, 8, DType::I8)]) {
        let result = at(address, len, dtype);
        assert_eq!(result.unwrap_err(), ErrorKind::InvalidArgument, "{address} {len} {dtype:?}");
    }
}
