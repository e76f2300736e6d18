//! The rules of the library: their figures, their arithmetic, their state and their options.
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

mod bits;
mod documents;
mod golden;
mod model;
mod options;
mod reference;
mod rows;
mod schedule;
mod state;

use common::rules::RULES;
use kvstore::{Config, Store};

fn open() -> Store {
    Store::open("local", &Config::new()).unwrap()
}
