//! What carries the frames between the processes of a job, as texts.

use std::collections::{BTreeMap, BTreeSet};

use kvstore::{State, TransportUse, View};

use super::cells::name;

/// Maximum number of lines, and of names in a line.
const MOST_LINES: usize = 12;
const MOST_NAMES: usize = 6;

/// The transports that reach other processes than the scheduler, over which few bytes go.
fn used(view: &View) -> impl Iterator<Item = (String, &TransportUse)> {
    let is_there = |state| matches!(state, State::Here | State::Silent);
    let nodes = view.nodes.iter().filter(move |node| is_there(node.state));
    nodes.flat_map(|node| {
        let uses = node.facts.iter().flat_map(|facts| &facts.transports);
        let is_bulk = |used: &&TransportUse| used.peers.iter().any(|peer| peer != "scheduler");
        uses.filter(is_bulk).map(|used| (name(node), used))
    })
}

/// Their names, such as `shm, tcp`; empty if none is known.
pub(crate) fn names(view: &View) -> String {
    let names: BTreeSet<&str> = used(view).map(|(_, used)| &*used.transport).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// A line for all processes that send to equal peers over an equal transport.
pub(crate) fn lines(view: &View) -> Vec<String> {
    let mut groups: BTreeMap<(&str, &str, String), Vec<String>> = BTreeMap::new();
    for (name, used) in used(view) {
        let key = (&*used.transport, &*used.others, peers(used));
        groups.entry(key).or_default().push(name);
    }
    let more = groups.len().saturating_sub(MOST_LINES);
    let line = |((transport, others, peers), names): ((&str, &str, String), Vec<String>)| {
        let (names, verb) =
            (listed(&names, names.len()), if names.len() == 1 { "sends" } else { "send" });
        let others = if others.is_empty() { String::new() } else { format!(" ({others})") };
        format!("{names} {verb} to {peers} over {transport}{others}")
    };
    let mut lines: Vec<_> = groups.into_iter().take(MOST_LINES).map(line).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

fn peers(used: &TransportUse) -> String {
    let others: Vec<_> = used.peers.iter().filter(|peer| *peer != "scheduler").cloned().collect();
    let has_scheduler = others.len() < used.peers.len();
    let count = usize::try_from(used.count).unwrap_or(usize::MAX);
    listed(&others, count.saturating_sub(usize::from(has_scheduler)))
}

/// Names, of which there are so many in all.
fn listed(names: &[String], count: usize) -> String {
    let shown = &names[..names.len().min(MOST_NAMES)];
    match count.saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvstore::{Facts, Node};

    fn node(role: &'static str, rank: u32, uses: &[(&str, &[&str], u32, &str)]) -> Node {
        let used = |(transport, peers, count, others): &(&str, &[&str], u32, &str)| TransportUse {
            transport: (*transport).into(),
            peers: peers.iter().map(ToString::to_string).collect(),
            count: *count,
            others: (*others).into(),
        };
        let transports = uses.iter().map(used).collect();
        let facts = Some(Facts { transports, ..Facts::default() });
        let (state, address) = (State::Here, String::new());
        Node { role, rank, address, state, heard_ms: None, report_ms: None, facts }
    }

    #[test]
    fn processes_with_an_equal_choice_share_a_line_and_the_scheduler_has_none() {
        let few = "shm: few bytes go to and from the scheduler";
        let scheduler = ("tcp", &["scheduler"][..], 1, few);
        let near = ("shm", &["server 0"][..], 1, "");
        let far = ("tcp", &["scheduler", "server 1"][..], 31, "ucx: no device");
        let nodes = vec![
            node("scheduler", 0, &[]),
            node("worker", 0, &[scheduler, near]),
            node("worker", 1, &[scheduler, near]),
            node("worker", 2, &[far]),
        ];
        let view = View { nodes, ..View::default() };
        assert_eq!(
            lines(&view),
            [
                "worker 0, worker 1 send to server 0 over shm",
                "worker 2 sends to server 1 and 29 more over tcp (ucx: no device)",
            ]
        );
        assert_eq!(names(&view), "shm, tcp");
        assert_eq!((lines(&View::default()), names(&View::default())), (vec![], String::new()));
    }
}
