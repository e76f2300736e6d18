//! One key of 1K to 64M floats under every rule, against the limit at its size and threads.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::limits::Way;
use crate::report::{Report, count, number};
use crate::store::Rule;
use crate::tensors::{Keys, size_name};
use crate::threads;

pub const SIZES: [usize; 9] =
    [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// The longest array whose cost above the limit is shown in nanoseconds.
pub const TINY: usize = 1 << 14;

pub fn run(report: &mut Report, group: &'static str, values: usize) -> io::Result<Vec<Measured>> {
    let calls = calls(values);
    let mut cases = Vec::new();
    for threads in threads() {
        for rule in Rule::ALL {
            let case = |&(call, outs)| Case { threads, values, rule, call, outs, ..Case::BASE };
            cases.extend(calls.iter().map(case));
        }
    }
    let mut all = Vec::new();
    for len in SIZES {
        println!("{group}: {} floats", size_name(len));
        all.extend(compare(report, group, &Keys::one(len), &cases)?);
    }
    limits(report, &format!("{group}-limits"), &all)?;
    for threads in threads() {
        let parts = [count(values, "value"), count(threads, "thread")].join(", ");
        let title = format!("{parts}: ratio to the limit");
        let rows = all.iter().filter(|it| it.case.threads == threads);
        let name = format!("{group}-thread-{threads}");
        let rows = rows.collect::<Vec<_>>();
        table(report, (&name, &title), &calls, &rows, |it| number(it.ratio(), 2))?;
    }
    let title = count(values, "value") + ", 1 thread: ns of a call above bytes / 0.9 triad";
    let rows = all.iter().filter(|it| it.case.threads == 1 && it.elements <= TINY);
    let (name, rows) = (format!("{group}-overhead"), rows.collect::<Vec<_>>());
    table(report, (&name, &title), &calls, &rows, |it| number(it.above_ns(), 0))?;
    Ok(all)
}

/// All calls, with one out and with as many outs as values.
fn calls(values: usize) -> Vec<(Call, usize)> {
    let mut calls = vec![(Call::Push, 0)];
    for call in [Call::PushThenPull, Call::PushPull] {
        calls.push((call, 1));
        if values > 1 {
            calls.push((call, values));
        }
    }
    calls
}

/// What the machine can do, as it was measured beside the calls.
fn limits(report: &mut Report, name: &str, all: &[Measured]) -> io::Result<()> {
    report.table(
        name,
        "The limits, GB/s",
        &[("floats", 6), ("threads", 0), ("memcpy", 0), ("triad", 6), ("streaming triad", 0)],
    )?;
    for len in SIZES {
        for threads in threads() {
            let first = all.iter().find(|it| it.elements == len && it.case.threads == threads);
            let Some(first) = first else { continue };
            let mut row = vec![first.keys.clone(), threads.to_string()];
            row.extend(Way::ALL.map(|way| number(first.rates.of(way) / 1e9, 1)));
            report.row(&row)?;
        }
    }
    Ok(())
}

/// A row for each size and rule, a column for each call.
fn table(
    report: &mut Report,
    (name, title): (&str, &str),
    calls: &[(Call, usize)],
    all: &[&Measured],
    cell: impl Fn(&Measured) -> String,
) -> io::Result<()> {
    let column = |&(call, outs): &(Call, usize)| match outs {
        0 => call.name().to_owned(),
        _ => format!("{}, {}", call.name(), count(outs, "out")),
    };
    let names: Vec<String> = calls.iter().map(column).collect();
    let mut columns = vec![("floats", 6), ("rule", 9), ("limit, GB/s", 0)];
    columns.extend(names.iter().map(|name| (name.as_str(), 0)));
    report.table(name, title, &columns)?;
    for len in SIZES {
        for rule in Rule::ALL {
            let row = |it: &&&Measured| it.elements == len && it.case.rule == rule;
            let found: Vec<&&Measured> = all.iter().filter(row).collect();
            let Some(first) = found.first() else { continue };
            let limit = number(first.limit() / 1e9, 1);
            let mut row = vec![first.keys.clone(), rule.name().to_owned(), limit];
            row.extend(found.iter().map(|it| cell(it)));
            report.row(&row)?;
        }
    }
    Ok(())
}
