//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use crate::observer::{Facts, LATENCY_BOUNDS_US, Latency, Node, State, View};

/// A value of one process.
type NodeValue = fn(&View, &Node, &Facts) -> Option<f64>;

struct MetricFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: NodeValue,
}

const fn gauge(name: &'static str, help: &'static str, value: NodeValue) -> MetricFamily {
    MetricFamily { name, kind: "gauge", help, value }
}

const fn counter(name: &'static str, help: &'static str, value: NodeValue) -> MetricFamily {
    MetricFamily { name, kind: "counter", help, value }
}

fn worker(node: &Node, value: u64) -> Option<f64> {
    (node.role == "worker").then(|| number(value))
}

fn server(node: &Node, value: u64) -> Option<f64> {
    (node.role == "server").then(|| number(value))
}

/// Metrics of every process that has sent a report.
const OF_NODES: &[MetricFamily] = &[
    gauge("kvstore_node_age_seconds", "Time since the process began.", |_, _, it| Some(it.age_s)),
    counter(
        "kvstore_node_received_bytes_total",
        "Bytes that came in, with the headers of messages.",
        |_, _, it| Some(number(it.bytes_in)),
    ),
    counter(
        "kvstore_node_sent_bytes_total",
        "Bytes that went out, with the headers of messages.",
        |_, _, it| Some(number(it.bytes_out)),
    ),
    counter("kvstore_node_received_messages_total", "Messages that came in.", |_, _, it| {
        Some(number(it.messages_in))
    }),
    counter("kvstore_node_sent_messages_total", "Messages that went out.", |_, _, it| {
        Some(number(it.messages_out))
    }),
    counter(
        "kvstore_node_resent_messages_total",
        "Messages that were sent again, because they were not acknowledged in time.",
        |_, _, it| Some(number(it.resent)),
    ),
    counter(
        "kvstore_node_bad_frames_total",
        "Deliveries that were dropped because they were no message, or altered.",
        |_, _, it| Some(number(it.bad_frames)),
    ),
    gauge("kvstore_node_queued_messages", "Messages that wait to be sent.", |_, _, it| {
        Some(number(it.queued))
    }),
    gauge("kvstore_node_in_flight_bytes", "Bytes sent and not acknowledged.", |_, _, it| {
        Some(number(it.in_flight_bytes))
    }),
    gauge("kvstore_worker_keys", "Keys that a worker uses.", |_, n, it| worker(n, it.keys)),
    gauge("kvstore_worker_round", "The last round that a worker has pushed.", |_, n, it| {
        worker(n, it.round)
    }),
    counter("kvstore_worker_pushes_total", "Pushes of a worker that have ended.", |_, n, it| {
        worker(n, it.rounds)
    }),
    counter("kvstore_worker_failed_calls_total", "Calls that failed.", |_, n, it| {
        worker(n, it.failures)
    }),
    gauge("kvstore_worker_pending_calls", "Calls that have not ended.", |_, n, it| {
        worker(n, it.pending)
    }),
    gauge(
        "kvstore_worker_longest_wait_seconds",
        "Age of the oldest call that has not ended.",
        |_, node, it| {
            let oldest = it.waiting.iter().map(|call| call.age_ms).max().unwrap_or(0);
            worker(node, oldest).map(|ms| ms / 1e3)
        },
    ),
    gauge("kvstore_server_keys", "Keys that a server has slices of.", |_, n, it| {
        server(n, it.keys)
    }),
    gauge("kvstore_server_slices", "Slices that a server has.", |_, n, it| server(n, it.slices)),
    gauge("kvstore_server_stored_bytes", "Bytes of values that a server has.", |_, n, it| {
        server(n, it.stored_bytes)
    }),
    gauge(
        "kvstore_server_held_bytes",
        "Bytes of pushes that are held because the turn of their worker has not come.",
        |_, n, it| server(n, it.held_bytes),
    ),
    gauge("kvstore_server_hold_limit_bytes", "The option hold_bytes.", |view, n, _| {
        server(n, view.hold_bytes?)
    }),
    gauge("kvstore_server_round", "The last round that a server has closed.", |_, n, it| {
        server(n, it.round)
    }),
    counter(
        "kvstore_server_closed_rounds_total",
        "Rounds of slices that have closed.",
        |_, n, it| server(n, it.rounds),
    ),
    counter(
        "kvstore_server_duplicate_pushes_total",
        "Pushes that came twice, and were added once.",
        |_, n, it| server(n, it.duplicates),
    ),
];

#[allow(clippy::cast_precision_loss, reason = "the format has float64 only")]
fn number(count: u64) -> f64 {
    count as f64
}

/// The whole page.
pub(super) fn of(view: &View) -> String {
    let mut out = String::new();
    put_job(&mut out, view);
    put_nodes(&mut out, view);
    for family in OF_NODES {
        begin(&mut out, family.name, family.kind, family.help);
        for node in &view.nodes {
            let value = node.facts.as_ref().and_then(|facts| (family.value)(view, node, facts));
            if let Some(value) = value {
                let _ = writeln!(out, "{}{{{}}} {value}", family.name, labels(node));
            }
        }
    }
    put_waits(&mut out, view);
    put_calls(&mut out, view);
    out
}

fn begin(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn put_job(out: &mut String, view: &View) {
    let missing = number(view.missing.len() as u64);
    for (name, help, value) in [
        (
            "kvstore_job_started",
            "1 when all processes have come.",
            f64::from(u8::from(view.started)),
        ),
        ("kvstore_job_workers", "Workers that the job has.", f64::from(view.num_workers)),
        ("kvstore_job_servers", "Servers that the job has.", f64::from(view.num_servers)),
        ("kvstore_job_missing_nodes", "Processes that have not come, up to 64.", missing),
        ("kvstore_job_epoch", "How often the members have changed.", f64::from(view.epoch)),
    ] {
        begin(out, name, "gauge", help);
        let _ = writeln!(out, "{name} {value}");
    }
}

fn put_nodes(out: &mut String, view: &View) {
    let flag = |is: bool| Some(f64::from(u8::from(is)));
    let info = "kvstore_node_info";
    begin(out, info, "gauge", "A process of the job, with its address.");
    for node in &view.nodes {
        let address = escaped(&node.address);
        let _ = writeln!(out, "{info}{{{},address=\"{address}\"}} 1", labels(node));
    }
    let mut put = |name: &str, help: &str, value: &dyn Fn(&Node) -> Option<f64>| {
        begin(out, name, "gauge", help);
        for node in &view.nodes {
            if let Some(value) = value(node) {
                let _ = writeln!(out, "{name}{{{}}} {value}", labels(node));
            }
        }
    };
    put("kvstore_node_up", "1 while the process takes part and is heard.", &|node| {
        flag(node.state == State::Here)
    });
    put("kvstore_node_lost", "1 when the job has declared the process lost.", &|node| {
        flag(node.state == State::Lost)
    });
    put("kvstore_node_heard_seconds", "Time since the scheduler heard the process.", &|node| {
        node.heard_ms.map(|ms| number(ms) / 1e3)
    });
    put("kvstore_node_report_seconds", "Age of what the process said of itself.", &|node| {
        node.report_ms.map(|ms| number(ms) / 1e3)
    });
}

/// Metrics of the workers that the servers waited for.
fn put_waits(out: &mut String, view: &View) {
    let servers = || view.nodes.iter().filter(|node| node.role == "server");
    let seconds = "kvstore_server_waited_seconds_total";
    let help = "Time in which a worker was the only one missing in a round of a slice, summed up.";
    begin(out, seconds, "counter", help);
    for node in servers() {
        for late in node.facts.iter().flat_map(|facts| &facts.waited_for) {
            let (labels, worker) = (labels(node), late.worker);
            let _ = writeln!(out, "{seconds}{{{labels},worker=\"{worker}\"}} {}", late.seconds);
        }
    }
    let rounds = "kvstore_server_last_pushes_total";
    begin(out, rounds, "counter", "Rounds of slices in which the push of a worker was the last.");
    for node in servers() {
        for late in node.facts.iter().flat_map(|facts| &facts.waited_for) {
            let (labels, worker) = (labels(node), late.worker);
            let _ = writeln!(out, "{rounds}{{{labels},worker=\"{worker}\"}} {}", late.rounds);
        }
    }
}

fn put_calls(out: &mut String, view: &View) {
    let name = "kvstore_worker_call_duration_seconds";
    begin(out, name, "histogram", "How long pushes and pulls of a worker took.");
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
