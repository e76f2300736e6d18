//! `kvstore run`, as a user starts it: what it passes on, how it ends, and that it leaves nothing.
//!
//! Most jobs here have no servers (`-s 0`), so that a shell can play the workers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed test")]

#[path = "../common/mod.rs"]
mod common;
mod generate;
mod here;
mod hosts;
mod inspect;
mod launcher;
mod slurm;
