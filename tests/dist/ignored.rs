//! What `kv_stats` counts of the frames and messages that had no effect.

use std::thread;
use std::time::Duration;

use kvstore::ErrorKind::Timeout;
use kvstore::Store;

use super::common::wait::soon;
use super::job::{Job, both, failure};

const KEY: u64 = 7;
const LIMIT: Duration = Duration::from_secs(60);

/// The count of a kind and reason.
fn ignored(store: &Store, kind: &str, reason: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    let counts = stats["ignored"].as_array().unwrap().iter();
    let of = counts.filter(|it| it["kind"] == kind && it["reason"] == reason);
    of.map(|it| it["count"].as_u64().unwrap()).sum()
}

#[test]
fn the_answer_to_a_pull_that_has_timed_out_is_counted_by_kind_and_reason() {
    const LATE: &str = "whose request has ended, or whose key is not here";
    let job = Job::new(2, 1);
    let others = job.start();
    // The first worker has little time.
    let open = |rank| {
        let (job, root) = (job.clone(), others.root.clone());
        let time = if rank == 0 { 2_000 } else { 60_000 };
        thread::spawn(move || job.with("timeout_ms", time).open(rank, &root).unwrap())
    };
    let [hasty, other] = [0, 1].map(open).map(super::job::join);
    both([&hasty, &other], |store| store.init(KEY, &[1.0f32; 4]).unwrap());
    hasty.push(KEY, &[1.0f32; 4]).unwrap();
    failure(hasty.pull(KEY, &mut [0.0f32; 4]), Timeout);
    assert_eq!(ignored(&hasty, "Value", LATE), 0);
    other.push(KEY, &[1.0f32; 4]).unwrap();
    assert!(soon(LIMIT, || ignored(&hasty, "Value", LATE) == 1));
    both([&hasty, &other], |store| store.close(LIMIT).unwrap());
    others.end().into_iter().for_each(|ended| ended.unwrap());
}
