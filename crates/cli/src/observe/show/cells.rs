//! The columns of a table of processes, as texts.

use kvstore::{Facts, Latency, Node, State, View};

use super::units;

/// A column: its title, its width, and its text for a process.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) width: u16,
    /// Numbers are aligned to the right.
    pub(crate) right: bool,
    pub(crate) cell: fn(&View, &Node) -> String,
}

const fn left(title: &'static str, width: u16, cell: fn(&View, &Node) -> String) -> Column {
    Column { title, width, right: false, cell }
}

const fn right(title: &'static str, width: u16, cell: fn(&View, &Node) -> String) -> Column {
    Column { title, width, right: true, cell }
}

/// Columns that fit into 60 characters.
const SLIM: &[Column] = &[
    left("NODE", 12, |_, node| name(node)),
    left("STATE", 7, state),
    right("IN/s", 6, |_, node| rate(node, |facts| Some(facts.rates?.bytes_in_per_s))),
    right("OUT/s", 6, |_, node| rate(node, |facts| Some(facts.rates?.bytes_out_per_s))),
    right("ROUND", 6, round),
    left("CALL P50/P99", 16, |_, node| said(node, slowest_call)),
];

/// Columns that fit into 80 characters.
pub(crate) const NARROW: &[Column] = &[
    left("NODE", 10, |_, node| name(node)),
    left("STATE", 7, state),
    left("ADDRESS", 15, |_, node| shortened(&node.address, 15)),
    right("AGE", 6, |_, node| said(node, |facts| units::age(facts.age_s))),
    right("IN/s", 6, |_, node| rate(node, |facts| Some(facts.rates?.bytes_in_per_s))),
    right("OUT/s", 6, |_, node| rate(node, |facts| Some(facts.rates?.bytes_out_per_s))),
    right("ROUND", 6, round),
    left("CALL P50/P99", 16, |_, node| said(node, slowest_call)),
];

/// Columns that fit into 150 characters.
pub(crate) const WIDE: &[Column] = &[
    left("NODE", 11, |_, node| name(node)),
    left("STATE", 8, state),
    left("ADDRESS", 24, |_, node| shortened(&node.address, 24)),
    right("AGE", 6, |_, node| said(node, |facts| units::age(facts.age_s))),
    right("HEARD", 6, heard),
    right("IN/s", 7, |_, node| rate(node, |facts| Some(facts.rates?.bytes_in_per_s))),
    right("OUT/s", 7, |_, node| rate(node, |facts| Some(facts.rates?.bytes_out_per_s))),
    right("ROUND", 7, round),
    right("ROUNDS/s", 8, rounds_per_s),
    right("PUSH P50/P99", 13, |_, node| said(node, |facts| pair(&[&facts.push]))),
    right("PULL P50/P99", 13, |_, node| said(node, |f| pair(&[&f.pull, &f.pushpull]))),
    right("RESENT", 6, |_, node| said(node, |facts| units::count(number(facts.resent)))),
    right("KEYS", 6, keys),
    right("VALUES", 7, stored),
    right("HELD OF LIMIT", 15, held),
];

/// The width from which on everything fits.
pub(crate) const WIDE_ENOUGH: u16 = 158;

/// The columns of a table of this width: whole ones, the name of the process first.
pub(crate) fn fitting(width: u16) -> &'static [Column] {
    let needed = |columns: &[Column]| columns.iter().map(|column| column.width + 1).sum::<u16>();
    // Behind the last column no space is needed.
    let fits = |columns: &[Column]| needed(columns) <= width.saturating_add(1);
    let all = match width {
        WIDE_ENOUGH.. => WIDE,
        _ if fits(NARROW) => NARROW,
        _ => SLIM,
    };
    let most = (1..=all.len()).rev().find(|&count| fits(&all[..count]));
    &all[..most.unwrap_or(1)]
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

fn state(view: &View, node: &Node) -> String {
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

fn said(node: &Node, text: impl FnOnce(&Facts) -> String) -> String {
    node.facts.as_ref().map_or_else(|| "-".into(), text)
}

/// A process that has gone has no rates.
fn rate(node: &Node, rate: impl FnOnce(&Facts) -> Option<f64>) -> String {
    let there = matches!(node.state, State::Here | State::Silent);
    let facts = node.facts.as_ref().filter(|_| there);
    facts.and_then(rate).map_or_else(|| "-".into(), units::bytes)
}

fn rounds_per_s(_: &View, node: &Node) -> String {
    let there = matches!(node.state, State::Here | State::Silent) && node.role == "worker";
    let rates = node.facts.as_ref().filter(|_| there).and_then(|facts| facts.rates);
    rates.map_or_else(|| "-".into(), |rates| units::count(rates.rounds_per_s))
}

fn round(_: &View, node: &Node) -> String {
    if node.role == "scheduler" {
        return "-".into();
    }
    said(node, |facts| match facts.round {
        round @ 0..1_000_000 => round.to_string(),
        round => units::count(number(round)),
    })
}

fn heard(_: &View, node: &Node) -> String {
    node.heard_ms.map_or_else(|| "-".into(), |ms| units::micros(ms * 1_000))
}

fn keys(_: &View, node: &Node) -> String {
    if node.role == "scheduler" {
        return "-".into();
    }
    said(node, |facts| units::count(number(facts.keys)))
}

fn stored(_: &View, node: &Node) -> String {
    if node.role != "server" {
        return "-".into();
    }
    said(node, |facts| units::bytes(number(facts.stored_bytes)))
}

fn held(view: &View, node: &Node) -> String {
    if node.role != "server" {
        return "-".into();
    }
    let limit = view.hold_bytes.map_or_else(|| "-".into(), |most| units::bytes(number(most)));
    said(node, |facts| format!("{}/{limit}", units::bytes(number(facts.held_bytes))))
}

/// `1.2ms/8.1ms` of the first of these kinds that had a call.
fn pair(calls: &[&Latency]) -> String {
    let times = calls.iter().find_map(|call| call.p50_us.zip(call.p99_us));
    times.map_or_else(
        || "-".into(),
        |(half, most)| format!("{}/{}", units::micros(half), units::micros(most)),
    )
}

/// The slowest kind of call: its name, and its times.
fn slowest_call(facts: &Facts) -> String {
    let calls = [("push", &facts.push), ("pull", &facts.pull), ("pp", &facts.pushpull)];
    let slowest = calls.into_iter().filter(|(_, call)| call.p99_us.is_some());
    slowest
        .max_by_key(|(_, call)| call.p99_us)
        .map_or_else(|| "-".into(), |(name, call)| format!("{name} {}", pair(&[call])))
}
