//! Processes of one machine share memory, unless they are told not to, and the results are the same.

use std::fs;

use super::job::{Job, LIMIT, Process, Turn, soon};
use super::program::ROUNDS;

/// How many segments a process has mapped.
fn segments(process: &Process) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.number())).unwrap_or_default();
    maps.lines().filter(|line| line.contains("/memfd:kvstore")).count()
}

/// Lets a job make some rounds; gives how many segments its processes then have.
fn segments_of(job: &Job) -> [usize; 3] {
    let mut running = job.start();
    running.workers()[0].hear("round 20");
    let found = [
        segments(running.scheduler()),
        segments(&running.servers()[0]),
        segments(&running.workers()[0]),
    ];
    running.end_well();
    found
}

#[test]
fn two_processes_have_a_segment_for_each_direction() {
    let _turn = Turn::take();
    let job = Job::new("load", 1, 1).told(ROUNDS, 40);
    let [_, server, worker] = segments_of(&job);
    // And one of each to the scheduler, and back.
    assert!(server >= 2 && worker >= 2, "{server} and {worker}");
}

#[test]
fn whoever_does_not_want_it_has_none() {
    let _turn = Turn::take();
    let job = Job::new("load", 1, 1).told(ROUNDS, 40).with("shm", "no");
    assert_eq!(segments_of(&job), [0; 3]);
    // One side alone cannot have it, and its offers end.
    let job = Job::new("load", 1, 1).told(ROUNDS, 40);
    let mut all = vec![job.start_scheduler(), job.clone().with("shm", "no").start_server(0)];
    let mut worker = job.start_worker(0);
    worker.hear("round 20");
    assert_eq!(segments(&all[1]), 0, "a server that was told no");
    all.push(worker);
    all.into_iter().for_each(|process| {
        let end = process.end(LIMIT);
        assert_eq!(end.status, Some(0), "{}", end.text());
    });
}

#[test]
fn a_process_that_is_gone_leaves_its_memory_to_nobody() {
    let _turn = Turn::take();
    let job = Job::new("load", 2, 1).told(ROUNDS, 4_000);
    let job = job.with("on_worker_loss", "continue").with("peer_timeout_ms", 1_000);
    let mut running = job.start();
    running.workers()[0].hear("round 20");
    let before = segments(&running.servers()[0]);
    running.workers()[1].kill();
    let server = &running.servers()[0];
    let fewer = soon(LIMIT, || segments(server) < before);
    assert!(fewer, "{before} segments before, {} now", segments(server));
}

#[test]
fn float_sums_have_the_bits_of_a_loop_without_it_too() {
    let _turn = Turn::take();
    let job = Job::new("float sums", 3, 2).with("slice_bytes", 65_536).with("shm", "no");
    job.told(ROUNDS, 50).run().iter().for_each(|end| {
        assert_eq!(end.status, Some(0), "{}", end.text());
    });
}
