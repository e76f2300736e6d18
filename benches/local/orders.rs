//! Sums by a binary tree beside sums from the left.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::report::{Report, number};
use crate::store::{Rule, Setting};
use crate::tensors::{DType, Keys};

const SIZES: [usize; 3] = [1 << 10, 1 << 16, 1 << 22];
const VALUES: [usize; 3] = [4, 5, 8];
const ORDERS: [Setting; 2] = [Setting::Usual, Setting::Tree];
const WORK: [(DType, Rule); 8] = [
    (DType::F32, Rule::Assign),
    (DType::F32, Rule::Sgd),
    (DType::F32, Rule::Adam),
    (DType::F32, Rule::Nag),
    (DType::F32, Rule::Adamw),
    (DType::F16, Rule::Assign),
    (DType::Bf16, Rule::Sgd),
    (DType::Bf16, Rule::Adamw),
];

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let mut cases = Vec::new();
    for (dtype, rule) in WORK {
        for values in VALUES {
            let base = Case { dtype, rule, values, call: Call::PushPull, outs: 1, ..Case::BASE };
            cases.extend(ORDERS.map(|setting| Case { setting, ..base }));
        }
    }
    let mut all = Vec::new();
    for len in SIZES {
        println!("{group}: {}", crate::tensors::size_name(len));
        all.extend(compare(report, group, &Keys::one(len), &cases)?);
    }
    let columns = [
        ("elements", 0),
        ("dtype", 0),
        ("rule", 8),
        ("values", 0),
        ("linear, us", 0),
        ("tree, us", 0),
        ("tree / linear", 0),
    ];
    report.table(group, "sum_order=tree beside linear, pushpull, 1 thread", &columns)?;
    all.chunks(ORDERS.len()).try_for_each(|orders| row(report, orders))?;
    Ok(all)
}

fn row(report: &mut Report, orders: &[Measured]) -> io::Result<()> {
    let (linear, tree) = (&orders[0], &orders[1]);
    let case = &linear.case;
    let mut row = vec![linear.keys.clone(), case.dtype.name().to_owned()];
    row.extend([case.rule.name().to_owned(), case.values.to_string()]);
    row.extend([linear, tree].map(|it| number(it.seconds * 1e6, 2)));
    row.push(number(tree.seconds / linear.seconds, 3));
    report.row(&row)
}
