//! Checkpoints: training that goes on, what a load replaces and what it refuses, damaged files.
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

mod damage;
mod dtypes;
mod files;
mod inspect;
mod property;
mod releases;
mod stores;
mod training;

use std::fs;
use std::path::Path;

use common::rules::RULES;
use kvstore::{Config, ErrorKind, Key, Result, Store};

fn open() -> Store {
    Store::open("local", &Config::new()).unwrap()
}

fn open_with(threads: &str, isa: &str) -> Store {
    let config = Config::new().with("threads", threads).unwrap().with("isa", isa).unwrap();
    Store::open("local", &config).unwrap()
}

/// A new store with what a file has.
fn loaded(path: &Path) -> Store {
    let store = open();
    store.load(path).unwrap();
    store
}

fn pull(store: &Store, key: impl Into<Key>, count: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; count];
    store.pull(key, &mut out).unwrap();
    out
}

/// Everything that a store would go on with, as the bytes of its file.
fn snapshot(store: &Store, path: &Path) -> Vec<u8> {
    store.save(path).unwrap();
    fs::read(path).unwrap()
}

fn refused(result: Result<()>, kind: ErrorKind, says: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(says), "{says}: {error}");
}
