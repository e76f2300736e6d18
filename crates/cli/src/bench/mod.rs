//! `kvstore bench`: how fast pushes and pulls are, beside what the machine can do. Also called:
//! benchmark.
//!
//! It is a job of its own, whose workers run this command again; or it is a worker of the job in
//! whose environment it is started. Either way all workers measure the same cases in step, and the
//! first one prints.

mod agree;
mod asked;
mod case;
mod limit;
mod measure;
mod report;
mod values;
mod wire;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::{Args, value_parser};
use kvstore::{Config, Deadline, ErrorKind, Store};

use crate::ending::Failure;
use crate::launch::hosts::placement::ProcessPlacement;
use crate::launch::plan::{self, LaunchPlan};
use crate::launch::run;
use crate::launch::state::EndPolicy;
use crate::launch::{LaunchContext, Launcher};
use crate::settings;

use agree::BenchGroup;
use asked::BenchWork;
use limit::Limit;
use report::BenchReport;

const COMMAND: &str = "bench";
/// Types of stores.
const KINDS: [&str; 6] =
    ["local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_device_async"];
/// How long the calls of a store may take, unless the option `timeout_ms` says otherwise.
const TIMEOUT_MS: &str = "60000";
/// How long leaving the job may take.
const LEAVE: Duration = Duration::from_secs(10);

/// Measures pushes and pulls, beside what the machine can do.
///
/// Alone it starts a job of its own on this machine. As the program of a job, as in `kvstore run
/// --hosts a,b -n 2 -- kvstore bench`, it measures that one.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How many workers the job has; else 1, or as many as the job that it is started in
    #[arg(short = 'n', long, alias = "np", value_name = "COUNT")]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    num_workers: Option<u32>,

    /// How many servers the job has; else 1, or as many as the job that it is started in
    #[arg(short = 's', long, value_name = "COUNT")]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    num_servers: Option<u32>,

    /// Measure the store of one process, without a job; the same as `--type local`
    #[arg(long, conflicts_with_all = ["num_workers", "num_servers", "root", "rank", "kind"])]
    local: bool,

    /// The type of the store
    #[arg(long = "type", value_name = "TYPE", value_parser = KINDS, default_value = "dist_sync")]
    kind: String,

    /// Address of the scheduler of a job all of whose workers are this command; else `KV_ROOT`
    #[arg(long, value_name = "HOST:PORT")]
    root: Option<String>,

    /// The rank of this worker of that job; else `KV_RANK`
    #[arg(long, requires = "root")]
    rank: Option<u32>,

    /// Set an option of the library, repeatable; in a job of its own in all processes
    #[arg(long, value_name = "NAME=VALUE", value_parser = run::setting)]
    set: Vec<(String, String)>,

    #[command(flatten)]
    work: BenchWork,
}

/// Measures, or starts a job that does.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    settings::check(&arguments.set).map_err(Failure::usage)?;
    arguments.work.check().map_err(Failure::usage)?;
    let config = arguments.config().map_err(Failure::usage)?;
    let is_member = config.get("root").map_err(Failure::usage)?.is_some();
    if arguments.is_distributed() && !is_member {
        return arguments.start_job();
    }
    arguments.measure(&config)?;
    Ok(ExitCode::SUCCESS)
}

impl Arguments {
    fn kind(&self) -> &str {
        if self.local { "local" } else { &self.kind }
    }

    fn is_distributed(&self) -> bool {
        self.kind().starts_with("dist")
    }

    fn config(&self) -> kvstore::Result<Config> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let named = [
            ("root", self.root.clone()),
            ("rank", number(self.rank)),
            ("num_workers", number(self.num_workers)),
            ("num_servers", number(self.num_servers)),
        ];
        let mut config = settings::config(&self.set, &named)?;
        if config.get("timeout_ms")?.is_none() {
            config.set("timeout_ms", TIMEOUT_MS)?;
        }
        Ok(config)
    }

    /// Runs a job on this machine whose workers are this command with the same arguments.
    fn start_job(&self) -> Result<ExitCode> {
        let launcher = Launcher::new(COMMAND)?;
        let site = ProcessPlacement::here(self.num_workers.unwrap_or(1));
        let program = env::current_exe()?.into_os_string();
        let plan = LaunchPlan {
            workers: site.workers,
            servers: self.num_servers.unwrap_or(1),
            serve_with_program: false,
            program: std::iter::once(program).chain(env::args_os().skip(1)).collect(),
            root: Some(site.root()?),
            job: plan::job_name()?,
            token: plan::token_for(&self.set)?,
            settings: self.set.clone(),
            restarts: 0,
        };
        let policy = EndPolicy {
            grace: Duration::from_secs(5),
            linger: Duration::from_millis(500),
            goes_on: false,
        };
        let launch = LaunchContext {
            launcher: &launcher,
            plan: &plan,
            site: &site,
            is_plain: true,
            target: None,
            policy,
            verbose: false,
        };
        Ok(ExitCode::from(launch.run()?.status))
    }

    /// Measures as one worker.
    fn measure(&self, config: &Config) -> Result<()> {
        let role = config.get("role")?.filter(|role| role != "worker" && self.is_distributed());
        if let Some(role) = role {
            bail!(
                "it is started as a {role} of a job, and it is for workers: leave \
                 --serve-with-program out"
            );
        }
        let store = Store::open(self.kind(), config).map_err(explained)?;
        let timeout = config.get("timeout_ms")?.and_then(|text| text.parse().ok());
        let mut group = BenchGroup::new(&store, timeout);
        let met = group.meet(&self.work);
        // A foreign job does not wait for a worker that has left, but one of our own must not go
        // on.
        let is_ours = met.is_ok();
        let measured = met.and_then(|machines| self.measure_in(&mut group, &machines, config));
        if is_ours && measured.is_err() {
            store.abort();
            return measured;
        }
        let left = store.close(Deadline::after(LEAVE));
        // The first error is the cause.
        measured.and_then(|()| Ok(left?))
    }

    fn measure_in(
        &self,
        group: &mut BenchGroup<'_>,
        machines: &[u64],
        config: &Config,
    ) -> Result<()> {
        let cases = self.work.cases();
        let mut limit = Limit::new(group, machines, config, &cases.measured)?;
        group.set_rule(self.work.optimizer)?;
        let servers = config.get("num_servers")?.and_then(|text| text.parse().ok());
        let mut report = BenchReport::new(&self.work, group, &limit, servers)?;
        for case in &cases.measured {
            report.add(measure::measure(group, &mut limit, &self.work, case)?)?;
        }
        report.end(&cases.left_out)
    }
}

/// The error of a worker that cannot join its job, with its likely cause.
fn explained(error: kvstore::Error) -> anyhow::Error {
    if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Option) {
        return anyhow!(
            "{error}; the workers of a job are fixed when it starts: let the job run this command, as \
             in `kvstore run -n 2 -s 1 -- kvstore bench`, or unset KV_ROOT for a job of its own"
        );
    }
    error.into()
}
