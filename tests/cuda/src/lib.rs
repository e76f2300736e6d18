//! A stand-in for the driver of NVIDIA GPUs (`libcuda.so.1`), for tests on machines without a GPU.
//!
//! It interprets the PTX that ships ([`ptx`]), so its results have the bits of the kernels. A host access
//! to its device memory is a segmentation fault, kernels and copies are checked (bounds, lifetime,
//! initialization, races), and its scheduler runs streams as late as their dependencies allow.
//! `README.md` has what it proves and what it cannot prove.
#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "machines have 64 bits; slots, lines, threads and bytes of an access fit 32"
)]

mod driver;
mod entry;
mod error;
mod functions;
mod host;
mod mapping;
mod memory;
pub mod ptx;
mod streams;
mod variables;

pub use functions::{FUNCTIONS, hide, missing_in};
