//! Sums that must come out exactly, over real processes.

use std::process::Command;

use super::common::folder::Folder;
use super::job::{Job, KVSTORE, Turn, amount};
use super::program::ROUNDS;

/// No worker has found a number that it did not expect.
fn runs_well(job: &Job) {
    for end in job.run() {
        assert!(end.said("closed").is_some(), "{end:?}");
    }
}

#[test]
fn seven_workers_and_seven_servers_give_the_closed_form() {
    let _turn = Turn::take();
    runs_well(&Job::new("closed forms", 7, 7).with("peer_timeout_ms", 20_000));
}

#[test]
fn a_worker_that_pushes_less_often_is_not_waited_for() {
    let _turn = Turn::take();
    runs_well(&Job::new("unequal counts", 5, 2));
}

#[test]
fn what_a_fast_worker_pushes_twice_belongs_to_two_rounds() {
    let _turn = Turn::take();
    runs_well(&Job::new("fast worker", 3, 2));
}

#[test]
fn a_thousand_rounds_of_float_sums_have_the_bits_of_a_loop() {
    let _turn = Turn::take();
    let job = Job::new("float sums", 4, 2).with("slice_bytes", 8192);
    runs_well(&job.told(ROUNDS, amount(1_000, 10_000)));
}

#[test]
fn servers_end_their_digest_logs_with_the_job() {
    let _turn = Turn::take();
    let logs = [Folder::new("digests_a"), Folder::new("digests_b")];
    for (log, servers) in logs.iter().zip([1, 2]) {
        let job = Job::new("closed forms", 2, servers).with("digests", "all");
        runs_well(&job.with("digest_log", log.path().display()));
    }
    let output = Command::new(KVSTORE).arg("diff").args(logs.each_ref().map(Folder::path)).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    // A note would say that a log has no end.
    assert!(text.starts_with("same: ") && text.lines().count() == 1, "{text}");
}
