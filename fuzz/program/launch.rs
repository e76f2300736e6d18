//! The modules of the program `kvstore` that the targets call, under the paths that they have there.

#[path = "hosts.rs"]
pub(crate) mod hosts;
#[path = "../../crates/cli/src/launch/plan.rs"]
pub(crate) mod plan;
