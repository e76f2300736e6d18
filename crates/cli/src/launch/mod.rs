//! One job from the start of its processes to the end of the last. Also called: launcher, process
//! manager.

pub(crate) mod hosts;
pub(crate) mod processes;

pub(crate) mod join;
pub(crate) mod np;
pub(crate) mod plan;
pub(crate) mod role_env;
pub(crate) mod run;
pub(crate) mod state;
pub(crate) mod summary;

use std::env;
use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use kvstore::{Config, JobFile, Role};
use signal_hook::consts::SIGCHLD;

use crate::launch::hosts::agents::AgentNews;
use crate::launch::hosts::placement::ProcessPlacement;
use crate::launch::plan::Process;
use crate::launch::processes::all::{
    HostEvent, JobProcess, LabeledOutputs, Processes, StartRefusal,
};
use crate::launch::processes::attendance::{self, AttendanceResult, JoinMonitor};
use crate::launch::processes::output::{self, OutputLabel};
use crate::launch::state::{GraceTimes, JobState};
use crate::messages;

/// Poll interval for the end of orphaned descendants: the system sends no signal for them.
const LEFT_OVER_STEP: Duration = Duration::from_millis(20);
/// Timeout for the end and the last report of agents.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Events of the launcher.
pub(crate) enum LaunchEvent {
    Signal(i32),
    /// All output has been forwarded.
    Copied,
    /// Attendance of the job with this number.
    Attendance(u32, AttendanceResult),
    /// News of a connection of the job with this number.
    News(u32, usize, AgentNews),
}

/// Why a job could not be started.
pub(crate) enum LaunchFailure {
    Process(StartRefusal),
    System(io::Error),
}

impl From<StartRefusal> for LaunchFailure {
    fn from(refused: StartRefusal) -> Self {
        LaunchFailure::Process(refused)
    }
}

impl From<io::Error> for LaunchFailure {
    fn from(error: io::Error) -> Self {
        LaunchFailure::System(error)
    }
}

impl LaunchFailure {
    /// Prints it as this subcommand, and returns the exit status.
    pub(crate) fn tell(&self, command: &str) -> ExitCode {
        match self {
            LaunchFailure::Process(StartRefusal { name, error }) => {
                messages::say(command, format_args!("cannot start {name}: {}", error.text));
                ExitCode::from(error.status)
            }
            LaunchFailure::System(error) => {
                messages::say(command, error);
                ExitCode::FAILURE
            }
        }
    }
}

/// The inputs of a launcher beside the processes.
pub(crate) struct LaunchContext<'a> {
    /// The name of the subcommand in messages.
    pub(crate) command: &'static str,
    /// Whether the first worker's lines are forwarded without its name.
    pub(crate) is_plain: bool,
    pub(crate) site: &'a ProcessPlacement,
    /// The file with the token of the job.
    pub(crate) file: Option<&'a JobFile>,
    /// Configuration of the attendance observer, where programs may be slow.
    pub(crate) target: Option<Config>,
    pub(crate) patience: GraceTimes,
    /// Whether the job goes on without workers that fail.
    pub(crate) goes_on: bool,
    pub(crate) verbose: bool,
    /// Distinguishes this job from earlier ones of the launcher.
    pub(crate) serial: u32,
    pub(crate) sender: Sender<LaunchEvent>,
    pub(crate) events: &'a Receiver<LaunchEvent>,
}

/// How a job ended.
pub(crate) struct JobOutcome {
    pub(crate) status: u8,
    /// Whether a restart may succeed.
    pub(crate) may_be_repeated: bool,
}

impl LaunchContext<'_> {
    /// Runs a job until it has ended.
    pub(crate) fn run(&self, processes: Vec<Process>) -> Result<JobOutcome, LaunchFailure> {
        let mut crew = Processes::new(self.file.map_or(&[], JobFile::paths))?;
        let sources = match self.start(&mut crew, processes) {
            Ok(sources) => sources,
            Err(failure) => {
                crew.close();
                crew.finish();
                return Err(failure);
            }
        };
        for member in crew.members.iter().filter(|member| self.verbose && member.host.is_none()) {
            self.say(format_args!("{} is process {}", member.name, member.number.unwrap_or(0)));
        }
        let sender = self.sender.clone();
        let closer = output::copy(self.labelled(sources), move || {
            let _ = sender.send(LaunchEvent::Copied);
        })?;
        let roles = crew.members.iter().map(|member| member.name.role);
        let mut job = JobState::new(roles, self.patience).go_on(self.goes_on);
        self.supervise(&mut job, &mut crew);
        crew.close();
        self.wait_for_agents(&mut job, &mut crew);
        let (members, ended) = crew.finish();
        for (member, ending) in ended {
            job.ended(member, ending, Instant::now());
        }
        drop(closer);
        self.wait_for_output();
        if job.status() != 0 || job.has_lost_workers() || self.verbose {
            summary::lines(&members, &job).iter().for_each(|line| self.say(line));
        }
        let was_refused = members.iter().any(|member| member.refusal.is_some());
        let may_be_repeated = job.first_failure().is_some() && !job.was_signalled() && !was_refused;
        Ok(JobOutcome { status: job.status(), may_be_repeated })
    }

    fn say(&self, text: impl std::fmt::Display) {
        messages::say(self.command, text);
    }

    fn labelled(&self, mut sources: LabeledOutputs) -> LabeledOutputs {
        let first = |label: &OutputLabel| self.is_plain && label.rank == Some(0);
        for (label, _) in sources.iter_mut().filter(|(label, _)| first(label)) {
            label.text.clear();
        }
        sources
    }

    fn start(
        &self,
        crew: &mut Processes,
        processes: Vec<Process>,
    ) -> Result<LabeledOutputs, LaunchFailure> {
        let mut sources = Vec::new();
        for (host, processes) in self.site.divide(processes, env::vars_os) {
            let Some((host, route)) = host else {
                sources.extend(crew.start_here(processes)?);
                continue;
            };
            let (sender, serial) = (self.sender.clone(), self.serial);
            let tell = move |connection, news| {
                let _ = sender.send(LaunchEvent::News(serial, connection, news));
            };
            sources.extend(crew.start_there(host, route, processes, tell)?);
        }
        Ok(sources)
    }

    /// Runs the event loop of the job until no event is expected any more.
    fn supervise(&self, job: &mut JobState, crew: &mut Processes) {
        let mut attendance = self.attendance();
        loop {
            let now = Instant::now();
            for (member, ending) in crew.newly_ended() {
                job.ended(member, ending, now);
                if !ending.is_failure() && crew.members[member].name.role == Role::Worker {
                    attendance.ended(job.workers_have_ended(), now);
                }
            }
            let empty = job.all_have_ended();
            if empty {
                job.emptied(crew.have_left_over(), now);
            }
            job.tick(now);
            attendance.tick(now);
            for (audience, signal) in job.take_signals() {
                crew.signal(audience, signal);
            }
            if job.is_over() {
                return;
            }
            let step = empty.then_some(LEFT_OVER_STEP);
            let deadlines = job.deadline().into_iter().chain(attendance.deadline());
            let rest = deadlines.map(|deadline| deadline.saturating_duration_since(now));
            match self.wait(step.into_iter().chain(rest).min()) {
                Some(LaunchEvent::Signal(signal)) if signal != SIGCHLD => {
                    job.signalled(signal, Instant::now());
                }
                Some(LaunchEvent::News(serial, connection, news)) => {
                    self.hear(crew, serial, connection, news);
                }
                Some(LaunchEvent::Attendance(serial, answer)) if serial == self.serial => {
                    self.attend(job, crew, &mut attendance, &answer);
                }
                _ => {}
            }
        }
    }

    fn attendance(&self) -> JoinMonitor {
        let (sender, serial) = (self.sender.clone(), self.serial);
        let tell = move |answer| {
            let _ = sender.send(LaunchEvent::Attendance(serial, answer));
        };
        JoinMonitor::new(self.target.clone(), Instant::now(), Box::new(tell))
    }

    /// Names the processes that have not joined; ends the job if one of them has ended.
    fn attend(
        &self,
        job: &mut JobState,
        crew: &Processes,
        attendance: &mut JoinMonitor,
        answer: &AttendanceResult,
    ) {
        let now = Instant::now();
        let waited = attendance.answered(answer.is_ok(), now);
        let seen = match answer {
            Ok(seen) if seen.has_started || !job.is_undisturbed() => return attendance.end(),
            Ok(seen) => seen,
            Err(error) => {
                if waited.is_some() {
                    self.say(format_args!("cannot tell who has called kv_create: {error}"));
                }
                return;
            }
        };
        let absent = || crew.members.iter().enumerate().filter(|(_, it)| !seen.has_joined(it.name));
        let titles = |has_ended: bool| -> Vec<String> {
            let of = absent().filter(|(index, _)| job.ending(*index).is_some() == has_ended);
            of.map(|(_, member)| member.title()).collect()
        };
        let has_left = |(index, member): &(usize, &JobProcess)| {
            let well = job.ending(*index).is_some_and(|ending| !ending.is_failure());
            well && member.name.role == Role::Worker && !crew.lives_on(*index)
        };
        if absent().any(|it| has_left(&it)) {
            let all = job.workers_have_ended();
            let so = if all { "the servers are ended" } else { "the job cannot start" };
            let ended = attendance::list(&titles(true));
            self.say(format_args!("{ended} ended without having called kv_create: {so}"));
            job.lacks_a_worker(now);
            attendance.end();
        } else if let (Some(waited), false) = (waited, titles(false).is_empty()) {
            let (seconds, missing) = (waited.as_secs(), attendance::list(&titles(false)));
            self.say(format_args!("after {seconds} s kv_create has not been called by {missing}"));
        }
    }

    fn hear(&self, crew: &mut Processes, serial: u32, connection: usize, news: AgentNews) {
        if serial != self.serial {
            return;
        }
        match crew.hear(connection, news) {
            Some(HostEvent::Started(index)) if self.verbose => {
                let member = &crew.members[index];
                self.say(format_args!(
                    "{} is process {}",
                    member.title(),
                    member.number.unwrap_or(0)
                ));
            }
            Some(HostEvent::Trouble(text)) => self.say(text),
            _ => {}
        }
    }

    /// The next event; None if the deadline passes first.
    fn wait(&self, limit: Option<Duration>) -> Option<LaunchEvent> {
        match limit {
            Some(limit) => self.events.recv_timeout(limit).ok(),
            None => self.events.recv().ok(),
        }
    }

    /// Waits for the final reports from other machines. The reader of our output may take any time,
    /// unless a signal ends the wait.
    fn wait_for_agents(&self, job: &mut JobState, crew: &mut Processes) {
        let mut end = Instant::now() + CLOSE_LIMIT;
        while crew.is_open() && Instant::now() < end {
            if crew.is_held_up() {
                end = Instant::now() + CLOSE_LIMIT;
            }
            match self.wait(Some(LEFT_OVER_STEP)) {
                Some(LaunchEvent::Signal(signal)) if signal != SIGCHLD => return,
                Some(LaunchEvent::News(serial, connection, news)) => {
                    self.hear(crew, serial, connection, news);
                    for (member, ending) in crew.newly_ended() {
                        job.ended(member, ending, Instant::now());
                    }
                }
                _ => {}
            }
        }
    }

    /// The reader of our output may take any time here too.
    fn wait_for_output(&self) {
        while let Some(
            LaunchEvent::Signal(SIGCHLD) | LaunchEvent::News(..) | LaunchEvent::Attendance(..),
        ) = self.wait(None)
        {}
    }
}
