//! The local stores with tensors in the memory of a GPU, beside the limits of that GPU in the same run.
//!
//! `cargo bench --bench device` opens the driver of the system, or says why it cannot. Options:
//! `--scale N` divides all sizes by N, `--quick` measures too little for figures, `--describe` only
//! names the GPU, and `--stand-in` takes the stand-in driver of `tests/cuda`, on which figures mean
//! nothing.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::unwrap_used, reason = "a benchmark ends at the first failure")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "figures for people, and sizes that fit"
)]

#[path = "../../tests/device/array.rs"]
#[allow(dead_code, reason = "the names of its types are used")]
mod array;
mod cases;
#[path = "../../tests/device/gpu.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod gpu;
mod limits;
#[path = "../common/machine.rs"]
mod machine;
#[path = "../common/page.rs"]
#[allow(dead_code, reason = "no table of the page is written")]
mod page;
#[path = "../local/shapes.rs"]
#[allow(dead_code, reason = "one network is used")]
mod shapes;
#[path = "../../tests/device/store.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod store;
mod tensors;
#[path = "../local/timing.rs"]
#[allow(dead_code, reason = "benches/local says what was disturbed")]
mod timing;

use std::env;
use std::process::{Command, exit};

/// Set in the process that measures: its environment names the driver.
const INSIDE: &str = "KV_BENCH_DEVICE";

/// Runs this program again with the driver in its environment, where the library reads it too.
fn run_with_driver() -> i32 {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(env::args().skip(1)).env(INSIDE, "yes");
    if page::flag("--stand-in") {
        command.env_remove(gpu::DRIVER).env("KV_CUDA", gpu::library());
    } else {
        let driver = env::var("KV_CUDA").unwrap_or_else(|_| "auto".into());
        command.env(gpu::DRIVER, &driver).env("KV_CUDA", driver);
    }
    command.status().unwrap().code().unwrap_or(1)
}

/// What all sizes are divided by.
fn scale() -> usize {
    let arguments: Vec<String> = env::args().collect();
    let at = arguments.iter().position(|argument| argument == "--scale");
    at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(1).max(1)
}

fn main() {
    if env::var_os(INSIDE).is_none() {
        exit(run_with_driver());
    }
    if let Some(reason) = gpu::missing() {
        println!("benches/device: nothing is measured: {reason}");
        exit(i32::from(page::flag("--describe")));
    }
    gpu::start(0);
    println!("{}", gpu::description());
    if page::flag("--describe") {
        return;
    }
    let scaled = format!("sizes divided by {}", scale());
    let command = if scale() == 1 { "cargo bench --bench device" } else { &scaled };
    let figures = format!("medians of {} rounds", timing::rounds());
    println!("{}", machine::header(command, &figures));
    cases::run(scale());
}
