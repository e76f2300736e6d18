//! All dtypes and shapes, under numbers and names: every bit against scalar loops.

use std::fmt::Debug;

use kvstore::{Key, Store, Tensor, TensorMut, bf16, f16};

use super::common::random::Random;
use super::common::scalar::Scalar;
use super::job::Job;

const WORKERS: usize = 3;
const SHAPES: &[&[i64]] = &[&[], &[0], &[4, 0, 2], &[1], &[2, 3], &[33], &[7, 1003]];

/// What a worker pushes as one of its values; round 0 is what it offers to init.
fn numbers<T: Scalar>(rank: usize, round: usize, value: usize, count: usize) -> Vec<T> {
    let mut random = Random::new((rank * 31 + round * 7 + value + 1) as u64);
    (0..count).map(|_| T::random(&mut random)).collect()
}

/// The sum of arrays in their order, rounded once.
fn add_up<T: Scalar>(values: &[Vec<T>]) -> Vec<T> {
    let count = values[0].len();
    (0..count).map(|i| T::add_up(values.iter().map(|value| value[i]))).collect()
}

/// The values of one worker: one of rank 0, which is to arrive bit for bit, more of the others.
fn values_of<T: Scalar>(rank: usize, round: usize, count: usize) -> Vec<Vec<T>> {
    (0..=rank).map(|value| numbers(rank, round, value, count)).collect()
}

fn check<T: Scalar + Debug>(store: &Store, rank: usize, first: u64) {
    let dtype = T::DTYPE.name();
    for (at, shape) in (0u64..).zip(SHAPES) {
        let count: i64 = shape.iter().product();
        let count = usize::try_from(count).unwrap();
        let named = store.intern(&format!("{dtype} {at}")).unwrap();
        for key in [Key::from(first + at), named] {
            let mut out = vec![T::default(); count];
            let mut expect = |expected: &[T], when: &str| {
                store.pull(key, TensorMut::new(&mut out, shape).unwrap()).unwrap();
                let same = out.iter().zip(expected).all(|(ours, loops)| ours.is_same(*loops));
                assert!(same, "{dtype}{shape:?}, {when}: {out:?} instead of {expected:?}");
            };
            let offered = numbers::<T>(rank, 0, 0, count);
            store.init(key, Tensor::new(&offered, shape).unwrap()).unwrap();
            expect(&numbers(0, 0, 0, count), "init");
            for round in 1..=2 {
                let values = values_of::<T>(rank, round, count);
                let tensors: Vec<Tensor<'_>> =
                    values.iter().map(|value| Tensor::new(value, shape).unwrap()).collect();
                store.push_list(&vec![key; tensors.len()], &tensors).unwrap();
                let sums: Vec<Vec<T>> =
                    (0..WORKERS).map(|rank| add_up(&values_of(rank, round, count))).collect();
                expect(&add_up(&sums), "push");
            }
            let info = store.key_info(key).unwrap();
            assert_eq!((info.dtype, &info.shape[..]), (T::DTYPE, *shape));
        }
    }
}

#[test]
fn every_dtype_and_shape_is_summed_like_a_scalar_loop() {
    for (servers, slice) in [(2, 8192), (1, 256 << 10)] {
        Job::new(WORKERS, servers).with("slice_bytes", slice).run(|store, rank| {
            check::<f32>(store, rank, 0);
            check::<f64>(store, rank, 100);
            check::<f16>(store, rank, 200);
            check::<bf16>(store, rank, 300);
            check::<i8>(store, rank, 400);
            check::<u8>(store, rank, 500);
            check::<i32>(store, rank, 600);
            check::<i64>(store, rank, 700);
            check::<i16>(store, rank, 800);
            check::<u16>(store, rank, 900);
            check::<u32>(store, rank, 1000);
            check::<u64>(store, rank, 1100);
            assert_eq!(store.keys().unwrap().len(), 12 * 2 * SHAPES.len());
        });
    }
}

#[test]
fn sixteen_bits_are_rounded_once_by_each_worker_and_once_over_all() {
    // 2048 + 1 + 1 is 2050 in one rounding; 2048 + 1 rounds back to 2048.
    let [large, one] = [f16::from_f32(2048.0), f16::from_f32(1.0)];
    let results = Job::new(3, 1).run(move |store, rank| {
        store.init(1u64, &[one; 3]).unwrap();
        store.init(2u64, &[one; 3]).unwrap();
        store.push(1u64, &[if rank == 0 { large } else { one }; 3]).unwrap();
        let own = [if rank == 0 { large } else { f16::from_f32(0.0) }, one].map(|it| [it; 3]);
        let values = [(&own[0]).into(), (&own[1]).into()];
        store.push_list(&[2u64.into(); 2], &values).unwrap();
        let mut outs = [[one; 3]; 2];
        store.pull(1u64, &mut outs[0]).unwrap();
        store.pull(2u64, &mut outs[1]).unwrap();
        outs.map(|out| out[2].to_f32())
    });
    // Rank 0 makes 2048 of 2048 + 1; the others make 1 each.
    assert_eq!(results, [[2050.0, 2050.0]; 3]);
}

#[test]
fn a_single_contribution_arrives_bit_for_bit() {
    let odd = [f32::from_bits(0x7FC1_2345), -0.0, f32::from_bits(1), f32::NEG_INFINITY];
    let results = Job::new(2, 1).run(move |store, rank| {
        store.init(1u64, &[1.0f32; 4]).unwrap();
        if rank == 1 {
            store.done().unwrap();
            return Vec::new();
        }
        store.push(1u64, &odd).unwrap();
        let mut out = [0.0f32; 4];
        store.pull(1u64, &mut out).unwrap();
        out.map(f32::to_bits).to_vec()
    });
    assert_eq!(results[0], odd.map(f32::to_bits));
}
