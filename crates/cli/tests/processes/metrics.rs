//! What the scheduler tells Prometheus: the format, the numbers, the dashboard and the page about
//! them; and clients that do not behave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::job::{Job, LIMIT, Turn, free_address, soon};
use super::program::{COUNT, PAUSE_MS};

/// Sends bytes, and gives what comes until the other side closes.
fn ask(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // A server that has heard enough may close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The page, whose head says how long it is.
fn scrape(address: &str) -> String {
    let answer = ask(address, b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len());
    body.into()
}

/// The samples of a page, by name and labels; every rule of the format that we know is checked.
#[derive(Debug, Default)]
struct Page {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(plain) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// `a="1",b="2"`; values here have no commas and nothing that is escaped.
fn labels(text: &str) -> BTreeMap<String, String> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        assert!(is_name(name), "{text}");
        let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
        assert!(!value.contains(['"', '\\']), "{text}");
        (name.to_owned(), value.to_owned())
    };
    let pairs: Vec<_> = text.split(',').map(pair).collect();
    let count = pairs.len();
    let labels: BTreeMap<_, _> = pairs.into_iter().collect();
    assert_eq!(labels.len(), count, "a label twice: {text}");
    labels
}

impl Page {
    fn read(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let (mut page, mut family, mut helped) = (Self::default(), String::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && help.ends_with('.'), "{line}");
                helped = name.into();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, helped, "help stands before the type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(page.kinds.insert(name.into(), kind.into()).is_none(), "twice: {line}");
                family = name.into();
            } else {
                page.sample(line, &family);
            }
        }
        page
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, inner) = series.split_once('{').unwrap_or((series, ""));
        let kind = &self.kinds[family];
        let rest = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} in {family}"));
        let ends: &[&str] =
            if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(ends.contains(&rest), "{line}");
        let of = match inner.strip_suffix('}') {
            Some(inner) => labels(inner),
            None => BTreeMap::new(),
        };
        let value: f64 = value.parse().unwrap();
        assert!(value >= 0.0, "{line}");
        assert!(self.samples.insert((name.into(), of), value).is_none(), "twice: {line}");
    }

    /// The values of a series whose labels have these.
    fn all(&self, name: &str, having: &[(&str, &str)]) -> Vec<f64> {
        let has = |labels: &BTreeMap<String, String>| {
            having.iter().all(|(name, value)| labels.get(*name).is_some_and(|it| it == value))
        };
        let of = self.samples.iter().filter(|((known, labels), _)| known == name && has(labels));
        of.map(|(_, value)| *value).collect()
    }

    fn one(&self, name: &str, having: &[(&str, &str)]) -> f64 {
        let all = self.all(name, having);
        assert_eq!(all.len(), 1, "{name} {having:?}: {all:?}");
        all[0]
    }
}

#[test]
fn prometheus_gets_the_numbers_of_all_processes() {
    let _turn = Turn::take();
    let address = free_address();
    let job =
        Job::new("train", 2, 2).with("metrics", &address).told(COUNT, 100_000).told(PAUSE_MS, 5);
    let mut running = job.start();
    running.hear("sum 3");
    let page = Page::read(&scrape(&address));
    assert_eq!(page.one("kvstore_job_started", &[]), 1.0);
    assert_eq!(page.all("kvstore_node_up", &[]), [1.0; 5]);
    assert_eq!(page.all("kvstore_node_lost", &[]), [0.0; 5]);
    let stored: f64 = page.all("kvstore_server_stored_bytes", &[]).iter().sum();
    assert_eq!(stored, 4.0 * 100_003.0);
    let worker = [("role", "worker"), ("rank", "1")];
    assert!(page.one("kvstore_worker_pushes_total", &worker) >= 6.0);
    let name = "kvstore_worker_call_duration_seconds";
    let pull = [("rank", "1"), ("call", "pull")];
    let count = page.one(&format!("{name}_count"), &pull);
    assert!(count >= 6.0 && page.one(&format!("{name}_sum"), &pull) > 0.0);
    // By their bounds, and the last one has all.
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for ((known, labels), value) in &page.samples {
        let here = known == &format!("{name}_bucket")
            && pull.iter().all(|(name, value)| labels[*name] == *value);
        if here {
            buckets.push((labels["le"].replace("+Inf", "inf").parse().unwrap(), *value));
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(buckets.len() > 5 && buckets.is_sorted_by(|a, b| a.1 <= b.1), "{buckets:?}");
    assert_eq!(buckets.last().unwrap(), &(f64::INFINITY, count));

    let more = soon(LIMIT, || {
        let later = Page::read(&scrape(&address));
        later.one("kvstore_worker_pushes_total", &worker)
            > page.one("kvstore_worker_pushes_total", &worker)
    });
    assert!(more, "counters count");
    documents_fit(&page);
}

/// The page about operations names every metric, and it and the dashboard no others.
fn documents_fit(page: &Page) {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let words = |file: &str| -> BTreeSet<String> {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_name(c)).filter(|word| word.starts_with("kvstore_"));
        words.map(str::to_owned).collect()
    };
    let documented = words("docs/operate/operations.md");
    let known: BTreeSet<String> = page.kinds.keys().cloned().collect();
    assert_eq!(documented, known);
    let used = words("examples/grafana/kvstore.json");
    assert!(used.len() > 10, "{used:?}");
    for name in used {
        let base = name.strip_suffix("_bucket").filter(|base| page.kinds.contains_key(*base));
        assert!(known.contains(base.unwrap_or(&name)), "the dashboard uses {name}");
    }
    let dashboard = fs::read(root.join("examples/grafana/kvstore.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn clients_that_do_not_behave_keep_others_waiting_for_a_moment_only() {
    let _turn = Turn::take();
    let address = free_address();
    let job = Job::new("train", 1, 1).with("metrics", &address).told(PAUSE_MS, 5);
    let mut running = job.start();
    running.hear("sum 3");
    for (request, status) in [
        (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], "405"),
        (b"GET /secret HTTP/1.1\r\n\r\n", "404"),
        (b"GET / HTTP/1.0\r\n\r\n", "200"),
        (b"\r\n\r\n", "405"),
        (b"\xff\xfe GET\r\n\r\n", "405"),
    ] {
        let answer = ask(&address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    // Larger than any request; what comes of it may be lost with the rest that nobody reads.
    let _ = TcpStream::connect(&address).unwrap().write_all(&vec![b'a'; 1 << 20]);
    // Two that never say what they want, and one that does not read.
    let silent: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut deaf = TcpStream::connect(&address).unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let start = Instant::now();
    assert!(scrape(&address).contains("kvstore_node_up"));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop((silent, deaf));
    running.hear("sum 30");
}

#[test]
fn metrics_off_the_loopback_and_at_a_port_in_use_are_refused_at_once() {
    let _turn = Turn::take();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (metrics, expected) in [("0.0.0.0:0", "insecure=yes"), (&*address, "for metrics")] {
        let job = Job::new("train", 1, 1).with("metrics", metrics);
        let end = job.start_scheduler().end(LIMIT);
        assert_eq!(end.status, Some(1), "{end:?}");
        assert!(end.text().contains(metrics) && end.text().contains(expected), "{end:?}");
    }
}
