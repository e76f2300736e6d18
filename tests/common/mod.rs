//! What several tests share.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod gate;
pub mod memory;
pub mod model;
pub mod random;
pub mod scalar;
pub mod watchdog;
