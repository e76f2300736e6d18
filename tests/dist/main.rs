//! Jobs of several stores in one process, each on threads of its own, over the real engine.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exact bits are compared, and small numbers converted"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod again;
mod alone;
mod asking;
mod bound;
mod checkpoint;
mod clipping;
mod codecs;
mod collectives;
mod collisions;
mod digests;
mod done;
mod embedded;
mod ends;
#[cfg(feature = "fault-injection")]
mod faults;
mod golden;
mod groups;
mod ignored;
mod job;
mod key_rules;
mod keys;
mod lists;
mod opaque;
mod other_build;
mod quiet;
mod releases;
mod removal;
mod resume;
mod rounds;
mod rows;
mod rules;
mod starting;
mod sums;
mod tickets;
mod transports;
mod tree;
mod updaters;
mod values;
mod weights;
