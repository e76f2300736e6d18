//! The roles of processes in a job.

/// The role of a process in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Pushes and pulls.
    Worker,
    /// Holds keys and merges pushes.
    Server,
    /// Brings the others together.
    Scheduler,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Server => "server",
            Role::Scheduler => "scheduler",
        }
    }
}
