//! The configuration of the process to be checked, and the findings so far.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use kvstore::{Config, GpuReport, Observer, Result, View};

use super::{CheckResult, bad};

#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// Address of the job's scheduler; else `KV_ROOT`
    #[arg(value_name = "ROOT")]
    pub(crate) root: Option<String>,

    /// Role of the process: worker, server or scheduler; else `KV_ROLE`
    #[arg(long)]
    pub(crate) role: Option<String>,

    /// Its rank; else `KV_RANK`
    #[arg(long)]
    pub(crate) rank: Option<String>,

    /// How many workers it expects; else `KV_NUM_WORKERS`
    #[arg(long, value_name = "COUNT")]
    pub(crate) num_workers: Option<String>,

    /// How many servers it expects; else `KV_NUM_SERVERS`
    #[arg(long, value_name = "COUNT")]
    pub(crate) num_servers: Option<String>,

    /// Address that it listens at; else `KV_BIND`
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) bind: Option<String>,

    /// Set any option of the library, repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,

    /// How long the network may take to answer
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5_000)]
    pub(crate) timeout_ms: u64,

    /// How much to send to measure the bandwidth, in megabytes up to 128; 0 does not measure
    #[arg(long, value_name = "MEGABYTES", default_value_t = 16)]
    pub(crate) measure_mb: usize,
}

/// State shared by all checks.
#[derive(Default)]
pub(crate) struct DoctorContext {
    /// The configuration that the process would have.
    pub(crate) config: Config,
    wrong: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) measure_bytes: usize,
    /// Addresses of the scheduler, once its name was resolved.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether a process listens there.
    pub(crate) reached: bool,
    /// Opened by the first check that needs it.
    pub(crate) observer: Option<Result<Observer>>,
    pub(crate) view: Option<View>,
    /// The GPUs of this machine, once a driver was opened.
    pub(crate) gpus: Option<GpuReport>,
    /// Whether packets of full size are lost on the way to it or back.
    pub(crate) loses_packets: bool,
    /// Arrival time of the view, by the clock of this machine in milliseconds since 1970.
    pub(crate) seen_ms: u64,
}

/// All options: a process fails when it starts if the value of any does not fit.
pub(super) const NAMES: [&str; 45] = [
    "root",
    "role",
    "rank",
    "num_workers",
    "num_servers",
    "servers",
    "bind",
    "job",
    "start_timeout_ms",
    "peer_timeout_ms",
    "max_rounds_ahead",
    "staleness",
    "slice_bytes",
    "hold_bytes",
    "sum_order",
    "on_worker_loss",
    "timeout_ms",
    "insecure",
    "metrics",
    "threads",
    "isa",
    "updater_undo",
    "digests",
    "digest_log",
    "digest_log_bytes",
    "cuda",
    "devices",
    "device_bytes",
    "device_checks",
    "device_wait",
    "updater_memory",
    "server_updater",
    "token",
    "token_file",
    "token_by_rank",
    "integrity",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "tls_verify_names",
    "trace",
    "trace_rounds",
    "shm",
    "connections",
    "transport",
];

impl DoctorOptions {
    /// The options that are set, as far as they are assignments.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let split =
            |text: &String| text.split_once('=').map(|(name, value)| (name.into(), value.into()));
        self.set.iter().filter_map(split).collect()
    }
}

impl DoctorContext {
    pub(crate) fn new(asked: &DoctorOptions) -> Self {
        let (mut config, mut wrong) = (Config::new(), Vec::new());
        // An assignment without a value is an option without a name, which is refused as such.
        let set = asked.set.iter().map(|text| text.split_once('=').unwrap_or((text, "")));
        let named = [
            ("root", &asked.root),
            ("role", &asked.role),
            ("rank", &asked.rank),
            ("num_workers", &asked.num_workers),
            ("num_servers", &asked.num_servers),
            ("bind", &asked.bind),
        ];
        let named = named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        for (name, value) in set.chain(named) {
            if let Err(error) = config.set(name, value) {
                wrong.push(error.message().trim_start_matches("config: ").to_owned());
            }
        }
        Self {
            config,
            wrong,
            timeout: Duration::from_millis(asked.timeout_ms.clamp(1, 3_600_000)),
            measure_bytes: asked.measure_mb.min(128) << 20,
            ..Self::default()
        }
    }

    /// The observer for all checks, or the error that prevents one.
    pub(crate) fn open(&mut self) -> &mut Result<Observer> {
        self.observer.get_or_insert_with(|| Observer::open(&self.config))
    }

    /// An option, set or from the environment; one that does not fit is reported by `options`.
    pub(crate) fn option(&self, name: &str) -> Option<String> {
        self.config.get(name).ok().flatten()
    }

    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.option(name)?.parse().ok()
    }

    pub(crate) fn root(&self) -> Option<String> {
        self.option("root")
    }

    pub(crate) fn role(&self) -> String {
        self.option("role").unwrap_or_else(|| "worker".into())
    }
}

/// Whether options are known, fit, and are there.
pub(crate) fn options(case: &mut DoctorContext) -> CheckResult {
    let found = NAMES.iter().map(|name| case.config.get(name));
    let errors = found.filter_map(Result::err).map(|error| error.message().to_owned());
    let wrong: Vec<String> = case.wrong.iter().cloned().chain(errors).collect();
    if !wrong.is_empty() {
        return Err(bad(wrong.join("; "), "docs/use/config.md has the values of every option"));
    }
    let needed = ["root", "num_workers", "num_servers"].into_iter();
    let missing: Vec<&str> = needed.filter(|name| case.option(name).is_none()).collect();
    match missing[..] {
        [] => Ok(format!(
            "a {} of a job of {} workers and {} servers at {}",
            case.role(),
            case.option("num_workers").unwrap_or_default(),
            case.option("num_servers").unwrap_or_default(),
            case.root().unwrap_or_default()
        )),
        ["num_workers", "num_servers"] if case.role() == "worker" => {
            Ok("no world size was given: only what needs none is checked".into())
        }
        _ => Err(bad(
            format!("not set: {}", missing.join(", ")),
            "set the option, or KV_ and its name in the environment; `kvstore run` sets all of them",
        )),
    }
}
