//! What is measured. Bytes are those that any implementation must move, as in docs/use/performance.md.

use std::time::Instant;

use kvstore::DType;
use serde_json::Value;

use crate::limits::{Copies, Staged, on_host, queued};
use crate::shapes;
use crate::store::{CPU, Store};
use crate::tensors::{Keys, Tensor, Workload};
use crate::timing::{Subject, TRIES, medians};

const MOMENTUM: (&str, &str) = ("sgd", "learning_rate=0.01,momentum=0.9");
const ADAM: (&str, &str) = ("adam", "");

/// A `pushpull` of n values to one out.
struct PushPullCase {
    name: &'static str,
    dtype: DType,
    keys: Keys,
    values: usize,
    rule: Option<(&'static str, &'static str)>,
    /// Bytes of an element that are read and written.
    bytes: usize,
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

fn row(cells: &[&str]) {
    println!("| {} |", cells.join(" | "));
}

fn head(cells: &[&str]) {
    println!();
    row(cells);
    println!("|{}", "---|".repeat(cells.len()));
}

/// The total of a member over all devices of the process.
fn count(store: &Store, name: &str) -> u64 {
    let stats: Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    let devices = stats["devices"].as_array().unwrap();
    devices.iter().map(|device| device[name].as_u64().unwrap()).sum()
}

pub fn run(scale: usize) {
    bandwidth(scale);
    host_time(scale);
    staging(scale);
    first_use();
    waits(scale);
}

fn pushpull_cases(scale: usize) -> Vec<PushPullCase> {
    let large = || Keys::equal(1, (16 << 20) / scale);
    let of = |name, dtype, keys, values, rule, bytes| PushPullCase {
        name,
        dtype,
        keys,
        values,
        rule,
        bytes,
    };
    let master = ("adam", "multi_precision=true");
    vec![
        // Values, the stored value and states read and written, the out.
        of("16M f32, n = 4, assign", DType::F32, large(), 4, None, 4 * (4 + 1 + 1)),
        of("16M f32, n = 4, momentum", DType::F32, large(), 4, Some(MOMENTUM), 4 * (4 + 4 + 1)),
        of("16M f32, n = 4, Adam", DType::F32, large(), 4, Some(ADAM), 4 * (4 + 6 + 1)),
        // The value, a master and two states of f32 read and written, the stored value, the out.
        of("16M bf16 with master, n = 1, Adam", DType::BF16, large(), 1, Some(master), 2 + 24 + 4),
        of(
            "161 keys of ResNet-50, n = 4, momentum",
            DType::F32,
            shapes::resnet50().scaled(scale),
            4,
            Some(MOMENTUM),
            4 * (4 + 4 + 1),
        ),
        of(
            "1,000 keys of 1K, n = 1, momentum",
            DType::F32,
            Keys::equal(1000, 1024).scaled(scale),
            1,
            Some(MOMENTUM),
            4 * (1 + 4 + 1),
        ),
    ]
}

/// Memory bandwidth of calls, beside copies in the same rounds.
fn bandwidth(scale: usize) {
    let copies = Copies::new((256 << 20) / scale);
    head(&["pushpull, one out", "median", "GB/s", "copy by the driver", "by a kernel", "to limit"]);
    for case in pushpull_cases(scale) {
        let work = Workload::new(case.dtype, &case.keys, case.values, case.rule);
        let subjects: [Subject<'_>; 3] =
            [queued(|| work.pushpull()), copies.by_driver(), copies.by_kernel()];
        let times = medians(&subjects, TRIES);
        let moved = (case.bytes * case.keys.elements()) as f64;
        let rate = moved / times[0] / 1e9;
        let copied = [1, 2].map(|at| copies.moved() / times[at] / 1e9);
        let limit = copied[0].max(copied[1]);
        row(&[
            case.name,
            &milliseconds(times[0]),
            &format!("{rate:.1}"),
            &format!("{:.1}", copied[0]),
            &format!("{:.1}", copied[1]),
            &format!("{:.2}", rate / limit),
        ]);
    }
}

/// Time of the host in a call that queues work, and what the call queues.
fn host_time(scale: usize) {
    head(&["pushpull, momentum, n = 1", "host time", "end to end", "launches", "copies"]);
    for (name, keys) in [
        ("one key of 1K", Keys::equal(1, 1024)),
        ("1,000 keys of 1K", Keys::equal(1000, 1024).scaled(scale)),
    ] {
        let work = Workload::new(DType::F32, &keys, 1, Some(MOMENTUM));
        let times = medians(&[on_host(|| work.pushpull()), queued(|| work.pushpull())], TRIES);
        let counts = ["launches", "copies_to_device"].map(|name| count(&work.store, name));
        work.pushpull();
        let [launches, copies] = [("launches", counts[0]), ("copies_to_device", counts[1])]
            .map(|(name, before)| (count(&work.store, name) - before).to_string());
        let micros = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        row(&[name, &micros(times[0]), &micros(times[1]), &launches, &copies]);
    }
}

/// Values of host memory pushed to a key on the GPU, and pulls into host memory.
fn staging(scale: usize) {
    let count = (16 << 20) / scale;
    let bytes = 4 * count;
    let work = Workload::new(DType::F32, &Keys::equal(1, count), 1, None);
    let words: Vec<u32> = vec![0x3C3C_3C3C; count];
    let host = words.as_ptr().expose_provenance() as u64;
    let tensor = Tensor::at(host, CPU, DType::F32, &[count as i64]);
    let staged = Staged::new(bytes);
    let pinned = Tensor::at(staged.host, CPU, DType::F32, &[count as i64]);
    let subjects: [Subject<'_>; 6] = [
        queued(|| work.store.push_raw(&[0], &[tensor.raw()]).unwrap()),
        queued(|| work.store.pull_raw(&[0], &[tensor.raw()]).unwrap()),
        staged.to_device(),
        staged.to_host(),
        queued(|| work.store.push_raw(&[0], &[pinned.raw()]).unwrap()),
        queued(|| work.store.pull_raw(&[0], &[pinned.raw()]).unwrap()),
    ];
    let times = medians(&subjects, TRIES);
    assert_eq!(tensor.data(), host);
    drop(words);
    head(&["64 MB of host memory", "median", "GB/s", "pinned copy, GB/s", "to limit"]);
    for (name, ours, limit) in [
        ("push", times[0], times[2]),
        ("pull", times[1], times[3]),
        ("push, pinned", times[4], times[2]),
        ("pull, pinned", times[5], times[3]),
    ] {
        let rate = |seconds: f64| format!("{:.1}", bytes as f64 / seconds / 1e9);
        let ratio = format!("{:.2}", limit / ours);
        row(&[name, &milliseconds(ours), &rate(ours), &rate(limit), &ratio]);
    }
}

/// The first call of a rule on a device, which loads its kernel, and the second.
fn first_use() {
    head(&["first use of a kernel", "first call", "second call"]);
    for rule in ["adagrad", "nadam", "ftrl", "lion", "rmsprop"] {
        let work = Workload::new(DType::F64, &Keys::equal(1, 1024), 1, Some((rule, "")));
        crate::gpu::stream_wait(1);
        let times = [0, 1].map(|_| {
            let start = Instant::now();
            work.pushpull();
            crate::gpu::stream_wait(1);
            milliseconds(start.elapsed().as_secs_f64())
        });
        row(&[&format!("{rule}, f64"), &times[0], &times[1]]);
    }
    println!("\nA driver that has compiled a kernel before takes it from its cache: run twice.");
}

/// Waits of the host in a loop.
fn waits(scale: usize) {
    let keys = Keys::equal(100, 1024).scaled(scale);
    let work = Workload::new(DType::F32, &keys, 1, Some(MOMENTUM));
    let before = count(&work.store, "waits");
    (0..100).for_each(|_| work.pushpull());
    crate::gpu::stream_wait(1);
    let waits = count(&work.store, "waits") - before;
    head(&["loop", "waits of the host"]);
    row(&["100 pushpulls of 100 keys on CUDA tensors", &waits.to_string()]);
}
