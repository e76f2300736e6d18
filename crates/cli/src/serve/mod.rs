//! The processes `kvstore server` and `kvstore scheduler`. Also called: daemons.

pub(crate) mod node;
pub(crate) mod refusals;
pub(crate) mod scheduler;
pub(crate) mod server;
