//! How stores end: closed, aborted, dropped.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{Closed, PeerLost};
use kvstore::Store;

use super::common::wait::soon;
use super::job::{Job, failure, join};

const LIMIT: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(200);

fn pair(job: &Job, root: &str) -> [Arc<Store>; 2] {
    let stores: Vec<_> =
        job.open_all(root).into_iter().map(|store| Arc::new(store.unwrap())).collect();
    let inits =
        stores.iter().cloned().map(|store| thread::spawn(move || store.init(1u64, &[1.0f32; 3])));
    inits.collect::<Vec<_>>().into_iter().for_each(|thread| join(thread).unwrap());
    stores.try_into().unwrap()
}

#[test]
fn a_closed_store_says_so_and_closes_again() {
    Job::new(2, 1).run(|store, rank| {
        store.init(1u64, &[1.0f32; 3]).unwrap();
        store.push(1u64, &[rank as f32; 3]).unwrap();
        store.close(LIMIT).unwrap();
        let mut out = [0.0f32; 3];
        failure(store.push(1u64, &out), Closed);
        failure(store.pull(1u64, &mut out), Closed);
        failure(store.init(2u64, &out), Closed);
        failure(store.barrier(LIMIT), Closed);
        failure(store.set_optimizer("sgd", ""), Closed);
        failure(store.push_owned(1u64, vec![0.0f32; 3], 0).map(drop), Closed);
        store.close(LIMIT).unwrap();
        assert_eq!((store.rank(), store.num_workers()), (rank as i32, 2));
    });
}

#[test]
fn abort_wakes_who_waits_and_the_others_see_a_death() {
    let job = Job::new(2, 1);
    let others = job.start();
    let [first, second] = pair(&job, &others.root);
    first.push(1u64, &[1.0f32; 3]).unwrap();
    let waits: Vec<_> = (0..3)
        .map(|way| {
            let store = Arc::clone(&first);
            thread::spawn(move || match way {
                0 => store.pull(1u64, &mut [0.0f32; 3]),
                1 => store.barrier(LIMIT),
                _ => store.push(1u64, &[1.0f32; 3]),
            })
        })
        .collect();
    thread::sleep(A_WHILE);
    let began = Instant::now();
    first.abort();
    assert!(began.elapsed() < Duration::from_secs(2));
    for wait in waits {
        failure(join(wait), Closed);
    }
    let text = failure(second.barrier(LIMIT), PeerLost);
    assert!(text.contains("worker 0"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(6));
    second.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn a_store_that_is_dropped_is_a_worker_that_died() {
    let job = Job::new(2, 2);
    let others = job.start();
    let [first, second] = pair(&job, &others.root);
    for store in [&first, &second] {
        store.push(1u64, &[2.0f32; 3]).unwrap();
    }
    let mut out = [0.0f32; 3];
    first.pull(1u64, &mut out).unwrap();
    first.push(1u64, &[1.0f32; 3]).unwrap();
    let began = Instant::now();
    drop(second);
    let text = failure(first.pull(1u64, &mut out), PeerLost);
    assert!(text.contains("pull: key 1") && text.contains("worker 1"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(6));
    let text = failure(first.push(1u64, &[1.0f32; 3]), PeerLost);
    // It may have begun before the others were told.
    assert!(text.starts_with("push: key 1") && text.contains(": worker 1 at "), "{text}");
    failure(first.init(2u64, &[1.0f32; 3]), PeerLost);
    first.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn the_others_go_on_without_a_lost_worker_if_they_may() {
    let job = Job::new(2, 1).with("on_worker_loss", "continue");
    let others = job.start();
    let [first, second] = pair(&job, &others.root);
    first.push(1u64, &[5.0f32; 3]).unwrap();
    assert_eq!((first.num_lost(), second.num_lost()), (0, 0));
    drop(second);
    let mut out = [0.0f32; 3];
    first.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [5.0; 3]);
    assert!(soon(LIMIT, || first.num_lost() == 1));
    first.push(1u64, &[6.0f32; 3]).unwrap();
    first.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [6.0; 3]);
    first.barrier(LIMIT).unwrap();
    first.close(LIMIT).unwrap();
    others.end().into_iter().for_each(std::result::Result::unwrap);
}

#[test]
fn the_end_of_a_server_ends_what_waits() {
    // No servers but the one that is started here, to be aborted.
    let job = Job::new(2, 0);
    let others = job.start();
    let server = Arc::new(Store::open("dist", &job.config("server", None, &others.root)).unwrap());
    let serving = Arc::clone(&server);
    let serving = thread::spawn(move || serving.serve());
    let [first, second] = pair(&job, &others.root);
    first.push(1u64, &[1.0f32; 3]).unwrap();
    let waiting = Arc::clone(&first);
    let waiting = thread::spawn(move || waiting.pull(1u64, &mut [0.0f32; 3]));
    thread::sleep(A_WHILE);
    let began = Instant::now();
    server.abort();
    failure(join(serving), Closed);
    let text = failure(join(waiting), PeerLost);
    assert!(text.contains("server 0"), "{text}");
    let text = failure(second.push(1u64, &[1.0f32; 3]), PeerLost);
    assert!(text.starts_with("push: key 1: server 0 at "), "{text}");
    assert!(began.elapsed() < Duration::from_secs(6));
    for store in [first, second] {
        store.close(LIMIT).unwrap();
    }
    drop(others.end());
}
