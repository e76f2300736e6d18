//! Where the caller's arrays start: on a line of the caches, where malloc puts large ones, and
//! where a slice may begin.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::memory::MALLOC;
use crate::report::{Report, number};
use crate::store::Rule;
use crate::tensors::Keys;

const OFFSETS: [usize; 3] = [0, MALLOC, 4];
const SIZES: [usize; 2] = [1 << 14, 1 << 24];
const VALUES: usize = 4;

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let mut cases = Vec::new();
    for rule in [Rule::Assign, Rule::Sgd] {
        for offset in OFFSETS {
            let base = Case { offset, rule, values: VALUES, ..Case::BASE };
            cases.push(Case { call: Call::PushPull, outs: 1, ..base });
            cases.push(Case { call: Call::PushPull, outs: VALUES, ..base });
        }
    }
    let mut all = Vec::new();
    for len in SIZES {
        all.extend(compare(report, group, &Keys::one(len), &cases)?);
    }
    report.table(
        group,
        &format!("pushpull of {VALUES} values by the place of the arrays, 1 thread: ratio"),
        &[("floats", 6), ("rule", 6), ("bytes past a line", 0), ("1 out", 0), ("4 outs", 0)],
    )?;
    for pair in all.chunks(2) {
        let case = &pair[0].case;
        let mut row = vec![pair[0].keys.clone(), case.rule.name().to_owned()];
        row.push(case.offset.to_string());
        row.extend(pair.iter().map(|it| number(it.ratio(), 2)));
        report.row(&row)?;
    }
    Ok(all)
}
