//! A library of Python that makes the same rounds, in processes of its own: it answers a line of JSON with one.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::Subject;
use crate::cases::Case;
use crate::processes::Processes;

pub struct PythonPeer {
    name: &'static str,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    processes: Processes,
}

impl PythonPeer {
    /// Starts processes, the last of which is asked to make the keys of a case.
    pub fn start(
        name: &'static str,
        case: &Case,
        commands: impl Iterator<Item = Command>,
    ) -> io::Result<Self> {
        let mut processes = Processes::default();
        let mut pipes = None;
        for mut command in commands {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let child = processes.spawn(&mut command)?;
            pipes = child.stdin.take().zip(child.stdout.take());
        }
        let (to, from) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut this = Self { name, to, from: BufReader::new(from), processes };
        this.ask(&json!({"keys": case.keys, "rule": case.rule}))?;
        Ok(this)
    }

    fn ask(&mut self, request: &Value) -> io::Result<Value> {
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::Error::other(format!("{} ended before its answer", self.name)));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Subject for PythonPeer {
    fn name(&self) -> String {
        self.name.into()
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
