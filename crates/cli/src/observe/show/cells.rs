//! The columns of a table of processes, as texts.

use kvstore::{Facts, Latency, Node, Rates, State, Unit, View};

use super::units;

/// A column of the table of processes.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Width in each layout: slim, narrow and wide; 0 where the column is left out.
    widths: [u16; 3],
    /// Numbers are aligned to the right.
    pub(crate) right: bool,
    /// Its text for a process, in a column of this width.
    pub(crate) cell: Cell,
}

type Cell = fn(&View, &Node, u16) -> String;

const fn left(title: &'static str, widths: [u16; 3], cell: Cell) -> Column {
    Column { title, widths, right: false, cell }
}

const fn right(title: &'static str, widths: [u16; 3], cell: Cell) -> Column {
    Column { title, widths, right: true, cell }
}

const COLUMNS: &[Column] = &[
    left("NODE", [12, 10, 11], |_, node, _| name(node)),
    left("STATE", [7, 7, 8], state),
    left("ADDRESS", [0, 15, 24], |_, node, width| shortened(&node.address, width.into())),
    right("AGE", [0, 6, 6], |_, node, _| said(node, |facts| units::age(facts.age_s))),
    right("HEARD", [0, 0, 6], |_, n, _| or_dash(n.heard_ms.map(|ms| units::micros(ms * 1_000)))),
    right("IN/s", [6, 6, 7], |_, n, _| rate(n, |rates| units::bytes(rates.bytes_in_per_s))),
    right("OUT/s", [6, 6, 7], |_, n, _| rate(n, |rates| units::bytes(rates.bytes_out_per_s))),
    right("ROUND", [6, 6, 7], |_, node, _| counter(node, "round")),
    right("ROUNDS/s", [0, 0, 8], rounds_per_s),
    left("CALL P50/P99", [16, 16, 0], |_, node, _| said(node, slowest_call)),
    right("PUSH P50/P99", [0, 0, 13], |_, node, _| said(node, |f| pair(&[&f.push]))),
    right("PULL P50/P99", [0, 0, 13], |_, n, _| said(n, |f| pair(&[&f.pull, &f.pushpull]))),
    right("RESENT", [0, 0, 6], |_, node, _| counter(node, "resent")),
    right("KEYS", [0, 0, 6], |_, node, _| counter(node, "keys")),
    right("VALUES", [0, 0, 7], |_, node, _| counter(node, "stored_bytes")),
    right("HELD OF LIMIT", [0, 0, 15], held),
];

/// Minimum widths of a terminal for the narrow and for the wide layout.
const NARROW_ENOUGH: u16 = 79;
pub(crate) const WIDE_ENOUGH: u16 = 158;

/// The columns of a table of this width, with theirs: whole ones, the name of the process first.
pub(crate) fn fitting(width: u16) -> Vec<(&'static Column, u16)> {
    let layout = match width {
        WIDE_ENOUGH.. => 2,
        NARROW_ENOUGH.. => 1,
        _ => 0,
    };
    let mut end = 0;
    let columns = COLUMNS.iter().map(|column| (column, column.widths[layout]));
    let fits = |(_, column): &(&Column, u16)| {
        let is_first = end == 0;
        end += column + 1;
        // Behind the last column no space is needed.
        is_first || end <= width.saturating_add(1)
    };
    columns.filter(|(_, column)| *column > 0).take_while(fits).collect()
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}

pub(crate) fn name(node: &Node) -> String {
    match node.role {
        "scheduler" => node.role.into(),
        role => format!("{role} {}", node.rank),
    }
}

pub(crate) fn is_slowest(view: &View, node: &Node) -> bool {
    node.role == "worker" && view.slowest_worker == Some(node.rank)
}

fn state(view: &View, node: &Node, _: u16) -> String {
    match node.state {
        State::Here if is_slowest(view, node) => "slowest",
        State::Here => "here",
        State::Silent => "silent",
        State::Lost => "LOST",
        State::Left => "left",
    }
    .into()
}

/// The beginning and the end of a long name.
fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.into();
    }
    let head: String = text.chars().take(width / 2 - 1).collect();
    let tail: String = text.chars().skip(count - (width - width / 2 - 1)).collect();
    format!("{head}..{tail}")
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

fn said(node: &Node, text: impl FnOnce(&Facts) -> String) -> String {
    or_dash(node.facts.as_ref().map(text))
}

/// A process that has gone has no rates.
fn rate(node: &Node, text: impl FnOnce(Rates) -> String) -> String {
    let there = matches!(node.state, State::Here | State::Silent);
    or_dash(node.facts.as_ref().filter(|_| there).and_then(|facts| facts.rates).map(text))
}

fn rounds_per_s(_: &View, node: &Node, _: u16) -> String {
    match node.role {
        "worker" => rate(node, |rates| units::count(rates.rounds_per_s)),
        _ => or_dash(None),
    }
}

/// A counter of the library's table.
fn counter(node: &Node, name: &str) -> String {
    or_dash(node.counter(name).map(|(value, unit)| match unit {
        Unit::Ordinal if value < 1_000_000 => value.to_string(),
        Unit::Ordinal | Unit::Count => units::count(number(value)),
        Unit::Bytes => units::bytes(number(value)),
        Unit::Micros => units::micros(value),
    }))
}

fn held(view: &View, node: &Node, _: u16) -> String {
    let limit = or_dash(view.hold_bytes.map(|most| units::bytes(number(most))));
    match counter(node, "held_bytes") {
        held if held == "-" => held,
        held => format!("{held}/{limit}"),
    }
}

/// `1.2ms/8.1ms` of the first of these kinds that had a call.
fn pair(calls: &[&Latency]) -> String {
    let times = calls.iter().find_map(|call| call.p50_us.zip(call.p99_us));
    or_dash(times.map(|(half, most)| format!("{}/{}", units::micros(half), units::micros(most))))
}

/// The slowest kind of call: its name, and its times.
fn slowest_call(facts: &Facts) -> String {
    let calls = [("push", &facts.push), ("pull", &facts.pull), ("pp", &facts.pushpull)];
    let known = calls.into_iter().filter(|(_, call)| call.p99_us.is_some());
    let slowest = known.max_by_key(|(_, call)| call.p99_us);
    or_dash(slowest.map(|(name, call)| format!("{name} {}", pair(&[call]))))
}
