//! Traces of chosen rounds: every process writes one, and together they are one that Chrome reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::job::{Job, KVSTORE, Turn};
use super::program::{COUNT, PAUSE_MS, ROUNDS};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvstore-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn events(path: &Path) -> Vec<Value> {
    let trace: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().clone();
    for event in &events {
        check(event);
    }
    events
}

/// What the format wants of an event.
fn check(event: &Value) {
    let phase = event["ph"].as_str().unwrap();
    assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
    if phase == "M" {
        assert!(event["args"]["name"].is_string(), "{event}");
        return;
    }
    assert!(event["cat"].is_string() && event["ts"].as_i64().unwrap() >= 0, "{event}");
    match phase {
        "X" => assert!(event["dur"].as_i64().unwrap() >= 0, "{event}"),
        "b" | "e" => assert!(event["id"].is_string(), "{event}"),
        "i" => assert_eq!(event["s"], "t", "{event}"),
        _ => panic!("{event}"),
    }
    let round = event["args"]["round"].as_u64().unwrap();
    assert!((2..=4).contains(&round), "{event}");
}

#[test]
fn the_traces_of_all_processes_become_one_with_everything_in_it() {
    let _turn = Turn::take();
    let folder = Folder::new("trace");
    let prefix = folder.0.join("t").display().to_string();
    Job::new("train", 2, 2)
        .told(ROUNDS, 40)
        .told(COUNT, 100_000)
        // Longer than the first intervals of clock comparisons, shorter than a second.
        .told(PAUSE_MS, 5)
        .with("trace", &prefix)
        .with("trace_rounds", "2-4")
        .run();
    let names = ["worker-0", "worker-1", "server-0", "server-1"];
    let files = names.map(|name| PathBuf::from(format!("{prefix}.{name}.json")));
    for file in &files {
        let text = fs::read(file).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(trace["otherData"]["dropped"], 0);
        assert!(trace["otherData"]["clock_error_us"].is_u64(), "clocks were compared");
        assert!(events(file).len() > 5);
    }
    let merged = folder.0.join("all.json");
    let mut command = Command::new(KVSTORE);
    let output = command.arg("trace").args(&files).arg("-o").arg(&merged).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let events = events(&merged);

    // Every begin has its end, not before it; work has a length.
    let mut open: BTreeMap<(u64, String), i64> = BTreeMap::new();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for event in &events {
        let name = event["name"].as_str().unwrap().to_owned();
        let key = (event["pid"].as_u64().unwrap(), event["id"].to_string());
        match event["ph"].as_str().unwrap() {
            "b" => {
                assert!(open.insert(key, event["ts"].as_i64().unwrap()).is_none(), "{event}");
                *found.entry(name).or_default() += 1;
            }
            "e" => {
                let begin = open.remove(&key).unwrap_or_else(|| panic!("no begin of {event}"));
                assert!(event["ts"].as_i64().unwrap() >= begin, "{event}");
            }
            "X" => *found.entry(name).or_default() += 1,
            "i" => panic!("a message with one end: {event}"),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
    // Three rounds of two keys: of two workers, and of three slices (the large key has two).
    let expected = [
        ("push", 12),
        ("pull", 12),
        ("wire push", 18),
        ("wire value", 18),
        ("sum", 18),
        ("update", 9),
    ];
    let expected: BTreeMap<_, _> = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(found, expected);
    let processes: BTreeSet<&str> = events
        .iter()
        .filter(|event| event["ph"] == "M")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert_eq!(processes, ["server 0", "server 1", "worker 0", "worker 1"].into());
}

#[test]
fn what_is_no_trace_is_refused_by_name() {
    let folder = Folder::new("no-trace");
    let file = folder.0.join("other.json");
    for text in ["{}", "nothing", "[1"] {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(KVSTORE);
        command.arg("trace").arg(&file).arg("-o").arg(folder.0.join("out.json"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("kvstore trace: ") && error.contains("other.json"), "{error}");
    }
}
