//! Jobs over a network between two machines that is slow, or that is cut: two network namespaces of
//! the kernel with a wire between them. Where these may not be made, the tests say so and do nothing.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::common::network::{self, NEAR, Network, ip};
use super::job::{End, Job, KVSTORE, LIMIT, MARGIN, Running, Turn, soon};
use super::program::{COUNT, PAUSE_MS, ROUNDS};

/// Set in the process that has a network of its own.
const INSIDE: &str = "KV_TEST_NETWORK";

/// Runs a test of this module again where it may change the network; true in there.
#[allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test says what it has measured or left out"
)]
pub fn is_inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !network::can_be_made() {
        eprintln!("skipped: this machine does not let us make networks");
        return false;
    }
    let _turn = Turn::take();
    let mut test = network::inside();
    test.args(["--exact", name, "--nocapture", "--include-ignored"]).env(INSIDE, "1");
    let output = test.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{text}");
    println!("{text}");
    false
}

/// Starts a job: the scheduler and the server here, the workers on the far machine.
fn start(network: &Network, job: &Job) -> Running {
    // Their memory is not as far apart as their networks.
    let mut job = job.clone().with("insecure", "yes").with("shm", "no");
    job.root = format!("{NEAR}:9000");
    let here = job.clone().with("bind", NEAR);
    let mut all = vec![here.start_scheduler(), here.start_server(0)];
    let mut there = job.clone();
    there.through = network.way().to_vec();
    all.extend((0..job.workers).map(|rank| there.start_worker(rank)));
    Running { all, job }
}

/// Starts a job: the scheduler here, all others on the far machine.
fn start_with_far_scheduler(network: &Network, job: &Job) -> Running {
    let mut job = job.clone().with("insecure", "yes");
    job.root = format!("{NEAR}:9000");
    let mut all = vec![job.clone().with("bind", NEAR).start_scheduler()];
    let mut there = job.clone();
    there.through = network.way().to_vec();
    all.extend((0..job.servers).map(|rank| there.start_server(rank)));
    all.extend((0..job.workers).map(|rank| there.start_worker(rank)));
    Running { all, job }
}

fn cut() {
    ip(&["link", "set", "near", "down"]);
}

fn mend() {
    ip(&["link", "set", "near", "up"]);
}

/// Loses packets of more than 1,300 bytes, in both directions and without a word.
fn lose_large_packets(network: &Network) {
    let arguments = |device| {
        let bucket = ["root", "tbf", "rate", "100mbit", "burst", "1300b", "limit", "1mb"];
        ["qdisc", "replace", "dev", device].into_iter().chain(bucket).collect::<Vec<_>>()
    };
    let near = Command::new("tc").args(arguments("near")).status().unwrap();
    assert!(near.success() && network.far("tc", &arguments("far")).status().unwrap().success());
}

fn job(peer_timeout: Duration) -> Job {
    let job = Job::new("train", 2, 1).with("peer_timeout_ms", peer_timeout.as_millis());
    job.told(COUNT, 100_000).told(PAUSE_MS, 1)
}

fn end_well(running: Running) {
    for end in running.end(LIMIT) {
        assert_eq!(end.status, Some(0), "{end:?}");
    }
}

#[test]
fn a_network_of_ten_megabits_is_slow_and_nothing_else() {
    if !is_inside("network::a_network_of_ten_megabits_is_slow_and_nothing_else") {
        return;
    }
    let network = Network::new();
    network.limit("10mbit");
    let began = Instant::now();
    end_well(start(&network, &job(Duration::from_secs(3)).told(ROUNDS, 6)));
    // 6 rounds of 2 workers, 400 kB each way: the wire was in the way.
    assert!(began.elapsed() > Duration::from_secs(3), "after {:?}", began.elapsed());
}

#[test]
fn a_network_that_loses_packets_of_full_size_is_found() {
    if !is_inside("network::a_network_that_loses_packets_of_full_size_is_found") {
        return;
    }
    let network = Network::new();
    let mut job = job(Duration::from_secs(5)).with("insecure", "yes").with("bind", NEAR);
    job.root = format!("{NEAR}:9000");
    let _running = [job.start_scheduler(), job.start_server(0)];
    let doctor = || {
        let words = ["doctor", &job.root, "--measure-mb", "0", "--timeout-ms", "4000"];
        let output = network.far(KVSTORE, &words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let mut text = String::new();
    let well = soon(LIMIT, || {
        text = doctor();
        text.contains("ok    packets of servers: full-size ones pass to and from 1 servers")
    });
    assert!(well && text.contains("ok    packets: full-size ones pass to the scheduler"), "{text}");
    lose_large_packets(&network);
    let text = doctor();
    let line = format!(
        "BAD   packets: MTU: full-size packets are lost on the way to and from the scheduler at {}",
        job.root
    );
    assert!(text.contains(&line), "{text}");
}

#[test]
fn a_job_goes_on_when_a_network_that_was_cut_is_mended() {
    if !is_inside("network::a_job_goes_on_when_a_network_that_was_cut_is_mended") {
        return;
    }
    let network = Network::new();
    let mut running = start(&network, &job(Duration::from_secs(40)).told(ROUNDS, 200));
    running.hear("sum 3");
    cut();
    thread::sleep(Duration::from_secs(10));
    mend();
    end_well(running);
}

/// For longer than connections live on which nothing is heard.
#[test]
fn a_job_goes_on_when_its_scheduler_was_cut_off_from_all_others() {
    if !is_inside("network::a_job_goes_on_when_its_scheduler_was_cut_off_from_all_others") {
        return;
    }
    let network = Network::new();
    let job = job(Duration::from_secs(2)).told(COUNT, 1_000).told(ROUNDS, 100);
    let mut running = start_with_far_scheduler(&network, &job);
    running.hear("sum 3");
    cut();
    thread::sleep(Duration::from_secs(12));
    mend();
    end_well(running);
}

#[test]
fn every_process_says_whom_it_misses_when_a_network_stays_cut() {
    if !is_inside("network::every_process_says_whom_it_misses_when_a_network_stays_cut") {
        return;
    }
    let timeout = Duration::from_secs(3);
    let network = Network::new();
    let job = job(timeout).with("start_timeout_ms", 5_000).told(ROUNDS, 1_000_000);
    let mut running = start(&network, &job);
    running.hear("sum 3");
    cut();
    let at = Instant::now();
    for end in running.end(LIMIT) {
        check_loss(&end, at, timeout);
    }
}

/// A worker misses the scheduler and the server, which miss the workers.
fn check_loss(end: &End, cut: Instant, timeout: Duration) {
    if !end.name.starts_with("worker") {
        return;
    }
    let text = end.said("error").unwrap_or_else(|| panic!("no error: {end:?}"));
    // It hears no member, the scheduler included, which alone could say that the server is lost.
    assert!(text.contains("KV_ERR_EVICTED"), "{end:?}");
    assert!(text.contains("has not heard any member of the job for 3000 ms"), "{end:?}");
    let took = end.said_at("error").unwrap_or(end.at).saturating_duration_since(cut);
    assert!(took < timeout + Duration::from_secs(5) + MARGIN, "after {took:?}: {end:?}");
}
