//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use crate::observer::{Facts, LATENCY_BOUNDS_US, Latency, Node, State, View, WaitedFor, number};
use kvstore_protocol::{CONTENTS, Counter, FAULTS, ROUNDS, TRAFFIC};

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn seconds(ms: u64) -> f64 {
    number(ms) / 1e3
}

/// The whole page.
pub(super) fn of(view: &View) -> String {
    let mut out = String::new();
    put_job(&mut out, view);
    put_nodes(&mut out, view);
    put_counters(&mut out, view);
    put_waits(&mut out, view);
    put_calls(&mut out, view);
    out
}

/// The lines before the samples of a metric; without a type it is a counter or a gauge, as its name says.
fn begin(out: &mut String, name: &str, kind: Option<&str>, help: &str) {
    let kind = kind.unwrap_or(if name.ends_with("_total") { "counter" } else { "gauge" });
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn put_job(out: &mut String, view: &View) {
    let missing = number(view.missing.len() as u64);
    for (name, help, value) in [
        ("kvstore_job_started", "1 when all processes have come.", flag(view.started)),
        ("kvstore_job_workers", "Workers that the job has.", f64::from(view.num_workers)),
        ("kvstore_job_servers", "Servers that the job has.", f64::from(view.num_servers)),
        ("kvstore_job_missing_nodes", "Processes that have not come, up to 64.", missing),
        ("kvstore_job_epoch", "How often the members have changed.", f64::from(view.epoch)),
    ] {
        begin(out, name, None, help);
        let _ = writeln!(out, "{name} {value}");
    }
}

/// A metric of the processes that its name is about, with a sample of each that has a value.
fn put(
    out: &mut String,
    view: &View,
    (name, help): (&str, &str),
    value: impl Fn(&Node) -> Option<f64>,
) {
    begin(out, name, None, help);
    for node in view.nodes.iter().filter(|node| Counter::is_of(name, node.role)) {
        if let Some(value) = value(node) {
            let _ = writeln!(out, "{name}{{{}}} {value}", labels(node));
        }
    }
}

fn put_nodes(out: &mut String, view: &View) {
    let info = "kvstore_node_info";
    begin(out, info, None, "A process of the job, with its address.");
    for node in &view.nodes {
        let address = escaped(&node.address);
        let _ = writeln!(out, "{info}{{{},address=\"{address}\"}} 1", labels(node));
    }
    let up = ("kvstore_node_up", "1 while the process takes part and is heard.");
    put(out, view, up, |node| Some(flag(node.state == State::Here)));
    let lost = ("kvstore_node_lost", "1 when the job has declared the process lost.");
    put(out, view, lost, |node| Some(flag(node.state == State::Lost)));
    let heard = ("kvstore_node_heard_seconds", "Time since the scheduler heard the process.");
    put(out, view, heard, |node| node.heard_ms.map(seconds));
    let report = ("kvstore_node_report_seconds", "Age of what the process said of itself.");
    put(out, view, report, |node| node.report_ms.map(seconds));
    let age = ("kvstore_node_age_seconds", "Time since the process began.");
    put(out, view, age, |node| Some(node.facts.as_ref()?.age_s));
}

/// Metrics of the reports: of all processes, then of workers, then of servers.
fn put_counters(out: &mut String, view: &View) {
    table(out, view, "node", &[TRAFFIC]);
    table(out, view, "worker", &[CONTENTS, ROUNDS, FAULTS]);
    let pending = ("kvstore_worker_pending_calls", "Calls that have not ended.");
    put(out, view, pending, |node| Some(number(node.facts.as_ref()?.pending)));
    let oldest =
        ("kvstore_worker_longest_wait_seconds", "Age of the oldest call that has not ended.");
    put(out, view, oldest, |node| {
        let ages = node.facts.as_ref()?.waiting.iter().map(|call| call.age_ms);
        Some(seconds(ages.max().unwrap_or(0)))
    });
    table(out, view, "server", &[CONTENTS]);
    let limit = ("kvstore_server_hold_limit_bytes", "The option hold_bytes.");
    put(out, view, limit, |node| node.facts.as_ref().and(view.hold_bytes).map(number));
    table(out, view, "server", &[ROUNDS, FAULTS]);
}

/// The metrics of these counters that a role has, or that all processes have: `node`.
fn table(out: &mut String, view: &View, role: &str, groups: &[&'static [Counter]]) {
    for counter in groups.iter().copied().flatten() {
        let metrics = counter.metrics.iter();
        for metric in metrics.filter(|(name, _)| Counter::is_of(name, role)) {
            let value = |facts: &Facts| number((counter.value)(&facts.counters));
            put(out, view, *metric, |node| node.facts.as_ref().map(value));
        }
    }
}

/// Metrics of the workers that the servers waited for.
fn put_waits(out: &mut String, view: &View) {
    let seconds: fn(&WaitedFor) -> f64 = |late| late.seconds;
    for (name, help, value) in [
        (
            "kvstore_server_waited_seconds_total",
            "Time in which a worker was the only one missing in a round of a slice, summed up.",
            seconds,
        ),
        (
            "kvstore_server_last_pushes_total",
            "Rounds of slices in which the push of a worker was the last.",
            |late| number(late.rounds),
        ),
    ] {
        begin(out, name, None, help);
        for node in view.nodes.iter().filter(|node| node.role == "server") {
            for late in node.facts.iter().flat_map(|facts| &facts.waited_for) {
                let (labels, worker, value) = (labels(node), late.worker, value(late));
                let _ = writeln!(out, "{name}{{{labels},worker=\"{worker}\"}} {value}");
            }
        }
    }
}

fn put_calls(out: &mut String, view: &View) {
    let name = "kvstore_worker_call_duration_seconds";
    begin(out, name, Some("histogram"), "How long pushes and pulls of a worker took.");
    for node in view.nodes.iter().filter(|node| node.role == "worker") {
        let Some(facts) = &node.facts else { continue };
        for (call, times) in
            [("push", &facts.push), ("pull", &facts.pull), ("pushpull", &facts.pushpull)]
        {
            put_times(out, name, &format!("{},call=\"{call}\"", labels(node)), times);
        }
    }
}

fn put_times(out: &mut String, name: &str, labels: &str, times: &Latency) {
    for (bound, below) in LATENCY_BOUNDS_US.iter().zip(times.below) {
        let bound = number(*bound) / 1e6;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", times.count);
    let _ = writeln!(out, "{name}_sum{{{labels}}} {}", number(times.sum_us) / 1e6);
    let _ = writeln!(out, "{name}_count{{{labels}}} {}", times.count);
}

fn labels(node: &Node) -> String {
    format!("role=\"{}\",rank=\"{}\"", node.role, node.rank)
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_every_number_of_a_job_in_a_fixed_order() {
        let page = super::of(&crate::observer::sample::second_look());
        for (line, golden) in page.lines().zip(include_str!("golden.txt").lines()) {
            assert_eq!(line, golden);
        }
        assert_eq!(page.len(), include_str!("golden.txt").len());
    }
}
