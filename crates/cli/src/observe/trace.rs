//! `kvstore trace`: merges the traces of all processes of a job.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::messages::say;

/// Puts the traces of several processes together, for Chrome or Perfetto.
///
/// Times begin at 0. A message that left one process and came to another becomes a span.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What the processes wrote
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Where to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let read: Result<Vec<Value>, String> = arguments.files.iter().map(|path| read(path)).collect();
    let merged = read.map(|files| merge(&files));
    let written = merged.and_then(|merged| {
        write(&arguments.output, &merged)
            .map_err(|error| format!("{}: {error}", arguments.output.display()))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say("trace", error);
            ExitCode::FAILURE
        }
    }
}

fn read(path: &Path) -> Result<Value, String> {
    let name = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = fs::read(path).map_err(|error| name(&error))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| name(&error))?;
    if value["traceEvents"].is_array() {
        return Ok(value);
    }
    Err(name(&"this is no trace: it has no traceEvents"))
}

fn write(path: &Path, value: &Value) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

/// Send and receive time of a message: the first of each.
#[derive(Default)]
struct MessageTimes {
    sent: Option<Value>,
    got: Option<Value>,
}

fn time(event: &Value) -> Option<i64> {
    event["ts"].as_i64()
}

fn merge(files: &[Value]) -> Value {
    let events = || files.iter().filter_map(|file| file["traceEvents"].as_array()).flatten();
    let start = events().filter_map(time).min().unwrap_or(0);
    let (mut merged, mut messages) = (Vec::new(), BTreeMap::<String, MessageTimes>::new());
    for event in events() {
        let mut event = event.clone();
        if let Some(at) = time(&event) {
            event["ts"] = json!(at - start);
        }
        let Some(id) = event["args"]["id"].as_str().filter(|_| event["cat"] == "message") else {
            merged.push(event);
            continue;
        };
        let message = messages.entry(id.to_owned()).or_default();
        let sent = event["name"].as_str().is_some_and(|name| name.starts_with("sent"));
        let place = if sent { &mut message.sent } else { &mut message.got };
        if place.as_ref().is_none_or(|before| time(&event) < time(before)) {
            *place = Some(event);
        }
    }
    let mut backwards = 0;
    for (id, message) in messages {
        merged.extend(span(&id, message, &mut backwards));
    }
    merged.sort_by_key(|event| time(event).unwrap_or(-1));
    let about: Vec<&Value> = files.iter().map(|file| &file["otherData"]).collect();
    json!({"displayTimeUnit": "ms", "traceEvents": merged,
        "otherData": {"processes": about, "backwards": backwards}})
}

/// The span of a message, or its one known end.
fn span(id: &str, message: MessageTimes, backwards: &mut u64) -> Vec<Value> {
    let (sent, got) = match (message.sent, message.got) {
        (Some(sent), Some(got)) => (sent, got),
        (sent, got) => return sent.into_iter().chain(got).collect(),
    };
    let (begin, end) = (time(&sent).unwrap_or(0), time(&got).unwrap_or(0));
    // Clocks are compared over a network: a negative latency becomes zero.
    *backwards += u64::from(end < begin);
    let what = id.split('.').next().unwrap_or_default();
    let line = |phase: &str, at: i64| {
        json!({"ph": phase, "cat": "wire", "id": id, "name": format!("wire {what}"),
            "pid": got["pid"], "tid": 0, "ts": at,
            "args": {"key": got["args"]["key"], "slice": got["args"]["slice"],
                "round": got["args"]["round"], "from": sent["pid"]}})
    };
    vec![line("b", begin), line("e", end.max(begin))]
}
