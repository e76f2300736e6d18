//! The stand-in through its C entry points. Each test has a process of its own, since a driver has one
//! state for its process.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]
#![allow(clippy::print_stdout, reason = "on how many seeds a fault is found")]

mod api;
mod captures;
mod devices;
mod exports;
mod faults;
mod memory;
mod planted;
mod shipped;
mod streams;

use std::env;
use std::process::{Command, ExitStatus};

const INSIDE: &str = "KV_CUDA_STAND_IN_TEST";

/// Runs a test again in a child, with variables of the stand-in. None in the child itself.
fn child(test: &str, variables: &[(&str, &str)]) -> Option<(ExitStatus, String)> {
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    let program = env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "yes");
    for (name, value) in variables {
        command.env(format!("KV_CUDA_STAND_IN_{name}"), value);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some((output.status, text.into_owned()))
}

/// Whether the body of a test runs here. In the first process a child runs it.
fn is_child(test: &str, variables: &[(&str, &str)]) -> bool {
    let Some((status, text)) = child(test, variables) else { return true };
    assert!(text.contains("1 passed") || !status.success(), "no test {test}: {text}");
    assert!(status.success(), "{text}");
    text.lines().filter(|line| line.contains(" of ")).for_each(|line| println!("{line}"));
    false
}
