//! Other hosts: hostfiles, Slurm allocations, placement of processes, and the agents that start them over ssh.
//! Also called: remote execution.

pub(crate) mod agent;
pub(crate) mod agent_protocol;
pub(crate) mod agents;
pub(crate) mod hostfile;
pub(crate) mod placement;
pub(crate) mod shell;
pub(crate) mod slurm;
