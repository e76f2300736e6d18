//! Panics of the library's own in a job, made on purpose: nobody waits for ever, and all are told.

use std::thread;
use std::time::Duration;

use kvstore::ErrorKind::{Internal, PeerLost, Poisoned};
use kvstore::{Result, Store};

use super::common::wait::soon;
use super::job::{Job, failure, join};

const LIMIT: Duration = Duration::from_secs(60);

/// Opens a worker, with more options.
fn open(job: &Job, rank: usize, root: &str, options: &[(&str, &str)]) -> Result<Store> {
    let mut config = job.config("worker", Some(rank), root);
    options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    Store::open("dist_sync", &config)
}

fn calls_that_wait(store: &Store) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    stats["node"]["pending"].as_u64().unwrap()
}

/// A bug on a thread of the engine, at each of these points of the way of an answer: with the machine
/// locked, behind it, and when a call is complete.
#[test]
fn a_bug_on_a_thread_of_the_engine_wakes_who_waits_and_poisons_the_store() {
    for point in ["collect", "errand", "complete"] {
        let job = Job::new(2, 1);
        let others = job.start();
        let idle = {
            let (job, root) = (job.clone(), others.root.clone());
            thread::spawn(move || job.open(1, &root))
        };
        let store = open(&job, 0, &others.root, &[("fault", point)]).unwrap();
        let idle = join(idle).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| store.barrier(LIMIT));
            assert!(soon(LIMIT, || calls_that_wait(&store) == 1), "{point}");
            let text = failure(store.init(1u64, &[1.0f32]), Internal);
            assert!(text.contains(&format!("injected fault at {point}")), "{text}");
            let woken = waits.join().unwrap().unwrap_err().kind();
            assert!([Internal, Poisoned].contains(&woken), "{point}: {woken:?}");
        });
        failure(store.push(1u64, &[1.0f32]), Poisoned);
        failure(store.close(LIMIT), Poisoned);
        drop(store);
        // The lost worker has entered one barrier, which may end before the scheduler knows of its loss.
        failure(idle.barrier(LIMIT).and_then(|()| idle.barrier(LIMIT)), PeerLost);
        drop(idle);
        drop(others.end());
    }
}

#[test]
fn a_bug_in_the_work_of_a_server_ends_it_with_an_error_and_its_workers_know() {
    let job = Job::new(1, 1).with("fault", "slice");
    let others = job.start();
    let store = job.open(0, &others.root).unwrap();
    let mut out = [0.0f32];
    let pulled = store.init(1u64, &[1.0f32]).and_then(|()| store.pull(1u64, &mut out));
    let text = failure(pulled, PeerLost);
    assert!(text.contains("server 0"), "{text}");
    drop(store);
    let server = others.end().remove(1).unwrap_err();
    assert_eq!(server.status, Internal.code());
    assert!(server.text.contains("injected fault at slice"), "{server:?}");
}

#[test]
fn a_store_that_fails_half_way_is_no_member_of_the_job_any_more() {
    let job = Job::new(2, 1);
    let others = job.start();
    let reader = {
        let job = job.clone().with("role", "reader").with("fault", "done");
        let root = others.root.clone();
        thread::spawn(move || job.open(1, &root))
    };
    let store = job.open(0, &others.root).unwrap();
    let text = failure(join(reader), Internal);
    assert!(text.contains("injected fault at done"), "{text}");
    store.init(1u64, &[1.0f32]).unwrap();
    store.barrier(LIMIT).unwrap();
    store.close(LIMIT).unwrap();
    // As long as the reader is heard, the job does not end.
    others.end().into_iter().for_each(|ended| ended.unwrap());
}
