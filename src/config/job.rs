//! The options of distributed stores: the configuration of one process of a job.

use super::{Config, EMBEDDED};
use crate::error::{Error, Result, fail};
use crate::role::Role;

/// The configuration of one process of a job.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "options that are yes or no")]
pub(crate) struct JobConfig {
    pub(crate) role: Role,
    /// None leaves the choice to the scheduler.
    pub(crate) rank: Option<u32>,
    /// The scheduler's address.
    pub(crate) root: String,
    /// Listening address of this process, if not the default one.
    pub(crate) bind: Option<String>,
    /// Separates jobs that share one address; None without a configured name.
    pub(crate) name: Option<String>,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) staleness: Option<u64>,
    pub(crate) goes_on_without_lost_workers: bool,
    pub(crate) start_timeout_ms: u64,
    /// Each worker's process has a server, and the first one the scheduler.
    pub(crate) embedded: bool,
    pub(crate) peer_timeout_ms: u64,
    pub(crate) max_rounds_ahead: u64,
    pub(crate) slice_bytes: u64,
    pub(crate) hold_bytes: u64,
    /// Sums are those of a binary tree.
    pub(crate) adds_by_tree: bool,
    /// Processes of one machine exchange values through shared memory.
    pub(crate) shm: bool,
    /// `auto`, or the name of a transport.
    pub(crate) transport: String,
    /// Connections of a worker with a server, if not chosen by the length of the link.
    pub(crate) connections: Option<u8>,
    pub(crate) secrets: Secrets,
    /// Listening address of the scheduler's Prometheus metrics, if enabled.
    pub(crate) metrics: Option<String>,
    /// Path prefix of traces, if enabled, and their rounds.
    pub(crate) trace: Option<(String, (u64, u64))>,
    /// Whether a worker may set an updater, which has no effect: the servers have it too.
    pub(crate) server_updater: bool,
}

/// What connections with a token carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Integrity {
    Plain,
    /// Records, whose keys are made of the token.
    Records,
}

/// The tokens that a listener takes from workers and readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptedTokens {
    /// Those of the job, of all workers, and of one rank.
    All,
    /// Those of one rank.
    OfRanks,
}

/// The credentials of this process, and where they are.
#[derive(Clone)]
pub(crate) struct Secrets {
    pub(crate) token: Option<String>,
    pub(crate) token_file: Option<String>,
    pub(crate) tls_ca_file: Option<String>,
    pub(crate) tls_cert_file: Option<String>,
    pub(crate) tls_key_file: Option<String>,
    pub(crate) verifies_names: bool,
    pub(crate) accepted: AcceptedTokens,
    pub(crate) integrity: Integrity,
    /// Listens on any address without credentials.
    pub(crate) insecure: bool,
    /// A worker that only pulls.
    pub(crate) reads_only: bool,
}

impl Secrets {
    /// Whether this process has a credential, or a part of one.
    pub(crate) fn are_given(&self) -> bool {
        let files = [&self.token_file, &self.tls_ca_file, &self.tls_cert_file, &self.tls_key_file];
        self.token.is_some() || files.into_iter().any(Option::is_some)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("secrets")
    }
}

/// The environment variable of an option under MXNet's launchers.
fn variable_of_old(name: &str, role: Role) -> Option<&'static str> {
    Some(match (name, role) {
        ("role", _) => "DMLC_ROLE",
        ("num_workers", _) => "DMLC_NUM_WORKER",
        ("num_servers", _) => "DMLC_NUM_SERVER",
        ("rank", Role::Worker) => "DMLC_WORKER_ID",
        ("rank", Role::Server) => "DMLC_SERVER_ID",
        _ => return None,
    })
}

impl JobConfig {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        Self::read(config).map_err(|error: Error| error.at("create"))
    }

    /// The configuration of an observer of a job.
    pub(crate) fn of_observer(config: &Config) -> Result<Self> {
        let mut config = config.clone();
        for name in ["num_workers", "num_servers"] {
            config.set(name, "1")?;
        }
        Self::read(&config)
    }

    fn read(config: &Config) -> Result<Self> {
        let told = text(config, "role", Role::Worker)?;
        let role = match told.as_deref() {
            Some("server") => Role::Server,
            Some("scheduler") => Role::Scheduler,
            _ => Role::Worker,
        };
        let find = |name: &str| text(config, name, role);
        let number = |name: &str, default: u64| -> Result<u64> {
            Ok(find(name)?.and_then(|text| text.parse().ok()).unwrap_or(default))
        };
        let needed = |name: &str| -> Result<u32> {
            let text = find(name)?.ok_or_else(|| missing(name, role))?;
            text.parse().map_err(|_| fail!(Option, "{name} is {text:?}; it must be a number"))
        };
        let root = root(config)?;
        let optional = |name: &str| -> Result<Option<u64>> {
            Ok(find(name)?.and_then(|text| text.parse().ok()))
        };
        let yes = |name: &str| -> Result<bool> { Ok(find(name)?.as_deref() == Some("yes")) };
        Ok(Self {
            role,
            rank: optional("rank")?.and_then(|rank| u32::try_from(rank).ok()),
            root,
            bind: find("bind")?,
            name: find("job")?,
            workers: needed("num_workers")?,
            servers: needed("num_servers")?,
            staleness: optional("staleness")?,
            goes_on_without_lost_workers: find("on_worker_loss")?.as_deref() == Some("continue"),
            start_timeout_ms: number("start_timeout_ms", 60_000)?,
            embedded: config.find("servers")?.as_deref() == Some(EMBEDDED),
            peer_timeout_ms: number("peer_timeout_ms", 5_000)?,
            max_rounds_ahead: number("max_rounds_ahead", 1)?,
            slice_bytes: number("slice_bytes", 256 << 10)?,
            hold_bytes: number("hold_bytes", 256 << 20)?,
            adds_by_tree: find("sum_order")?.as_deref() == Some("tree"),
            shm: find("shm")?.as_deref() != Some("no"),
            transport: find("transport")?.unwrap_or_else(|| "auto".into()),
            connections: find("connections")?.and_then(|text| text.parse().ok()),
            metrics: find("metrics")?,
            trace: trace(config)?,
            server_updater: yes("server_updater")?,
            secrets: Secrets {
                token: find("token")?,
                token_file: find("token_file")?,
                tls_ca_file: find("tls_ca_file")?,
                tls_cert_file: find("tls_cert_file")?,
                tls_key_file: find("tls_key_file")?,
                verifies_names: find("tls_verify_names")?.as_deref() != Some("no"),
                accepted: if yes("token_by_rank")? {
                    AcceptedTokens::OfRanks
                } else {
                    AcceptedTokens::All
                },
                integrity: if yes("integrity")? { Integrity::Records } else { Integrity::Plain },
                insecure: yes("insecure")?,
                reads_only: told.as_deref() == Some("reader"),
            },
        })
    }
}

/// Path prefix of traces, and their rounds.
fn trace(config: &Config) -> Result<Option<(String, (u64, u64))>> {
    let rounds = config.find("trace_rounds")?.as_deref().and_then(super::rounds);
    Ok(config.find("trace")?.map(|prefix| (prefix, rounds.unwrap_or((1, 10)))))
}

/// An option's value, set here, in the environment, or in that of MXNet's launchers.
fn text(config: &Config, name: &str, role: Role) -> Result<Option<String>> {
    match (config.find(name)?, variable_of_old(name, role)) {
        (None, Some(old)) => config.find_in(name, old),
        (found, _) => Ok(found),
    }
}

/// The value of an option for a process of a job.
pub(super) fn get(config: &Config, name: &str) -> Result<Option<String>> {
    let role = match text(config, "role", Role::Worker)?.as_deref() {
        Some("server") => Role::Server,
        _ => Role::Worker,
    };
    match text(config, name, role)? {
        None if name == "root" => root_of_old(config),
        found => Ok(found),
    }
}

/// The scheduler's address, for an observer.
fn root(config: &Config) -> Result<String> {
    match config.find("root")? {
        Some(root) => Ok(root),
        None => root_of_old(config)?.ok_or_else(|| missing("root", Role::Worker)),
    }
}

/// The scheduler's address under MXNet's launchers.
fn root_of_old(config: &Config) -> Result<Option<String>> {
    let host = config.find_in("root", "DMLC_PS_ROOT_URI")?;
    let port = config.find_in("root", "DMLC_PS_ROOT_PORT")?;
    Ok(host.zip(port).map(|(host, port)| format!("{host}:{port}")))
}

fn missing(name: &str, role: Role) -> Error {
    let old = variable_of_old(name, role).or((name == "root").then_some("DMLC_PS_ROOT_URI"));
    let old = old.map_or(String::new(), |old| format!(" or {old}"));
    fail!(
        Option,
        "a distributed store needs {name}: set the option or the environment variable KV_{}{old}, or \
         start the program with `kvstore run`, torchrun, mpirun or srun",
        name.to_uppercase()
    )
}
