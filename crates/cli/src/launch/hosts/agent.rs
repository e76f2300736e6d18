//! The launcher's agent on another machine: starts processes, forwards their output and signals,
//! and kills them when the launcher is silent for too long.
//!
//! `kvstore run` starts it by ssh or srun, see `agents.rs`. The main thread never writes, so that a
//! connection that hangs does not block it.

use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use signal_hook::consts::{SIGCHLD, SIGHUP};

use crate::ending::Failure;
use crate::launch::hosts::agent_protocol::{self, AgentOrder, AgentReport, StartRequest};
use crate::launch::plan::{OutputStream, SignalTarget};
use crate::launch::processes::local::LocalProcesses;
use crate::launch::processes::output::{self, OpenSource, OutputForm};
use crate::launch::processes::signals;
use crate::sys;

/// Timeout of the first order.
const FIRST_ORDER: Duration = Duration::from_secs(60);
/// Timeout for forwarding the last output.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Poll interval for the end of orphaned descendants: the system sends no signal for them.
const LEFT_OVER_STEP: Duration = Duration::from_millis(20);

enum AgentEvent {
    Order(AgentOrder),
    /// No further order can arrive.
    Closed,
    Signal(i32),
    /// All output has been forwarded, or all reports have.
    Written,
}

/// Standard output, for whole frames of several threads.
#[derive(Clone)]
struct FrameOutput(Arc<Mutex<File>>);

impl Write for FrameOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Output as frames.
struct FramedOutput {
    process: usize,
    stream: OutputStream,
    /// Whether the launcher no longer reads it.
    is_muted: Arc<AtomicBool>,
}

impl OutputForm for FramedOutput {
    fn take(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        agent_protocol::put_output(self.process, self.stream, bytes, text);
    }

    fn is_wanted(&self) -> bool {
        !self.is_muted.load(Ordering::Relaxed)
    }
}

/// A running agent.
struct Agent {
    children: LocalProcesses,
    reports: Sender<AgentReport>,
    /// Marks of outputs that the launcher no longer reads.
    muted: HashMap<(usize, OutputStream), Arc<AtomicBool>>,
    /// Whether a descendant of the children is alive; None before all children have ended.
    left_over: Option<bool>,
    /// Number of threads that still write to the connection.
    writers: u32,
}

/// Serves one launcher until the job has ended.
pub(crate) fn serve() -> Result<ExitCode> {
    ensure!(!io::stdin().is_terminal(), Failure::usage("only `kvstore run` starts this"));
    sys::raise_file_limit();
    let connection = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut connection = FrameOutput(Arc::new(Mutex::new(connection)));
    let (sender, events) = mpsc::channel();
    let signalled = sender.clone();
    signals::watch(&[signals::ending(), vec![SIGCHLD]].concat(), move |signal| {
        let _ = signalled.send(AgentEvent::Signal(signal));
    })?;
    connection.write_all(agent_protocol::GREETING)?;
    let reports = report_on(connection.clone(), sender.clone())?;
    listen(sender.clone())?;
    let Ok(AgentEvent::Order(AgentOrder::Start(start))) = events.recv_timeout(FIRST_ORDER) else {
        bail!("the launcher does not say what to start");
    };
    let silence = Duration::from_millis(start.silence_ms.into());
    let (mut agent, sources) = match Agent::start(&start, &reports) {
        Ok(started) => started,
        Err(error) => {
            let _ = reports.send(AgentReport::Useless(format!("{error:#}")));
            // Until the launcher has received it, and closes the connection.
            while !matches!(events.recv_timeout(silence), Ok(AgentEvent::Closed) | Err(_)) {}
            return Ok(ExitCode::SUCCESS);
        }
    };
    let closer = output::copy_in_form(sources, connection.clone(), connection, move || {
        let _ = sender.send(AgentEvent::Written);
    })?;
    drop(reports);
    agent.work(&events, silence);
    agent.finish(closer, &events);
    // A thread may still wait for a connection that hangs.
    process::exit(0);
}

/// Forwards orders, on a thread of its own.
fn listen(sender: Sender<AgentEvent>) -> io::Result<()> {
    let work = move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(order)) = agent_protocol::read_order(&mut input) {
            let _ = sender.send(AgentEvent::Order(order));
        }
        let _ = sender.send(AgentEvent::Closed);
    };
    thread::Builder::new().name("orders".into()).spawn(work).map(drop)
}

/// Writes reports, on a thread of its own.
fn report_on(
    mut connection: FrameOutput,
    done: Sender<AgentEvent>,
) -> io::Result<Sender<AgentReport>> {
    let (sender, reports) = mpsc::channel();
    let work = move || {
        let _ = reports.iter().try_for_each(|report| {
            let mut frame = Vec::new();
            agent_protocol::put_report(&report, &mut frame);
            connection.write_all(&frame)
        });
        let _ = done.send(AgentEvent::Written);
    };
    thread::Builder::new().name("reports".into()).spawn(work)?;
    Ok(sender)
}

impl Agent {
    fn start(
        start: &StartRequest,
        reports: &Sender<AgentReport>,
    ) -> Result<(Self, Vec<OpenSource<FramedOutput>>)> {
        let (ours, theirs) = (kvstore::VERSION, &start.version);
        ensure!(ours == theirs, "kvstore is release {ours} there, and {theirs} here");
        env::set_current_dir(&start.folder)
            .with_context(|| format!("cannot enter the folder {} there", start.folder))?;
        let mut agent = Self {
            children: LocalProcesses::new(&[])?,
            reports: reports.clone(),
            muted: HashMap::new(),
            left_over: None,
            writers: 2,
        };
        let mut sources = Vec::new();
        for &(process, ref command) in &start.processes {
            match agent.children.start(process, command) {
                Ok((number, pair)) => {
                    agent.report(AgentReport::Started(process, number));
                    sources.extend(pair.map(|source| {
                        let (stream, is_muted) = (source.stream, Arc::default());
                        agent.muted.insert((process, stream), Arc::clone(&is_muted));
                        OpenSource { source, form: FramedOutput { process, stream, is_muted } }
                    }));
                }
                Err(error) => agent.report(AgentReport::Failed(process, error.text, error.status)),
            }
        }
        Ok((agent, sources))
    }

    fn report(&self, report: AgentReport) {
        let _ = self.reports.send(report);
    }

    /// Executes orders until the launcher falls silent.
    fn work(&mut self, events: &Receiver<AgentEvent>, silence: Duration) {
        let beat = (silence / 5).min(Duration::from_secs(1));
        let (mut heard, mut said) = (Instant::now(), Instant::now());
        while heard.elapsed() < silence {
            self.look();
            if said.elapsed() >= beat {
                self.report(AgentReport::Alive);
                said = Instant::now();
            }
            let limit = if self.left_over == Some(true) { LEFT_OVER_STEP } else { beat };
            match events.recv_timeout(limit) {
                Ok(AgentEvent::Order(order)) => {
                    heard = Instant::now();
                    self.obey(&order);
                }
                Ok(AgentEvent::Signal(SIGCHLD)) | Err(RecvTimeoutError::Timeout) => {}
                // The launcher no longer reads.
                Ok(AgentEvent::Written) => {
                    self.writers -= 1;
                    return;
                }
                Ok(AgentEvent::Signal(SIGHUP) | AgentEvent::Closed) | Err(_) => return,
                Ok(AgentEvent::Signal(signal)) => self.children.signal(SignalTarget::All, signal),
            }
        }
    }

    fn obey(&self, order: &AgentOrder) {
        match order {
            AgentOrder::Signal(audience, signal) => self.children.signal(*audience, *signal),
            AgentOrder::Mute(process, stream) => {
                let mark = self.muted.get(&(*process, *stream));
                mark.inspect(|mark| mark.store(true, Ordering::Relaxed));
            }
            AgentOrder::Start(_) | AgentOrder::Alive => {}
        }
    }

    /// Checks which children have ended, and reports them.
    fn look(&mut self) {
        let ended = self.children.newly_ended();
        if self.children.have_ended() && self.left_over != Some(false) {
            let left_over = self.children.have_left_over();
            if self.left_over != Some(left_over) {
                self.report(AgentReport::LeftOver(left_over));
            }
            self.left_over = Some(left_over);
        }
        for (process, ending) in ended {
            if ending.is_failure() && self.children.lives_on(process) {
                self.report(AgentReport::LivesOn(process));
            }
            self.report(AgentReport::Ended(process, ending));
        }
    }

    /// Kills all remaining processes, and forwards the rest of their output.
    fn finish(self, closer: io::PipeWriter, events: &Receiver<AgentEvent>) {
        let Self { children, reports, mut writers, .. } = self;
        for (process, ending) in children.finish() {
            let _ = reports.send(AgentReport::Ended(process, ending));
        }
        drop((closer, reports));
        let end = Instant::now() + LAST_WORDS;
        while writers > 0 {
            match events.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(AgentEvent::Written) => writers -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
