//! `cargo bench --bench slicing`: what slices and priorities are worth over a wire whose speed the
//! kernel limits, between two machines that are network namespaces. docs/internals/slicing.md has the
//! model.
//!
//! Two workers train, and each machine has a server as well. Nothing is computed: a worker sleeps as
//! long as each layer takes. Wire and computation are slower than in the paper, both by the same
//! factor, so that one processor is fast enough for all. Words after `--` choose the networks.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::cast_possible_truncation, reason = "sizes that fit")]

mod trainer;
#[path = "../../tests/common/wait.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "tests use more of it")]
mod wait;
#[path = "../../tests/common/network.rs"]
#[allow(clippy::unwrap_used, reason = "tests use it as well")]
mod wire;

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use wire::{NEAR, Network};

/// How much slower everything is than in the paper.
const SLOWER: u64 = 8;

/// Speeds of the paper's networks, in Gbit/s.
const SPEEDS: [(&str, [u64; 3]); 2] = [("ResNet-50", [2, 4, 6]), ("VGG-19", [4, 6, 8])];

/// Processes of one run, ended with it.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["process", role, rank, net, way] => return trainer::run(role, rank, net, way),
        ["inside", ref words @ ..] => return measure(words),
        _ => {}
    }
    if !wire::can_be_made() {
        println!("not run: this machine does not let us make networks");
        return Ok(());
    }
    let status = wire::inside().arg("inside").args(&arguments).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("the measurement has failed")) }
}

fn measure(words: &[&str]) -> io::Result<()> {
    let network = Network::new();
    for (net, speeds) in SPEEDS {
        if !words.is_empty() && !words.iter().any(|word| net.contains(word)) {
            continue;
        }
        println!("\n{net}, two workers and two servers on two machines:\n");
        println!("| Gbit/s | whole, ms | slices, ms | urgent, ms | slices | urgent |");
        println!("|---|---|---|---|---|---|");
        for gbits in speeds {
            network.limit(&format!("{}mbit", gbits * 1_000 / SLOWER));
            let mut all = Vec::new();
            for way in ["whole", "slices", "urgent"] {
                all.push(train(&network, net, way)?);
            }
            let ms: Vec<String> = all.iter().map(|it| format!("{:.0}", it * 1e3)).collect();
            let gain = |fast: f64| format!("{:+.1} %", (all[0] / fast - 1.0) * 100.0);
            let (ms, slices, urgent) = (ms.join(" | "), gain(all[1]), gain(all[2]));
            println!("| {gbits} | {ms} | {slices} | {urgent} |");
        }
    }
    Ok(())
}

/// Starts a job; gives the seconds of an iteration, as they would be in the paper.
fn train(network: &Network, net: &str, way: &str) -> io::Result<f64> {
    let this = std::env::current_exe()?;
    let far = network.way();
    let mut processes = Processes(Vec::new());
    let mut first = None;
    for (role, rank) in
        [("scheduler", "0"), ("server", "0"), ("server", "1"), ("worker", "0"), ("worker", "1")]
    {
        let mut command = if rank == "0" {
            Command::new(&this)
        } else {
            let mut command = Command::new(&far[0]);
            command.args(&far[1..]).arg(&this);
            command
        };
        command.args(["process", role, rank, net, way]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        if (role, rank) == ("worker", "0") {
            first = child.stdout.take();
        }
        processes.0.push(child);
    }
    let mut line = String::new();
    BufReader::new(first.ok_or_else(|| io::Error::other("no worker"))?).read_line(&mut line)?;
    line.trim().parse().map_err(|_| io::Error::other(format!("a worker says {line:?}")))
}

/// Where the scheduler is.
fn root() -> String {
    format!("{NEAR}:9000")
}
