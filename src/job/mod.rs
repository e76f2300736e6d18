//! Terms that workers and servers share (also called: job settings): options, merge settings and encodings on
//! the wire, and protocol failures as errors.

#[cfg(feature = "dist")]
pub(crate) mod encoding;
#[cfg(feature = "dist")]
pub(crate) mod errors;
#[cfg(feature = "dist")]
pub(crate) mod options;
pub(crate) mod remote;
#[cfg(feature = "dist")]
pub(crate) mod round_info;
#[cfg(feature = "dist")]
pub(crate) mod row_runs;
#[cfg(feature = "dist")]
pub(crate) mod settings;
#[cfg(feature = "dist")]
pub(crate) mod slice_digest;
#[cfg(feature = "dist")]
pub(crate) mod slice_state;
#[cfg(feature = "dist")]
pub(crate) mod sums;
#[cfg(feature = "dist")]
pub(crate) mod telemetry;
#[cfg(feature = "dist")]
pub(crate) mod wanted;
