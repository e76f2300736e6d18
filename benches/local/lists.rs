//! What a key costs: one small key, and lists of small keys and of layers of middle size.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::report::{Report, number};
use crate::store::Rule;
use crate::tensors::Keys;
use crate::threads;

/// In the order of the table's columns.
const CALLS: [(Call, usize); 4] =
    [(Call::Push, 0), (Call::Pull, 1), (Call::PushThenPull, 1), (Call::PushPull, 1)];

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let lists = [
        Keys::one(1),
        Keys::one(16),
        Keys::many(1000, 1 << 10),
        Keys::many(1000, 1 << 13),
        Keys::many(100_000, 16),
        Keys::many(100_000, 16).shuffled(),
    ];
    let mut all = Vec::new();
    for keys in &lists {
        println!("{group}: {}", keys.name);
        all.extend(compare(report, group, keys, &cases(keys))?);
    }
    let mut columns = vec![("keys x floats", 24), ("values", 0), ("rule", 9), ("threads", 0)];
    columns.extend(CALLS.map(|(call, _)| (call.name(), 8)));
    report.table(group, "Lists of keys: ns a key", &columns)?;
    for calls in all.chunks(CALLS.len()) {
        let case = &calls[0].case;
        let mut row = vec![calls[0].keys.clone(), case.values.to_string()];
        row.extend([case.rule.name().to_owned(), case.threads.to_string()]);
        row.extend(calls.iter().map(|it| number(it.ns_per_key(), 1)));
        report.row(&row)?;
    }
    Ok(all)
}

/// Lists with a mebibyte and more are also split over threads.
fn cases(keys: &Keys) -> Vec<Case> {
    let large = keys.elements() >= 1 << 18;
    let mut cases = Vec::new();
    for threads in threads().into_iter().filter(|&threads| threads == 1 || large) {
        for values in [1, 4] {
            for rule in [Rule::Assign, Rule::Sgd] {
                let base = Case { threads, values, rule, ..Case::BASE };
                cases.extend(CALLS.map(|(call, outs)| Case { call, outs, ..base }));
            }
        }
    }
    cases
}
