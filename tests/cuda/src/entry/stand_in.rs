//! Functions of the stand-in itself, for tests.
#![allow(unsafe_code, reason = "the names are exported")]

use super::pointers::{Out, Text};
use crate::driver;

/// How often a function was called since the start or `kv_cuda_stand_in_forget_calls`.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_calls(function: Text) -> u64 {
    driver::with(|driver| function.get().map_or(0, |name| driver.calls(name)))
}

/// Counts from zero again.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_forget_calls() {
    driver::with(driver::Driver::forget_calls);
}

/// Drops queued commands, sticky errors and planned faults; seeds the scheduler of streams.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_seed(seed: u64) {
    driver::with(|driver| {
        driver.reset();
        driver.streams.seed(seed);
    });
}

/// Plans faults, as the variable `KV_CUDA_STAND_IN_FAIL`, and counts calls from zero again.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_fail(plan: Text) {
    driver::with(|driver| {
        driver.forget_calls();
        driver.plan(plan.get().unwrap_or_default());
    });
}

/// Copies the message of the last fault, at most `room` bytes with the terminating zero.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_message(text: Out<u8>, room: usize) {
    driver::with(|driver| {
        let bytes = driver.machine.message.bytes().take(room.saturating_sub(1));
        let bytes: Vec<u8> = bytes.chain([0]).collect();
        if room > 0 && text.set(0).is_ok() {
            text.set_all(&bytes);
        }
    });
}

/// Bytes of pinned host memory that are allocated.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_pinned_bytes() -> u64 {
    driver::with(|driver| driver.machine.memories.pinned_bytes())
}

/// Instructions that kernels ran since the start.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cuda_stand_in_instructions() -> u64 {
    driver::with(|driver| driver.machine.instructions)
}
