//! Kernels against the processor on every pattern of 16 bits, and on random bits of wider elements:
//! NaNs, infinities, subnormal numbers.
//!
//! `KV_TEST_GPU_ELEMENTS=n` sets the elements of each array; 65,536 have every pattern.

use std::env;

use kvstore::DType;

use super::array::{Array, Place, Random};
use super::dense::assert_same;
use super::rules::{FLOATS, settings::SETTINGS};
use super::store::{Call, Store};
use super::{gpu, is_child};

/// Elements of a usual run: the stand-in takes 1 us for each.
const USUAL: usize = 1500;

fn elements() -> usize {
    let given = env::var("KV_TEST_GPU_ELEMENTS").ok();
    given.map_or(USUAL, |text| text.parse().unwrap())
}

/// Elements of any bits. Those of 16 bits have all patterns, each pushed beside many others.
fn patterns(random: &mut Random, dtype: DType, count: usize) -> Vec<u64> {
    let start = random.next();
    // An odd factor visits every pattern once.
    let step = random.next() | 1;
    (0..count as u64)
        .map(|index| match dtype.size() {
            8.. => random.next(),
            2 => start.wrapping_add(index.wrapping_mul(step)) & 0xFFFF,
            size => random.next() >> (64 - 8 * size),
        })
        .collect()
}

/// A store with a key on a GPU, and one in host memory with the same calls.
struct Pair {
    store: Store,
    peer: Store,
    random: Random,
    dtype: DType,
    count: usize,
    what: String,
}

impl Pair {
    fn new(dtype: DType, count: usize, what: String) -> Self {
        let (store, peer) = (Store::new("device"), Store::new("local"));
        let mut pair = Self { store, peer, random: Random(7), dtype, count, what };
        let (value, twin) = pair.arrays();
        pair.store.init(&[(1, &value)]).unwrap();
        pair.peer.init(&[(1, &twin)]).unwrap();
        value.free();
        pair
    }

    fn arrays(&mut self) -> (Array, Array) {
        let elements = patterns(&mut self.random, self.dtype, self.count);
        let of = |place| Array::plain(place, self.dtype, &[self.count as i64]).with(&elements);
        (of(Place::Gpu), of(Place::Host))
    }

    /// Pushes the sum of some values and compares the results.
    fn pushpull(&mut self, values: usize) {
        let (here, there): (Vec<_>, Vec<_>) = (0..values).map(|_| self.arrays()).unzip();
        let out = |place| Array::plain(place, self.dtype, &[self.count as i64]);
        let (got, wanted) = (out(Place::Gpu), out(Place::Host));
        let list = |arrays: &'_ [Array]| (0..arrays.len()).map(|_| 1).collect::<Vec<u64>>();
        let pairs = |keys: Vec<u64>, arrays| keys.into_iter().zip(arrays).collect::<Vec<_>>();
        let of_store = pairs(list(&here), here.iter());
        let of_peer = pairs(list(&there), there.iter());
        self.store.call(Call::PushPull, &of_store, &[(1, &got)]).unwrap();
        self.peer.call(Call::PushPull, &of_peer, &[(1, &wanted)]).unwrap();
        assert_same(&got, &wanted, &format!("{}, {values} values", self.what));
        here.into_iter().chain([got]).for_each(Array::free);
    }
}

#[test]
fn every_pattern_is_visited() {
    let mut random = Random(5);
    for _ in 0..3 {
        let mut seen = patterns(&mut random, DType::F16, 1 << 16);
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..1 << 16));
    }
    assert!(patterns(&mut random, DType::F32, 100).iter().all(|it| it >> 32 == 0));
    assert!(patterns(&mut random, DType::F64, 100).iter().any(|it| it >> 63 == 1));
}

#[test]
fn sums_of_any_bits_are_those_of_the_processor() {
    if !is_child("bits::sums_of_any_bits_are_those_of_the_processor", &[]) {
        return;
    }
    gpu::start(0);
    let count = elements();
    // Arrays of many elements take the host longer than the GPU.
    let numbers: &[usize] = if count > 1 << 20 { &[1, 4] } else { &[1, 2, 3, 4, 5] };
    for &dtype in DType::ALL {
        let mut pair = Pair::new(dtype, count, format!("{dtype:?}"));
        let most = if dtype.is_opaque() { 1 } else { numbers.len() };
        numbers[..most].iter().for_each(|&values| pair.pushpull(values));
    }
}

#[test]
fn rules_of_any_bits_are_those_of_the_processor() {
    if !is_child("bits::rules_of_any_bits_are_those_of_the_processor", &[]) {
        return;
    }
    gpu::start(0);
    for (name, params) in SETTINGS {
        for dtype in FLOATS {
            for masters in if dtype.size() == 2 { vec!["false", "true"] } else { vec!["false"] } {
                let separator = if params.is_empty() { "" } else { "," };
                let params = format!("{params}{separator}multi_precision={masters}");
                let mut pair = Pair::new(dtype, elements(), format!("{name} {params}, {dtype:?}"));
                pair.store.set_optimizer(name, &params).unwrap();
                pair.peer.set_optimizer(name, &params).unwrap();
                (1..=2).for_each(|values| pair.pushpull(values));
            }
        }
    }
}
