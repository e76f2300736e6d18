//! Stores that log digests beside those that do not.

use std::io;

use crate::compare::{Call, Case, Measured, compare};
use crate::report::{Report, number};
use crate::store::{Rule, Setting};
use crate::tensors::Keys;

const SETTINGS: [Setting; 3] = [Setting::Usual, Setting::Values, Setting::All];
const RULES: [Rule; 3] = [Rule::Assign, Rule::Momentum, Rule::Adam];
const VALUES: [usize; 2] = [1, 4];

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let mut cases = Vec::new();
    for rule in RULES {
        for values in VALUES {
            for threads in [1, 2] {
                let call = Call::PushPull;
                let base = Case { rule, values, threads, call, outs: 1, ..Case::BASE };
                cases.extend(SETTINGS.map(|setting| Case { setting, ..base }));
            }
        }
    }
    let mut all = Vec::new();
    for keys in [Keys::one(1 << 16), Keys::one(1 << 24), Keys::many(1_000, 1 << 10)] {
        println!("{group}: {}", keys.name);
        all.extend(compare(report, group, &keys, &cases)?);
    }
    Setting::clean_up();
    let columns = [
        ("keys x floats", 0),
        ("rule", 8),
        ("values", 0),
        ("threads", 0),
        ("off, us", 0),
        ("values / off", 0),
        ("all / off", 0),
    ];
    report.table(group, "digests in the log beside none, pushpull", &columns)?;
    all.chunks(SETTINGS.len()).try_for_each(|settings| row(report, settings))?;
    Ok(all)
}

fn row(report: &mut Report, settings: &[Measured]) -> io::Result<()> {
    let (off, case) = (&settings[0], &settings[0].case);
    let mut row = vec![off.keys.clone(), case.rule.name().to_owned()];
    row.extend([case.values.to_string(), case.threads.to_string(), number(off.seconds * 1e6, 2)]);
    row.extend(settings[1..].iter().map(|it| number(it.seconds / off.seconds, 3)));
    report.row(&row)
}
