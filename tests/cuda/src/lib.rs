//! A stand-in for the driver of NVIDIA GPUs (`libcuda.so.1`), for tests on machines without a GPU.
//!
//! It interprets the PTX that ships ([`ptx`]), so its results are those of the kernels, bit for bit.
#![deny(unsafe_code)]

pub mod ptx;
