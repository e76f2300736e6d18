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

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use kvstore::{Config, JobFile, Role};
use signal_hook::consts::SIGCHLD;

use crate::launch::hosts::agents::AgentNews;
use crate::launch::hosts::placement::ProcessPlacement;
use crate::launch::plan::LaunchPlan;
use crate::launch::processes::all::{JobProcess, LabeledOutputs, Processes};
use crate::launch::processes::attendance::{self, AttendanceResult, JoinMonitor};
use crate::launch::processes::exit_notices::ExitNotices;
use crate::launch::processes::output::{self, OutputLabel};
use crate::launch::processes::signals;
use crate::launch::state::{EndPolicy, JobState};
use crate::messages;
use crate::sys;

/// Poll interval for the end of orphaned descendants: the system sends no signal for them.
const LEFT_OVER_STEP: Duration = Duration::from_millis(20);
/// Timeout for the end and the last report of agents.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Events of the launcher; those of a job have its number.
enum LaunchEvent {
    Signal(i32),
    /// All output has been forwarded.
    Copied,
    Attendance(u32, AttendanceResult),
    /// News of a connection.
    News(u32, (usize, AgentNews)),
}

/// Starts jobs, one after the other. Called on the main thread, with which their processes end.
pub(crate) struct Launcher {
    /// The name of the subcommand in messages.
    command: &'static str,
    sender: Sender<LaunchEvent>,
    events: Receiver<LaunchEvent>,
}

impl Launcher {
    /// A launcher of jobs for a subcommand.
    pub(crate) fn new(command: &'static str) -> io::Result<Self> {
        sys::raise_file_limit();
        let (sender, events) = mpsc::channel();
        let signalled = sender.clone();
        signals::watch(&[signals::ending(), vec![SIGCHLD]].concat(), move |signal| {
            let _ = signalled.send(LaunchEvent::Signal(signal));
        })?;
        Ok(Self { command, sender, events })
    }
}

/// A job to run. Its number, which distinguishes it from earlier ones of the launcher, is how often
/// it was started before.
pub(crate) struct LaunchContext<'a> {
    pub(crate) launcher: &'a Launcher,
    pub(crate) plan: &'a LaunchPlan,
    pub(crate) site: &'a ProcessPlacement,
    /// Whether the first worker's lines are forwarded without its name.
    pub(crate) is_plain: bool,
    /// Configuration of the attendance observer, where programs may be slow.
    pub(crate) target: Option<Config>,
    pub(crate) policy: EndPolicy,
    pub(crate) verbose: bool,
}

/// How a job ended.
pub(crate) struct JobOutcome {
    pub(crate) status: u8,
    /// Whether a restart may succeed.
    pub(crate) may_be_repeated: bool,
}

impl LaunchContext<'_> {
    /// Runs the job until it has ended.
    pub(crate) fn run(&self) -> anyhow::Result<JobOutcome> {
        let file = self.keep_token();
        if let (Some(root), true) = (&self.plan.root, self.verbose) {
            self.say(format_args!("`kvstore top {root}` shows the job"));
        }
        let files = file.as_ref().map_or(&[][..], JobFile::paths);
        let mut crew = Processes::new(files, self.verbose)?;
        let sources = match self.start(&mut crew) {
            Ok(sources) => sources,
            Err(error) => {
                crew.close();
                crew.finish();
                return Err(error);
            }
        };
        for member in crew.members.iter().filter(|member| self.verbose && member.host.is_none()) {
            self.say(member.started_line());
        }
        let sender = self.launcher.sender.clone();
        let closer = output::copy(self.labelled(sources), move || {
            let _ = sender.send(LaunchEvent::Copied);
        })?;
        let roles = crew.members.iter().map(|member| member.name.role);
        let mut job = JobState::new(roles, self.policy);
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
        let may_be_repeated = job.first_failure().is_some() && !job.was_signalled && !was_refused;
        Ok(JobOutcome { status: job.status(), may_be_repeated })
    }

    /// Stores the token of the job for other processes of its user, as long as the value lives; a
    /// failure is not fatal.
    fn keep_token(&self) -> Option<JobFile> {
        let (root, token) = self.plan.root.as_ref().zip(self.plan.token.as_ref())?;
        let kept = JobFile::keep(&root.to_string(), token, &self.plan.job);
        let warn = |error: &io::Error| {
            let text = "cannot keep the token of the job, and looking at it needs KV_TOKEN";
            self.say(format_args!("{text}: {error}"));
        };
        kept.inspect_err(warn).ok()
    }

    fn say(&self, text: impl std::fmt::Display) {
        messages::say(self.launcher.command, text);
    }

    fn labelled(&self, mut sources: LabeledOutputs) -> LabeledOutputs {
        let first = |label: &OutputLabel| self.is_plain && label.rank == Some(0);
        for (label, _) in sources.iter_mut().filter(|(label, _)| first(label)) {
            label.text.clear();
        }
        sources
    }

    fn start(&self, crew: &mut Processes) -> anyhow::Result<LabeledOutputs> {
        let mut sources = Vec::new();
        let mut processes = self.plan.processes();
        for process in &mut processes {
            process.launch = Some(plan::launch()?);
        }
        for (host, processes) in self.site.divide(processes) {
            sources.extend(match host {
                None => crew.start_here(processes)?,
                Some((host, route)) => {
                    crew.start_there(host, route, processes, self.sink(LaunchEvent::News))?
                }
            });
        }
        Ok(sources)
    }

    /// Delivers events of this job to its loop.
    fn sink<T>(&self, event: fn(u32, T) -> LaunchEvent) -> impl FnMut(T) + Send + use<T> {
        let (sender, serial) = (self.launcher.sender.clone(), self.plan.restarts);
        move |news| {
            let _ = sender.send(event(serial, news));
        }
    }

    /// Runs the event loop of the job until no event is expected any more.
    fn supervise(&self, job: &mut JobState, crew: &mut Processes) {
        let tell = Box::new(self.sink(LaunchEvent::Attendance));
        let mut attendance = JoinMonitor::new(self.target.clone(), Instant::now(), tell);
        let mut exit_notices = ExitNotices::new(self.plan.target());
        loop {
            let now = Instant::now();
            for (member, ending) in crew.newly_ended() {
                if job.has_time()
                    && crew.members[member].name.role != Role::Scheduler
                    && let Some(launch) = crew.launch_of_dead(member, ending)
                {
                    exit_notices.tell(launch, ending);
                }
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
                Some(LaunchEvent::News(serial, news)) => self.hear(crew, serial, news),
                Some(LaunchEvent::Attendance(serial, answer)) if serial == self.plan.restarts => {
                    self.attend(job, crew, &mut attendance, &answer);
                }
                _ => {}
            }
        }
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
            Ok(seen) if seen.started || !job.is_undisturbed() => return attendance.end(),
            Ok(seen) => seen,
            Err(error) => {
                if waited.is_some() {
                    self.say(format_args!("cannot tell who has called kv_create: {error}"));
                }
                return;
            }
        };
        let is_absent = |(_, it): &(usize, &JobProcess)| !attendance::has_joined(seen, it.name);
        let absent = || crew.members.iter().enumerate().filter(is_absent);
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

    fn hear(&self, crew: &mut Processes, serial: u32, news: (usize, AgentNews)) {
        if serial == self.plan.restarts
            && let Some(line) = crew.hear(news)
        {
            self.say(line);
        }
    }

    /// The next event; None if the deadline passes first.
    fn wait(&self, limit: Option<Duration>) -> Option<LaunchEvent> {
        match limit {
            Some(limit) => self.launcher.events.recv_timeout(limit).ok(),
            None => self.launcher.events.recv().ok(),
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
                Some(LaunchEvent::News(serial, news)) => {
                    self.hear(crew, serial, news);
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
