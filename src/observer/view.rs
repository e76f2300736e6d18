//! The public view of a job, for programs and for people.

use kvstore_protocol::{Counter, ProcessCounters, Unit};
use serde::{Serialize, Serializer};

/// A running job, as its scheduler and the reports of its processes show it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct View {
    /// The address of the scheduler.
    pub root: String,
    /// The clock of the scheduler's machine, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Whether all processes have joined.
    pub started: bool,
    /// `dist_sync` or `dist_async`; None before the first worker has joined.
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    /// How many workers the job has.
    pub num_workers: u32,
    /// How many servers the job has.
    pub num_servers: u32,
    /// Number of membership changes since the start; 0 before it.
    pub epoch: u32,
    /// Peer timeout that the workers have agreed on, once it is known.
    pub peer_timeout_ms: Option<u64>,
    /// Maximum number of bytes that each server may hold, once it is known.
    pub hold_bytes: Option<u64>,
    /// Processes that have not joined yet, such as `worker 2`; at most 64 of them.
    pub missing: Vec<String>,
    /// The worker that the other workers wait for most (straggler), if there is one.
    pub slowest_worker: Option<u32>,
    /// The scheduler, then servers and workers by rank.
    pub nodes: Vec<Node>,
}

/// One process of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node {
    /// `scheduler`, `worker` or `server`.
    pub role: &'static str,
    /// Its number among those of its role.
    pub rank: u32,
    /// Its address, as its peers know it.
    pub address: String,
    /// Whether it takes part.
    pub state: State,
    /// Time since the scheduler last received from it; None when they are not linked.
    pub heard_ms: Option<u64>,
    /// Age of the report in `facts`; None before the first one.
    pub report_ms: Option<u64>,
    /// Its last report.
    pub facts: Option<Facts>,
}

impl Node {
    /// Value and unit of a counter, by its name in JSON. None for a role without it, and without a report.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<(u64, Unit)> {
        let is_ours = |(metric, _): &(&str, _)| Counter::is_of(metric, self.role);
        let counter = ProcessCounters::table().find(|counter| counter.name == name)?;
        let facts = self.facts.as_ref().filter(|_| counter.metrics.iter().any(is_ours))?;
        Some(((counter.value)(&facts.counters), counter.unit))
    }
}

/// Whether a process takes part in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It takes part.
    Here,
    /// The scheduler has received nothing from it for a while, and may soon declare it lost.
    Silent,
    /// It died, or the job declared it lost.
    Lost,
    /// It has left.
    Left,
}

/// The report of one process. Counts are those since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Time since its start.
    pub age_s: f64,
    /// Its counters: members of JSON like all others.
    #[serde(flatten, serialize_with = "counters")]
    pub counters: ProcessCounters,
    /// Changes since the previous look; None at the first one.
    pub rates: Option<Rates>,
    /// Latency of a worker's pushes.
    pub push: Latency,
    /// Latency of a worker's pulls.
    pub pull: Latency,
    /// Latency of a worker's pushes that pull as well.
    pub pushpull: Latency,
    /// A worker's calls that have not ended.
    pub pending: u64,
    /// The oldest of the pending calls, at most 16.
    pub waiting: Vec<Waiting>,
    /// The workers that the rounds of a server waited for, at most 16.
    pub waited_for: Vec<WaitedFor>,
    /// What carries its frames to its peers.
    pub transports: Vec<TransportUse>,
}

fn counters<S: Serializer>(counters: &ProcessCounters, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(ProcessCounters::table().map(|it| (it.name, (it.value)(counters))))
}

/// Changes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Time between the two looks that the rates compare.
    pub over_s: f64,
    /// Bytes received.
    pub bytes_in_per_s: f64,
    /// Bytes sent.
    pub bytes_out_per_s: f64,
    /// Rounds, counted as in [`ProcessCounters::rounds`].
    pub rounds_per_s: f64,
}

/// Latency of calls. Quantiles are those of the calls since the previous look, at the first look those of all
/// calls. They are up to a quarter too large.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of calls of this kind.
    pub count: u64,
    /// Median: half of the calls took no longer.
    pub p50_us: Option<u64>,
    /// 99th percentile: of a hundred calls, 99 took no longer.
    pub p99_us: Option<u64>,
    /// Total time of all calls.
    pub sum_us: u64,
    /// Number of calls that took less than each of [`LATENCY_BOUNDS_US`].
    #[serde(skip)]
    pub below: [u64; LATENCY_BOUNDS_US.len()],
}

/// Times in microseconds: powers of two, each four times the one before.
pub const LATENCY_BOUNDS_US: [u64; 11] = [
    1 << 6,
    1 << 8,
    1 << 10,
    1 << 12,
    1 << 14,
    1 << 16,
    1 << 18,
    1 << 20,
    1 << 22,
    1 << 24,
    1 << 26,
];

/// A pending call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waiting {
    /// `push`, `pull`, `barrier` and so on.
    pub call: &'static str,
    /// Its key, if it concerns one: a name, or a number.
    pub key: Option<String>,
    /// Its round, or the number of a barrier or a setting; 0 if it has none yet.
    pub round: u64,
    /// Time since its start.
    pub age_ms: u64,
    /// Peers that it waits for, such as `worker 2`; empty when it waits for earlier calls of its own worker.
    #[serde(rename = "for")]
    pub awaited: Vec<String>,
}

/// What carries the frames of a process to some of its peers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TransportUse {
    /// Name of the transport, such as `shm`.
    pub transport: String,
    /// The first 16 of these peers, such as `server 0`.
    pub peers: Vec<String>,
    /// Number of these peers.
    pub count: u32,
    /// Why preferred transports do not, such as `shm: shm=no`; empty without one.
    pub others: String,
}

/// A worker that rounds waited for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WaitedFor {
    /// Its rank.
    pub worker: u32,
    /// Rounds of slices in which its push was the last one.
    pub rounds: u64,
    /// Total time for which it was the only missing worker; slices wait in parallel.
    pub seconds: f64,
}
