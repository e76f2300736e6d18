//! Bound lists of workers: the list calls with the same arrays.

use std::time::Duration;

use kvstore::{ErrorKind, Key, TensorMut};

use super::job::Job;

const KEYS: usize = 30;
const WORKERS: usize = 2;

/// The length of a key's arrays: several slices, one, and none.
fn length(key: usize) -> usize {
    [3_000, 37, 0][key % 3]
}

/// The first or the second value of a worker.
fn number(rank: usize, round: usize, value: usize, at: usize) -> f32 {
    ((rank * 131 + round * 31 + value * 17 + at * 7) % 1021) as f32 * 0.37
}

/// The worker's sum of its values, then the workers by rank.
fn expected(round: usize, at: usize) -> f32 {
    let own = |rank| number(rank, round, 0, at) + number(rank, round, 1, at);
    (1..WORKERS).fold(own(0), |sum, rank| sum + own(rank))
}

fn tensors(arrays: &mut [Vec<f32>]) -> Vec<TensorMut<'_>> {
    arrays.iter_mut().map(TensorMut::from).collect()
}

fn run(job: &Job) {
    job.run(|store, rank| {
        let keys: Vec<Key> = (0..KEYS as u64).map(Key::from).collect();
        for (at, &key) in keys.iter().enumerate() {
            store.init(key, &vec![0.0f32; length(at)]).unwrap();
        }
        let twice: Vec<Key> = keys.iter().rev().flat_map(|&key| [key; 2]).collect();
        let arrays = || -> Vec<Vec<f32>> {
            (0..KEYS).rev().flat_map(|at| vec![vec![0.0f32; length(at)]; 2]).collect()
        };
        let (mut values, mut outs) = (arrays(), arrays());
        let mut list =
            store.bind(&twice, tensors(&mut values), &twice, tensors(&mut outs)).unwrap();
        for round in 0..4 {
            for index in 0..twice.len() {
                let value = list.value_mut::<f32>(index).unwrap();
                for (at, place) in value.iter_mut().enumerate() {
                    *place = number(rank, round, index % 2, at);
                }
            }
            if round % 2 == 0 {
                list.pushpull().unwrap();
            } else {
                list.push().unwrap();
                list.pull().unwrap();
            }
            for index in 0..twice.len() {
                for (at, got) in list.out::<f32>(index).unwrap().iter().enumerate() {
                    assert_eq!(got.to_bits(), expected(round, at).to_bits(), "round {round}");
                }
            }
        }
        store.barrier(Duration::from_secs(60)).unwrap();
        store.remove(&keys[..1]).unwrap();
        let error = list.pull().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyNotFound);
        assert!(error.to_string().contains("key 0"), "{error}");
        let mut unknown = [0.0f32; 3];
        let bound = store.bind(&[], Vec::new(), &[Key::from(99u64)], vec![(&mut unknown).into()]);
        assert_eq!(bound.unwrap_err().kind(), ErrorKind::KeyNotFound);
    });
}

#[test]
fn workers_with_bound_lists_have_the_sums_of_a_loop() {
    run(&Job::new(WORKERS, 2).with("slice_bytes", 8192));
}

#[test]
fn other_types_of_jobs_take_bound_lists() {
    run(&Job::of("dist_device_sync", WORKERS, 1));
}
