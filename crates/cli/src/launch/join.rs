//! `kvstore join`: becomes one process of a job that another launcher starts, such as srun or mpirun.

use std::env;
use std::ffi::OsString;
use std::net::ToSocketAddrs;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};

use kvstore::{LaunchEnvironment, Role};

use crate::address::split_root;
use crate::ending::Failure;
use crate::launch::hosts::slurm::variable;
use crate::launch::plan::{LaunchPlan, Process, SchedulerAddress};
use crate::launch::run;
use crate::settings;

/// Becomes one process of a job whose processes another launcher starts, all with the same command.
///
/// The first process is the scheduler, the next ones are the servers, and the others are workers,
/// which run PROGRAM. Under srun, mpirun, mpiexec and torchrun each finds its number itself, and the
/// address of the scheduler too; only MPI on several machines needs --root.
#[derive(Debug, Args)]
#[command(override_usage = "kvstore join [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
pub(crate) struct Arguments {
    /// How many of the processes are servers; with 0 there is no scheduler either
    #[arg(short = 's', long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u32).range(0..=65_536))]
    num_servers: u32,

    /// Run PROGRAM as the servers too, instead of `kvstore server`
    #[arg(long)]
    serve_with_program: bool,

    /// Address of the scheduler, which is the first process; else `KV_ROOT`, else as the launcher says
    #[arg(long, value_name = "HOST:PORT")]
    root: Option<String>,

    /// The number of this process, from 0; else that of the launcher
    #[arg(long, value_name = "NUMBER", requires = "count")]
    index: Option<u32>,

    /// How many processes there are; else as the launcher says
    #[arg(long, value_name = "COUNT", requires = "index")]
    count: Option<u32>,

    /// Set an option of the library, repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = run::setting)]
    set: Vec<(String, String)>,

    /// The program of the workers, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Replaces this program by that of its role (exec); returns only on failure.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    settings::check(&arguments.set).map_err(Failure::usage)?;
    let process = arguments.process().map_err(Failure::usage)?;
    let executable = env::current_exe().unwrap_or_else(|_| "kvstore".into());
    let mut command = process.command(&executable);
    let error = command.exec();
    bail!(Failure::start(command.get_program(), &error).of(process.name))
}

impl Arguments {
    fn process(&self) -> Result<Process> {
        let launcher = LaunchEnvironment::find();
        let (index, count) = self.place(launcher.as_ref())?;
        let others = if self.num_servers == 0 { 0 } else { self.num_servers + 1 };
        let workers = count.saturating_sub(others);
        ensure!(
            workers > 0,
            "{count} processes are too few for a scheduler, {} servers and a worker",
            self.num_servers
        );
        let root = if self.num_servers == 0 { None } else { Some(self.root(launcher.as_ref())?) };
        let plan = LaunchPlan {
            workers,
            servers: self.num_servers,
            serve_with_program: self.serve_with_program,
            program: self.program.clone(),
            root: root.clone(),
            job: variable("KV_JOB").or(launcher.map(|it| it.job)).unwrap_or_default(),
            token: None,
            settings: self.set.clone(),
            restarts: variable("SLURM_RESTART_COUNT").and_then(|it| it.parse().ok()).unwrap_or(0),
        };
        let mut processes = plan.processes();
        ensure!(index < count, "this is process {index}, and there are {count}, from 0");
        let mut process = processes.swap_remove(index as usize);
        process.environment.extend(root.and_then(|root| own_place(&process, &root)));
        Ok(process)
    }

    /// The number of this process, and how many there are.
    fn place(&self, launcher: Option<&LaunchEnvironment>) -> Result<(u32, u32)> {
        let said = self.index.zip(self.count);
        let found = launcher.map(|it| (it.index, it.count));
        said.or(found).context(
            "none of srun, mpirun, mpiexec and torchrun has started this; say --index and --count",
        )
    }

    /// All processes find one address without communication.
    fn root(&self, launcher: Option<&LaunchEnvironment>) -> Result<SchedulerAddress> {
        let Some(text) = self.root.clone().or_else(|| variable("KV_ROOT")) else {
            let found = launcher.and_then(|it| Some((it.host.clone()?, it.port)));
            let (host, port) =
                found.context("where does the scheduler listen? say --root HOST:PORT")?;
            return Ok(SchedulerAddress { host, port });
        };
        let (host, port) = split_root(&text)?;
        let port = port.with_context(|| format!("{text:?} has no port; say --root HOST:PORT"))?;
        Ok(SchedulerAddress { host, port })
    }
}

/// Listening address of the scheduler if the name of its node resolves to the loopback there, as
/// Debian has it: other hosts could not reach that.
fn own_place(process: &Process, root: &SchedulerAddress) -> Option<(String, Option<String>)> {
    let is_address = root.host.parse::<std::net::IpAddr>().is_ok();
    if process.name.role != Role::Scheduler || is_address || variable("KV_BIND").is_some() {
        return None;
    }
    let mut addresses = (root.host.as_str(), root.port).to_socket_addrs().ok()?;
    let bind = Some(format!("0.0.0.0:{}", root.port));
    addresses.all(|address| address.ip().is_loopback()).then(|| ("KV_BIND".into(), bind))
}
