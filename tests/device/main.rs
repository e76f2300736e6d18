//! Stores with tensors in the memory of a GPU, against stores in host memory: every bit. Through the
//! C interface, but for `slices` and `tutorial`, which use the Rust interface. The driver is the
//! stand-in of `tests/cuda`, or that of GPUs with `KV_TEST_CUDA=auto` (`scripts/test_gpu.sh`). Each
//! test has a process of its own, since a driver has one state for its process.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]

mod array;
mod bits;
mod counters;
mod dense;
mod direct;
mod faults;
mod gpu;
mod homes;
mod layouts;
mod order;
mod pieces;
mod refused;
mod rules;
mod seeds;
mod slices;
mod store;
mod tutorial;

use std::env;
use std::process::{Command, Output};

const INSIDE: &str = "KV_DEVICE_TEST";

/// Runs a test again in a child, with variables. None in the child itself.
fn child(test: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "yes");
    let driver = gpu::library();
    command.env("KV_CUDA", driver).envs(variables.iter().copied());
    Some(command.output().unwrap())
}

/// Says that a test, or the rest of it, needs more than the driver here has; `scripts/test_gpu.sh`
/// counts these lines.
#[allow(clippy::print_stdout, reason = "a test that did not run says so")]
fn skip(test: &str, reason: &str) -> bool {
    println!("SKIPPED {test}: {}", reason.trim());
    false
}

/// Whether a test can run on the stand-in only, and the driver is another one.
fn is_skipped(test: &str, reason: &str) -> bool {
    !gpu::is_stand_in() && !skip(test, reason)
}

/// Whether the body of a test runs here. In the first process a child runs it.
fn is_child(test: &str, variables: &[(&str, &str)]) -> bool {
    if let Some(reason) = gpu::reason_to_skip(variables) {
        return skip(test, &reason);
    }
    let Some(output) = child(test, variables) else { return true };
    if output.status.code() == Some(gpu::NEEDS_STAND_IN) {
        let text = String::from_utf8_lossy(&output.stderr);
        return skip(test, text.lines().last().unwrap_or_default());
    }
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    false
}
