//! What a process is in its job, where a launcher of the site has started it and no option says it.
//!
//! Also called: rendezvous, bootstrap.

mod environment;
mod hostlist;

use std::net::IpAddr;

pub use environment::LaunchEnvironment;
pub use hostlist::expand_hosts;

use super::address::{is_loopback, with_port};
use super::{Config, EMBEDDED, job};
use crate::error::{Error, Result, fail};

/// The option `servers`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serving {
    /// Each worker's process has a server, and the first one the scheduler.
    Embedded,
    /// The first process is the scheduler, and so many behind it are servers.
    Processes(u32),
}

/// The options of one process of a job, complete.
pub(crate) struct JobPart {
    pub(crate) config: Config,
    /// The options of the other members of the job in this process.
    pub(crate) embedded: Vec<Config>,
}

/// What the options and the launcher say of the place of this process.
struct ProcessPlace {
    index: u32,
    count: u32,
    root: String,
    launcher: Option<LaunchEnvironment>,
}

impl JobPart {
    /// The part of this process: by its options, else by its launcher.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        Self::find(config).map_err(|error: Error| error.at("create"))
    }

    fn find(config: &Config) -> Result<Self> {
        let is_set = |name: &str| job::get(config, name).map(|value| value.is_some());
        let servers = config.find("servers")?;
        let says_sizes = is_set("num_workers")? || is_set("num_servers")?;
        let says_role = is_set("role")?;
        let alone = |config: Config| Self { config, embedded: Vec::new() };
        if says_role || (servers.is_none() && says_sizes) {
            return Ok(alone(with_completion_index(config)?));
        }
        let found = LaunchEnvironment::find();
        if servers.is_none() && found.is_none() {
            return Ok(alone(config.clone()));
        }
        let place = ProcessPlace::new(config, found)?;
        match serving(servers.as_deref()) {
            Serving::Embedded => place.embedded(config),
            Serving::Processes(servers) => place.of_processes(config, servers).map(alone),
        }
    }
}

fn serving(text: Option<&str>) -> Serving {
    let number = text.and_then(|text| text.parse().ok());
    number.map_or(Serving::Embedded, Serving::Processes)
}

/// A worker in a pod of an Indexed Job of Kubernetes has the rank of its pod, unless an option says another
/// one.
fn with_completion_index(config: &Config) -> Result<Config> {
    let mut config = config.clone();
    let role = job::get(&config, "role")?;
    let is_worker = role.as_deref().is_none_or(|role| role == "worker");
    if is_worker
        && job::get(&config, "rank")?.is_none()
        && let Some(index) = environment::completion_index()
    {
        config.set("rank", &index.to_string())?;
    }
    Ok(config)
}

impl ProcessPlace {
    fn new(config: &Config, launcher: Option<LaunchEnvironment>) -> Result<Self> {
        let number = |name: &str| -> Result<Option<u32>> {
            Ok(job::get(config, name)?.and_then(|text| text.parse().ok()))
        };
        let told = launcher.as_ref();
        let pod = environment::completion_index();
        let index = number("rank")?.or(told.map(|it| it.index)).or(pod);
        let count = number("num_workers")?.or(told.map(|it| it.count));
        let (Some(index), Some(count)) = (index, count) else {
            let name = if count.is_none() { "num_workers" } else { "rank" };
            return Err(fail!(
                Option,
                "servers is set, and none of torchrun, mpirun, mpiexec and srun has started this process: \
                 {name} is not known; set the option or KV_{}",
                name.to_uppercase()
            ));
        };
        if index >= count {
            return Err(fail!(
                Option,
                "this is process {index} of {count}, and their numbers begin with 0: the options, or the \
                 variables of the launcher, do not fit each other"
            ));
        }
        let of_launcher = told.and_then(|it| Some(root_at(it.host.as_ref()?, it.port)));
        let root = job::get(config, "root")?.or(of_launcher);
        let root = root.ok_or_else(|| {
            let by = told.map_or("", |it| it.launcher);
            fail!(
                Option,
                "{by} does not say on which machine the first of the {count} processes runs; set root or \
                 KV_ROOT, for all of them, to its host and a free port, such as node1:9091"
            )
        })?;
        Ok(Self { index, count, root, launcher })
    }

    /// The options that all members of the job in this process have.
    fn base(&self, config: &Config, workers: u32, servers: u32) -> Result<Config> {
        let mut base = config.clone();
        base.set("num_workers", &workers.to_string())?;
        base.set("num_servers", &servers.to_string())?;
        base.set("root", &self.root)?;
        let Some(launcher) = &self.launcher else { return Ok(base) };
        if config.find("job")?.is_none() {
            base.set("job", &launcher.job)?;
        }
        if let Some(secret) = &launcher.secret
            && !has_credential(config)?
        {
            base.set("token", secret)?;
        }
        Ok(base)
    }

    /// A worker, its server, and in the first process the scheduler.
    fn embedded(&self, config: &Config) -> Result<JobPart> {
        if let Some(servers) = job::get(config, "num_servers")?
            && servers != self.count.to_string()
        {
            return Err(fail!(
                Option,
                "servers=embedded puts a server into each of the {} processes, and num_servers is {servers}; \
                 leave num_servers out, or say servers={servers}",
                self.count
            ));
        }
        if has_any(config, &CERTIFICATES)? {
            return Err(fail!(
                Option,
                "servers=embedded: a certificate is for one role, and this process has several; use a token \
                 (token_file, KV_TOKEN), or processes for the servers, such as servers=1"
            ));
        }
        let base = self.base(config, self.count, self.count)?.with("servers", EMBEDDED)?;
        let rank = self.index.to_string();
        let mut embedded = Vec::new();
        if self.index == 0 {
            embedded.push(self.scheduler(&base)?);
        }
        embedded.push(base.clone().with("role", "server")?.with("rank", &rank)?);
        Ok(JobPart { config: base.with("role", "worker")?.with("rank", &rank)?, embedded })
    }

    /// One member of a job whose servers are processes of their own.
    fn of_processes(&self, config: &Config, servers: u32) -> Result<Config> {
        let Some(workers) = self.count.checked_sub(servers + 1).filter(|&workers| workers > 0)
        else {
            return Err(fail!(
                Option,
                "servers={servers}, and {} processes are too few for a scheduler, {servers} servers and a \
                 worker; start more of them, or say servers=embedded",
                self.count
            ));
        };
        let base = self.base(config, workers, servers)?;
        let (role, rank) = match self.index {
            0 if config.find("bind")?.is_some() => return base.with("role", "scheduler"),
            0 => return self.scheduler(&base),
            index if index <= servers => ("server", index - 1),
            index => ("worker", index - 1 - servers),
        };
        base.with("role", role)?.with("rank", &rank.to_string())
    }

    fn scheduler(&self, base: &Config) -> Result<Config> {
        let bind = self.scheduler_bind(has_credential(base)?);
        base.clone().with("role", "scheduler")?.with("bind", &bind)
    }

    /// The root; or all interfaces, if the name of this machine is the loopback here, as Debian has it: other
    /// machines could not reach that. A root that the user has chosen stays on the loopback unless the job
    /// has a credential.
    fn scheduler_bind(&self, has_credential: bool) -> String {
        let host =
            self.launcher.as_ref().and_then(|it| it.host.as_ref().map(|host| (host, it.port)));
        let is_told = host.is_some_and(|(host, port)| self.root == root_at(host, port));
        match self.root.rsplit_once(':') {
            Some((host, port)) if (is_told || has_credential) && is_name_of_loopback(host) => {
                format!("0.0.0.0:{port}")
            }
            _ => self.root.clone(),
        }
    }
}

fn root_at(host: &str, port: u16) -> String {
    with_port(host, &port.to_string())
}

fn is_name_of_loopback(host: &str) -> bool {
    let is_name = host != "localhost" && host.parse::<IpAddr>().is_err();
    is_name && is_loopback(&root_at(host, 0)).unwrap_or(false)
}

const CERTIFICATES: [&str; 3] = ["tls_ca_file", "tls_cert_file", "tls_key_file"];

fn has_any(config: &Config, names: &[&str]) -> Result<bool> {
    for name in names {
        if config.find(name)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the user has chosen a credential, or none.
fn has_credential(config: &Config) -> Result<bool> {
    let is_insecure = config.find("insecure")?.as_deref() == Some("yes");
    Ok(is_insecure || has_any(config, &["token", "token_file"])? || has_any(config, &CERTIFICATES)?)
}
