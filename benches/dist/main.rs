//! `cargo bench --bench dist`: one worker and one server on the loopback, beside raw TCP sockets, and
//! beside MXNet where `make bench-peers` has installed it, all in the same run.
//!
//! `KVSTORE_PROGRAM` is the path of the program `kvstore`, which makes the certificates of jobs over TLS.
//! Words after `--` choose the cases whose names contain one of them. docs/performance.md says what
//! the figures mean.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people, and sizes that fit"
)]

mod cases;
mod credentials;
mod mxnet;
mod ours;
mod processes;
mod raw;
#[path = "../../tests/common/wait.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod wait;

use std::io;
use std::time::{Duration, Instant};

use cases::Case;
use ours::{Calls, Way};
use processes::Processes;

/// Rounds that count; the median of an odd number is one of them.
const ROUNDS: usize = 15;

/// How long the rounds of one turn that count take at least.
const SHORTEST: Duration = Duration::from_millis(150);

/// What comes before them: caches, and threads that still spin, are as another subject has left them,
/// and rounds become faster for about so long.
const WARM_UP: Duration = Duration::from_millis(50);

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
        _ => {}
    }
    credentials::program()?;
    let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with("--")).collect();
    for case in cases::all() {
        if words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str())) {
            measure(&case)?;
        }
    }
    Ok(())
}

/// Lets all subjects of a case run in turn, and prints what they took.
fn measure(case: &Case) -> io::Result<()> {
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
    if credentials::can_be_made() {
        subjects.push(Box::new(ours::Ours::start(case, Way::Tls, Calls::Queued)?));
    }
    for both_ways in [false, true] {
        subjects.push(Box::new(raw::Raw::start(case, both_ways)?));
    }
    subjects.extend(mxnet::Mxnet::start(case)?.map(|it| Box::new(it) as Box<dyn Subject>));
    let repeats: Vec<Repeats> = subjects.iter_mut().map(repeats).collect::<io::Result<_>>()?;
    let mut all: Vec<Figures> = subjects
        .iter()
        .map(|it| Figures { name: it.name(), seconds: Vec::new(), cpu_s: 0.0, rounds: 0 })
        .collect();
    for _ in 0..ROUNDS {
        for ((subject, figures), repeats) in subjects.iter_mut().zip(&mut all).zip(&repeats) {
            let before = subject.processes().cpu_s();
            let seconds = subject.run(repeats.warm_up + repeats.counted)?;
            figures.seconds.extend(&seconds[repeats.warm_up..]);
            figures.cpu_s += subject.processes().cpu_s() - before;
            figures.rounds += seconds.len();
        }
    }
    all.iter_mut().for_each(|figures| figures.seconds.sort_by(f64::total_cmp));
    print(case, &all);
    Ok(())
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
    Ok(Repeats { warm_up: rounds(WARM_UP, 500), counted: rounds(SHORTEST, 200) })
}

fn print(case: &Case, all: &[Figures]) {
    let bytes = case.bytes() as f64;
    println!("\n## {}: {} keys, {:.1} MB", case.name, case.keys.len(), bytes / 1e6);
    println!("| who | median | best | GB/s | CPU s per GB | over ours |");
    println!("|---|---:|---:|---:|---:|---:|");
    let ours = all[0].median();
    for figures in all {
        let median = figures.median();
        let moved = 2.0 * bytes * figures.rounds as f64 / 1e9;
        println!(
            "| {} | {} | {} | {:.2} | {:.2} | {:.2} |",
            figures.name,
            time(median),
            time(figures.seconds[0]),
            2.0 * bytes / median / 1e9,
            figures.cpu_s / moved,
            median / ours,
        );
    }
}

fn time(seconds: f64) -> String {
    if seconds < 2e-3 {
        format!("{:.0} us", seconds * 1e6)
    } else {
        format!("{:.2} ms", seconds * 1e3)
    }
}
