//! A connection to the agent of another machine, through ssh or srun.

use std::collections::HashMap;
use std::io::{self, BufReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::SIGKILL;

use crate::ending::ExitReason;
use crate::launch::hosts::agent_protocol::{
    self, AgentFrame, AgentOrder, AgentReport, StartRequest,
};
use crate::launch::plan::{OutputStream, SignalTarget};
use crate::launch::processes::local::LocalProcesses;
use crate::launch::processes::output::OutputSource;
use crate::sys;

/// Timeout of a login.
const LOGIN: Duration = Duration::from_secs(60);
/// Timeout for the end of a program that has closed its output.
const END_LIMIT: Duration = Duration::from_millis(500);
const END_STEP: Duration = Duration::from_millis(2);

/// Events of a connection.
#[derive(Debug)]
pub(crate) enum AgentNews {
    Report(AgentReport),
    /// The connection has ended, with the reason.
    Closed(String),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct AgentConnection {
    pub(crate) host: String,
    /// ssh or srun.
    process: Child,
    program: String,
    /// None once it is closed.
    orders: Option<Sender<Option<AgentOrder>>>,
    /// Whether forwarding its output is blocked on the reader of ours (backpressure).
    held_up: Arc<AtomicBool>,
    /// The members of the job on this host.
    pub(crate) members: Vec<usize>,
    /// Whether a descendant of them is alive, once the agent has reported it.
    pub(crate) left_over: Option<bool>,
    pub(crate) is_open: bool,
}

/// State shared by the threads of a connection, and their event sink.
struct ConnectionReader<T> {
    host: String,
    pipes: HashMap<(usize, OutputStream), PipeWriter>,
    orders: Sender<Option<AgentOrder>>,
    held_up: Arc<AtomicBool>,
    silence: Duration,
    tell: T,
}

/// Output pipes, each with the member of the job that writes; None is the connection itself.
pub(crate) type HostSources = Vec<(Option<usize>, OutputSource)>;

impl AgentConnection {
    /// Connects, and orders the start of processes. Only the main thread may call this.
    pub(crate) fn start(
        children: &LocalProcesses,
        mut command: Command,
        host: &str,
        start: StartRequest,
        tell: impl FnMut(AgentNews) + Send + 'static,
    ) -> Result<(Self, HostSources)> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (err, err_writer) = OutputSource::new(OutputStream::Err)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(err_writer);
        let process = children.start_connection(&mut command);
        let mut process = process.with_context(|| format!("cannot run {program}"))?;
        drop(command);
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (stdin, stdout) = pipes.context("a program without input and output")?;
        let silence = Duration::from_millis(start.silence_ms.into());
        let members: Vec<usize> = start.processes.iter().map(|(member, _)| *member).collect();
        let (mut pipes, mut sources) = (HashMap::new(), vec![(None, err)]);
        for &member in &members {
            for stream in [OutputStream::Out, OutputStream::Err] {
                let (source, writer) = OutputSource::new(stream)?;
                pipes.insert((member, stream), writer);
                sources.push((Some(member), source));
            }
        }
        let (orders, queue) = mpsc::channel();
        let held_up = Arc::new(AtomicBool::new(false));
        let reader = ConnectionReader {
            host: host.to_owned(),
            pipes,
            orders: orders.clone(),
            held_up: Arc::clone(&held_up),
            silence,
            tell,
        };
        let _ = orders.send(Some(AgentOrder::Start(start)));
        let beat = (silence / 5).min(Duration::from_secs(1));
        spawn("orders", move || write_orders(stdin, &queue, beat))?;
        spawn("reports", move || reader.run(stdout))?;
        let remote = Self {
            host: host.to_owned(),
            process,
            program,
            orders: Some(orders),
            held_up,
            members,
            left_over: None,
            is_open: true,
        };
        Ok((remote, sources))
    }

    pub(crate) fn signal(&self, audience: SignalTarget, signal: i32) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(Some(AgentOrder::Signal(audience, signal)));
        }
    }

    /// Closes the connection to the agent, which then kills all its processes.
    pub(crate) fn close(&mut self) {
        if let Some(orders) = self.orders.take() {
            let _ = orders.send(None);
        }
    }

    /// Whether the agent is blocked on the reader of our output (backpressure).
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_open && self.held_up.load(Ordering::Relaxed)
    }

    /// The exit of ssh or srun, if it has ended; waits a moment for it.
    pub(crate) fn ending(&self) -> Option<String> {
        let start = Instant::now();
        loop {
            match sys::ending(self.process.id()) {
                Some(ending @ (ExitReason::Status(1..) | ExitReason::Signal(_))) => {
                    return Some(format!("{} ended with {ending}", self.program));
                }
                Some(_) => return None,
                None if start.elapsed() > END_LIMIT => return None,
                None => thread::sleep(END_STEP),
            }
        }
    }

    /// Ends ssh or srun, if it still lives.
    pub(crate) fn finish(mut self) {
        sys::signal_group(self.process.id(), SIGKILL);
        let _ = self.process.wait();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Writes orders up to None, and a heartbeat at each interval without any. Then the input is
/// closed.
fn write_orders(mut input: ChildStdin, queue: &mpsc::Receiver<Option<AgentOrder>>, beat: Duration) {
    loop {
        let order = match queue.recv_timeout(beat) {
            Ok(Some(order)) => order,
            Err(RecvTimeoutError::Timeout) => AgentOrder::Alive,
            Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
        };
        if agent_protocol::write_order(&mut input, &order).is_err() {
            return;
        }
    }
}

impl<T: FnMut(AgentNews)> ConnectionReader<T> {
    /// Parses the agent's output until its end.
    fn run(mut self, output: ChildStdout) {
        let limited = TimedReader { output, limit: LOGIN };
        let mut from = BufReader::with_capacity(128 << 10, limited);
        let why = match agent_protocol::read_greeting(&mut from) {
            Ok(()) => {
                from.get_mut().limit = self.silence;
                self.pass_on(&mut from)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                format!("kvstore does not start on {}", self.host)
            }
            Err(error) => format!("no connection to {}: {error}", self.host),
        };
        (self.tell)(AgentNews::Closed(why));
    }

    fn pass_on(&mut self, from: &mut impl Read) -> String {
        loop {
            match agent_protocol::read_frame(from) {
                Ok(AgentFrame::Report(report)) => (self.tell)(AgentNews::Report(report)),
                Ok(AgentFrame::Output(process, stream, bytes)) => self.put(process, stream, &bytes),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return format!("the connection to {} has ended", self.host);
                }
                Err(error) => return format!("the connection to {} is lost: {error}", self.host),
            }
        }
    }

    /// Forwards output. When our own reader has gone, the process is to get a broken pipe.
    fn put(&mut self, process: usize, stream: OutputStream, bytes: &[u8]) {
        let Some(writer) = self.pipes.get_mut(&(process, stream)) else { return };
        self.held_up.store(true, Ordering::Relaxed);
        let result = writer.write_all(bytes);
        self.held_up.store(false, Ordering::Relaxed);
        if result.is_err() {
            self.pipes.remove(&(process, stream));
            let _ = self.orders.send(Some(AgentOrder::Mute(process, stream)));
        }
    }
}

/// Standard output of a program that must not be silent for longer than a limit.
struct TimedReader {
    output: ChildStdout,
    limit: Duration,
}

impl Read for TimedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let ready = sys::readable(&[self.output.as_fd()], Some(self.limit))?;
        if ready == [true] {
            return self.output.read(into);
        }
        let text = format!("no sign of life for {} ms", self.limit.as_millis());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}
