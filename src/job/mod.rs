//! What workers and servers of a job share: options, settings that travel, encodings, and the failures of
//! the protocol as errors.

#[cfg(feature = "dist")]
pub(crate) mod encoding;
#[cfg(feature = "dist")]
pub(crate) mod errors;
#[cfg(feature = "dist")]
pub(crate) mod options;
pub(crate) mod remote;
#[cfg(feature = "dist")]
pub(crate) mod row_runs;
#[cfg(feature = "dist")]
pub(crate) mod settings;
#[cfg(feature = "dist")]
pub(crate) mod slice_state;
#[cfg(feature = "dist")]
pub(crate) mod telemetry;
#[cfg(feature = "dist")]
pub(crate) mod wanted;
