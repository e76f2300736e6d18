//! What a call costs on top of the memory it must move: one small key, and lists of small keys.

use std::hint::black_box;
use std::io;

use crate::report::Report;
use crate::store::{List, Store};
use crate::timing::medians;

pub fn run(report: &mut Report) -> io::Result<()> {
    Report::heading(
        "calls: cost on top of two memory copies, float32, one value, no updater, 1 thread",
    );
    for (keys, len) in [(1, 1), (1, 16), (1, 1024), (1, 16_384), (1000, 1024), (100_000, 16)] {
        let in_order: Vec<u64> = (0..keys).collect();
        compare(report, &format!("{keys} x {len}"), in_order.clone(), len)?;
        if keys > 1000 {
            compare(report, &format!("{keys} x {len}, shuffled"), shuffled(in_order), len)?;
        }
    }
    Ok(())
}

fn compare(report: &mut Report, case: &str, keys: Vec<u64>, len: usize) -> io::Result<()> {
    let count = keys.len();
    let store = Store::open(1);
    let (values, outs) = (List::new(keys.clone(), len), List::new(keys, len));
    store.init(&values);
    let source = vec![1.0f32; count * len];
    let (mut stored, mut out) = (source.clone(), source.clone());
    let mut copies = || {
        // A copy for each key, as the store has to make them.
        for (to, from) in stored.chunks_mut(len).zip(source.chunks(len)) {
            to.copy_from_slice(black_box(from));
        }
        for (to, from) in out.chunks_mut(len).zip(stored.chunks(len)) {
            to.copy_from_slice(black_box(from));
        }
        black_box(&mut out);
    };
    let mut two_calls = || {
        store.push(&values);
        store.pull(&outs);
    };
    let mut one_call = || store.pushpull(&values, &outs);
    let times = medians(&mut [&mut copies, &mut two_calls, &mut one_call]);
    let per_key: Vec<f64> = times.iter().map(|seconds| seconds * 1e9 / count as f64).collect();
    let (two, one) = (per_key[1] - per_key[0], per_key[2] - per_key[0]);
    let text = format!(
        "  {case:24} copies {:8.1} ns a key; push + pull {two:+8.1}, pushpull {one:+8.1}",
        per_key[0]
    );
    let facts =
        [("copies_ns", per_key[0]), ("push_pull_ns", per_key[1]), ("pushpull_ns", per_key[2])];
    report.line(&text, "calls", case, &facts)
}

/// The same keys in an order without pattern, always the same one.
fn shuffled(mut keys: Vec<u64>) -> Vec<u64> {
    let mut state = 1u64;
    for i in (1..keys.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        keys.swap(i, (state >> 33) as usize % (i + 1));
    }
    keys
}
