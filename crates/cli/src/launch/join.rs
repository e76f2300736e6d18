//! `kvstore join`: becomes one process of a job that another launcher starts, such as srun or mpirun.

use std::env;
use std::ffi::OsString;
use std::net::{Ipv4Addr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};

use kvstore::Role;

use crate::address::split_root;
use crate::ending::Failure;
use crate::launch::hosts::slurm::{self, variable};
use crate::launch::plan::{LaunchPlan, Process, SchedulerAddress};
use crate::launch::run;
use crate::settings;

/// Becomes one process of a job whose processes another launcher starts, all with the same command.
///
/// The first process is the scheduler, the next ones are the servers, and the others are workers,
/// which run PROGRAM. Under srun and mpirun each finds its number itself; under srun also the
/// address of the scheduler.
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

    /// Address of the scheduler, which is the first process; else `KV_ROOT`, else the first node of
    /// the job of Slurm
    #[arg(long, value_name = "HOST:PORT")]
    root: Option<String>,

    /// The number of this process, from 0; else that of srun or mpirun
    #[arg(long, value_name = "NUMBER", requires = "count")]
    index: Option<u32>,

    /// How many processes there are; else as srun or mpirun says
    #[arg(long, value_name = "COUNT", requires = "index")]
    count: Option<u32>,

    /// Set an option of the library, repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = run::setting)]
    set: Vec<(String, String)>,

    /// The program of the workers, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Variables of launchers: the number of a process, and how many there are.
const LAUNCHERS: [(&str, &str); 3] = [
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
];

/// Ports for jobs of Slurm, below those that systems hand out themselves.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 10_000;

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
        let (index, count) = self.place()?;
        let others = if self.num_servers == 0 { 0 } else { self.num_servers + 1 };
        let workers = count.saturating_sub(others);
        ensure!(
            workers > 0,
            "{count} processes are too few for a scheduler, {} servers and a worker",
            self.num_servers
        );
        let root = if self.num_servers == 0 { None } else { Some(self.root()?) };
        let plan = LaunchPlan {
            workers,
            servers: self.num_servers,
            serve_with_program: self.serve_with_program,
            program: self.program.clone(),
            root: root.clone(),
            job: variable("KV_JOB").or_else(step).unwrap_or_default(),
            token: None,
            settings: self.set.clone(),
            restarts: number("SLURM_RESTART_COUNT").unwrap_or(0),
        };
        let mut processes = plan.processes();
        ensure!(index < count, "this is process {index}, and there are {count}, from 0");
        let mut process = processes.swap_remove(index as usize);
        process.environment.extend(root.and_then(|root| own_place(&process, &root)));
        Ok(process)
    }

    /// The number of this process, and how many there are.
    fn place(&self) -> Result<(u32, u32)> {
        let said = self.index.zip(self.count);
        let found = LAUNCHERS.iter().find_map(|(index, count)| number(index).zip(number(count)));
        said.or(found).context("neither srun nor mpirun has started this; say --index and --count")
    }

    fn root(&self) -> Result<SchedulerAddress> {
        let Some(text) = self.root.clone().or_else(|| variable("KV_ROOT")) else {
            return root_of_slurm();
        };
        let (host, port) = split_root(&text)?;
        let port = port.with_context(|| format!("{text:?} has no port; say --root HOST:PORT"))?;
        Ok(SchedulerAddress { host, port })
    }
}

fn number(name: &str) -> Option<u32> {
    variable(name)?.parse().ok()
}

/// Identifies this step of a Slurm job among all others.
fn step() -> Option<String> {
    let (job, step) = variable("SLURM_JOB_ID").zip(variable("SLURM_STEP_ID"))?;
    Some(format!("slurm-{job}.{step}"))
}

/// All processes find one address without communication: the first task runs on the first node.
fn root_of_slurm() -> Result<SchedulerAddress> {
    let list = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST"));
    let nodes = list.as_deref().and_then(slurm::expand);
    let (Some(nodes), Some(step)) = (nodes, step()) else {
        bail!("where does the scheduler listen? say --root HOST:PORT");
    };
    let host = if nodes.len() == 1 { Ipv4Addr::LOCALHOST.to_string() } else { nodes[0].clone() };
    let reserved = variable("SLURM_STEP_RESV_PORTS");
    let reserved = reserved.and_then(|ports| ports.split(['-', ',']).next()?.parse().ok());
    Ok(SchedulerAddress { host, port: reserved.unwrap_or_else(|| port_of(&step)) })
}

/// A port by the name of a step; concurrent jobs on one node rarely collide.
fn port_of(step: &str) -> u16 {
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = step.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    FIRST_PORT + u16::try_from(sum % PORTS).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::{FIRST_PORT, port_of};

    #[test]
    fn steps_have_ports_of_their_own_that_systems_do_not_hand_out() {
        let ports: Vec<u16> = (0..100).map(|step| port_of(&format!("slurm-7.{step}"))).collect();
        assert!(ports.iter().all(|port| (FIRST_PORT..30_000).contains(port)));
        let mut different = ports.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 95, "{ports:?}");
    }
}
