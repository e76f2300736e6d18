//! Trace file in the format of the tools of Chrome and Perfetto (trace events).

use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::{SliceWork, TraceBuffer, TraceEvent, signed};
use crate::checkpoint::Replacement;
use kvstore_protocol::{Ended, TracedMessage};

/// Writes the file of one process, in place of an older one: a symbolic link is replaced, and not followed.
/// Times are those of the common clock, if it was compared with ours.
pub(super) fn write(path: &str, role: &str, rank: u32, kept: &TraceBuffer) -> std::io::Result<()> {
    let mut out = BufWriter::new(Replacement::begin(Path::new(path))?);
    let process = u64::from(rank) * 2 + u64::from(role == "server");
    let offset = kept.clock.map_or(0, |clock| clock.offset);
    let name = json!({"ph": "M", "name": "process_name", "pid": process, "tid": 0,
        "args": {"name": format!("{role} {rank}")}});
    let about = json!({
        "role": role, "rank": rank, "dropped": kept.dropped,
        "clock_error_us": kept.clock.map(|clock| clock.trip / 2),
    });
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n{name}")?;
    for (number, event) in kept.events.iter().enumerate() {
        for value in lines(event, process, number, offset) {
            write!(out, ",\n{value}")?;
        }
    }
    writeln!(out, "\n]}}")?;
    out.into_inner()?.commit()
}

/// Entries of the file for an event. Calls overlap, and so each is a begin and an end. Work has a thread of
/// its own. A message is one instant here, and another one in the peer's file.
fn lines(event: &TraceEvent, process: u64, number: usize, offset: i64) -> Vec<Value> {
    let time = |at: u64| signed(at).saturating_add(offset);
    match *event {
        TraceEvent::Call(Ended { call, key: id, round, began, end }) => {
            let line = |(phase, at): (&str, u64)| {
                json!({"ph": phase, "cat": "call", "id": format!("{process}.{number}"),
                    "name": call.name(), "pid": process, "tid": 0, "ts": time(at),
                    "args": {"key": key(id), "round": round}})
            };
            [("b", began), ("e", end)].map(line).into()
        }
        TraceEvent::Work { work, begin, end, thread } => {
            let SliceWork { is_sum, key: id, slice, round } = work;
            vec![json!({"ph": "X", "cat": "work", "name": if is_sum { "sum" } else { "update" },
                "pid": process, "tid": thread, "ts": time(begin), "dur": time(end) - time(begin),
                "args": {"key": key(id), "slice": slice, "round": round}})]
        }
        TraceEvent::Message(TracedMessage {
            is_value,
            is_sent,
            key: id,
            slice,
            round,
            worker,
            server,
            request,
            at,
        }) => {
            let what = if is_value { "value" } else { "push" };
            let name = format!("{} {what}", if is_sent { "sent" } else { "got" });
            let of = format!("{what}.{worker}.{server}.{id:x}.{slice}.{round}.{request}");
            vec![
                json!({"ph": "i", "s": "t", "cat": "message", "name": name, "pid": process, "tid": 0,
                "ts": time(at),
                "args": {"id": of, "key": key(id), "slice": slice, "round": round}}),
            ]
        }
    }
}

/// Keys that stand for names are too large for readers that know float64 only.
fn key(key: u64) -> Value {
    if key >> 53 == 0 { json!(key) } else { json!(format!("{key:#018x}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_was_planted_is_not_followed() {
        let folder = std::env::temp_dir().join(format!("kvstore-trace-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let (path, other) = (folder.join("a.worker-0.json"), folder.join("other"));
        std::fs::write(&other, "of another user").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        write(path.to_str().unwrap(), "worker", 0, &TraceBuffer::default()).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"of another user");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"displayTimeUnit\"") && text.ends_with("]}\n"), "{text}");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
