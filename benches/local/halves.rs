//! float16 and bfloat16 beside float32, in elements a second.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::report::{Report, number};
use crate::store::Rule;
use crate::tensors::{DType, Keys};
use crate::threads;

const SIZES: [usize; 3] = [1 << 14, 1 << 20, 1 << 24];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const VALUES: usize = 4;

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let mut cases = Vec::new();
    for threads in threads() {
        for rule in Rule::ALL.into_iter().filter(|rule| *rule != Rule::Updater) {
            for (call, outs) in [(Call::Push, 0), (Call::PushPull, 1), (Call::PushPull, VALUES)] {
                let base = Case { threads, values: VALUES, rule, call, outs, ..Case::BASE };
                cases.extend(DTYPES.map(|dtype| Case { dtype, ..base }));
            }
        }
    }
    let mut all = Vec::new();
    for len in SIZES {
        println!("{group}: {}", crate::tensors::size_name(len));
        all.extend(compare(report, group, &Keys::one(len), &cases)?);
    }
    let columns = [
        ("elements", 0),
        ("rule", 8),
        ("threads", 0),
        ("call", 8),
        ("outs", 0),
        ("f32, G elements/s", 0),
        ("f16 / f32", 0),
        ("bf16 / f32", 0),
        ("f32 to limit", 0),
        ("f16 to limit", 0),
        ("bf16 to limit", 0),
    ];
    report.table(group, &format!("f16 and bf16, {VALUES} values"), &columns)?;
    all.chunks(DTYPES.len()).try_for_each(|types| row(report, types))?;
    Ok(all)
}

fn row(report: &mut Report, types: &[Measured]) -> io::Result<()> {
    let (float, case) = (&types[0], &types[0].case);
    let mut row = vec![float.keys.clone(), case.rule.name().to_owned(), case.threads.to_string()];
    row.extend([case.call.name().to_owned(), case.outs.to_string()]);
    row.push(number((float.case.values * float.elements) as f64 / float.seconds / 1e9, 2));
    row.extend(types[1..].iter().map(|it| number(float.seconds / it.seconds, 2)));
    row.extend(types.iter().map(|it| number(it.ratio(), 2)));
    report.row(&row)
}
