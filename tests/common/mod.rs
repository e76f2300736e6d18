//! What several tests share.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    reason = "exact bits are compared, and kept in numbers of 64 bits"
)]

pub mod digest;
pub mod folder;
pub mod gate;
pub mod long_link;
pub mod memory;
pub mod model;
pub mod network;
pub mod norms;
pub mod opaque;
pub mod random;
pub mod releases;
pub mod rules;
pub mod scalar;
pub mod updater;
pub mod wait;
pub mod watchdog;
