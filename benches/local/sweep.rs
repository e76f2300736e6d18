//! Sizes from 1K to 64M floats, 1 to 8 values, against the limit at the same size and threads.

use std::io;

use crate::limits::Limits;
use crate::report::Report;
use crate::store::{List, Store};
use crate::timing::medians;

const SIZES: [(usize, &str); 5] =
    [(1 << 10, "1K"), (1 << 14, "16K"), (1 << 16, "64K"), (1 << 20, "1M"), (1 << 24, "16M")];

pub fn run(report: &mut Report) -> io::Result<()> {
    for threads in [1, 2] {
        Report::heading(&format!(
            "sweep: ratio to best(memcpy, triad, streaming triad), float32, {threads} thread(s)"
        ));
        println!("  size values   limit GB/s  push  pull  pushpull  push with C updater");
        // The limits start their threads anew each time, which small arrays would only measure.
        for (len, name) in SIZES.into_iter().filter(|&(len, _)| threads == 1 || len >= 1 << 24) {
            for values in [1, 2, 4, 8] {
                compare(report, threads, len, name, values)?;
            }
        }
    }
    Ok(())
}

fn compare(
    report: &mut Report,
    threads: usize,
    len: usize,
    name: &str,
    n: usize,
) -> io::Result<()> {
    let (store, with_updater) = (Store::open(threads), Store::open(threads));
    with_updater.use_sgd();
    let first = List::new(vec![7], len);
    store.init(&first);
    with_updater.init(&first);
    let (values, out) = (List::new(vec![7; n], len), List::new(vec![7], len));
    let limits = std::cell::RefCell::new(Limits::new(len));
    let mut copy = || limits.borrow_mut().copy(threads);
    let mut triad = || limits.borrow_mut().triad(threads);
    let mut streaming = || limits.borrow_mut().streaming_triad(threads);
    let (mut push, mut pull) = (|| store.push(&values), || store.pull(&out));
    let mut pushpull = || store.pushpull(&values, &out);
    let mut update = || with_updater.push(&values);
    let times = medians(&mut [
        &mut copy,
        &mut triad,
        &mut streaming,
        &mut push,
        &mut pull,
        &mut pushpull,
        &mut update,
    ]);
    let sizes = limits.borrow();
    let limit = (sizes.copy_bytes() / times[0])
        .max(sizes.triad_bytes() / times[1])
        .max(sizes.triad_bytes() / times[2]);
    let arrays = |count: usize| 4.0 * (count * len) as f64;
    // Values are read once; a push writes the stored value, an updater reads it as well.
    let ratio = |bytes: f64, seconds: f64| bytes / seconds / limit;
    let facts = [
        ("threads", threads as f64),
        ("values", n as f64),
        ("limit_gbps", limit / 1e9),
        ("push", ratio(arrays(n + 1), times[3])),
        ("pull", ratio(arrays(2), times[4])),
        ("pushpull", ratio(arrays(n + 2), times[5])),
        ("push_c_updater", ratio(arrays(n + 2), times[6])),
    ];
    let text = format!(
        "  {name:>4} {n:>6} {:>12.1}  {:4.2}  {:4.2}  {:8.2}  {:19.2}",
        limit / 1e9,
        facts[3].1,
        facts[4].1,
        facts[5].1,
        facts[6].1
    );
    report.line(&text, "sweep", name, &facts)
}
