//! `kvstore run`: a whole job, on one machine or from one machine.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};

use crate::ending::Failure;
use crate::launch::hosts::placement::{self, ProcessPlacement};
use crate::launch::plan::{self, LaunchPlan};
use crate::launch::role_env;
use crate::launch::state::EndPolicy;
use crate::launch::{LaunchContext, Launcher};
use crate::messages;
use crate::settings;

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

/// A value of `--set`, if the library takes it and `kvstore run` does not set it itself.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    const OURS: [&str; 6] = ["root", "role", "rank", "num_workers", "num_servers", "job"];
    let (name, value) = settings::assignment(text)?;
    if OURS.contains(&name.as_str()) {
        return Err(format!("{name} is what `kvstore run` sets itself"));
    }
    Ok((name, value))
}

/// Runs a job until it has ended, and after failures again.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    settings::check(&arguments.set).map_err(Failure::usage)?;
    let (workers, servers) = (arguments.num_workers, arguments.num_servers);
    let site = ProcessPlacement::new(&arguments.site, workers, servers).map_err(Failure::usage)?;
    if arguments.role_env {
        let plan = plan(arguments, &site, 0)?;
        match arguments.format {
            SummaryFormat::Shell => role_env::print_shell(&plan, &site)?,
            SummaryFormat::Json => role_env::print_json(&plan, &site)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let launcher = Launcher::new(COMMAND)?;
    let mut restarts = 0;
    loop {
        let mut plan = plan(arguments, &site, restarts)?;
        plan.wait_for_slow_programs();
        let launch = LaunchContext {
            launcher: &launcher,
            plan: &plan,
            site: &site,
            is_plain: false,
            target: plan.target(),
            policy: EndPolicy {
                grace: Duration::from_millis(arguments.grace_ms.into()),
                linger: Duration::from_millis(arguments.linger_ms.into()),
                goes_on: goes_on(arguments),
            },
            verbose: arguments.verbose,
        };
        let outcome = launch.run()?;
        if !outcome.may_be_repeated || restarts == arguments.restarts {
            return Ok(ExitCode::from(outcome.status));
        }
        restarts += 1;
        let text = format_args!("starts the job again, {restarts} of {}", arguments.restarts);
        messages::say(COMMAND, text);
    }
}

/// Whether the library goes on without lost workers: then so does the job.
fn goes_on(arguments: &Arguments) -> bool {
    const NAME: &str = "on_worker_loss";
    let set = arguments.set.iter().rev().find(|(name, _)| name == NAME);
    let set = set.map(|(_, value)| value.clone());
    set.or_else(|| env::var("KV_ON_WORKER_LOSS").ok()).as_deref() == Some("continue")
}

fn plan(
    arguments: &Arguments,
    site: &ProcessPlacement,
    restarts: u32,
) -> anyhow::Result<LaunchPlan> {
    let has_servers = arguments.num_servers > 0;
    Ok(LaunchPlan {
        workers: site.workers,
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
