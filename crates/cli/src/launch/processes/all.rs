//! All processes of a job, on this machine and on others.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use kvstore::Role;

use crate::ending::ExitReason;
use crate::launch::hosts::agent_protocol::{AgentReport, StartRequest};
use crate::launch::hosts::agents::{AgentConnection, AgentNews};
use crate::launch::plan::{Process, ProcessName, SignalTarget};
use crate::launch::processes::local::{LocalProcesses, StartError};
use crate::launch::processes::output::{OutputLabel, OutputSource};

/// The command that starts processes on another machine.
#[derive(Debug, Clone)]
pub(crate) struct RemoteShell {
    /// The program and its first arguments.
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
        let (program, arguments) =
            self.words.split_first().map_or(("", &[][..]), |(program, rest)| (program, rest));
        let mut command = Command::new(program);
        command.args(arguments).arg(format!("{}{host}", self.before_host)).args(&self.rest);
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
    has_ended: bool,
}

impl JobProcess {
    /// Its name in messages.
    pub(crate) fn title(&self) -> String {
        match &self.host {
            Some(host) => format!("{} on {host}", self.name),
            None => self.name.to_string(),
        }
    }

    fn label(&self) -> OutputLabel {
        let rank = (self.name.role == Role::Worker).then_some(self.name.rank);
        OutputLabel { text: self.title(), rank }
    }
}

/// News of a connection for the user.
#[derive(Debug)]
pub(crate) enum HostEvent {
    Started(usize),
    /// A problem to show to the user.
    Trouble(String),
}

/// A process that could not be started here, and why.
#[derive(Debug)]
pub(crate) struct StartRefusal {
    pub(crate) name: ProcessName,
    pub(crate) error: StartError,
}

/// The processes of a job.
#[derive(Debug)]
pub(crate) struct Processes {
    here: LocalProcesses,
    /// The member of each child on this machine.
    children: Vec<usize>,
    remotes: Vec<HostConnection>,
    pub(crate) members: Vec<JobProcess>,
    /// Ends reported by connections.
    ended: Vec<(usize, ExitReason)>,
    closing: bool,
}

#[derive(Debug)]
struct HostConnection {
    remote: AgentConnection,
    members: Vec<usize>,
    left_over: Option<bool>,
    is_open: bool,
}

pub(crate) type LabeledOutputs = Vec<(OutputLabel, OutputSource)>;

impl Processes {
    /// `files` are removed with the launcher.
    pub(crate) fn new(files: &[PathBuf]) -> io::Result<Self> {
        Ok(Self {
            here: LocalProcesses::new(files)?,
            children: Vec::new(),
            remotes: Vec::new(),
            members: Vec::new(),
            ended: Vec::new(),
            closing: false,
        })
    }

    /// Starts processes on this machine, and returns their output pipes.
    pub(crate) fn start_here(
        &mut self,
        processes: Vec<Process>,
    ) -> Result<LabeledOutputs, StartRefusal> {
        let mut sources = Vec::new();
        for process in processes {
            let name = process.name;
            let pair = self.here.start(&process).map_err(|error| StartRefusal { name, error })?;
            self.children.push(self.members.len());
            let label = self.add(name, None, self.here.numbers().last());
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
        mut tell: impl FnMut(usize, AgentNews) + Send + 'static,
    ) -> io::Result<LabeledOutputs> {
        let first = self.members.len();
        for process in &processes {
            self.add(process.name, Some(host.to_owned()), None);
        }
        let start = StartRequest {
            version: kvstore::VERSION.to_owned(),
            folder: route.folder.clone(),
            silence_ms: route.silence_ms,
            processes: (first..).zip(processes).collect(),
        };
        let index = self.remotes.len();
        let tell = move |news| tell(index, news);
        let (remote, (pairs, own)) =
            AgentConnection::start(&self.here, route.command(host), host, start, tell)?;
        let members = (first..self.members.len()).collect();
        self.remotes.push(HostConnection { remote, members, left_over: None, is_open: true });
        let mut sources = vec![(OutputLabel { text: format!("host {host}"), rank: None }, own)];
        for (member, pair) in pairs {
            let label = self.members[member].label();
            sources.extend(pair.map(|source| (label.clone(), source)));
        }
        Ok(sources)
    }

    fn add(&mut self, name: ProcessName, host: Option<String>, number: Option<u32>) -> OutputLabel {
        let started = Instant::now();
        let member = JobProcess { name, host, number, started, refusal: None, has_ended: false };
        let label = member.label();
        self.members.push(member);
        label
    }

    /// Handles the news of a connection.
    pub(crate) fn hear(&mut self, connection: usize, news: AgentNews) -> Option<HostEvent> {
        let report = match news {
            AgentNews::Report(report) => report,
            AgentNews::Closed(why) => return self.closed(connection, &why),
        };
        // A connection may report only processes of its own host.
        let is_its_own = |member: &usize| self.remotes[connection].members.contains(member);
        match report {
            AgentReport::Started(member, _)
            | AgentReport::Failed(member, ..)
            | AgentReport::Ended(member, _)
                if !is_its_own(&member) =>
            {
                None
            }
            AgentReport::Alive => None,
            AgentReport::Started(member, number) => {
                self.members.get_mut(member)?.number = Some(number);
                Some(HostEvent::Started(member))
            }
            AgentReport::Failed(member, text, status) => {
                let known = self.members.get_mut(member)?;
                let trouble = format!("cannot start {}: {text}", known.title());
                known.refusal = Some(text);
                self.end(member, ExitReason::Status(status.into()));
                Some(HostEvent::Trouble(trouble))
            }
            AgentReport::Ended(member, ending) => {
                self.end(member, ending);
                None
            }
            AgentReport::LeftOver(left_over) => {
                self.remotes[connection].left_over = Some(left_over);
                None
            }
            AgentReport::Useless(text) => {
                let trouble = format!("{}: {text}", self.remotes[connection].remote.host);
                self.lose(connection);
                Some(HostEvent::Trouble(trouble))
            }
        }
    }

    fn end(&mut self, member: usize, ending: ExitReason) {
        if let Some(known) = self.members.get_mut(member)
            && !known.has_ended
        {
            known.has_ended = true;
            self.ended.push((member, ending));
        }
    }

    /// A connection has ended; its unreported ends will never be known.
    fn closed(&mut self, connection: usize, why: &str) -> Option<HostEvent> {
        let told = self.remotes[connection].left_over.is_some();
        let missing = self.lose(connection);
        let known = &mut self.remotes[connection];
        known.is_open = false;
        known.remote.close();
        if self.closing || (told && !missing) {
            return None;
        }
        let how = known.remote.ending().map_or(String::new(), |how| format!(" ({how})"));
        Some(HostEvent::Trouble(format!("{why}{how}")))
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
        for (child, ending) in self.here.newly_ended() {
            self.end(self.children[child], ending);
        }
        let mut ended = std::mem::take(&mut self.ended);
        ended.sort_by_key(|(_, ending)| matches!(ending, ExitReason::Status(_)));
        ended
    }

    /// Sends a signal to processes and their descendants.
    pub(crate) fn signal(&self, audience: SignalTarget, signal: i32) {
        self.here.signal(audience, signal);
        self.remotes.iter().for_each(|connection| connection.remote.signal(audience, signal));
    }

    /// Whether a descendant of one of these is alive and has not left its group.
    pub(crate) fn have_left_over(&self) -> bool {
        self.remotes.iter().any(|connection| connection.left_over != Some(false))
            || self.here.have_left_over()
    }

    /// Whether a descendant of this member is alive; unknown for one on another machine.
    pub(crate) fn lives_on(&self, member: usize) -> bool {
        let child = self.children.iter().position(|known| *known == member);
        child.is_some_and(|child| self.here.lives_on(child))
    }

    /// Makes the agents kill all remaining processes.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.remotes.iter_mut().for_each(|connection| connection.remote.close());
    }

    /// Whether agents have unreported ends or output of their processes.
    pub(crate) fn is_open(&self) -> bool {
        self.remotes.iter().any(|connection| connection.is_open)
    }

    /// Whether an agent is blocked on the reader of our output (backpressure).
    pub(crate) fn is_held_up(&self) -> bool {
        self.remotes.iter().any(|connection| connection.is_open && connection.remote.is_held_up())
    }

    /// Kills all remaining local processes, and returns the unreported ends.
    pub(crate) fn finish(mut self) -> (Vec<JobProcess>, Vec<(usize, ExitReason)>) {
        let mut ended = self.newly_ended();
        self.remotes.into_iter().for_each(|connection| connection.remote.finish());
        let children = self.children;
        let here = self.here.finish().into_iter();
        ended.extend(here.map(|(child, ending)| (children[child], ending)));
        (self.members, ended)
    }
}
