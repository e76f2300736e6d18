#![no_main]
#![allow(dead_code)] // The program uses more of them.

#[path = "../program/diff.rs"]
mod diff;

libfuzzer_sys::fuzz_target!(|data: &[u8]| diff::fuzz::logs(data));
