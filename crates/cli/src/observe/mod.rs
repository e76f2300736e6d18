//! Running jobs, traces and files, shown: `status`, `top`, `trace` and `inspect`. Also called: monitoring.

pub(crate) mod inspect;
pub(crate) mod look;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod trace;
