//! Programs over random streams and events: the right ones always have the right result, and each
//! planted fault is found on some seed.

mod library;
mod program;

use library::Planted;

use crate::is_child;

/// Seeds on which right programs run.
const RIGHT: u64 = 100;
/// Maximum number of seeds until a fault is found.
const MAX_SEEDS: u64 = 1_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn right_programs_have_the_right_result_on_every_seed() {
    let test = "planted::right_programs_have_the_right_result_on_every_seed";
    if !is_child(test, &[("DEVICES", "2")]) {
        return;
    }
    let machine = program::Machine::new();
    let seeds = number("KV_TEST_SEEDS", RIGHT);
    for seed in 1..=seeds {
        let outcome = machine.run(seed, None);
        assert_eq!(outcome, Ok(()), "seed {seed}: {}", crate::api::message());
    }
    println!("right programs: {seeds} of {seeds} seeds");
}

#[test]
fn every_planted_fault_is_found() {
    if !is_child("planted::every_planted_fault_is_found", &[("DEVICES", "2")]) {
        return;
    }
    let machine = program::Machine::new();
    for planted in Planted::ALL {
        let found = |seed: &u64| machine.run(*seed, Some(planted)).is_err();
        let first = (1..=MAX_SEEDS).find(found);
        let count = (1..=RIGHT).filter(found).count();
        println!("{planted:?}: first found on seed {first:?}, on {count} of {RIGHT}");
        assert!(first.is_some(), "{planted:?} is not found on {MAX_SEEDS} seeds");
    }
}
