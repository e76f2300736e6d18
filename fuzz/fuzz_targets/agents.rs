#![no_main]
#![allow(dead_code)] // The program uses more of them.

#[path = "../../crates/cli/src/fuzz_agents.rs"]
mod fuzz_agents;
#[path = "../../crates/cli/src/ending.rs"]
mod ending;
#[path = "../program/launch.rs"]
mod launch;
#[path = "../../crates/cli/src/settings.rs"]
mod settings;
#[path = "../../crates/cli/src/sys.rs"]
mod sys;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_agents::agents(data));
