//! Calls on whole values.

use std::fs;

use kvstore::DType;

use super::array::{Array, Place, Random};
use super::store::{CPU, Call, Device, GPU, Store};
use super::{gpu, is_child};

/// Whether two elements are equal; any NaN equals any NaN.
pub fn is_same(dtype: DType, a: u64, b: u64) -> bool {
    let infinity = match dtype {
        DType::F32 => 0x7F80_0000,
        DType::F64 => 0x7FF0_0000_0000_0000,
        DType::F16 => 0x7C00,
        DType::BF16 => 0x7F80,
        _ => return a == b,
    };
    let is_nan = |bits: u64| bits & !(1 << (8 * dtype.size() - 1)) > infinity;
    a == b || is_nan(a) && is_nan(b)
}

/// Compares an array with another one.
pub fn assert_same(got: &Array, wanted: &Array, what: &str) {
    let (got, wanted, dtype) = (got.get(), wanted.get(), wanted.dtype);
    let differs = got.iter().zip(&wanted).position(|(a, b)| !is_same(dtype, *a, *b));
    if let Some(at) = differs {
        panic!("{what}: element {at} is {:#x} instead of {:#x}", got[at], wanted[at]);
    }
}

/// A place for an array: mostly one of so many GPUs.
fn place(random: &mut Random, gpus: i32) -> Place {
    match random.below(4) {
        _ if gpus == 0 => Place::Host,
        0 => Place::Host,
        _ if gpus == 1 => Place::Gpu,
        _ => Place::Other(random.below(gpus as u64) as i32),
    }
}

/// Two stores with equal calls: one with tensors of the GPU, one in host memory.
pub struct Twins {
    pub store: Store,
    pub peer: Store,
    pub random: Random,
    pub what: String,
    /// GPUs that have arrays.
    pub gpus: i32,
}

impl Twins {
    pub fn new(kind: &str, seed: u64) -> Self {
        let (store, peer) = (Store::new(kind), Store::new("local"));
        Self { store, peer, random: Random(seed), what: kind.into(), gpus: 1 }
    }

    /// Arrays of equal content, the first one at a place.
    fn pair(&mut self, place: Place, dtype: DType, shape: &[i64]) -> (Array, Array) {
        let elements = self.random.elements(dtype, shape.iter().product::<i64>() as usize);
        let of = |place| Array::plain(place, dtype, shape).with(&elements);
        (of(place), of(Place::Host))
    }

    pub fn init(&mut self, key: u64, dtype: DType, shape: &[i64]) {
        let place = Place::Other((key % self.gpus as u64) as i32);
        let (value, twin) = self.pair(place, dtype, shape);
        self.store.init(&[(key, &value)]).unwrap();
        self.peer.init(&[(key, &twin)]).unwrap();
        value.free();
    }

    pub fn set_optimizer(&self, name: &str, params: &str) {
        self.store.set_optimizer(name, params).unwrap();
        self.peer.set_optimizer(name, params).unwrap();
    }

    pub fn set_optimizer_for(&self, keys: &[u64], name: &str, params: &str) {
        self.store.set_optimizer_for(keys, name, params).unwrap();
        self.peer.set_optimizer_for(keys, name, params).unwrap();
    }

    /// Saves both stores, compares the files, and loads one into both.
    pub fn save_and_load(&self) {
        let path = |of: &str| {
            let name = format!("kvstore-device-{}-{of}", std::process::id());
            std::env::temp_dir().join(name).to_str().unwrap().to_owned()
        };
        let (here, there) = (path("here"), path("there"));
        self.store.save(&here).unwrap();
        self.peer.save(&there).unwrap();
        let same = fs::read(&here).unwrap() == fs::read(&there).unwrap();
        assert!(same, "{}: the files differ", self.what);
        self.store.load(&there).unwrap();
        self.peer.load(&here).unwrap();
        [here, there].iter().for_each(|path| fs::remove_file(path).unwrap());
    }

    /// Makes a call with so many values and outs for each of some keys, and compares the outs.
    pub fn call(&mut self, call: Call, keys: &[(u64, DType, &[i64])], values: usize, outs: usize) {
        let (mut of_store, mut of_peer) = (Vec::new(), Vec::new());
        let (mut outs_here, mut outs_there) = (Vec::new(), Vec::new());
        for &(key, dtype, shape) in keys {
            for _ in 0..values {
                let place = place(&mut self.random, self.gpus);
                let (value, twin) = self.pair(place, dtype, shape);
                of_store.push((key, value));
                of_peer.push((key, twin));
            }
            for _ in 0..outs {
                let place = place(&mut self.random, self.gpus);
                outs_here.push((key, Array::plain(place, dtype, shape)));
                outs_there.push((key, Array::plain(Place::Host, dtype, shape)));
            }
        }
        let here: Vec<_> = of_store.iter().map(|(key, it)| (*key, it)).collect();
        let there: Vec<_> = of_peer.iter().map(|(key, it)| (*key, it)).collect();
        let to_here: Vec<_> = outs_here.iter().map(|(key, it)| (*key, it)).collect();
        let to_there: Vec<_> = outs_there.iter().map(|(key, it)| (*key, it)).collect();
        self.store.call(call, &here, &to_here).unwrap();
        self.peer.call(call, &there, &to_there).unwrap();
        for ((key, got), (_, wanted)) in outs_here.iter().zip(&outs_there) {
            let what = format!("{}, {call:?}, key {key}, {values} values", self.what);
            assert_same(got, wanted, &what);
        }
        of_store.into_iter().chain(outs_here).for_each(|(_, array)| array.free());
    }
}

#[test]
fn a_value_on_a_gpu_stays_there_in_a_device_store_and_goes_to_the_host_in_a_local_one() {
    let test =
        "dense::a_value_on_a_gpu_stays_there_in_a_device_store_and_goes_to_the_host_in_a_local_one";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    let value = Array::plain(Place::Gpu, DType::F32, &[5]).with(&[1, 2, 3, 4, 5]);
    let host = Array::plain(Place::Host, DType::F32, &[5]).with(&[1, 2, 3, 4, 5]);
    for (kind, of_gpu) in [("device", GPU), ("local", Device { kind: CPU, id: 0 })] {
        let store = Store::new(kind);
        store.init(&[(1, &value), (2, &host)]).unwrap();
        assert_eq!(store.key_device(1).unwrap(), of_gpu);
        assert_eq!(store.key_device(2).unwrap(), Device { kind: CPU, id: 0 });
        for place in [Place::Gpu, Place::Host] {
            let outs = [1, 2].map(|_| Array::plain(place, DType::F32, &[5]));
            store.pull(&[(1, &outs[0]), (2, &outs[1])]).unwrap();
            assert_eq!(outs.map(|out| out.get()), [value.get(), value.get()]);
        }
        store.remove(&[1]).unwrap();
        assert_eq!(store.key_device(1).unwrap_err().status, 4);
    }
}

#[test]
fn sums_have_the_bits_of_host_memory_for_all_dtypes_and_numbers_of_values() {
    let test = "dense::sums_have_the_bits_of_host_memory_for_all_dtypes_and_numbers_of_values";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    for kind in ["device", "local"] {
        for &dtype in DType::ALL {
            let mut twins = Twins::new(kind, 17);
            twins.what = format!("{kind}, {dtype:?}");
            let shapes: [&[i64]; 4] = [&[1], &[3, 5], &[4099], &[0, 3]];
            let keys: Vec<_> = (0..).zip(shapes).map(|(key, it)| (key, dtype, it)).collect();
            keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
            for values in 1..=if dtype.is_opaque() { 1 } else { 4 } {
                for outs in 0..=2 {
                    twins.call(Call::PushPull, &keys, values, outs);
                }
                twins.call(Call::Push, &keys, values, 0);
                twins.call(Call::Pull, &keys, 0, values);
            }
        }
    }
}

#[test]
fn a_broadcast_initialises_and_fills_outs_in_both_memories() {
    if !is_child("dense::a_broadcast_initialises_and_fills_outs_in_both_memories", &[]) {
        return;
    }
    gpu::start(0);
    for kind in ["device", "local"] {
        let mut twins = Twins::new(kind, 3);
        twins.call(Call::Broadcast, &[(1, DType::F32, &[7, 9]), (2, DType::I8, &[5])], 1, 3);
        twins.call(Call::PushPull, &[(1, DType::F32, &[7, 9]), (2, DType::I8, &[5])], 2, 2);
    }
}

#[test]
fn four_gpus_push_to_and_pull_from_keys_on_all_of_them() {
    let test = "dense::four_gpus_push_to_and_pull_from_keys_on_all_of_them";
    if !is_child(test, &[("KV_CUDA_STAND_IN_DEVICES", "4"), ("KV_CUDA_STAND_IN_PEERS", "no")]) {
        return;
    }
    gpu::start(0);
    for kind in ["device", "local"] {
        for dtype in [DType::F32, DType::BF16, DType::I64] {
            let mut twins = Twins::new(kind, 41);
            twins.gpus = 4;
            let shapes: [&[i64]; 6] = [&[1], &[3, 5], &[4099], &[0, 3], &[70], &[9]];
            let keys: Vec<_> = (0..).zip(shapes).map(|(key, it)| (key, dtype, it)).collect();
            keys.iter().for_each(|(key, dtype, shape)| twins.init(*key, *dtype, shape));
            for values in 1..=4 {
                twins.call(Call::PushPull, &keys, values, 4);
                twins.call(Call::Push, &keys, values, 0);
                twins.call(Call::Pull, &keys, 0, 4);
            }
        }
    }
}
