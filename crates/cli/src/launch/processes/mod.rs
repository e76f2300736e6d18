//! Processes of a job on this host: they are started, watched, signalled and reaped here. Also called:
//! supervision.

pub(crate) mod all;
pub(crate) mod attendance;
pub(crate) mod exit_notices;
pub(crate) mod input;
pub(crate) mod local;
pub(crate) mod output;
pub(crate) mod reaper;
pub(crate) mod signals;
