//! The role of a process in its job.

#[cfg(feature = "dist")]
pub use kvstore_protocol::Role;

#[cfg(not(feature = "dist"))]
pub use LocalRole as Role;

/// Role of a process in its job. In this build, without jobs, each process is a worker.
#[cfg(not(feature = "dist"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalRole {
    /// Keeps the membership and the barriers; one for each job.
    Scheduler = 0,
    /// Pushes and pulls values: a client of the servers.
    Worker = 1,
    /// Holds slices of values; server 0 also holds the directory of keys.
    Server = 2,
}

#[cfg(not(feature = "dist"))]
impl LocalRole {
    /// Its name, in small letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
            Self::Server => "server",
        }
    }
}
