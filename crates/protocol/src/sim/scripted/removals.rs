//! Removals of keys while members are lost. Each server learns of a loss on its own, and drops a key on its
//! own.

use super::Job;
use crate::job::{Limits, MS, OnLoss};
use crate::message::KeySpec;
use crate::sim::model::{Model, value_of};
use crate::sim::program::F32;
use crate::sim::scenario::Scenario;
use crate::sim::{Bytes, limits};

const KEY: u64 = 0;
const ELEMENTS: u64 = 8;

/// Value that a worker pushes in a round of the key; 0 is its first value.
fn value(rank: u32, round: u64) -> Bytes {
    let values: Vec<f32> = (0..ELEMENTS).map(|at| value_of(KEY, rank, round, at)).collect();
    Bytes::of(&values)
}

/// Seed 7000016218: worker 1 has pushed and removed a key when worker 0 is lost. Server 0 learns of the loss
/// first and drops the key. Server 1 closes the round of its slice after that, and then drops the key.
#[test]
fn a_server_closes_a_round_of_a_key_that_another_server_has_forgotten() {
    let limits = Limits { servers: 2, on_loss: OnLoss::Continue, ..limits() };
    let scenario = Scenario { limits: limits.clone(), ..Scenario::new(7_000_016_218) };
    let mut job = Job::started(&limits);
    job.model = Some(Model::new(&scenario));
    let (now, end) = (job.now, job.now + 60_000 * MS);
    for rank in 0..2 {
        let spec = KeySpec { dtype: F32, shape: vec![ELEMENTS], whole: false };
        job.worker(rank).init(KEY, spec, value(rank, 0), now, end).unwrap();
    }
    job.settle();
    assert_eq!(job.worker(1).place_of(KEY).unwrap().servers.len(), 2, "a slice on each server");
    job.model.as_mut().unwrap().begin_push(KEY, 1, 1, 0);
    let push = job.worker(1).push(KEY, value(1, 1), 0, now, end).unwrap();
    assert_eq!(job.result(1, push), Some(&Ok(())));
    let removal = job.worker(1).remove(KEY, now, end).unwrap();
    assert_eq!(job.result(1, removal), None, "worker 0 has not removed the key");
    assert_eq!(job.closed, 0, "worker 0 has not pushed");
    job.nodes.remove("worker-0");
    job.pass(2 * limits.peer_timeout);
    assert_eq!(job.result(1, removal), Some(&Ok(())));
    assert_eq!(job.closed, 2, "each server closes the round of its slice");
}
