//! Which figures are drawn.

use std::io;

use crate::bars::{Group, bars, figure};
use crate::compare::{Call, Measured};
use crate::plot::{ChartFrame, ChartLine, lines};
use crate::race::{Race, Runner};
use crate::report::{Report, count};
use crate::store::Rule;
use crate::sweep::SIZES;
use crate::tensors::size_name;
use crate::threads;

/// How many values the drawn sweep has.
const VALUES: usize = 4;

/// Each rule's ratio to the limit over the size of the key.
pub fn local(report: &mut Report, all: &[Measured]) -> io::Result<()> {
    for call in [Call::PushPull, Call::PushThenPull] {
        for threads in threads() {
            let swept: Vec<&Measured> = all
                .iter()
                .filter(|it| it.group.starts_with("sweep") && it.case.values == VALUES)
                .filter(|it| it.case.call == call && it.case.outs == VALUES)
                .filter(|it| it.case.threads == threads)
                .collect();
            if !swept.is_empty() {
                sweep(report, &swept, call, threads)?;
            }
        }
    }
    Ok(())
}

fn sweep(report: &mut Report, swept: &[&Measured], call: Call, threads: usize) -> io::Result<()> {
    let places: Vec<String> = SIZES.map(size_name).into();
    let find = |rule, len| {
        let found = swept.iter().find(|it| it.case.rule == rule && it.elements == len);
        found.map(|it| it.ratio())
    };
    let line = |rule: Rule| ChartLine {
        name: rule.name().to_owned(),
        colour: rule as usize,
        mark: rule as usize,
        values: SIZES.iter().map(|len| find(rule, *len)).collect(),
    };
    let threads = count(threads, "thread");
    let frame = ChartFrame {
        title: &format!("{} against the limit of the machine, {threads}", call.name()),
        subtitle: "one key, 4 values, 4 outs, float32; the limit is a triad up to 64K, beyond it \
                   the best of memcpy, triad and streaming triad",
        x: "floats of the key",
        y: "bytes a second, ratio to the limit",
    };
    let name = format!("local-{}-{}", call.name().replace(" + ", "-"), threads.replace(' ', "-"));
    report.plot(
        &name,
        frame.title,
        &lines(&frame, &places, Some("the limit"), &Rule::ALL.map(line)),
    )
}

/// Ours beside the others, in bytes that every implementation must move.
pub fn peers(report: &mut Report, races: &[Race], call: Call) -> io::Result<()> {
    let runners = [Runner::Ours, Runner::OursOnOne, Runner::Mxnet, Runner::Numpy];
    let groups: Vec<Group> = races
        .iter()
        .filter(|race| race.case.call == call && (race.case.values > 1 || race.keys == "16M"))
        .map(|race| {
            let times = race.over(Runner::Mxnet, Runner::Ours);
            let times = times.map_or(String::new(), |it| format!("{} x", figure(it)));
            let case = format!("n = {}", race.case.values);
            Group {
                labels: vec![race.keys.clone(), case, race.case.rule.name().to_owned(), times],
                values: runners.map(|runner| Some(race.rate(runner)? / 1e9)).into(),
                limit: race.limit / 1e9,
            }
        })
        .collect();
    let title = format!("A round of {} beside MXNet 1.9.1 and numpy", call.name());
    let frame = ChartFrame {
        title: &title,
        subtitle: "n values and n outs for each key, float32; in bold: how many times faster than \
                   MXNet",
        x: "floats of the key or keys",
        y: "bytes that must be moved, GB/s",
    };
    let names = ["ours", "ours, 1 thread", "MXNet", "numpy"];
    let name = format!("peers-{}", call.name().replace(" + ", "-"));
    report.plot(&name, &title, &bars(&frame, &names, &groups))
}
