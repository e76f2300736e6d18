//! `cargo bench --bench dist`: one worker and one server on the loopback, beside raw TCP sockets, and
//! with `--peers` beside MXNet, gloo and UCX, where they are installed, all in the same run.
//!
//! `--tls` measures TCP beside TLS instead, and prints the ratios of time and processor time. Over a link of 10
//! Gbit/s, which both directions share, as root:
//! `unshare -n sh -c 'ip link set lo up && tc qdisc add dev lo root tbf rate 10gbit burst 4mb latency
//! 50ms && cargo bench --bench dist -- --tls one-16M'`.
//!
//! `--digests` measures a server that digests values, and one that digests everything, beside one that does
//! not.
//!
//! `--many-keys` measures a million keys of 16 bytes instead, in time and memory, and `--large-key` one key
//! of 4 GB; both beside fixed limits. `--long-link` measures a key of 256 MB over an emulated link between two
//! network namespaces, where these can be made.
//!
//! `KVSTORE_PROGRAM` is the path of the program `kvstore`, which makes the certificates of jobs over TLS.
//! Words after `--` choose the cases whose names, as `dist-one-1K`, contain one of them. `--page`
//! writes the tables into docs/use/performance.md, which says what the figures mean; `--quick` measures
//! too little for figures.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people, and sizes that fit"
)]

mod cases;
#[allow(clippy::unwrap_used, reason = "what tests share")]
#[path = "../../tests/common/mod.rs"]
mod common;
mod credentials;
mod gloo;
mod long_link;
#[path = "../common/machine.rs"]
mod machine;
mod many_keys;
mod mxnet;
mod ours;
#[path = "../common/page.rs"]
mod page;
mod processes;
mod python;
mod raw;
mod table;
mod ucx;

use std::io;
use std::time::{Duration, Instant};

use cases::Case;
use ours::{Calls, Way};
use processes::Processes;

/// Turns of each subject; the median of an odd number of rounds is one of them.
fn turns() -> usize {
    if page::quick() { 3 } else { 15 }
}

/// How long the rounds of one turn that count take at least.
fn shortest() -> Duration {
    Duration::from_millis(if page::quick() { 5 } else { 150 })
}

/// What comes before them: caches, and threads that still spin, are as another subject has left them,
/// and rounds become faster for about so long.
fn warm_up() -> Duration {
    Duration::from_millis(if page::quick() { 2 } else { 50 })
}

/// Lets MXNet, gloo and UCX take turns with ours.
const PEERS: &str = "--peers";
/// Lets TLS take turns with TCP alone.
const TLS: &str = "--tls";

/// Lets servers that digest rounds take turns with one that does not.
const DIGESTS: &str = "--digests";

/// Measures a job of very many small keys instead.
const MANY_KEYS: &str = "--many-keys";
/// Measures a job of one key of 4 GB instead.
const LARGE_KEY: &str = "--large-key";
/// Measures a key over a long link instead.
const LONG_LINK: &str = "--long-link";

/// Somebody who can make rounds of a case: a push of all keys, and a pull of all.
trait Subject {
    fn name(&self) -> String;

    /// Makes so many rounds; gives the seconds of each.
    fn run(&mut self, rounds: usize) -> io::Result<Vec<f64>>;

    /// Whose processor time counts.
    fn processes(&self) -> &Processes;
}

struct Figures {
    name: String,
    /// Of one round, sorted.
    seconds: Vec<f64>,
    cpu_s: f64,
    rounds: usize,
}

impl Figures {
    fn median(&self) -> f64 {
        self.seconds[self.seconds.len() / 2]
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", role, root, way] => return ours::serve(role, root, way),
        ["raw", address, connections] => return raw::serve(address, connections),
        ["sink", address, bytes] => return long_link::sink(address, bytes),
        _ => {}
    }
    if page::flag(MANY_KEYS) {
        return many_keys::many();
    }
    if page::flag(LARGE_KEY) {
        return many_keys::large();
    }
    if page::flag(LONG_LINK) {
        return long_link::run();
    }
    credentials::program()?;
    let (words, peers) = (page::words(), page::flag(PEERS));
    let named = |name: &str| words.iter().any(|word| name.contains(word.as_str()));
    let mut cases = cases::all();
    cases.retain(|case| words.is_empty() || named(&table::name(case)));
    let command = match (peers, words.join(" ").as_str()) {
        (true, _) => "make bench-peers".to_owned(),
        (false, "") => "make bench".to_owned(),
        (false, words) => format!("make bench GROUP=\"{words}\""),
    };
    let header = machine::header(&command, &format!("medians of {} turns", turns()));
    let mut all = Vec::new();
    for case in &cases {
        if page::flag(TLS) || page::flag(DIGESTS) {
            let chosen = if page::flag(TLS) { secrecy(case)? } else { digested(case)? };
            let figures = take_turns(chosen)?;
            let (title, rows) = (table::title(case), table::of_case(case, &figures));
            println!("\n## {title}\n\n{rows}\n{}", table::ratios(&figures));
            continue;
        }
        let figures = take_turns(subjects(case)?)?;
        let text = table::of_case(case, &figures);
        println!("\n## {}\n\n{text}", table::title(case));
        // These tables are the same on machines where MXNet cannot be installed.
        if !peers {
            page::write(&table::name(case), &format!("{header}\n\n{text}"))?;
        }
        all.push((case, figures));
    }
    let text = table::beside_mxnet(&all);
    if let Some(text) = text.filter(|_| words.is_empty()) {
        println!("\n{text}");
        page::write("peers-dist", &format!("{header}\n\n{text}"))?;
    }
    Ok(())
}

/// Ours over TCP, and with what protects its bytes.
fn secrecy(case: &Case) -> io::Result<Vec<Box<dyn Subject>>> {
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for way in [Way::Tcp, Way::Tls, Way::Token, Way::Integrity] {
        subjects.push(Box::new(ours::Ours::start(case, way, Calls::Queued)?));
    }
    Ok(subjects)
}

/// Ours over shared memory, without digests and with them.
fn digested(case: &Case) -> io::Result<Vec<Box<dyn Subject>>> {
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for way in [Way::SharedMemory, Way::Values, Way::All] {
        subjects.push(Box::new(ours::Ours::start(case, way, Calls::Pushpull)?));
    }
    Ok(subjects)
}

/// All subjects of a case.
fn subjects(case: &Case) -> io::Result<Vec<Box<dyn Subject>>> {
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for (way, calls) in [
        (Way::Tcp, Calls::Queued),
        (Way::Tcp, Calls::Waiting),
        (Way::Tcp, Calls::Pushpull),
        (Way::SharedMemory, Calls::Queued),
        (Way::SharedMemory, Calls::Waiting),
        (Way::SharedMemory, Calls::Pushpull),
    ] {
        subjects.push(Box::new(ours::Ours::start(case, way, calls)?));
    }
    subjects.push(Box::new(ours::Ours::start(case, Way::Tls, Calls::Queued)?));
    for both_ways in [false, true] {
        subjects.push(Box::new(raw::Raw::start(case, both_ways)?));
    }
    if page::flag(PEERS) {
        subjects.extend(mxnet::start(case)?.map(|it| Box::new(it) as Box<dyn Subject>));
        subjects.extend(gloo::start(case)?.map(|it| Box::new(it) as Box<dyn Subject>));
        subjects.extend(ucx::start(case).map(|it| Box::new(it) as Box<dyn Subject>));
    }
    Ok(subjects)
}

/// Lets the subjects run in turn.
fn take_turns(mut subjects: Vec<Box<dyn Subject>>) -> io::Result<Vec<Figures>> {
    let repeats: Vec<Repeats> = subjects.iter_mut().map(repeats).collect::<io::Result<_>>()?;
    let mut all: Vec<Figures> = subjects
        .iter()
        .map(|it| Figures { name: it.name(), seconds: Vec::new(), cpu_s: 0.0, rounds: 0 })
        .collect();
    for _ in 0..turns() {
        for ((subject, figures), repeats) in subjects.iter_mut().zip(&mut all).zip(&repeats) {
            let before = subject.processes().cpu_s();
            let seconds = subject.run(repeats.warm_up + repeats.counted)?;
            figures.seconds.extend(&seconds[repeats.warm_up..]);
            figures.cpu_s += (subject.processes().cpu_s() - before).max(0.0);
            figures.rounds += seconds.len();
        }
    }
    all.iter_mut().for_each(|figures| figures.seconds.sort_by(f64::total_cmp));
    Ok(all)
}

/// Rounds of a turn.
struct Repeats {
    /// They count for nobody: one at least.
    warm_up: usize,
    counted: usize,
}

fn repeats(subject: &mut Box<dyn Subject>) -> io::Result<Repeats> {
    subject.run(3)?;
    let start = Instant::now();
    subject.run(3)?;
    let one = start.elapsed() / 3;
    let rounds = |time: Duration, most: usize| {
        let count = time.as_secs_f64() / one.as_secs_f64().max(1e-6);
        (count.ceil() as usize).clamp(1, most)
    };
    Ok(Repeats { warm_up: rounds(warm_up(), 500), counted: rounds(shortest(), 200) })
}
