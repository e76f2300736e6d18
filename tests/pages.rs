//! What pushes of rows touch of a table that is much larger than any cache: the pushed rows, and
//! their state. Its own program, because it counts the pages of the whole process.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![cfg(target_os = "linux")]

use std::fs;

use kvstore::{Config, Store, Tensor, TensorMut};
use ndarray::{ArrayView, ArrayView2};

const ROWS: usize = 1 << 20;
const LENGTH: usize = 32;
const TABLE_BYTES: usize = ROWS * LENGTH * size_of::<f32>();
const PUSHED: usize = 1000;

/// Bytes of memory that this process has: the second number of statm, in pages of the system's.
fn resident() -> usize {
    let field = |path: &str, from: &str, at: usize| -> usize {
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with(from)).unwrap();
        line.split_whitespace().nth(at).unwrap().parse().unwrap()
    };
    field("/proc/self/status", "VmRSS:", 1) * 1024
}

/// By how many bytes the process grows in the first push of rows under an optimizer.
fn growth(optimizer: &str, params: &str) -> usize {
    let store = Store::open("local", &Config::new()).unwrap();
    let table: ArrayView2<'_, f32> =
        ArrayView::from(&[1.0; LENGTH]).into_shape_with_order((1, LENGTH)).unwrap();
    store.init(1u64, &table.broadcast((ROWS, LENGTH)).unwrap()).unwrap();
    store.set_optimizer(optimizer, params).unwrap();
    let ids: Vec<i64> = (0..PUSHED).map(|i| i64::try_from(i * 7919 % ROWS).unwrap()).collect();
    let rows = vec![1f32; PUSHED * LENGTH];
    let shape = [1000, 32];
    let before = resident();
    store.push_rows(1u64, &ids, Tensor::new(&rows, &shape).unwrap()).unwrap();
    let growth = resident().saturating_sub(before);
    let mut out = vec![0f32; PUSHED * LENGTH];
    store.pull_rows(1u64, &ids, TensorMut::new(&mut out, &shape).unwrap()).unwrap();
    assert!(out.iter().all(|&it| it < 1.0), "{optimizer}: every pushed row has moved");
    growth
}

#[test]
fn a_push_of_rows_touches_the_pushed_rows_only() {
    // A page for each row of a state, and some for the library's own use.
    let few = 2 * PUSHED * 4096 + (4 << 20);
    assert!(few < TABLE_BYTES / 8);
    for (optimizer, params, states) in [
        ("sgd", "learning_rate=0.1", 0),
        ("adagrad", "", 1),
        ("groupadagrad", "", 0),
        ("momentum", "lazy_update=true", 1),
        ("adam", "lazy_update=true", 2),
    ] {
        let growth = growth(optimizer, params);
        println!("{optimizer} {params}: {growth} bytes more, of a table of {TABLE_BYTES}");
        assert!(growth < few * states.max(1), "{optimizer} {params}: {growth} bytes");
    }
    // That this measures anything: a dense push has a state for each row, and the dense sum.
    let dense = growth("momentum", "");
    assert!(dense > TABLE_BYTES, "{dense} bytes");
}
