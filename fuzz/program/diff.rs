//! The modules of `kvstore diff` that read and compare digest logs.

#[path = "../../crates/cli/src/diff/compare.rs"]
mod compare;
#[path = "../../crates/cli/src/diff/fuzz.rs"]
pub(crate) mod fuzz;
#[path = "../../crates/cli/src/diff/log.rs"]
mod log;
#[path = "../../crates/cli/src/diff/report.rs"]
mod report;
