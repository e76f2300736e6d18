//! MXNet 1.9.1's distributed store, in processes of its own: `peer.py`.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::Subject;
use crate::cases::Case;
use crate::processes::Processes;
use crate::wait::free_address;

const PYTHON: &str = "target/bench/venv/bin/python";
/// The subject's name.
pub const NAME: &str = "MXNet, push + pull";
const SCRIPT: &str = "benches/dist/peer.py";

pub struct Mxnet {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    processes: Processes,
}

impl Mxnet {
    /// None where it is not installed.
    pub fn start(case: &Case) -> io::Result<Option<Self>> {
        if !Path::new(PYTHON).exists() {
            println!("MXNet: left out; `make bench-peers` installs it.");
            return Ok(None);
        }
        let root = free_address();
        let (host, port) = root.rsplit_once(':').unwrap_or(("127.0.0.1", "0"));
        let mut processes = Processes::default();
        let mut pipes = None;
        for role in ["scheduler", "server", "worker"] {
            let mut command = Command::new(PYTHON);
            command
                .arg(SCRIPT)
                .env("DMLC_ROLE", role)
                .env("DMLC_PS_ROOT_URI", host)
                .env("DMLC_PS_ROOT_PORT", port)
                .env("DMLC_NUM_WORKER", "1")
                .env("DMLC_NUM_SERVER", "1")
                .env("DMLC_INTERFACE", "lo")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let child = processes.spawn(&mut command)?;
            pipes = child.stdin.take().zip(child.stdout.take());
        }
        let (to, from) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut this = Self { to, from: BufReader::new(from), processes };
        this.ask(&json!({"keys": case.keys, "rule": case.rule}))?;
        Ok(Some(this))
    }

    fn ask(&mut self, request: &Value) -> io::Result<Value> {
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::Error::other("MXNet ended before its answer"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Subject for Mxnet {
    fn name(&self) -> String {
        NAME.into()
    }

    fn run(&mut self, rounds: usize) -> io::Result<Vec<f64>> {
        let answer = self.ask(&json!({"rounds": rounds}))?;
        let seconds = answer["seconds"].as_array().cloned().unwrap_or_default();
        Ok(seconds.iter().filter_map(Value::as_f64).collect())
    }

    fn processes(&self) -> &Processes {
        &self.processes
    }
}
