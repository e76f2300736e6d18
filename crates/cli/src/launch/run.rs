//! `kvstore run`: a whole job, on one machine or from one machine.

use std::env;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use kvstore::JobFile;
use signal_hook::consts::SIGCHLD;

use crate::launch::hosts::placement::{self, ProcessPlacement};
use crate::launch::plan::{self, LaunchPlan};
use crate::launch::processes::signals;
use crate::launch::role_env;
use crate::launch::state::GraceTimes;
use crate::launch::{JobOutcome, LaunchContext, LaunchEvent, LaunchFailure};
use crate::messages;
use crate::settings;
use crate::sys;

/// Starts a job: a scheduler, servers, and workers that run PROGRAM.
///
/// The output of all of them comes line by line, with the name of who wrote it. When one fails, all
/// are ended, and the exit status is that of the first failure.
#[derive(Debug, Args)]
#[command(override_usage = "kvstore run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
pub(crate) struct Arguments {
    /// How many workers to start; else as many as the hosts have slots, and 1 without hosts
    #[arg(short = 'n', long, alias = "np", value_name = "COUNT")]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    num_workers: Option<u32>,

    /// How many servers to start; with 0 there is no scheduler either
    #[arg(short = 's', long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u32).range(0..=65_536))]
    num_servers: u32,

    /// Run PROGRAM as the servers too, instead of `kvstore server`
    #[arg(long)]
    serve_with_program: bool,

    /// Set an option of the library in all processes, repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,

    /// After a failure, start the whole job again, so many times at most
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    restarts: u32,

    /// Milliseconds from the request to end until processes are killed
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5000)]
    grace_ms: u32,

    /// Milliseconds from the first failure until the others are asked to end
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    linger_ms: u32,

    /// Say which processes were started, and how all ended
    #[arg(short, long)]
    verbose: bool,

    /// Start nothing: print what each process needs, for another launcher
    #[arg(long)]
    role_env: bool,

    /// The form of `--role-env`
    #[arg(long, value_enum, default_value_t = SummaryFormat::Shell, requires = "role_env")]
    format: SummaryFormat,

    #[command(flatten)]
    site: placement::HostOptions,

    /// The program of the workers, and its arguments
    #[arg(value_name = "PROGRAM", required_unless_present = "role_env", trailing_var_arg = true)]
    program: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummaryFormat {
    /// A line for each process that a shell can run
    Shell,
    /// One object
    Json,
}

const COMMAND: &str = "run";

fn say(text: impl std::fmt::Display) {
    messages::say(COMMAND, text);
}

/// A value of `--set`, if the library takes it and `kvstore run` does not set it itself.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    const OURS: [&str; 6] = ["root", "role", "rank", "num_workers", "num_servers", "job"];
    let (name, value) = settings::assignment(text)?;
    if OURS.contains(&name.as_str()) {
        return Err(format!("{name} is what `kvstore run` sets itself"));
    }
    Ok((name, value))
}

/// Runs a job until it has ended. Called on the main thread, with which its processes end.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Err(text) = settings::check(&arguments.set) {
        say(text);
        return ExitCode::from(2);
    }
    let site = match ProcessPlacement::new(
        &arguments.site,
        arguments.num_workers,
        arguments.num_servers,
    ) {
        Ok(site) => site,
        Err(text) => {
            say(text);
            return ExitCode::from(2);
        }
    };
    let result = if arguments.role_env {
        print(arguments, &site).map(|()| 0).map_err(LaunchFailure::System)
    } else {
        run_jobs(arguments, &site)
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.tell(COMMAND),
    }
}

fn print(arguments: &Arguments, site: &ProcessPlacement) -> io::Result<()> {
    let plan = plan(arguments, site, 0)?;
    match arguments.format {
        SummaryFormat::Shell => role_env::print_shell(&plan, site),
        SummaryFormat::Json => role_env::print_json(&plan, site),
    }
}

/// Runs the job, and after failures again.
fn run_jobs(arguments: &Arguments, site: &ProcessPlacement) -> Result<u8, LaunchFailure> {
    sys::prepare_for_tls(&arguments.set);
    sys::raise_file_limit();
    let (sender, events) = mpsc::channel();
    watch_signals(sender.clone())?;
    let patience = GraceTimes {
        grace: Duration::from_millis(arguments.grace_ms.into()),
        linger: Duration::from_millis(arguments.linger_ms.into()),
    };
    let mut serial = 0;
    loop {
        let mut plan = plan(arguments, site, serial)?;
        plan.wait_for_slow_programs();
        let file = keep_token(COMMAND, &plan);
        let launch = LaunchContext {
            command: COMMAND,
            is_plain: false,
            site,
            file: file.as_ref(),
            target: plan.target(),
            patience,
            goes_on: goes_on(arguments),
            verbose: arguments.verbose,
            serial,
            sender: sender.clone(),
            events: &events,
        };
        if let (Some(root), true) = (&plan.root, arguments.verbose) {
            say(format_args!("`kvstore top {root}` shows the job"));
        }
        let JobOutcome { status, may_be_repeated } = launch.run(plan.processes())?;
        if !may_be_repeated || serial == arguments.restarts {
            return Ok(status);
        }
        serial += 1;
        say(format_args!("starts the job again, {serial} of {}", arguments.restarts));
    }
}

/// Stores the token of a job for other processes of its user; a failure is not fatal.
pub(crate) fn keep_token(command: &str, plan: &LaunchPlan) -> Option<JobFile> {
    plan.keep_token().unwrap_or_else(|error| {
        let text = "cannot keep the token of the job, and looking at it needs KV_TOKEN";
        messages::say(command, format_args!("{text}: {error}"));
        None
    })
}

/// Whether the library goes on without lost workers: then so does the job.
fn goes_on(arguments: &Arguments) -> bool {
    const NAME: &str = "on_worker_loss";
    let set = arguments.set.iter().rev().find(|(name, _)| name == NAME);
    let set = set.map(|(_, value)| value.clone());
    set.or_else(|| env::var("KV_ON_WORKER_LOSS").ok()).as_deref() == Some("continue")
}

/// Forwards signals to a launcher.
pub(crate) fn watch_signals(sender: Sender<LaunchEvent>) -> io::Result<()> {
    let mut watched = signals::ending();
    watched.push(SIGCHLD);
    signals::watch(&watched, move |signal| {
        let _ = sender.send(LaunchEvent::Signal(signal));
    })
}

fn plan(arguments: &Arguments, site: &ProcessPlacement, restarts: u32) -> io::Result<LaunchPlan> {
    let has_servers = arguments.num_servers > 0;
    Ok(LaunchPlan {
        workers: site.workers(),
        servers: arguments.num_servers,
        serve_with_program: arguments.serve_with_program,
        program: arguments.program.clone(),
        root: if has_servers { Some(site.root()?) } else { None },
        job: plan::job_name()?,
        token: if has_servers { plan::token_for(&arguments.set)? } else { None },
        settings: arguments.set.clone(),
        restarts,
    })
}
