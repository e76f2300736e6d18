//! Jobs that do not start: everybody says why, in time.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use super::job::{End, Job, LIMIT, MARGIN, Running, Turn};
use super::program::ROUNDS;

/// What a refused worker, or a server, has said.
fn reason(end: &End) -> String {
    assert!(end.status.is_some_and(|status| status != 0), "{end:?}");
    end.text()
}

#[test]
fn a_missing_worker_is_named_by_everybody() {
    let _turn = Turn::take();
    let timeout = Duration::from_secs(3);
    let job = Job::new("train", 3, 2).with("start_timeout_ms", timeout.as_millis());
    let mut all = vec![job.start_scheduler()];
    all.extend([0, 1].map(|rank| job.start_server(rank)));
    all.extend([0, 2].map(|rank| job.start_worker(rank)));
    let start = Instant::now();
    for end in (Running { all, job }).end(timeout + MARGIN) {
        let text = reason(&end);
        assert!(text.contains(": worker 1 did not come"), "{}: {text}", end.name);
        assert!(end.at - start > timeout / 2, "{}: {text}", end.name);
    }
}

/// Who waited for it in vain has gone, and is not said to be missing.
#[test]
fn a_scheduler_that_gives_up_last_names_who_never_came() {
    let _turn = Turn::take();
    let timeout = Duration::from_secs(2);
    let job = Job::new("train", 2, 1).with("start_timeout_ms", timeout.as_millis());
    let mut all = vec![job.start_server(0), job.start_worker(0)];
    thread::sleep(timeout / 3);
    all.insert(0, job.start_scheduler());
    let ends = (Running { all, job }).end(timeout + MARGIN);
    let expected = "worker 1 did not come; worker 0, server 0 came and went";
    assert!(reason(&ends[0]).contains(expected), "{:?}", ends[0]);
    for end in &ends[1..] {
        assert!(reason(end).contains(": worker 1 did not come"), "{end:?}");
    }
}

#[test]
fn a_missing_scheduler_is_named_with_its_address() {
    let _turn = Turn::take();
    let timeout = Duration::from_secs(2);
    let job = Job::new("train", 1, 1).with("start_timeout_ms", timeout.as_millis());
    let all = vec![job.start_server(0), job.start_worker(0)];
    let root = job.root.clone();
    for end in (Running { all, job }).end(timeout + MARGIN) {
        let text = reason(&end);
        let expected = format!("the scheduler at {root} does not answer");
        assert!(text.contains(&expected), "{}: {text}", end.name);
    }
}

/// A job of two workers that waits for its second one, which is another than it should be.
fn refuses(other: &Job, rank: usize, expected: &[&str], job: &Job) {
    let mut all = vec![job.start_scheduler(), job.start_server(0), job.start_worker(0)];
    // Until they have met.
    thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    let end = other.start_worker(rank).end(LIMIT);
    assert!(end.at - start < Duration::from_secs(1) + MARGIN / 2, "{end:?}");
    assert!(end.said("refused KV_ERR_REFUSED").is_some(), "{end:?}");
    let text = reason(&end);
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    // The job does not mind.
    all.push(job.start_worker(1));
    (Running { all, job: job.clone() }).end_well();
}

#[test]
fn another_world_size_is_refused_at_once() {
    let _turn = Turn::take();
    let job = Job::new("train", 2, 1).told(ROUNDS, 2);
    let other = job.clone().with("num_workers", 3);
    refuses(&other, 1, &["worker 1", "3 workers", "num_workers"], &job);
}

#[test]
fn a_second_process_of_one_rank_is_refused_at_once() {
    let _turn = Turn::take();
    let job = Job::new("train", 2, 1).told(ROUNDS, 2);
    refuses(&job, 0, &["there is a worker 0 already"], &job);
}

#[test]
fn a_port_in_use_is_named_at_once() {
    let _turn = Turn::take();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = Job::new("train", 1, 1);
    job.root = taken.local_addr().unwrap().to_string();
    let start = Instant::now();
    let end = job.start_scheduler().end(LIMIT);
    assert!(end.at - start < Duration::from_secs(1) + MARGIN / 2, "{end:?}");
    let text = reason(&end);
    assert!(text.contains(&job.root) && text.contains("listen"), "{text}");
    assert_eq!(end.status, Some(1));
}
