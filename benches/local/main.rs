//! `make bench`: the local store against the limits of this machine, measured in the same run.
//!
//! `cargo bench --bench local -- GROUP...` measures the groups whose names contain one of the
//! words; without words, those that are marked so. `--page` writes the tables into
//! docs/use/performance.md, which says what the figures mean; `--quick` measures too little for figures.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "figures for people, and sizes that fit"
)]
#![allow(clippy::inline_always, reason = "the loop is built inside each instruction set's entry")]

mod alignment;
mod api;
mod bars;
mod bound;
mod charts;
mod codecs;
mod compare;
mod crew;
mod digests;
mod goals;
mod halves;
mod hand;
mod limits;
mod lists;
mod loops;
#[path = "../common/machine.rs"]
mod machine;
mod memory;
mod models;
mod orders;
#[path = "../common/page.rs"]
mod page;
mod peers;
#[path = "../../crates/cli/src/plot.rs"]
mod plot;
mod race;
mod report;
mod rows;
mod shapes;
mod store;
mod sweep;
mod tensors;
mod timing;
mod updater;
mod wide;

use std::io;

use compare::Measured;
use report::Report;

/// A group's name, whether it runs without being asked for, and what it does.
type Group = (&'static str, bool, fn(&mut Report, &'static str) -> io::Result<Vec<Measured>>);

const GROUPS: [Group; 17] = [
    ("sweep-1", true, |report, group| sweep::run(report, group, 1)),
    ("sweep-2", false, |report, group| sweep::run(report, group, 2)),
    ("sweep-4", true, |report, group| sweep::run(report, group, 4)),
    ("sweep-8", false, |report, group| sweep::run(report, group, 8)),
    ("hand-small", true, hand::small),
    ("hand-middle", false, hand::middle),
    ("hand-large", false, hand::large),
    ("hand-read", false, hand::read),
    ("alignment", true, alignment::run),
    ("half", true, halves::run),
    ("order", false, orders::run),
    ("digests", false, digests::run),
    ("lists", true, lists::run),
    ("bound", true, bound::run),
    ("models", true, models::run),
    ("rows", true, rows::run),
    ("codecs", true, codecs::run),
];

/// Measured when it is asked for; compares with others, not with the limits.
const PEERS: &str = "peers";

/// The instruction set that stores use: the widest one, or the one of `KV_ISA`.
fn isa() -> String {
    std::env::var("KV_ISA").unwrap_or_else(|_| "auto".to_owned())
}

/// The numbers of threads that are measured, as far as the machine has processors for them.
fn threads() -> Vec<usize> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2].into_iter().filter(|&threads| threads <= processors).collect()
}

fn main() -> io::Result<()> {
    let words = page::words();
    let named = |name: &str| words.iter().any(|word| name.contains(word.as_str()));
    let wanted =
        |(name, default, _): &&Group| if words.is_empty() { *default } else { named(name) };
    let groups: Vec<&Group> = GROUPS.iter().filter(wanted).collect();
    if groups.is_empty() && !named(PEERS) {
        let names: Vec<&str> = GROUPS.iter().map(|(name, ..)| *name).collect();
        println!("no such group of `local`; there are {} and {PEERS}", names.join(", "));
        return Ok(());
    }
    let stem = if words.is_empty() { "local".to_owned() } else { words.join("-") };
    let mut report = Report::create(&stem)?;
    report.machine(&match words.join(" ").as_str() {
        "" => "make bench".to_owned(),
        PEERS => "make bench-peers".to_owned(),
        words => format!("make bench GROUP=\"{words}\""),
    })?;
    let mut all = Vec::new();
    for (name, _, run) in groups {
        all.extend(run(&mut report, name)?);
    }
    if named(PEERS) {
        peers::run(&mut report, PEERS)?;
    }
    if !all.is_empty() {
        goals::local(&mut report, &all, words.is_empty())?;
        charts::local(&mut report, &all)?;
    }
    report.finish()
}
