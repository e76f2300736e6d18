//! What is said about devices: statistics of a store, and a report for `kvstore doctor`.

mod probe;
mod statistics;

pub use probe::{GpuProbe, GpuReport, GpuState, examine_gpus};
pub(crate) use statistics::statistics;
