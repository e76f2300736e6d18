//! A job as plain text.

use std::fmt::Write;

use kvstore::View;

use super::cells::{Column, WIDE_ENOUGH, fitting, name, number};
use super::{transports, units, waits};

/// One line about the job as a whole.
pub(crate) fn headline(view: &View) -> String {
    let plural =
        |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let begun = match (view.started, view.kind) {
        (true, Some(kind)) => kind.to_owned(),
        _ => "not started".into(),
    };
    let workers = plural(view.num_workers, "worker");
    let servers = plural(view.num_servers, "server");
    format!("{}  {begun}, {workers}, {servers}", view.root)
}

/// The problems of the job, or a line without any; true if there is one.
pub(crate) fn verdict(view: &View) -> (bool, String) {
    let mut wrong = Vec::new();
    for (state, word) in [(kvstore::State::Lost, "LOST"), (kvstore::State::Silent, "silent")] {
        let names: Vec<String> =
            view.nodes.iter().filter(|node| node.state == state).map(name).collect();
        if !names.is_empty() {
            wrong.push(format!("{word}: {}", listed(&names)));
        }
    }
    if !view.missing.is_empty() {
        wrong.push(format!("not there yet: {}", listed(&view.missing)));
    }
    if let Some(longest) = waits::of(view).first() {
        wrong.push(format!("waiting {} for {}", longest.age(), longest.whom()));
    }
    match view.slowest_worker {
        _ if !wrong.is_empty() => (true, wrong.join("; ")),
        Some(rank) => (false, format!("nothing is wrong; the others wait most for worker {rank}")),
        None => (false, "nothing is wrong".into()),
    }
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len() {
        count if count > SHOWN => format!("{shown} and {} more", count - SHOWN),
        _ => shown,
    }
}

/// The server with the highest memory use relative to its limit, and that share.
pub(crate) fn fullest(view: &View) -> Option<(String, u64, u64)> {
    let limit = view.hold_bytes?;
    let servers = view.nodes.iter().filter(|node| node.role == "server");
    let held = servers.filter_map(|node| Some((node, node.facts.as_ref()?.counters.held_bytes)));
    held.max_by_key(|(_, held)| *held).map(|(node, held)| (name(node), held, limit))
}

/// The whole job.
pub(crate) fn table(view: &View) -> String {
    let mut text = format!("{}\n{}\n\n", headline(view), verdict(view).1);
    line(&mut text, |column, _| column.title.into());
    for node in &view.nodes {
        line(&mut text, |column, width| (column.cell)(view, node, width));
    }
    for wait in waits::of(view) {
        let (age, who, whom, verb) = (wait.age(), wait.who(), wait.whom(), wait.verb());
        let _ = write!(text, "\n{who} {verb} {age} for {whom}: {}", wait.what);
    }
    if let Some((name, held, limit)) = fullest(view) {
        let (held, limit) = (units::bytes(number(held)), units::bytes(number(limit)));
        let _ = write!(text, "\n{name} holds {held} of {limit}");
    }
    for line in transports::lines(view) {
        let _ = write!(text, "\n{line}");
    }
    text.push('\n');
    text
}

fn line(text: &mut String, cell: impl Fn(&Column, u16) -> String) {
    let mut row = String::new();
    for (column, width) in fitting(WIDE_ENOUGH) {
        let (cell, width) = (cell(column, width), usize::from(width));
        let _ = if column.right {
            write!(row, "{cell:>width$}  ")
        } else {
            write!(row, "{cell:<width$}  ")
        };
    }
    text.push_str(row.trim_end());
    text.push('\n');
}
