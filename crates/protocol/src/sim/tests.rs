//! Runs over many seeds. `KV_SIM_SEED=n` runs one, and with `KV_SIM_TRACE=1` prints its frames;
//! `KV_SIM_FIRST` and `KV_SIM_SEEDS` choose a range, which runs on all processors. The range prints a failing
//! seed, and continues.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::cluster::Cluster;
use super::coverage::Met;
use super::reader::LEAST;
use super::scenario::Scenario;

/// Seeds of a default run.
const SEEDS: u64 = 1_500;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Seeds of a test that takes so many in a default run.
pub(super) fn seeds(default: u64) -> u64 {
    number("KV_SIM_SEEDS").unwrap_or(default)
}

fn run(scenario: &Scenario) -> Option<Met> {
    let seed = scenario.seed;
    let trace = number("KV_SIM_TRACE").is_some();
    let outcome = catch_unwind(AssertUnwindSafe(|| Cluster::new(scenario.clone(), trace).run()));
    if outcome.is_err() {
        println!("KV_SIM_SEED={seed} fails again: {scenario:?}");
    }
    outcome.ok()
}

/// Runs a range of seeds; gives their coverage, and the failed ones.
fn run_range(scenario: fn(u64) -> Scenario, first: u64, count: u64) -> (Met, Vec<u64>) {
    let next = AtomicU64::new(0);
    let work = || {
        let (mut sum, mut failed) = (Met::default(), Vec::new());
        loop {
            // Relaxed: only the counter is shared, it orders no other memory.
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return (sum, failed);
            }
            match run(&scenario(first + index)) {
                Some(met) => sum.add(&met),
                None => failed.push(first + index),
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut sum, mut failed) = (Met::default(), Vec::new());
    for (met, seeds) in parts {
        sum.add(&met);
        failed.extend(seeds);
    }
    failed.sort_unstable();
    (sum, failed)
}

#[test]
fn clusters_of_every_seed_keep_the_contract() {
    if let Some(seed) = number("KV_SIM_SEED") {
        println!("{:?}", run(&Scenario::new(seed)).expect("the seed fails"));
        return;
    }
    let first = number("KV_SIM_FIRST").unwrap_or(0);
    let count = number("KV_SIM_SEEDS").unwrap_or(SEEDS);
    let (sum, failed) = run_range(Scenario::new, first, count);
    println!("{count} seeds from {first}, {} failed: {sum:?}", failed.len());
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
    if count >= SEEDS {
        sum.check_that_all_was_met(count);
    }
}

/// `KV_SIM_READER=n` runs one seed again.
#[test]
fn no_frame_of_a_reader_changes_members_barriers_terms_or_results() {
    if let Some(seed) = number("KV_SIM_READER") {
        println!("{:?}", run(&Scenario::with_reader(seed)).expect("the seed fails"));
        return;
    }
    let first = number("KV_SIM_FIRST").unwrap_or(0);
    let count = number("KV_SIM_SEEDS").unwrap_or(200).min(10_000);
    let (sum, failed) = run_range(Scenario::with_reader, first, count);
    println!("{count} jobs from seed {first} met {} frames of a reader", sum.attacks);
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
    assert!(sum.attacks >= count * LEAST);
}
