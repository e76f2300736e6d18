//! What the library wants to reach, beside what this run reached. Nothing fails when it does not.

use std::io;

use crate::compare::{Call, Case, IN_CACHE, LARGE, Measured};
use crate::race::{Race, Runner};
use crate::report::{Report, count, number};
use crate::store::Rule;
use crate::sweep::TINY;
use crate::tensors::{DType, size_name};

/// How many values a key has in the goals for large keys.
const VALUES: usize = 4;

#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

use Goal::{AtLeast, AtMost};

/// The figures of the cases that a goal is about.
type Figures = Vec<(f64, String)>;

/// The table on the page is of all groups: a run of some of them, which knows only some goals, only
/// prints its own.
pub fn local(report: &mut Report, all: &[Measured], are_all_groups: bool) -> io::Result<()> {
    let swept: Vec<&Measured> = all.iter().filter(|it| it.group.starts_with("sweep")).collect();
    start(report, "goals")?;
    for (call, goal) in [(Call::PushPull, AtLeast(0.9)), (Call::PushThenPull, AtLeast(0.85))] {
        let what = format!("16M and 64M floats, {VALUES} values, {}: to the limit", call.name());
        row(report, &what, goal, large(&swept, call))?;
    }
    for len in [1 << 10, 1 << 12, TINY] {
        let what = format!("{} floats, 1 thread: ns a call above 0.9 triad", size_name(len));
        row(report, &what, AtMost(150.0), cached(&swept, len, Measured::above_ns))?;
    }
    let figures = cached(&swept, IN_CACHE, Measured::ratio);
    row(report, "64K floats, 1 thread: to triad", AtLeast(0.7), figures)?;
    row(report, "16M and 64M floats: 2 threads over 1", AtLeast(1.8), speed_ups(&swept))?;
    let lists = [("100,000 x 16", AtMost(20.0)), ("100,000 x 16, shuffled", AtMost(60.0))];
    for (keys, goal) in lists {
        row(report, &format!("push of {keys}: ns a key"), goal, per_key(all, keys))?;
    }
    row(report, "C updater over sgd, push of 16M floats", AtMost(1.05), updater(&swept))?;
    for dtype in [DType::F16, DType::Bf16] {
        let what = format!("{} over f32, 16M elements, {VALUES} values", dtype.name());
        row(report, &what, AtLeast(1.6), halves(all, dtype))?;
    }
    if !are_all_groups {
        report.keep_from_page();
    }
    Ok(())
}

pub fn peers(report: &mut Report, races: &[Race]) -> io::Result<()> {
    const FUSED: &[Call] = &[Call::PushPull];
    const SEPARATE: &[Call] = &[Call::PushThenPull];
    const BOTH: &[Call] = &[Call::PushPull, Call::PushThenPull];
    let goals = [
        ("16M", 4, Rule::Assign, FUSED, 7.0),
        ("16M", 4, Rule::Assign, SEPARATE, 6.0),
        ("16M", 1, Rule::Assign, FUSED, 1.5),
        ("16M", 1, Rule::Assign, SEPARATE, 1.3),
        ("ResNet-50", 4, Rule::Assign, BOTH, 7.0),
        ("ResNet-50", 4, Rule::Momentum, BOTH, 7.0),
        ("1,000 x 1K", 4, Rule::Assign, BOTH, 25.0),
        ("1K", 1, Rule::Assign, BOTH, 100.0),
        ("1K", 4, Rule::Assign, BOTH, 100.0),
    ];
    start(report, "peers-goals")?;
    for (keys, values, rule, calls, goal) in goals {
        let call = if let [call] = calls { format!(", {}", call.name()) } else { String::new() };
        let parts = [keys, &count(values, "value"), rule.name()].join(", ");
        let what = format!("{parts}{call}: times faster than MXNet");
        let cases =
            calls.iter().map(|&call| Case { values, outs: values, call, rule, ..Case::BASE });
        let races = cases
            .filter_map(|case| races.iter().find(|race| race.keys == keys && race.case == case));
        row(report, &what, AtLeast(goal), races.filter_map(over_mxnet).collect())?;
    }
    Ok(())
}

/// How much faster we are than MXNet, with how much faster the machine's limit is.
fn over_mxnet(race: &Race) -> Option<(f64, String)> {
    let limit = number(race.over_limit(Runner::Mxnet)?, 1);
    let place = format!("{}; at the limit: {limit}", race.case.call.name());
    Some((race.over(Runner::Mxnet, Runner::Ours)?, place))
}

fn start(report: &mut Report, name: &str) -> io::Result<()> {
    let columns =
        [("goal", 56), ("wanted", 13), ("worst", 6), ("middle", 6), ("where it is worst", 40)];
    report.table(name, "Goals", &columns)
}

/// Nothing if none of the goal's cases was measured.
fn row(report: &mut Report, what: &str, goal: Goal, mut figures: Figures) -> io::Result<()> {
    figures.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let AtMost(_) = goal {
        figures.reverse();
    }
    let (Some(worst), Some(middle)) = (figures.first(), figures.get(figures.len() / 2)) else {
        return Ok(());
    };
    let (word, wanted) = match goal {
        AtLeast(wanted) => ("at least", wanted),
        AtMost(wanted) => ("at most", wanted),
    };
    let digits = if wanted < 2.0 { 2 } else { 1 };
    let mut cells = vec![what.to_owned(), format!("{word} {wanted}")];
    cells.extend([number(worst.0, digits), number(middle.0, digits), worst.1.clone()]);
    report.row(&cells)
}

fn place(it: &Measured) -> String {
    let Case { threads, values, rule, call, outs, .. } = it.case;
    let (rule, call) = (rule.name().to_owned(), call.name().to_owned());
    let mut parts = vec![it.keys.clone(), count(values, "value"), count(outs, "out"), rule, call];
    parts.push(count(threads, "thread"));
    parts.join(", ")
}

/// A user's updater is not measured by the library's own goals.
fn large(swept: &[&Measured], call: Call) -> Figures {
    swept
        .iter()
        .filter(|it| it.elements >= LARGE && it.case.values == VALUES)
        .filter(|it| it.case.rule != Rule::Updater && it.case.call == call)
        .map(|it| (it.ratio(), place(it)))
        .collect()
}

fn cached(swept: &[&Measured], len: usize, figure: fn(&Measured) -> f64) -> Figures {
    swept
        .iter()
        .filter(|it| it.elements == len && it.case.threads == 1 && it.case.rule != Rule::Updater)
        .map(|it| (figure(it), place(it)))
        .collect()
}

/// How much faster two threads are, with how much faster the machine's limit is.
fn speed_ups(swept: &[&Measured]) -> Figures {
    let pair = |two: &&Measured| {
        let case = Case { threads: 1, ..two.case };
        let one = swept.iter().find(|it| it.case == case && it.elements == two.elements)?;
        let limit = number(two.limit() / one.limit(), 2);
        Some((one.seconds / two.seconds, format!("{}; the limit's: {limit}", place(two))))
    };
    swept
        .iter()
        .filter(|it| it.elements >= LARGE && it.case.threads == 2)
        .filter(|it| it.case.rule != Rule::Updater)
        .filter_map(pair)
        .collect()
}

fn per_key(all: &[Measured], keys: &str) -> Figures {
    all.iter()
        .filter(|it| it.group == "lists" && it.keys == keys && it.case == Case::BASE)
        .map(|it| (it.ns_per_key(), place(it)))
        .collect()
}

fn updater(swept: &[&Measured]) -> Figures {
    let push = |rule| {
        let case = Case { rule, ..Case::BASE };
        swept.iter().find(move |it| it.elements == LARGE && it.case == case)
    };
    let pair = push(Rule::Updater).zip(push(Rule::Sgd));
    pair.map(|(updater, sgd)| (updater.seconds / sgd.seconds, place(updater))).into_iter().collect()
}

/// Elements a second, beside those of float32 in the same comparison.
fn halves(all: &[Measured], dtype: DType) -> Figures {
    let pair = |half: &Measured| {
        let case = Case { dtype: DType::F32, ..half.case };
        let float = all
            .iter()
            .find(|it| it.group == half.group && it.elements == half.elements && it.case == case)?;
        Some((float.seconds / half.seconds, place(half)))
    };
    let halves = all.iter().filter(|it| it.elements == LARGE && it.case.dtype == dtype);
    halves.filter_map(pair).collect()
}
