//! The key-value store of data-parallel training. Also called: a parameter server.
//!
//! Values pushed to one key are summed in one documented order; the sum replaces the stored value or
//! goes through an updater; a pull hands the stored value out.
//!
//! ```
//! use kvstore::{Config, Key, Store};
//!
//! # fn main() -> kvstore::Result<()> {
//! let store = Store::open("local", &Config::new())?;
//! store.init(7u64, &[2.0f32; 6])?;
//!
//! let (a, b) = ([1.0f32; 6], [3.0f32; 6]);
//! let key = Key::from(7u64);
//! store.push_list(&[key, key], &[(&a).into(), (&b).into()])?;
//!
//! let mut weights = [0.0f32; 6];
//! store.pull(key, &mut weights)?;
//! assert_eq!(weights, [4.0; 6]);
//! # Ok(())
//! # }
//! ```
//!
//! The same store has a C interface, `include/kvstore.h`, which the C++, Go and Python faces use.
#![deny(unsafe_code)]

mod capi;
mod checkpoint;
mod codec;
mod config;
#[cfg(feature = "dist")]
mod credentials;
mod deadline;
#[cfg(feature = "cuda")]
mod device;
mod digest;
mod error;
#[cfg(all(any(fuzzing, test), feature = "dist"))]
#[doc(hidden)]
pub mod fuzz;
mod interrupt;
mod job;
mod kernel;
mod key;
mod local;
mod log;
#[cfg(feature = "dist")]
mod metrics;
#[cfg(feature = "dist")]
mod observer;
mod optim;
mod panics;
mod params;
mod pool;
mod reentry;
mod role;
#[cfg(feature = "dist")]
mod runtime;
mod search;
#[cfg(feature = "dist")]
mod server;
#[cfg_attr(not(feature = "dist"), path = "spans/none.rs")]
mod spans;
mod store;
mod suggest;
mod sys;
mod tensor;
#[cfg(feature = "dist")]
mod trace;
#[cfg(feature = "dist")]
mod transport;
#[cfg(feature = "dist")]
mod worker;

/// Features of every build, and of those with a cargo feature.
const FEATURES: [&str; 11] = [
    "optimizer",
    "updater",
    "compression",
    "rows",
    "tickets",
    "checkpoint",
    "digests",
    "sum_order",
    "weights",
    "clipping",
    "transactions",
];
const FEATURES_OF_DIST: [&str; 4] = ["dist", "tls", "shm", "ucx"];

/// Whether this build has a feature, by its name: one of `optimizer`, `updater`, `compression`, `rows`,
/// `tickets`, `checkpoint`, `digests`, `sum_order`, `weights`, `clipping`, `transactions`, `dist`, `tls`, `shm`,
/// `ucx` and `cuda`.
#[must_use]
pub fn capable(feature: &str) -> bool {
    FEATURES.contains(&feature)
        || cfg!(feature = "dist") && FEATURES_OF_DIST.contains(&feature)
        || cfg!(feature = "cuda") && feature == "cuda"
}

pub use checkpoint::{InspectedTensor, Inspection, TensorState};
pub use config::Config;
#[cfg(feature = "dist")]
#[doc(hidden)]
pub use config::{LaunchEnvironment, expand_hosts};
#[cfg(feature = "dist")]
pub use credentials::JobFile;
pub use deadline::Deadline;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use device::{GpuProbe, GpuReport, GpuState, examine_gpus};
pub use digest::KeyDigest;
pub use error::{Error, ErrorKind, Result};
pub use half::{bf16, f16};
pub use interrupt::set_interrupt;
pub use key::{Key, KeyInfo, KeyRound};
pub use local::counters::LastNorm;
pub use local::merger::NonFinite;
pub use local::transaction::Commit;
pub use log::{Level, set_logger};
pub use num_complex::Complex;
#[cfg(feature = "dist")]
pub use observer::{
    Facts, JobDigests, LATENCY_BOUNDS_US, Latency, Node, ObservedKey, Observer, ProcessCounters,
    Rates, RoundDigest, State, TransportUse, Unit, View, WaitedFor, Waiting,
};
pub use role::Role;
pub use store::{
    BoundList, Pending, Reduction, Scope, Store, StoreKind, UpdaterError, set_stream, stream,
};
#[cfg(feature = "cuda")]
pub use tensor::DeviceSlice;
pub use tensor::{DType, Element, Tensor, TensorMut};
#[cfg(feature = "dist")]
pub use transport::{TransportState, examine_transports};

/// The version of the crate, such as `0.1.0`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
