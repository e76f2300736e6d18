//! The C interface: converts and forwards. Without it a useful Rust crate remains. Also called:
//! foreign function interface (FFI).
//!
//! The generated header, `include/kvstore.h`, is its manual.
#![allow(unsafe_code, reason = "this is the border to C: pointers come in and go out")]
#![allow(non_camel_case_types, reason = "the names are those of the C interface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header's conventions hold for every function and are stated once, there"
)]
#![allow(clippy::doc_markdown, reason = "the comments become the C header's manual")]

mod callback;
mod guard;
mod handle;
#[allow(dead_code, reason = "constants and enumerators are there for the header")]
mod types;

// In the order of the header's chapters.
mod config;

mod store;

mod data;

mod done;

mod rows;

mod device;

mod merge;

mod checkpoint;

mod library;
