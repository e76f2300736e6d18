#[path = "../../crates/cli/src/launch/processes/ending.rs"]
pub(crate) mod ending;
