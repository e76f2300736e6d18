#[path = "../../crates/cli/src/launch/hosts/agent_protocol.rs"]
pub(crate) mod agent_protocol;
#[path = "../../crates/cli/src/launch/hosts/hostfile.rs"]
pub(crate) mod hostfile;
#[path = "../../crates/cli/src/launch/hosts/slurm.rs"]
pub(crate) mod slurm;
