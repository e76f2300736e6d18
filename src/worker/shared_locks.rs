//! How often a call takes the lock that all keys share, of the machine and its registry (also called:
//! contention, critical sections), on the worker and on the server.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::long_lists::config;
use crate::key::Key;
use crate::store::Store;

const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 100;
const SERIES: u64 = 10;

/// Takings of a worker and of its server in one round, a `pushpull` of one key of one slice: in the series with the
/// fewest, since timers take the lock more often the slower the machine is.
fn takings_of_a_round(bytes: usize) -> [f64; 2] {
    let root = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let open = |role| Arc::new(Store::open("dist_sync", &config(role, &root, "1")).unwrap());
    let others = ["scheduler", "server"].map(open);
    let serving = others.clone().map(|store| thread::spawn(move || store.serve().unwrap()));
    let (worker, server) = (open("worker"), &others[1]);
    let (keys, value) = ([Key::from(1u64)], vec![1.0f32; bytes / size_of::<f32>()]);
    let mut out = value.clone();
    worker.init(1u64, &value).unwrap();
    let mut round = || {
        let mut outs = [(&mut out).into()];
        worker.pushpull_list(&keys, &[(&value).into()], &keys, &mut outs).unwrap();
    };
    (0..100).for_each(|_| round());
    let mut fewest = [f64::INFINITY; 2];
    for _ in 0..SERIES {
        let before = [worker.takings(), server.takings()];
        (0..ROUNDS).for_each(|_| round());
        let after = [worker.takings(), server.takings()];
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        let of_a_round = |at: usize| (after[at] - before[at]) as f64 / ROUNDS as f64;
        fewest = [0, 1].map(|at| of_a_round(at).min(fewest[at]));
    }
    worker.close(LIMIT).unwrap();
    serving.into_iter().for_each(|thread| thread.join().unwrap());
    fewest
}

/// Heartbeats and delayed acknowledgements take the lock too, some times in a second.
const TIMERS: f64 = 0.25;

#[test]
fn a_pushpull_of_one_slice_takes_the_shared_lock_twice_on_either_side() {
    let [worker, server] = takings_of_a_round(1 << 10);
    assert!((1.5..2.0 + TIMERS).contains(&worker), "{worker} on the worker");
    assert!((1.5..2.0 + TIMERS).contains(&server), "{server} on the server");
}

/// The worker looks its destination up before it receives a large value there.
#[test]
fn a_large_slice_takes_the_shared_lock_once_more_on_the_worker() {
    let [worker, server] = takings_of_a_round(64 << 10);
    assert!(worker <= 3.0 + TIMERS, "{worker} on the worker");
    assert!(server <= 2.0 + TIMERS, "{server} on the server");
}
