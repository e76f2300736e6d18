//! The memory of a server does not grow with the rounds.

use std::thread;
use std::time::Duration;

use super::job::{Job, Turn, amount};
use super::program::ROUNDS;

/// Rounds until everything that is kept for later is there.
const WARM: usize = 60;
/// By how much the memory may differ from then on, in kilobytes. A round moves 12,000, so that one
/// value in ten rounds that is not given back is noticed.
const MARGIN: u64 = 16_000;
/// What the server keeps, and may hold that comes early, in kilobytes.
const VALUES: u64 = 6_000;
const HELD: u64 = 16_000;

#[test]
fn a_server_needs_no_more_memory_after_many_rounds() {
    let _turn = Turn::take();
    let rounds = amount(1_000, 10_000);
    let job =
        Job::new("load", 2, 1).with("peer_timeout_ms", 20_000).with("hold_bytes", HELD * 1_000);
    let job = job.told(ROUNDS, rounds);
    let mut running = job.start();
    let mut most = [0; 2];
    for round in 1..=rounds {
        running.workers()[0].hear(&format!("round {round}"));
        if round % 40 == 20 {
            running.workers()[1].signal("STOP");
            thread::sleep(Duration::from_millis(300));
            running.workers()[1].signal("CONT");
        }
        let half = usize::from(round > rounds / 2);
        let now = running.servers()[0].kilobytes("VmRSS").filter(|_| round > WARM);
        most[half] = most[half].max(now.unwrap_or(0));
    }
    let [early, late] = most;
    assert!(late < early + MARGIN, "{early} kB, and {late} kB in the second half");
    // The scheduler is the same program, with neither.
    let program = running.all[0].kilobytes("VmRSS").unwrap();
    assert!(late < program + VALUES + HELD + MARGIN, "{late} kB, the scheduler has {program} kB");
    running.end_well();
}
