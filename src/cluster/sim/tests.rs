//! Many seeds. `KV_SIM_SEED=n` runs one, and with `KV_SIM_TRACE=1` prints its frames; `KV_SIM_SEEDS=n`
//! runs that many.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cluster::{Cluster, Met};
use super::scenario::Scenario;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(seed: u64) -> Met {
    let scenario = Scenario::new(seed);
    let trace = number("KV_SIM_TRACE").is_some();
    let outcome = catch_unwind(AssertUnwindSafe(|| Cluster::new(scenario.clone(), trace).run()));
    outcome.unwrap_or_else(|_| panic!("KV_SIM_SEED={seed} fails again: {scenario:?}"))
}

#[test]
fn clusters_of_every_seed_keep_the_contract() {
    if let Some(seed) = number("KV_SIM_SEED") {
        println!("{:?}", run(seed));
        return;
    }
    let mut sum = Met::default();
    for seed in 0..number("KV_SIM_SEEDS").unwrap_or(1_500) {
        let met = run(seed);
        sum.closed += met.closed;
        sum.duplicates += met.duplicates;
        sum.grants += met.grants;
        sum.bundles += met.bundles;
        sum.damaged += met.damaged;
        sum.failures += met.failures;
        sum.evictions += met.evictions;
        sum.reports += met.reports;
        sum.waiting += met.waiting;
        sum.most_held = sum.most_held.max(met.most_held);
    }
    println!("{sum:?}");
    assert!(sum.closed > 0 && sum.duplicates > 0 && sum.grants > 0 && sum.damaged > 0);
    assert!(sum.failures > 0 && sum.evictions > 0 && sum.most_held > 0);
    assert!(sum.reports > 0 && sum.waiting > 0 && sum.bundles > 0);
}
