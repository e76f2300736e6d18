//! `make bench`: the local store against the limits of this machine, measured in the same run.
//!
//! Prints ratios. GB/s counts the bytes that a call must touch: each value once, the stored value
//! once, each out once. The limit is the best of memcpy, a triad and a triad with streaming stores,
//! at the same size and number of threads. Each line is also written to `target/bench/local.jsonl`.
//!
//! `cargo bench -- calls` runs only the groups whose name contains the word.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "figures for people"
)]
#![allow(clippy::inline_always, reason = "the loop is built inside each instruction set's entry")]

mod calls;
mod limits;
mod report;
mod store;
mod sweep;
mod timing;

use report::Report;

fn main() -> std::io::Result<()> {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted =
        |group: &str| words.is_empty() || words.iter().any(|word| group.contains(word.as_str()));
    let mut report = Report::create("target/bench/local.jsonl")?;
    Report::machine();
    if wanted("calls") {
        calls::run(&mut report)?;
    }
    if wanted("sweep") {
        sweep::run(&mut report)?;
    }
    Ok(())
}
