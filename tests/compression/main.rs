//! Codecs in a store: their figures, what arrives of pushes, and what is refused.
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

mod documents;
mod golden;
mod options;
mod pushes;

use kvstore::{Config, Store};

/// The names of all codecs.
const CODECS: &[&str] = &["1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk"];

fn open() -> Store {
    Store::open("local", &Config::new()).unwrap()
}

fn open_with(option: &str, value: &str) -> Store {
    Store::open("local", &Config::new().with(option, value).unwrap()).unwrap()
}

fn pull(store: &Store, key: u64, count: usize) -> Vec<f32> {
    let mut out = vec![0.0; count];
    store.pull(key, &mut out).unwrap();
    out
}

/// The bits of numbers, in which a NaN is as good as another.
fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }).collect()
}
