//! Meetings: workers learn where the others listen for them, whatever ends or begins anew meanwhile.

use super::Job;
use crate::job::{Limits, MS, Reason};
use crate::membership::Scheduler;
use crate::message::ExchangeAddress;
use crate::sim::limits;
use crate::worker::OpId;

const LIMIT: u64 = 60_000 * MS;

fn own(rank: u32) -> ExchangeAddress {
    ExchangeAddress { incarnation: 70 + u64::from(rank), address: format!("exchange-{rank}") }
}

fn meet(job: &mut Job, rank: u32) -> OpId {
    let now = job.now;
    let op = job.worker(rank).meet(own(rank), now, now + LIMIT).unwrap();
    job.settle();
    op
}

/// Each worker knows where all listen.
fn all_know(job: &mut Job, workers: u32) {
    let all: Vec<_> = (0..workers).map(|rank| (rank, own(rank))).collect();
    for rank in 0..workers {
        assert_eq!(job.worker(rank).listening_workers(), all, "worker {rank}");
    }
}

#[test]
fn a_meeting_waits_for_all_workers_and_is_repeated_at_once() {
    let mut job = Job::started(&Limits { workers: 3, ..limits() });
    let early: Vec<OpId> = [2, 0].into_iter().map(|rank| meet(&mut job, rank)).collect();
    job.pass(100 * MS);
    assert_eq!(job.result(2, early[0]), None);
    assert_eq!(job.result(0, early[1]), None);
    let last = meet(&mut job, 1);
    for (rank, op) in [(2, early[0]), (0, early[1]), (1, last)] {
        assert_eq!(job.result(rank, op), Some(&Ok(())));
    }
    all_know(&mut job, 3);
    let again = meet(&mut job, 1);
    assert_eq!(job.result(1, again), Some(&Ok(())));
}

#[test]
fn a_meeting_that_times_out_names_who_is_missing_and_may_go_on() {
    let mut job = Job::started(&Limits { workers: 3, ..limits() });
    let early = meet(&mut job, 0);
    let _ = meet(&mut job, 2);
    job.pass(LIMIT + MS);
    let failure = job.result(0, early).cloned().unwrap().unwrap_err();
    assert_eq!(failure.reason, Reason::Timeout);
    assert!(failure.to_string().ends_with("waiting for worker 1"), "{failure}");
    let (last, again) = (meet(&mut job, 1), meet(&mut job, 0));
    assert_eq!(job.result(1, last), Some(&Ok(())));
    assert_eq!(job.result(0, again), Some(&Ok(())));
    all_know(&mut job, 3);
}

#[test]
fn a_scheduler_that_begins_anew_learns_where_workers_listen() {
    let limits = Limits { workers: 2, ..limits() };
    let mut job = Job::started(&limits);
    let early = meet(&mut job, 1);
    job.scheduler = Scheduler::new(limits, 1_000, job.now);
    (0..150).for_each(|_| job.pass(100 * MS));
    assert_eq!(job.result(1, early), None);
    let last = meet(&mut job, 0);
    (0..150).for_each(|_| job.pass(100 * MS));
    assert_eq!(job.result(1, early), Some(&Ok(())));
    assert_eq!(job.result(0, last), Some(&Ok(())));
    all_know(&mut job, 2);
}

#[test]
fn a_meeting_fails_with_the_worker_that_will_not_come() {
    let mut job = Job::started(&Limits { workers: 3, ..limits() });
    let early = meet(&mut job, 0);
    job.exit_notice("worker-1", "ended by signal 9");
    job.pass(100 * MS);
    let failure = job.result(0, early).cloned().unwrap().unwrap_err();
    assert_eq!(failure.reason, Reason::PeerLost);
    assert!(failure.to_string().contains("worker 1 at worker-1 is lost"), "{failure}");
    let late = meet(&mut job, 2);
    assert!(job.result(2, late).unwrap().is_err());
}
