//! Placement: the hosts of the processes of a job, and the commands that reach them.

use std::cell::OnceCell;
use std::env;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use clap::Args;
use kvstore::Role;
use socket2::{Domain, Protocol, Socket, Type};

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

/// Where the processes of a job run.
#[derive(Debug, Default)]
pub(crate) struct ProcessPlacement {
    /// The hosts of workers and servers; none if all processes run here.
    hosts: Vec<HostSlots>,
    /// The command that reaches them.
    route: Option<RemoteShell>,
    pub(crate) workers: u32,
    /// The host of each worker, and of each server.
    places: (Vec<usize>, Vec<usize>),
    /// Variables for other hosts.
    environment: Vec<String>,
    root: Option<String>,
    /// Holds the scheduler's port as long as the launcher lives.
    reserved: OnceCell<ReservedPort>,
}

/// A port that the system gives to no other socket that asks for any port. The scheduler can listen
/// at it, since this socket does not listen and both allow that an address is used again.
#[derive(Debug)]
struct ReservedPort {
    _socket: Socket,
    number: u16,
}

impl ReservedPort {
    fn new(host: &str) -> Result<Self> {
        let reserve = || {
            let address = (host, 0).to_socket_addrs()?.next();
            Self::at(address.ok_or_else(|| io::Error::other("the host is unknown"))?)
        };
        reserve().with_context(|| format!("cannot listen at {host}"))
    }

    fn at(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        let bound = socket.local_addr()?.as_socket();
        let number = bound.ok_or_else(|| io::Error::other("not an address of IP"))?.port();
        Ok(Self { _socket: socket, number })
    }
}

/// Processes of one machine; None is this one.
pub(crate) type HostShare<'a> = (Option<(&'a str, &'a RemoteShell)>, Vec<Process>);

impl ProcessPlacement {
    pub(crate) fn new(options: &HostOptions, workers: Option<u32>, servers: u32) -> Result<Self> {
        let (hosts, route) = options.others()?.unzip();
        let hosts: Vec<HostSlots> = hosts.unwrap_or_default();
        // As many workers as there are slots.
        let slots = hosts.iter().map(|host| host.slots.unwrap_or(1));
        let slots = slots.fold(0, u32::saturating_add).max(1);
        let workers = workers.unwrap_or(slots);
        let places = if route.is_some() {
            hostfile::place(&hosts, workers, servers).map_err(Error::msg)?
        } else {
            (Vec::new(), Vec::new())
        };
        let (environment, root) = (options.environment.clone(), options.root.clone());
        Ok(Self { hosts, route, workers, places, environment, root, reserved: OnceCell::new() })
    }

    /// Everything on this machine.
    pub(crate) fn here(workers: u32) -> Self {
        Self { workers, ..Self::default() }
    }

    /// The host of a process; None is this machine.
    pub(crate) fn host(&self, process: &Process) -> Option<&str> {
        let (workers, servers) = &self.places;
        let places = match process.name.role {
            Role::Scheduler => return None,
            Role::Server => servers,
            Role::Worker => workers,
        };
        let host = self.hosts.get(*places.get(process.name.rank as usize)?)?;
        Some(host.name.as_str()).filter(|host| *host != HERE)
    }

    /// Divides the processes of a job among the machines. Processes on other hosts get the
    /// forwarded variables.
    pub(crate) fn divide(&self, processes: Vec<Process>) -> Vec<HostShare<'_>> {
        let mut shares: Vec<HostShare<'_>> = vec![(None, Vec::new())];
        for mut process in processes {
            let host = self.host(&process).zip(self.route.as_ref());
            if host.is_some() {
                let own = std::mem::take(&mut process.environment);
                process.environment = self.passed_on();
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

    /// The variables for other hosts.
    fn passed_on(&self) -> Vec<(String, Option<String>)> {
        let mut passed: Vec<(String, Option<String>)> = Vec::new();
        for (name, value) in env::vars_os() {
            let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
            if name.starts_with("KV_") || self.environment.contains(&name) {
                passed.push((name, Some(value)));
            }
        }
        let set = self.environment.iter().filter_map(|text| text.split_once('='));
        passed.extend(set.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))));
        passed
    }

    /// An address at which the scheduler can listen, and which all hosts reach; the same in each
    /// call.
    pub(crate) fn root(&self) -> Result<SchedulerAddress> {
        let (host, port) = match &self.root {
            Some(root) => split_root(root)?,
            None => (self.address()?.to_string(), None),
        };
        let port = match (port, self.reserved.get()) {
            (Some(port), _) => port,
            (None, Some(reserved)) => reserved.number,
            (None, None) => {
                let reserved = ReservedPort::new(&host)?;
                self.reserved.get_or_init(|| reserved).number
            }
        };
        Ok(SchedulerAddress { host, port })
    }

    fn address(&self) -> Result<IpAddr> {
        for host in self.hosts.iter().filter(|host| host.name != HERE) {
            let address = local_address_of(&host.name).map_err(|error| {
                anyhow!(
                    "cannot tell this machine's address on the way to {}: {error}; give it with --root",
                    host.name
                )
            })?;
            if !address.is_loopback() {
                return Ok(address);
            }
        }
        Ok(Ipv4Addr::LOCALHOST.into())
    }
}

impl HostOptions {
    /// Other machines, and the command that reaches them.
    fn others(&self) -> Result<Option<(Vec<HostSlots>, RemoteShell)>> {
        let hosts = match (&self.hosts, &self.host_file) {
            (Some(list), _) => Some(hostfile::parse_list(list).map_err(Error::msg)?),
            (None, Some(file)) => {
                let read = fs::read_to_string(file).map_err(Error::from);
                let hosts = read.and_then(|text| hostfile::parse_file(&text).map_err(Error::msg));
                Some(hosts.with_context(|| file.display().to_string())?)
            }
            (None, None) => None,
        };
        let program = match &self.remote_program {
            Some(program) => program.clone(),
            None => text_of(&env::current_exe()?)?,
        };
        let nodes = if self.no_slurm || hosts.is_some() {
            None
        } else {
            slurm::nodes().map_err(Error::msg)?
        };
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
        let words = shell::split(words).map_err(Error::msg)?;
        let folder = match &self.remote_folder {
            Some(folder) => folder.clone(),
            None => text_of(&env::current_dir()?)?,
        };
        let silence_ms = self.host_timeout_ms;
        let route = RemoteShell { words, before_host, rest, folder, silence_ms };
        Ok(Some((hosts, route)))
    }
}

fn text_of(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test")]
mod tests {
    use super::{Domain, ProcessPlacement, Socket, SocketAddr, Type};

    #[test]
    fn a_reserved_port_is_for_the_scheduler_alone() {
        let placement = ProcessPlacement::here(1);
        let root = placement.root().unwrap();
        assert_eq!(placement.root().unwrap(), root);
        let address: SocketAddr = root.to_string().parse().unwrap();

        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(other.bind(&address.into()).is_err(), "{root} is free for others");
        let scheduler = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        scheduler.set_reuse_address(true).unwrap();
        scheduler.bind(&address.into()).unwrap();
        scheduler.listen(1).unwrap();
    }
}
