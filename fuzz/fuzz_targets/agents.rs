#![no_main]
#![allow(dead_code)] // The program uses more of them.

#[path = "../../src/bin/kvstore/ending.rs"]
mod ending;
#[path = "../../src/bin/kvstore/fuzz_agents.rs"]
mod fuzz_agents;
#[path = "../../src/bin/kvstore/plan.rs"]
mod plan;
#[path = "../../src/bin/kvstore/settings.rs"]
mod settings;
#[path = "../../src/bin/kvstore/sys.rs"]
mod sys;
#[path = "../../src/bin/kvstore/talk.rs"]
mod talk;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_agents::agents(data));
