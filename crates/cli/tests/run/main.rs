//! The program as a user starts it: what `kvstore run` and `kvstore bench` pass on, how they end, and that
//! they leave nothing; and the commands that need no job.
//!
//! Most jobs here have no servers (`-s 0`), so that a shell can play the workers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod bench;
#[path = "../../../../tests/common/mod.rs"]
mod common;
mod diff;
mod examples;
mod generate;
mod here;
mod hosts;
mod inspect;
mod launcher;
mod releases;
mod slurm;
