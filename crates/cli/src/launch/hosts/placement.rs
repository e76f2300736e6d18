//! Placement: the hosts of the processes of a job, and the commands that reach them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;

use clap::Args;
use kvstore::Role;

use crate::address::{local_address_of, split_root};
use crate::launch::hosts::hostfile::{self, HostSlots};
use crate::launch::hosts::shell;
use crate::launch::hosts::slurm;
use crate::launch::plan::{Process, SchedulerAddress};
use crate::launch::processes::all::RemoteShell;

/// The name of this machine in lists of hosts.
const HERE: &str = "localhost";

#[derive(Debug, Args)]
pub(crate) struct HostOptions {
    /// Spread servers and workers over these hosts, by ssh; the scheduler stays here
    #[arg(long, value_name = "HOST[:SLOTS],...", conflicts_with = "host_file")]
    hosts: Option<String>,

    /// The same from a file with lines such as `host slots=4`
    #[arg(long, value_name = "FILE")]
    host_file: Option<PathBuf>,

    /// The program that logs in to hosts, with options of its own
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    ssh: String,

    /// The program that starts processes on the nodes of a job of Slurm
    #[arg(long, value_name = "COMMAND", default_value = "srun --overlap --cpu-bind=none")]
    srun: String,

    /// Start everything here, also inside of a job of Slurm
    #[arg(long, conflicts_with_all = ["hosts", "host_file"])]
    no_slurm: bool,

    /// This program on the other hosts; else the same path as here
    #[arg(long, value_name = "PATH")]
    remote_program: Option<String>,

    /// The folder of the processes on other hosts; else the same as here
    #[arg(long, value_name = "FOLDER")]
    remote_folder: Option<String>,

    /// Pass a variable on to other hosts, besides `KV_*`; without a value as it is here; repeatable
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,

    /// After how many milliseconds without a sign of life another host counts as lost
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 30_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..))]
    host_timeout_ms: u32,

    /// Where the scheduler listens, as the other hosts reach it; else this machine's address on the
    /// way to them, and a free port
    #[arg(long, value_name = "HOST[:PORT]")]
    root: Option<String>,
}

/// Other machines, and the commands that reach them.
#[derive(Debug)]
struct RemoteHosts {
    hosts: Vec<HostSlots>,
    route: RemoteShell,
}

/// Where the processes of a job run.
#[derive(Debug)]
pub(crate) struct ProcessPlacement {
    others: Option<RemoteHosts>,
    workers: u32,
    /// The host of each worker, and of each server.
    places: (Vec<usize>, Vec<usize>),
    /// Variables for other hosts.
    environment: Vec<String>,
    root: Option<String>,
}

/// Processes of one machine; None is this one.
pub(crate) type HostShare<'a> = (Option<(&'a str, &'a RemoteShell)>, Vec<Process>);

impl ProcessPlacement {
    pub(crate) fn new(
        options: &HostOptions,
        workers: Option<u32>,
        servers: u32,
    ) -> Result<Self, String> {
        let others = options.others()?;
        let workers =
            workers.unwrap_or_else(|| others.as_ref().map_or(1, RemoteHosts::most_workers));
        let places = match &others {
            Some(others) => hostfile::place(&others.hosts, workers, servers)?,
            None => (Vec::new(), Vec::new()),
        };
        let environment = options.environment.clone();
        Ok(Self { others, workers, places, environment, root: options.root.clone() })
    }

    /// Everything on this machine.
    pub(crate) fn here(workers: u32) -> Self {
        let places = (Vec::new(), Vec::new());
        Self { others: None, workers, places, environment: Vec::new(), root: None }
    }

    pub(crate) fn workers(&self) -> u32 {
        self.workers
    }

    /// The host of a process; None is this machine.
    pub(crate) fn host(&self, process: &Process) -> Option<&str> {
        let (workers, servers) = &self.places;
        let places = match process.name.role {
            Role::Scheduler => return None,
            Role::Server => servers,
            Role::Worker => workers,
        };
        let host = &self.others.as_ref()?.hosts.get(*places.get(process.name.rank as usize)?)?;
        Some(host.name.as_str()).filter(|host| *host != HERE)
    }

    /// Divides the processes of a job among the machines. Processes on other hosts get the
    /// forwarded variables.
    pub(crate) fn divide<I: Iterator<Item = (OsString, OsString)>>(
        &self,
        processes: Vec<Process>,
        environment: impl Fn() -> I,
    ) -> Vec<HostShare<'_>> {
        let mut shares: Vec<HostShare<'_>> = vec![(None, Vec::new())];
        for mut process in processes {
            let host = self.host(&process).zip(self.others.as_ref().map(|others| &others.route));
            if host.is_some() {
                let own = std::mem::take(&mut process.environment);
                process.environment = self.passed_on(environment());
                process.environment.extend(own);
                process.reads_input = false;
            }
            let name = host.map(|(host, _)| host);
            match shares.iter_mut().find(|(host, _)| host.map(|(host, _)| host) == name) {
                Some((_, processes)) => processes.push(process),
                None => shares.push((host, vec![process])),
            }
        }
        shares
    }

    fn passed_on(
        &self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(String, Option<String>)> {
        let mut passed: Vec<(String, Option<String>)> = Vec::new();
        for (name, value) in environment {
            let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
            if name.starts_with("KV_") || self.environment.contains(&name) {
                passed.push((name, Some(value)));
            }
        }
        let set = self.environment.iter().filter_map(|text| text.split_once('='));
        passed.extend(set.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))));
        passed
    }

    /// An address at which the scheduler can listen, and which all hosts reach.
    pub(crate) fn root(&self) -> io::Result<SchedulerAddress> {
        let (host, port) = match &self.root {
            Some(root) => split_root(root)?,
            None => (self.address()?.to_string(), None),
        };
        let port = port.map_or_else(|| free_port(&host), Ok)?;
        Ok(SchedulerAddress { host, port })
    }

    fn address(&self) -> io::Result<IpAddr> {
        let hosts = self.others.iter().flat_map(|others| &others.hosts);
        for host in hosts.filter(|host| host.name != HERE) {
            let address = local_address_of(&host.name).map_err(|error| {
                let text = format!(
                    "cannot tell this machine's address on the way to {}: {error}; give it with --root",
                    host.name
                );
                io::Error::new(error.kind(), text)
            })?;
            if !address.is_loopback() {
                return Ok(address);
            }
        }
        Ok(Ipv4Addr::LOCALHOST.into())
    }
}

impl RemoteHosts {
    /// As many workers as there are slots.
    fn most_workers(&self) -> u32 {
        let slots = self.hosts.iter().map(|host| host.slots.unwrap_or(1));
        slots.fold(0, u32::saturating_add).max(1)
    }
}

impl HostOptions {
    fn others(&self) -> Result<Option<RemoteHosts>, String> {
        let here = |error: io::Error| error.to_string();
        let hosts = match (&self.hosts, &self.host_file) {
            (Some(list), _) => Some(hostfile::parse_list(list)?),
            (None, Some(file)) => {
                let at = |error: String| format!("{}: {error}", file.display());
                let text = fs::read_to_string(file).map_err(|error| at(error.to_string()))?;
                Some(hostfile::parse_file(&text).map_err(at)?)
            }
            (None, None) => None,
        };
        let program = match &self.remote_program {
            Some(program) => program.clone(),
            None => text_of(env::current_exe().map_err(here)?)?,
        };
        let nodes = if self.no_slurm || hosts.is_some() { None } else { slurm::nodes()? };
        let (hosts, words, before_host, rest) = match (hosts, nodes) {
            (Some(hosts), _) => {
                let login = format!("exec {} agent", shell::quote(&program));
                (hosts, &self.ssh, "", vec![login])
            }
            (None, Some(nodes)) => {
                let own = ["--nodes=1", "--ntasks=1", "--unbuffered", &program, "agent"];
                (nodes, &self.srun, "--nodelist=", own.map(str::to_owned).to_vec())
            }
            (None, None) => return Ok(None),
        };
        let words = shell::split(words)?;
        let folder = match &self.remote_folder {
            Some(folder) => folder.clone(),
            None => text_of(env::current_dir().map_err(here)?)?,
        };
        let silence_ms = self.host_timeout_ms;
        let route = RemoteShell { words, before_host, rest, folder, silence_ms };
        Ok(Some(RemoteHosts { hosts, route }))
    }
}

fn text_of(path: PathBuf) -> Result<String, String> {
    path.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", path.display()))
}

/// A port that is free now is still free in a moment, when the scheduler takes it.
fn free_port(host: &str) -> io::Result<u16> {
    let listener = TcpListener::bind((host, 0)).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen at {host}: {error}"))
    })?;
    Ok(listener.local_addr()?.port())
}
