//! `kvstore run`: a whole job on one machine.

use std::env;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use clap::Args;
use clap::value_parser;
use signal_hook::consts::SIGCHLD;

use crate::children::{Children, StartError};
use crate::job::{Ending, Job, Patience};
use crate::keeper::Keeper;
use crate::messages;
use crate::output;
use crate::plan::{Name, Plan, token};
use crate::signals;

/// How often to look whether processes that others have left behind have ended: nobody tells.
const LEFT_OVER_STEP: Duration = Duration::from_millis(20);

/// Starts a job on this machine: a scheduler, servers, and workers that run PROGRAM.
///
/// The output of all of them comes line by line, with the name of who wrote it. When one fails, all
/// are ended, and the exit status is that of the first failure.
#[derive(Debug, Args)]
#[command(override_usage = "kvstore run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
pub(crate) struct Arguments {
    /// How many workers to start
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    num_workers: u32,

    /// How many servers to start; with 0 there is no scheduler either
    #[arg(short = 's', long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u32).range(0..=65_536))]
    num_servers: u32,

    /// Run PROGRAM as the servers too, instead of `kvstore server`
    #[arg(long)]
    serve_with_program: bool,

    /// Milliseconds from the request to end until processes are killed
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5000)]
    grace_ms: u32,

    /// Milliseconds from the first failure until the others are asked to end
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    linger_ms: u32,

    /// Say which processes were started, and how all ended
    #[arg(short, long)]
    verbose: bool,

    /// The program of the workers, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn say(text: impl std::fmt::Display) {
    messages::say("run", text);
}

/// What the launcher waits for.
enum Event {
    Signal(i32),
    /// All output has been passed on.
    Copied,
}

/// Why there is no job.
enum Failure {
    Process(StartError),
    System(io::Error),
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Failure::Process(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::System(error)
    }
}

/// Runs a job until it has ended. Called on the main thread, with which its processes end.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match run_job(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(Failure::Process(error)) => {
            say(&error);
            ExitCode::from(error.status())
        }
        Err(Failure::System(error)) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn run_job(arguments: &Arguments) -> Result<u8, Failure> {
    let (sender, events) = mpsc::channel();
    watch_signals(sender.clone())?;
    let plan = plan(arguments)?;
    let mut children = Children::new(Keeper::start()?);
    let (names, sources) = match start(&plan, &mut children) {
        Ok(started) => started,
        Err(error) => {
            children.finish();
            return Err(error.into());
        }
    };
    if arguments.verbose {
        for (name, number) in names.iter().zip(children.numbers()) {
            say(format_args!("{name} is process {number}"));
        }
    }
    let closer = output::copy(sources, move || {
        let _ = sender.send(Event::Copied);
    })?;
    let patience = Patience {
        grace: Duration::from_millis(arguments.grace_ms.into()),
        linger: Duration::from_millis(arguments.linger_ms.into()),
    };
    let mut job = Job::new(names.iter().map(|name| name.role), patience);
    supervise(&mut job, &mut children, &events);
    for (member, ending) in children.finish() {
        job.ended(member, ending, Instant::now());
    }
    drop(closer);
    wait_for_output(&events);
    if job.status() != 0 || arguments.verbose {
        summarize(&names, &job);
    }
    Ok(job.status())
}

fn watch_signals(sender: Sender<Event>) -> io::Result<()> {
    let mut watched = signals::ending();
    watched.push(SIGCHLD);
    signals::watch(&watched, move |signal| {
        let _ = sender.send(Event::Signal(signal));
    })
}

fn plan(arguments: &Arguments) -> io::Result<Plan> {
    // A port that is free now is still free in a moment, when the scheduler takes it.
    let root = match arguments.num_servers {
        0 => None,
        _ => Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?),
    };
    Ok(Plan {
        workers: arguments.num_workers,
        servers: arguments.num_servers,
        serve_with_program: arguments.serve_with_program,
        program: arguments.program.clone(),
        executable: env::current_exe()?,
        root,
        token: token()?,
    })
}

fn start(
    plan: &Plan,
    children: &mut Children,
) -> Result<(Vec<Name>, Vec<output::Source>), StartError> {
    let (mut names, mut sources) = (Vec::new(), Vec::new());
    for process in plan.processes() {
        names.push(process.name);
        sources.extend(children.start(process)?);
    }
    Ok((names, sources))
}

/// Leads the job through its course until nothing is left to wait for.
fn supervise(job: &mut Job, children: &mut Children, events: &Receiver<Event>) {
    loop {
        let now = Instant::now();
        for (member, ending) in children.newly_ended() {
            job.ended(member, ending, now);
        }
        let empty = job.all_have_ended();
        if empty {
            job.emptied(children.have_left_over(), now);
        }
        job.tick(now);
        for signal in job.take_signals() {
            children.signal(signal);
        }
        if job.is_over() {
            return;
        }
        let step = empty.then_some(LEFT_OVER_STEP);
        let rest = job.deadline().map(|deadline| deadline.saturating_duration_since(now));
        match wait(events, step.into_iter().chain(rest).min()) {
            Some(Event::Signal(signal)) if signal != SIGCHLD => {
                job.signalled(signal, Instant::now());
            }
            _ => {}
        }
    }
}

/// The next event; None if the time is up before.
fn wait(events: &Receiver<Event>, limit: Option<Duration>) -> Option<Event> {
    match limit {
        Some(limit) => events.recv_timeout(limit).ok(),
        None => events.recv().ok(),
    }
}

/// Our own reader may take as long as it likes, unless a signal says that nobody wants it.
fn wait_for_output(events: &Receiver<Event>) {
    while let Some(Event::Signal(SIGCHLD)) = wait(events, None) {}
}

/// Says how all processes ended, and last what ended the job.
fn summarize(names: &[Name], job: &Job) {
    let width = names.iter().map(|name| name.to_string().len()).max().unwrap_or(0);
    for (member, name) in names.iter().enumerate() {
        match job.ending(member) {
            Some(ending) => say(format_args!("{name:width$} ended with {ending}")),
            None => say(format_args!("{name:width$} could not be killed")),
        }
    }
    if let Some((member, ending)) = job.first_failure() {
        say(format_args!("failed because {} ended first, with {ending}", names[member]));
    } else if let Some(signal) = job.stopped_by() {
        say(format_args!("stopped by {}", Ending::Signal(signal)));
    }
}
