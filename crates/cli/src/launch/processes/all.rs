//! All processes of a job, on this machine and on others.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use kvstore::Role;

use crate::ending::{ExitReason, Failure};
use crate::launch::hosts::agent_protocol::{AgentReport, StartRequest};
use crate::launch::hosts::agents::{AgentConnection, AgentNews};
use crate::launch::plan::{Process, ProcessName, SignalTarget};
use crate::launch::processes::local::LocalProcesses;
use crate::launch::processes::output::{OutputLabel, OutputSource};

/// The command that starts processes on another machine.
#[derive(Debug, Clone)]
pub(crate) struct RemoteShell {
    /// The program and its first arguments; not empty.
    pub(crate) words: Vec<String>,
    /// Prefix of the host in the next argument.
    pub(crate) before_host: &'static str,
    /// The further arguments.
    pub(crate) rest: Vec<String>,
    /// The folder of the processes there.
    pub(crate) folder: String,
    /// Milliseconds of silence after which the peer counts as lost.
    pub(crate) silence_ms: u32,
}

impl RemoteShell {
    fn command(&self, host: &str) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command.arg(format!("{}{host}", self.before_host)).args(&self.rest);
        command
    }
}

/// A process of the job.
#[derive(Debug)]
pub(crate) struct JobProcess {
    pub(crate) name: ProcessName,
    /// None is this machine.
    pub(crate) host: Option<String>,
    /// Its process id on its machine, once known.
    pub(crate) number: Option<u32>,
    pub(crate) started: Instant,
    /// Why it could not be started.
    pub(crate) refusal: Option<String>,
    /// The number by which the launcher announces its end.
    launch: Option<String>,
    has_ended: bool,
    /// Descendants on another machine outlive it.
    lives_on: bool,
}

impl JobProcess {
    /// Its name in messages.
    pub(crate) fn title(&self) -> String {
        match &self.host {
            Some(host) => format!("{} on {host}", self.name),
            None => self.name.to_string(),
        }
    }

    /// A line with its process id.
    pub(crate) fn started_line(&self) -> String {
        format!("{} is process {}", self.title(), self.number.unwrap_or(0))
    }

    fn label(&self) -> OutputLabel {
        let rank = (self.name.role == Role::Worker).then_some(self.name.rank);
        OutputLabel { text: self.title(), rank }
    }
}

/// The processes of a job.
#[derive(Debug)]
pub(crate) struct Processes {
    here: LocalProcesses,
    remotes: Vec<AgentConnection>,
    pub(crate) members: Vec<JobProcess>,
    /// Ends reported by connections.
    ended: Vec<(usize, ExitReason)>,
    closing: bool,
    /// Whether the user wants to know of each start.
    verbose: bool,
}

pub(crate) type LabeledOutputs = Vec<(OutputLabel, OutputSource)>;

impl Processes {
    /// `files` are removed with the launcher.
    pub(crate) fn new(files: &[PathBuf], verbose: bool) -> io::Result<Self> {
        Ok(Self {
            here: LocalProcesses::new(files)?,
            remotes: Vec::new(),
            members: Vec::new(),
            ended: Vec::new(),
            closing: false,
            verbose,
        })
    }

    /// Starts processes on this machine, and returns their output pipes.
    pub(crate) fn start_here(
        &mut self,
        processes: Vec<Process>,
    ) -> Result<LabeledOutputs, Failure> {
        let mut sources = Vec::new();
        for process in processes {
            let member = self.members.len();
            let started = self.here.start(member, &process);
            let (number, pair) = started.map_err(|failure| failure.of(process.name))?;
            let label = self.add(&process, None, Some(number));
            sources.extend(pair.map(|source| (label.clone(), source)));
        }
        Ok(sources)
    }

    /// Orders the start of processes on another machine.
    pub(crate) fn start_there(
        &mut self,
        host: &str,
        route: &RemoteShell,
        processes: Vec<Process>,
        mut tell: impl FnMut((usize, AgentNews)) + Send + 'static,
    ) -> anyhow::Result<LabeledOutputs> {
        let first = self.members.len();
        for process in &processes {
            self.add(process, Some(host.to_owned()), None);
        }
        let start = StartRequest {
            version: kvstore::VERSION.to_owned(),
            folder: route.folder.clone(),
            silence_ms: route.silence_ms,
            processes: (first..).zip(processes).collect(),
        };
        let index = self.remotes.len();
        let tell = move |news| tell((index, news));
        let (remote, sources) =
            AgentConnection::start(&self.here, route.command(host), host, start, tell)?;
        self.remotes.push(remote);
        let own = OutputLabel { text: format!("host {host}"), rank: None };
        let label = |member: Option<usize>| {
            member.map_or_else(|| own.clone(), |member| self.members[member].label())
        };
        Ok(sources.into_iter().map(|(member, source)| (label(member), source)).collect())
    }

    fn add(&mut self, process: &Process, host: Option<String>, number: Option<u32>) -> OutputLabel {
        let member = JobProcess {
            name: process.name,
            host,
            number,
            started: Instant::now(),
            refusal: None,
            launch: process.launch.clone(),
            has_ended: false,
            lives_on: false,
        };
        let label = member.label();
        self.members.push(member);
        label
    }

    /// Handles the news of a connection; returns a line for the user, if there is one.
    pub(crate) fn hear(&mut self, (connection, news): (usize, AgentNews)) -> Option<String> {
        let report = match news {
            AgentNews::Report(report) => report,
            AgentNews::Closed(why) => return self.closed(connection, &why),
        };
        let remote = &mut self.remotes[connection];
        match report {
            // A connection may report only processes of its own host.
            AgentReport::Started(member, _)
            | AgentReport::Failed(member, ..)
            | AgentReport::Ended(member, _)
            | AgentReport::LivesOn(member)
                if !remote.members.contains(&member) => {}
            AgentReport::Alive => {}
            AgentReport::Started(member, number) => {
                self.members[member].number = Some(number);
                return self.verbose.then(|| self.members[member].started_line());
            }
            AgentReport::Failed(member, text, status) => {
                let line = format!("cannot start {}: {text}", self.members[member].title());
                self.members[member].refusal = Some(text);
                self.end(member, ExitReason::Status(status.into()));
                return Some(line);
            }
            AgentReport::Ended(member, ending) => self.end(member, ending),
            AgentReport::LivesOn(member) => self.members[member].lives_on = true,
            AgentReport::LeftOver(left_over) => remote.left_over = Some(left_over),
            AgentReport::Useless(text) => {
                let line = format!("{}: {text}", remote.host);
                self.lose(connection);
                return Some(line);
            }
        }
        None
    }

    fn end(&mut self, member: usize, ending: ExitReason) {
        if !std::mem::replace(&mut self.members[member].has_ended, true) {
            self.ended.push((member, ending));
        }
    }

    /// A connection has ended; its unreported ends will never be known.
    fn closed(&mut self, connection: usize, why: &str) -> Option<String> {
        let told = self.remotes[connection].left_over.is_some();
        let missing = self.lose(connection);
        let remote = &mut self.remotes[connection];
        remote.is_open = false;
        remote.close();
        if self.closing || (told && !missing) {
            return None;
        }
        let how = remote.ending().map_or(String::new(), |how| format!(" ({how})"));
        Some(format!("{why}{how}"))
    }

    /// Counts the processes of a connection as lost; returns whether there were any.
    fn lose(&mut self, connection: usize) -> bool {
        let members = self.remotes[connection].members.clone();
        let before = self.ended.len();
        members.into_iter().for_each(|member| self.end(member, ExitReason::Lost));
        self.remotes[connection].left_over = Some(false);
        self.ended.len() > before
    }

    /// The processes that have ended since the last call, those killed by a signal first: in doubt
    /// they were the cause.
    pub(crate) fn newly_ended(&mut self) -> Vec<(usize, ExitReason)> {
        for (member, ending) in self.here.newly_ended() {
            self.end(member, ending);
        }
        let mut ended = std::mem::take(&mut self.ended);
        ended.sort_by_key(|(_, ending)| matches!(ending, ExitReason::Status(_)));
        ended
    }

    /// Sends a signal to processes and their descendants.
    pub(crate) fn signal(&self, audience: SignalTarget, signal: i32) {
        self.here.signal(audience, signal);
        self.remotes.iter().for_each(|remote| remote.signal(audience, signal));
    }

    /// Whether a descendant of one of these is alive and has not left its group.
    pub(crate) fn have_left_over(&self) -> bool {
        self.remotes.iter().any(|remote| remote.left_over != Some(false))
            || self.here.have_left_over()
    }

    /// Whether a descendant of this member is alive, or was when it failed on another machine.
    pub(crate) fn lives_on(&self, member: usize) -> bool {
        self.members[member].lives_on || self.here.lives_on(member)
    }

    /// The number of a member whose failure the scheduler is to know, as it has ended with all that it started.
    pub(crate) fn launch_of_dead(&self, member: usize, ending: ExitReason) -> Option<&str> {
        let launch = self.members[member].launch.as_deref()?;
        // A lost connection to a host is no end of the processes there.
        let is_end = ending.is_failure() && ending != ExitReason::Lost;
        (is_end && !self.lives_on(member)).then_some(launch)
    }

    /// Makes the agents kill all remaining processes.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.remotes.iter_mut().for_each(AgentConnection::close);
    }

    /// Whether agents have unreported ends or output of their processes.
    pub(crate) fn is_open(&self) -> bool {
        self.remotes.iter().any(|remote| remote.is_open)
    }

    /// Whether an agent is blocked on the reader of our output (backpressure).
    pub(crate) fn is_held_up(&self) -> bool {
        self.remotes.iter().any(AgentConnection::is_held_up)
    }

    /// Kills all remaining local processes, and returns the unreported ends.
    pub(crate) fn finish(mut self) -> (Vec<JobProcess>, Vec<(usize, ExitReason)>) {
        let mut ended = self.newly_ended();
        self.remotes.into_iter().for_each(AgentConnection::finish);
        ended.extend(self.here.finish());
        (self.members, ended)
    }
}
