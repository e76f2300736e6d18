//! Weights of pushes: means over workers against scalar loops, and rounds that have none.

use std::time::Duration;

use kvstore::ErrorKind::{Differs, DtypeMismatch, InvalidArgument};
use kvstore::{Element, KeyRound, Store, Tensor, bf16, f16};

use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(60);
const COUNT: usize = 2_500;

/// An element type, and the type in which it is added and divided.
trait Mean: Element + Default + PartialEq + std::fmt::Debug {
    type Wide: Copy + std::ops::Add<Output = Self::Wide> + std::ops::Div<Output = Self::Wide>;
    fn of(number: f64) -> Self;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn divisor(weight: f64) -> Self::Wide;

    fn sum(values: impl IntoIterator<Item = Self>) -> Self::Wide {
        values.into_iter().map(Self::widen).reduce(|sum, value| sum + value).unwrap()
    }
}

macro_rules! means {
    ($($float:ty as $wide:ty: $of:expr, $widen:expr;)+) => {$(impl Mean for $float {
        type Wide = $wide;
        fn of(number: f64) -> Self { $of(number) }
        fn widen(self) -> $wide { $widen(self) }
        fn narrow(wide: $wide) -> Self { $of(wide.into()) }
        fn divisor(weight: f64) -> $wide { weight as $wide }
    })+};
}

means! {
    f32 as f32: |it: f64| it as f32, |it| it;
    f64 as f64: |it: f64| it, |it| it;
    f16 as f32: |it: f64| f16::from_f32(it as f32), f16::to_f32;
    bf16 as f32: |it: f64| bf16::from_f32(it as f32), bf16::to_f32;
}

/// Numbers whose sums round.
fn value<T: Mean>(rank: usize, round: usize, place: usize) -> Vec<T> {
    let at = |i: usize| {
        let angle = (i * 13 + rank * 7 + round * 3 + place * 5) as f64 * 0.11;
        T::of(angle.sin() * 10f64.powi(((i + rank) % 5) as i32 - 2))
    };
    (0..COUNT).map(at).collect()
}

/// Samples in a batch: unequal, and no whole numbers in the last round.
fn weight(rank: usize, round: usize) -> f64 {
    if round == 3 { 0.1 * (rank + 1) as f64 } else { (1 + (rank * 5 + round * 3) % 7) as f64 }
}

/// The mean of a round: each worker's values are added and rounded once, then the workers by rank; the sum is
/// divided before it is rounded.
fn mean<T: Mean>(workers: usize, round: usize, places: usize) -> Vec<T> {
    let values: Vec<Vec<Vec<T>>> = (0..workers)
        .map(|rank| (0..places).map(|place| value(rank, round, place)).collect())
        .collect();
    let total = (0..workers).fold(0.0, |sum, rank| sum + weight(rank, round));
    let of_element = |i: usize| {
        let of_worker = |values: &Vec<Vec<T>>| T::narrow(T::sum(values.iter().map(|it| it[i])));
        T::narrow(T::sum(values.iter().map(of_worker)) / T::divisor(total))
    };
    (0..COUNT).map(of_element).collect()
}

fn means<T: Mean>() {
    for (workers, servers, slice_bytes) in [(1, 1, 8_192), (2, 1, 1 << 20), (3, 2, 8_192)] {
        for places in [1, 2] {
            let job = Job::new(workers, servers).with("slice_bytes", slice_bytes);
            job.run(move |store, rank| {
                store.init(1u64, &vec![T::default(); COUNT]).unwrap();
                let mut out = vec![T::default(); COUNT];
                for round in 0..4 {
                    store.set_weight(weight(rank, round)).unwrap();
                    let values: Vec<Vec<T>> =
                        (0..places).map(|place| value(rank, round, place)).collect();
                    let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
                    let keys = vec![1u64.into(); places];
                    let mut outs = [(&mut out[..]).into()];
                    if round % 2 == 0 {
                        store.pushpull_list(&keys, &tensors, &keys[..1], &mut outs).unwrap();
                    } else {
                        store.push_list(&keys, &tensors).unwrap();
                        store.pull_list(&keys[..1], &mut outs).unwrap();
                    }
                    assert!(out == mean::<T>(workers, round, places), "{workers} workers, {round}");
                    let total = (0..workers).fold(0.0, |sum, rank| sum + weight(rank, round));
                    let expected = KeyRound {
                        round: round as u64 + 1,
                        contributors: workers as u64,
                        total_weight: total,
                    };
                    assert_eq!(store.last_round(1u64).unwrap(), expected);
                }
            });
        }
    }
}

#[test]
fn means_are_those_of_a_scalar_loop() {
    means::<f32>();
    means::<f64>();
    means::<f16>();
    means::<bf16>();
}

#[test]
fn rules_on_servers_get_the_mean() {
    let (workers, rounds) = (3, 4);
    let mut expected = vec![1f32; COUNT];
    let mut momentum = vec![0f32; COUNT];
    for round in 0..rounds {
        for (at, gradient) in mean::<f32>(workers, round, 1).into_iter().enumerate() {
            momentum[at] = 0.5 * momentum[at] - 0.25 * gradient;
            expected[at] += momentum[at];
        }
    }
    let results = Job::new(workers, 2).with("slice_bytes", 8_192).run(move |store, rank| {
        store.init(1u64, &[1f32; COUNT]).unwrap();
        store.set_optimizer("sgd", "learning_rate=0.25,momentum=0.5").unwrap();
        for round in 0..rounds {
            store.set_weight(weight(rank, round)).unwrap();
            store.push(1u64, &value::<f32>(rank, round, 0)).unwrap();
        }
        let mut out = vec![0f32; COUNT];
        store.pull(1u64, &mut out).unwrap();
        out
    });
    assert!(results.iter().all(|out| *out == expected));
}

#[test]
fn updaters_on_servers_get_the_mean() {
    let job = Job::new(2, 1);
    let add = |store: &Store| {
        store
            .set_updater(|_, input, stored| {
                stored.as_mut_slice::<f32>().unwrap()[0] += input.as_slice::<f32>().unwrap()[0];
                Ok(())
            })
            .unwrap();
    };
    let results = job.run_with(add, |store, rank| {
        store.init(1u64, &[10f32]).unwrap();
        store.set_weight([3.0, 5.0][rank]).unwrap();
        store.push(1u64, &[[6f32], [10f32]][rank]).unwrap();
        let mut out = [0f32];
        store.pull(1u64, &mut out).unwrap();
        out[0]
    });
    assert_eq!(results, [12.0, 12.0]);
}

#[test]
fn rows_and_decoded_values_are_divided() {
    Job::new(2, 2).with("slice_bytes", 8_192).run(|store, rank| {
        let shape = [500, 8];
        store.init(1u64, Tensor::new(&[0f32; 4_000], &shape).unwrap()).unwrap();
        store.init(2u64, &[0f32; 4]).unwrap();
        store.set_weight([3.0, 5.0][rank]).unwrap();
        let ids = [[5i64, 400], [400, 7]][rank];
        let rows = [[2f32; 16], [6f32; 16]][rank];
        store.push_rows(1u64, &ids[..], Tensor::new(&rows, &[2, 8]).unwrap()).unwrap();
        let mut out = [0f32; 32];
        let asked = [5i64, 7, 8, 400];
        let into = kvstore::TensorMut::new(&mut out, &[4, 8]).unwrap();
        store.pull_rows(1u64, &asked[..], into).unwrap();
        assert_eq!([out[0], out[8], out[16], out[31]], [0.25, 0.75, 0.0, 1.0]);
        assert_eq!(store.last_round(1u64).unwrap().total_weight, 8.0);
        store.set_compression("2bit", "threshold=2").unwrap();
        store.push(2u64, &[3f32, -3.0, 1.0, 0.0]).unwrap();
        let mut out = [0f32; 4];
        store.pull(2u64, &mut out).unwrap();
        assert_eq!(out, [0.5, -0.5, 0.0, 0.0]);
    });
}

#[test]
fn a_round_with_and_without_weights_is_not_merged() {
    Job::new(3, 2).with("slice_bytes", 8_192).run(|store, rank| {
        store.init(1u64, &[1f32; COUNT]).unwrap();
        let mut out = vec![0f32; COUNT];
        if rank != 1 {
            store.set_weight(2.0).unwrap();
        }
        store.push(1u64, &[8f32; COUNT]).unwrap();
        let text = failure(store.pull(1u64, &mut out), Differs);
        assert!(
            text.contains("key 1")
                && text.contains("worker 0 pushed with a weight, and worker 1 without"),
            "{text}"
        );
        failure(store.last_round(1u64), Differs);
        // Its weights are all 0.
        store.set_weight(0.0).unwrap();
        store.push(1u64, &[8f32; COUNT]).unwrap();
        let text = failure(store.pull(1u64, &mut out), InvalidArgument);
        assert!(text.contains("all weights of the round are 0"), "{text}");
        store.barrier(LIMIT).unwrap();
        // The next one is as good as any; a worker without samples has weight 0.
        store.set_weight([2.0, 0.0, 2.0][rank]).unwrap();
        store.push(1u64, &vec![[8f32, 0.0, 4.0][rank]; COUNT]).unwrap();
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [3.0; COUNT]);
        let round = store.last_round(1u64).unwrap();
        assert_eq!((round.round, round.contributors, round.total_weight), (3, 3, 4.0));
        store.clear_weight().unwrap();
        store.push(1u64, &[1f32; COUNT]).unwrap();
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [3.0; COUNT]);
        assert_eq!(store.last_round(1u64).unwrap().total_weight, 0.0);
    });
}

/// The mean of a round that a worker no longer takes part in is that of the others.
#[test]
fn a_round_has_the_weights_of_those_who_are_not_done() {
    Job::new(3, 1).run(|store, rank| {
        store.init(1u64, &[0f32]).unwrap();
        let mut out = [0f32];
        store.set_weight([2.0, 4.0, 8.0][rank]).unwrap();
        for round in 0..[3, 1, 2][rank] {
            store.push(1u64, &[[2f32], [8.0], [24.0]][rank]).unwrap();
            store.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [[34.0 / 14.0f32], [2.6], [1.0]][round], "{rank}, {round}");
            let seen = store.last_round(1u64).unwrap();
            assert_eq!(seen.contributors, [3, 2, 1][round]);
            assert_eq!(seen.total_weight, [14.0, 10.0, 2.0][round]);
            if round + 1 == [3, 1, 2][rank] {
                store.done().unwrap();
            }
        }
    });
}

#[test]
fn without_rounds_each_push_has_its_own_weight() {
    Job::of("dist_async", 2, 1).run(|store, rank| {
        let key = 10 + rank as u64;
        store.init(10u64, &[0f32]).unwrap();
        store.init(11u64, &[0f32]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        store.barrier(LIMIT).unwrap();
        for push in 1..=3 {
            store.set_weight(f64::from(push)).unwrap();
            store.push(key, &[6f32]).unwrap();
        }
        let mut out = [0f32];
        store.pull(key, &mut out).unwrap();
        assert_eq!(out, [-11.0]);
        let seen = store.last_round(key).unwrap();
        assert_eq!((seen.round, seen.contributors, seen.total_weight), (3, 1, 3.0));
        store.set_weight(0.0).unwrap();
        let text = failure(store.push(key, &[6f32]), InvalidArgument);
        assert!(text.contains("no mean"), "{text}");
        store.pull(key, &mut out).unwrap();
        assert_eq!(out, [-11.0]);
    });
}

#[test]
fn integers_are_refused_before_anything_is_pushed() {
    Job::new(2, 1).run(|store, _| {
        store.init(1u64, &[1f32]).unwrap();
        store.init(2u64, &[7i64]).unwrap();
        failure(store.set_weight(-1.0), InvalidArgument);
        store.set_weight(2.0).unwrap();
        let keys = [1u64.into(), 2u64.into()];
        let values = [Tensor::from(&[4f32]), Tensor::from(&[5i64])];
        let text = failure(store.push_list(&keys, &values), DtypeMismatch);
        assert!(text.contains("key 2") && text.contains("weight"), "{text}");
        assert_eq!(store.last_round(1u64).unwrap(), KeyRound::default());
        store.clear_weight().unwrap();
        store.push_list(&keys, &values).unwrap();
        let (mut real, mut whole) = ([0f32], [0i64]);
        store.pull(1u64, &mut real).unwrap();
        store.pull(2u64, &mut whole).unwrap();
        assert_eq!((real, whole), ([8.0], [10]));
        assert_eq!(store.last_round(2u64).unwrap().contributors, 2);
    });
}
