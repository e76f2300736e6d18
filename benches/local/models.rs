//! All parameters of a network in one call.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::report::{Report, number};
use crate::shapes;
use crate::store::Rule;
use crate::threads;

const CALLS: [Call; 2] = [Call::PushThenPull, Call::PushPull];

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let mut cases = Vec::new();
    for values in [1, 4] {
        for rule in [Rule::Assign, Rule::Momentum, Rule::Adam] {
            for threads in threads() {
                let base = Case { threads, values, rule, outs: values, ..Case::BASE };
                cases.extend(CALLS.map(|call| Case { call, ..base }));
            }
        }
    }
    let mut all = Vec::new();
    for keys in [shapes::resnet50(), shapes::bert_base()] {
        println!("{group}: {}, {} keys, {} parameters", keys.name, keys.count(), keys.elements());
        all.extend(compare(report, group, &keys, &cases)?);
    }
    let columns = [
        ("network", 9),
        ("values and outs", 0),
        ("rule", 8),
        ("threads", 0),
        ("push + pull, ms", 0),
        ("to limit", 0),
        ("pushpull, ms", 0),
        ("to limit", 0),
    ];
    report.table(group, "Networks, all keys in one call", &columns)?;
    for calls in all.chunks(CALLS.len()) {
        let case = &calls[0].case;
        let mut row = vec![calls[0].keys.clone(), case.values.to_string()];
        row.extend([case.rule.name().to_owned(), case.threads.to_string()]);
        for it in calls {
            row.extend([number(it.seconds * 1e3, 2), number(it.ratio(), 2)]);
        }
        report.row(&row)?;
    }
    Ok(all)
}
