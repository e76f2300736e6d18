//! Jobs of real processes: a scheduler, servers, and workers that this test program plays itself.
//!
//! `KV_TEST_SEED` repeats a run; `KV_TEST_OPERATIONS` asks for the long one.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    reason = "a failed test; small numbers, and sums without rounding"
)]

mod answers;
mod attacker;
#[path = "../../../../tests/common/mod.rs"]
mod common;
mod credentials;
mod deaths;
mod doctor;
mod floods;
mod forged;
mod greeting;
mod half_open;
mod hostile;
mod hostile_tls;
mod hosts;
mod job;
mod keys;
mod kills;
mod launcher;
mod limits;
mod listeners;
mod long_links;
mod looks;
mod many;
mod memory;
mod metrics;
mod network;
mod pauses;
mod program;
mod readers;
mod reconnection;
mod saves;
mod session;
mod shared;
mod slow;
mod starts;
mod streams;
mod sums;
mod tokens;
mod traces;
