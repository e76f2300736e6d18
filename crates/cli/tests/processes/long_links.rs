//! Jobs over a link with long round trips, or that loses packets: they start, with a token and with TLS, and the
//! first calls succeed. A relay in this process is the link between two network namespaces. Where these may not
//! be made, the tests say so and do nothing.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::common::long_link::{self, LinkProperties, LongLink};
use super::common::network::NEAR;
use super::job::{End, Job, LIMIT, Running, amount};
use super::keys::Keys;
use super::network::is_inside;
use super::program::{COUNT, PAUSE_MS, ROUNDS};

/// A link without a delay, and with the usual packets.
const LINK: LinkProperties =
    LinkProperties { round_trip: Duration::ZERO, loss: 0, altered: 0, rate: None, packet: 1_500 };

/// The credentials of a job: a token, also as the key of records, or a token and certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Token,
    TokenAndRecords,
    TokenAndTls,
}

impl Access {
    fn give(self, keys: &Keys, job: &Job, role: &str) -> Job {
        let job = keys.tokened(job, "job");
        match self {
            Self::Token => job,
            Self::TokenAndRecords => job.with("integrity", "yes"),
            Self::TokenAndTls => keys.secured(&job, role),
        }
    }
}

/// The default of `peer_timeout_ms`, and a time in which some packet arrives even if three of ten are lost: TCP
/// sends a lost one again after 0.2 s, and then after twice the time each.
const PEER_TIMEOUT_MS: u64 = 5_000;
const LOSSY_TIMEOUT_MS: u64 = 60_000;

/// A job of which all other options have their defaults, on both machines.
fn start(link: &LongLink, keys: &Keys, access: Access, peer_timeout_ms: u64) -> Running {
    let job = Job::new("train", 2, 1).told(ROUNDS, 3).told(COUNT, 1_000).told(PAUSE_MS, 1);
    start_on_both(link, keys, access, &job.with("peer_timeout_ms", peer_timeout_ms))
}

/// Starts the scheduler and a server on the near machine, the workers on the far one.
fn start_on_both(link: &LongLink, keys: &Keys, access: Access, job: &Job) -> Running {
    let mut job = job
        .clone()
        .with("start_timeout_ms", 60_000)
        .with("timeout_ms", 600_000)
        .with("tls_verify_names", "no");
    job.root = format!("{NEAR}:9000");
    let give = |job: &Job, role: &str| access.give(keys, job, role);
    let here = job.clone().with("bind", NEAR);
    let mut all = vec![give(&here, "scheduler").start_scheduler()];
    all.push(give(&here, "server").start_server(0));
    let mut there = give(&job, "worker");
    there.through = link.way().to_vec();
    all.extend((0..job.workers).map(|rank| there.start_worker(rank)));
    Running { all, job }
}

/// Whether this machine lets us make such links.
fn can_be_made() -> bool {
    let can_be_made = long_link::can_be_made();
    if !can_be_made {
        println!("skipped: this machine does not let us make network devices");
    }
    can_be_made
}

/// Starts jobs, each of which must start. Where no packet is lost they end with their sums; with lost packets
/// another job does, whose processes may be silent for longer.
fn starts(name: &str, round_trip: Duration, loss: usize, times: usize) {
    if !is_inside(&format!("long_links::{name}")) {
        return;
    }
    if !can_be_made() {
        return;
    }
    let link = LongLink::new(LinkProperties { round_trip, loss, ..LINK }).unwrap();
    let keys = Keys::new("long-links");
    keys.make_roles();
    for access in [Access::Token, Access::TokenAndTls] {
        for _ in 0..times {
            let began = Instant::now();
            let mut running = start(&link, &keys, access, PEER_TIMEOUT_MS);
            running.hear("ready ");
            println!("{name}, {access:?}: ready after {:?}", began.elapsed());
            if loss == 0 {
                running.end_well();
            }
        }
        if loss > 0 {
            let began = Instant::now();
            let ends = start(&link, &keys, access, LOSSY_TIMEOUT_MS).end(10 * LIMIT);
            assert!(ends.iter().all(|end| end.status == Some(0)), "{ends:?}");
            println!("{name}, {access:?}: a whole job took {:?}", began.elapsed());
        }
    }
}

#[test]
fn a_job_starts_over_a_round_trip_of_340_ms() {
    let name = "a_job_starts_over_a_round_trip_of_340_ms";
    starts(name, Duration::from_millis(340), 0, amount(1, 10));
}

#[test]
#[ignore = "long: ten jobs with a token, and ten with TLS"]
fn a_job_starts_over_a_round_trip_of_a_second() {
    starts("a_job_starts_over_a_round_trip_of_a_second", Duration::from_secs(1), 0, 10);
}

#[test]
#[ignore = "long: ten jobs with a token, and ten with TLS"]
fn a_job_starts_where_three_packets_of_ten_are_lost() {
    starts("a_job_starts_where_three_packets_of_ten_are_lost", Duration::from_millis(20), 300, 10);
}

/// How many packets have to be changed for each kind of access, and in how many jobs at most.
const ENOUGH_ALTERED: usize = 5;
const MOST_ALTERED_JOBS: usize = 8;

/// An attacker in the middle changes bits of what the processes send. Tags, or the checksums of frames, find all of
/// them, and connections are made again. A changed length lets a receiver wait for bytes that do not come: then the
/// job ends with the loss of a process, as behind an attacker that lets nothing pass.
#[test]
fn no_bit_that_is_changed_on_its_way_counts() {
    let name = "no_bit_that_is_changed_on_its_way_counts";
    if !is_inside(&format!("long_links::{name}")) || !can_be_made() {
        return;
    }
    let link = LongLink::new(LinkProperties { altered: 150, ..LINK }).unwrap();
    let keys = Keys::new("altered");
    keys.make_roles();
    for access in [Access::Token, Access::TokenAndRecords, Access::TokenAndTls] {
        let (mut jobs, mut altered) = (0, 0);
        // A job that lost a process early leaves the rest to another one.
        while altered <= ENOUGH_ALTERED && jobs < MOST_ALTERED_JOBS {
            altered += alter_a_job(&link, &keys, access);
            jobs += 1;
        }
        println!("{access:?}: {altered} packets changed, {jobs} jobs");
        assert!(altered > ENOUGH_ALTERED, "{access:?}: {altered} packets changed, {jobs} jobs");
    }
}

/// Runs a job whose packets are changed from its third round on, and says how many were.
fn alter_a_job(link: &LongLink, keys: &Keys, access: Access) -> usize {
    // Each worker checks the bits of each round.
    let job = Job::new("float sums", 2, 1).told(ROUNDS, amount(150, 3_000)).told(PAUSE_MS, 5);
    let mut running = start_on_both(link, keys, access, &job);
    running.hear("round 3");
    link.alters.store(true, Ordering::SeqCst);
    let ends = running.end(10 * LIMIT);
    link.alters.store(false, Ordering::SeqCst);
    // A worker that sees a wrong sum ends with another status.
    let is_loss = |end: &End| {
        let told = ["PEER_LOST", "EVICTED", "TIMEOUT", "REFUSED"];
        told.iter().any(|word| end.text().contains(word))
    };
    for end in &ends {
        let is_right = end.status != Some(101) && !end.text().contains("panicked");
        assert!(is_right && (end.status == Some(0) || is_loss(end)), "{end:?}");
    }
    link.altered.swap(0, Ordering::SeqCst)
}
