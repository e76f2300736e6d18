//! Collective calls against scalar loops: every call, dtypes, sizes on both sides of the limits of segments,
//! layouts, and what goes wrong.

use std::time::Duration;

use kvstore::ErrorKind::{
    Differs, DtypeMismatch, InvalidArgument, Overlap, PeerLost, ShapeMismatch, Timeout, Unsupported,
};
use kvstore::{Element, Reduction, Store, Tensor, TensorMut, bf16, f16};

use super::job::{Job, failure};

/// Numbers whose sums round.
fn number(rank: usize, at: usize, salt: usize) -> f64 {
    let angle = (at * 13 + rank * 7 + salt * 3) as f64 * 0.11;
    angle.sin() * 10f64.powi(((at + rank) % 5) as i32 - 2)
}

fn floats(rank: usize, count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| number(rank, at, salt) as f32).collect()
}

/// The sum in the order of ranks.
fn sum(workers: usize, count: usize, salt: usize) -> Vec<f32> {
    let of =
        |at: usize| (0..workers).map(|rank| floats(rank, count, salt)[at]).reduce(|a, b| a + b);
    let all: Vec<Vec<f32>> = (0..workers).map(|rank| floats(rank, count, salt)).collect();
    let _ = of;
    (0..count).map(|at| all.iter().map(|values| values[at]).reduce(|a, b| a + b).unwrap()).collect()
}

fn allreduce(store: &Store, reduction: Reduction, value: &[f32]) -> Vec<f32> {
    let mut out = vec![-1.0; value.len()];
    store.allreduce(reduction, &[value.into()], &mut [TensorMut::from(&mut out[..])]).unwrap();
    out
}

/// Below and above the limits of whole arrays, small segments and pieces.
const COUNTS: [usize; 8] = [1, 3, 64, 4_096, 4_097, 20_000, 70_000, 300_001];

#[test]
fn an_allreduce_is_the_sum_in_the_order_of_ranks() {
    for workers in [1, 2, 3] {
        Job::new(workers, 1).run(move |store, rank| {
            for count in COUNTS {
                let out = allreduce(&store, Reduction::Sum, &floats(rank, count, 1));
                assert_eq!(out, sum(workers, count, 1), "{count} floats of {workers}");
            }
        });
    }
}
