//! Processes that share no memory have connections past the engine, as long as both are there.

use std::fs;

use super::job::{Job, LIMIT, Process, Turn, soon};
use super::keys::{Keys, certified, start};
use super::program::ROUNDS;

/// How many threads a process has for its connections: one for each other process that sends to it, and
/// one for its port, if it listens.
fn threads(process: &Process) -> usize {
    let folder = fs::read_dir(format!("/proc/{}/task", process.number())).into_iter().flatten();
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm"));
    let names = folder.flatten().filter_map(|entry| name(entry).ok());
    names.filter(|name| name.trim() == "kvstore-stream").count()
}

fn load(workers: usize) -> Job {
    Job::new("load", workers, 1).told(ROUNDS, 4_000).with("shm", "no")
}

#[test]
fn whoever_shares_memory_or_has_tls_has_none() {
    let _turn = Turn::take();
    let keys = Keys::new("no-streams");
    let give = certified(&keys);
    let shares = Job::new("load", 1, 1).told(ROUNDS, 4_000);
    for mut running in [shares.start(), start(&load(1), give)] {
        running.workers()[0].hear("round 20");
        assert!(running.all.iter().all(|process| threads(process) == 0));
    }
}

#[test]
fn a_worker_and_a_server_have_a_connection_for_each_direction() {
    let _turn = Turn::take();
    let keys = Keys::new("streams");
    for job in [load(2), keys.tokened(&load(2), "job")] {
        let mut running = job.start();
        running.workers()[0].hear("round 20");
        assert!(soon(LIMIT, || threads(&running.servers()[0]) == 3));
        assert!(soon(LIMIT, || threads(&running.workers()[0]) == 1));
        assert_eq!(threads(running.scheduler()), 0);
    }
}

#[test]
fn a_process_that_is_gone_leaves_no_thread_and_no_connection() {
    let _turn = Turn::take();
    let job = load(2).with("on_worker_loss", "continue").with("peer_timeout_ms", 1_000);
    let mut running = job.start();
    running.workers()[0].hear("round 20");
    assert!(soon(LIMIT, || threads(&running.servers()[0]) == 3));
    let before = running.servers()[0].files();
    running.workers()[1].kill();
    let server = &running.servers()[0];
    assert!(soon(LIMIT, || threads(server) == 2 && server.files() < before));
}
