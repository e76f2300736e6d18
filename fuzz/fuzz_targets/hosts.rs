#![no_main]
#![allow(dead_code)] // The program uses more of them.

#[path = "../../src/bin/kvstore/fuzz.rs"]
mod fuzz;
#[path = "../../src/bin/kvstore/hosts.rs"]
mod hosts;
#[path = "../../src/bin/kvstore/slurm.rs"]
mod slurm;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::hosts(data));
