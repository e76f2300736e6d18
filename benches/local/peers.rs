//! The same rounds with MXNet's local store and with numpy, in turn with ours.
//!
//! `make bench-peers` installs both under target/bench/venv. Each peer is a process of its own that
//! measures itself, `peer.py`; only one of us runs at a time.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::compare::{Call, Case, IN_CACHE, LARGE};
use crate::limits::{Limits, Rates, Way};
use crate::memory::MALLOC;
use crate::race::{Race, Runner};
use crate::report::{Report, count, number};
use crate::store::{Rule, Setting, Store};
use crate::tensors::{DType, Keys, List};
use crate::timing::{Subject, medians, timed};
use crate::{charts, goals, shapes};

const PYTHON: &str = "target/bench/venv/bin/python";
const SCRIPT: &str = "benches/local/peer.py";
const CALLS: [Call; 2] = [Call::PushPull, Call::PushThenPull];

/// After a peer's turn: its threads may spin for a while before they sleep.
const REST: Duration = Duration::from_millis(5);

/// A program that waits for requests.
struct Peer {
    name: &'static str,
    child: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Peer {
    fn start(name: &'static str) -> io::Result<Self> {
        let mut child = Command::new(PYTHON)
            .args([SCRIPT, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { name, child, pipes: RefCell::new((pipes.0, BufReader::new(pipes.1))) })
    }

    fn ask(&self, request: &Value) -> io::Result<Value> {
        let (to, from) = &mut *self.pipes.borrow_mut();
        writeln!(to, "{request}")?;
        to.flush()?;
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(io::Error::other(format!("{} ended before its answer", self.name)));
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// True if the peer can do such rounds; then it has done one, with the results that ours has.
    fn prepare(&self, keys: &Keys, rule: Rule, ours: &List) -> io::Result<bool> {
        let count = ours.keys().len() / keys.count();
        let answer = self.ask(&json!({
            "shapes": keys.shapes(), "values": count, "outs": count, "rule": rule.name(),
        }))?;
        let Some(theirs) = answer["out"].as_array() else { return Ok(false) };
        let theirs: Vec<f32> = theirs.iter().filter_map(|it| Some(it.as_f64()? as f32)).collect();
        assert_eq!(ours.last_numbers(theirs.len()), theirs, "{} has other results", self.name);
        Ok(true)
    }

    fn subject(&self, call: Call) -> Subject<'_> {
        Box::new(move |repeats| {
            let answer = self.ask(&json!({"call": call.name(), "repeats": repeats}));
            thread::sleep(REST);
            answer.ok().and_then(|answer| answer["seconds"].as_f64()).expect("a peer has failed")
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(report: &mut Report, group: &str) -> io::Result<()> {
    let (Ok(mxnet), Ok(numpy)) = (Peer::start("mxnet"), Peer::start("numpy")) else {
        return report.text("peers: left out; `make bench-peers` installs them.");
    };
    let peers = [(Runner::Mxnet, mxnet), (Runner::Numpy, numpy)];
    let mut races = Vec::new();
    for len in [1 << 10, 1 << 16, 1 << 20, LARGE] {
        for values in [1, 4] {
            races.extend(race(&peers, &Keys::one(len), values, Rule::Assign)?);
        }
    }
    races.extend(race(&peers, &Keys::one(LARGE), 4, Rule::Momentum)?);
    for keys in [Keys::many(1000, 1 << 10), shapes::resnet50()] {
        for (values, rule) in [(1, Rule::Assign), (4, Rule::Assign), (4, Rule::Momentum)] {
            races.extend(race(&peers, &keys, values, rule)?);
        }
    }
    races.iter().try_for_each(|race| report.fact(&facts(group, race)))?;
    table(report, group, &races)?;
    goals::peers(report, &races)?;
    CALLS.into_iter().try_for_each(|call| charts::peers(report, &races, call))
}

fn race(
    peers: &[(Runner, Peer); 2],
    keys: &Keys,
    values: usize,
    rule: Rule,
) -> io::Result<[Race; 2]> {
    println!("peers: {}, {}, {}", keys.name, count(values, "value"), rule.name());
    let list = |copies| List::new(DType::F32, MALLOC, keys, copies);
    let (first, pushed, outs) = (list(1), list(values), list(values));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let stores = [(Runner::Ours, processors), (Runner::OursOnOne, 1)].map(|(runner, threads)| {
        let store = Store::open(threads, rule, Setting::Usual);
        store.init(&first);
        store.pushpull(&pushed, &outs);
        (runner, store)
    });
    let len = if keys.count() > 1 { LARGE } else { keys.elements() };
    let limits = Limits::new(len, if len <= IN_CACHE { 1 } else { processors });
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    subjects.extend(Way::ALL.map(|way| limits.subject(way)));
    for (_, store) in &stores {
        subjects.extend(CALLS.map(|call| ours(store, call, &pushed, &outs)));
    }
    let mut runners: Vec<Runner> = stores.iter().map(|(runner, _)| *runner).collect();
    for (runner, peer) in peers {
        if peer.prepare(keys, rule, &outs)? {
            runners.push(*runner);
            subjects.extend(CALLS.map(|call| peer.subject(call)));
        }
    }
    // Who else runs cannot be seen in a peer's turn, so nobody's is repeated.
    let times = medians(&subjects, 1);
    let (ways, times) = times.split_at(Way::ALL.len());
    let of_call = |index: usize| {
        let case = Case { values, rule, call: CALLS[index], outs: values, ..Case::BASE };
        let pairs = runners.iter().zip(times.chunks(CALLS.len()));
        Race {
            keys: keys.name.clone(),
            case,
            bytes: (case.arrays() * keys.elements() * case.dtype.bytes()) as f64,
            limit: Rates::new(len, ways).best(),
            seconds: pairs.map(|(runner, times)| (*runner, times[index])).collect(),
        }
    };
    Ok([of_call(0), of_call(1)])
}

fn ours<'a>(store: &'a Store, call: Call, values: &'a List, outs: &'a List) -> Subject<'a> {
    if call == Call::PushPull {
        return timed(|| store.pushpull(values, outs));
    }
    timed(|| {
        store.push(values);
        store.pull(outs);
    })
}

fn facts(group: &str, race: &Race) -> Value {
    let case = &race.case;
    json!({
        "group": group, "keys": race.keys, "values": case.values, "outs": case.outs,
        "rule": case.rule.name(), "call": case.call.name(), "bytes": race.bytes,
        "limit_bytes_per_s": race.limit, "ours_s": race.of(Runner::Ours),
        "ours_on_one_thread_s": race.of(Runner::OursOnOne), "mxnet_s": race.of(Runner::Mxnet),
        "numpy_s": race.of(Runner::Numpy),
    })
}

fn table(report: &mut Report, name: &str, races: &[Race]) -> io::Result<()> {
    let columns = [
        ("keys x floats", 0),
        ("values and outs", 0),
        ("rule", 8),
        ("call", 11),
        ("ours", 8),
        ("ours, 1 thread", 0),
        ("MXNet", 8),
        ("numpy", 8),
        ("MXNet / ours", 0),
        ("MXNet / ours, 1 thread", 0),
        ("MXNet / limit", 0),
        ("numpy / ours, 1 thread", 0),
    ];
    report.table(name, "A round beside MXNet 1.9.1 and numpy", &columns)?;
    for race in races {
        let case = &race.case;
        let times = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |it| number(it, 1));
        let mut row = vec![race.keys.clone(), case.values.to_string()];
        row.extend([case.rule.name().to_owned(), case.call.name().to_owned()]);
        let runners = [Runner::Ours, Runner::OursOnOne, Runner::Mxnet, Runner::Numpy];
        row.extend(runners.map(|runner| duration(race.of(runner))));
        row.push(times(race.over(Runner::Mxnet, Runner::Ours)));
        row.push(times(race.over(Runner::Mxnet, Runner::OursOnOne)));
        row.push(times(race.over_limit(Runner::Mxnet)));
        row.push(times(race.over(Runner::Numpy, Runner::OursOnOne)));
        report.row(&row)?;
    }
    Ok(())
}

fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-4 => format!("{} us", number(seconds * 1e6, 2)),
        Some(seconds) => format!("{} ms", number(seconds * 1e3, 2)),
    }
}
