//! Jobs of several stores in one process, each on threads of its own, over the real engine.
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod checkpoint;
mod job;
mod rows;
mod sums;
