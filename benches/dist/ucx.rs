//! UCX over TCP by its own benchmark, `ucx_perftest`: a message of a case's bytes goes to the other process and
//! comes back.

use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Subject;
use crate::cases::Case;
use crate::common::wait::free_address;
use crate::processes::Processes;

const PROGRAM: &str = "ucx_perftest";

pub struct Ucx {
    bytes: usize,
    processes: Processes,
}

/// None where it is not installed, and for several keys or a rule: it sends single messages.
pub fn start(case: &Case) -> Option<Ucx> {
    if !case.rule.is_empty() || case.keys.len() > 1 {
        return None;
    }
    let found =
        Command::new(PROGRAM).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        println!("UCX: left out; it is in the package ucx-utils of Debian.");
        return None;
    }
    Some(Ucx { bytes: case.bytes(), processes: Processes::default() })
}

fn command(port: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["-p", port]).env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo");
    command.env("UCX_LOG_LEVEL", "fatal").stdin(Stdio::null()).stderr(Stdio::null());
    command
}

impl Ucx {
    /// Runs it once the server listens.
    fn client(&self, port: &str, rounds: usize) -> io::Result<String> {
        let (size, count) = (self.bytes.to_string(), rounds.to_string());
        for _ in 0..200 {
            let mut client = command(port);
            client.args(["-t", "tag_lat", "-w", "1", "-s", &size, "-n", &count, "127.0.0.1"]);
            let output = client.output()?;
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(io::Error::other("ucx_perftest does not reach its other process"))
    }
}

impl Subject for Ucx {
    fn name(&self) -> String {
        "UCX over TCP, there and back".into()
    }

    /// The median of all rounds for each of them: it prints no single ones.
    fn run(&mut self, rounds: usize) -> io::Result<Vec<f64>> {
        let root = free_address();
        let port = root.rsplit_once(':').map_or("0", |(_, port)| port);
        self.processes = Processes::default();
        self.processes.spawn(command(port).stdout(Stdio::null()))?;
        let text = self.client(port, rounds)?;
        let last = text.lines().rev().find(|line| line.contains("Final"));
        // Behind the word and the number of rounds: the median time of one direction in microseconds.
        let one_way: Option<f64> =
            last.and_then(|line| line.split_whitespace().nth(2)?.parse().ok());
        let one_way = one_way.ok_or_else(|| io::Error::other(format!("no result in: {text}")))?;
        Ok(vec![2.0 * one_way / 1e6; rounds])
    }

    /// Its processes end with each turn, so their processor time is not counted.
    fn processes(&self) -> &Processes {
        &self.processes
    }
}
