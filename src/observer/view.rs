//! What can be seen of a job, for programs and for people.

use serde::Serialize;

/// A running job, as its scheduler and the reports of its processes show it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct View {
    /// The address of the scheduler.
    pub root: String,
    /// The clock of the scheduler's machine, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Whether all processes have come.
    pub started: bool,
    /// `dist_sync` or `dist_async`; None before the first worker has come.
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    /// How many workers the job has.
    pub num_workers: u32,
    /// How many servers the job has.
    pub num_servers: u32,
    /// How often its members have changed since the start; 0 before it.
    pub epoch: u32,
    /// What the workers have agreed on, once it is known.
    pub peer_timeout_ms: Option<u64>,
    /// How much each server may hold, once it is known.
    pub hold_bytes: Option<u64>,
    /// Processes that have not come yet, such as `worker 2`; at most 64 of them.
    pub missing: Vec<String>,
    /// The worker that the others wait for most, if there is one.
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
    /// How the others call it.
    pub address: String,
    /// Whether it takes part.
    pub state: State,
    /// How long ago the scheduler last heard it; None when they are not linked.
    pub heard_ms: Option<u64>,
    /// How long ago it said what `facts` has; None before that.
    pub report_ms: Option<u64>,
    /// What it said of itself.
    pub facts: Option<Facts>,
}

/// Whether a process takes part in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Here,
    /// It has not been heard for a while, and may soon be lost.
    Silent,
    /// It died, or the job declared it lost.
    Lost,
    /// It has left.
    Left,
}

/// What one process says of itself. Counts are those since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Since its start.
    pub age_s: f64,
    /// The last round that a worker has pushed, or that a server has closed.
    pub round: u64,
    /// A worker's pushes that have ended; rounds of slices that a server has closed.
    pub rounds: u64,
    /// Bytes that came in, with all headers of messages.
    pub bytes_in: u64,
    /// Bytes that went out.
    pub bytes_out: u64,
    /// Messages that came in.
    pub messages_in: u64,
    /// Messages that went out.
    pub messages_out: u64,
    /// Messages that were sent again, because they were not acknowledged in time.
    pub resent: u64,
    /// Deliveries with something that was no message.
    pub bad_frames: u64,
    /// Messages that wait to be sent.
    pub queued: u64,
    /// Bytes that were sent and are not acknowledged.
    pub in_flight_bytes: u64,
    /// Keys that it knows.
    pub keys: u64,
    /// Slices of keys that a server has.
    pub slices: u64,
    /// Bytes of values that a server has.
    pub stored_bytes: u64,
    /// Bytes of pushes that a server holds because their turn has not come.
    pub held_bytes: u64,
    /// Pushes that a server got more than once.
    pub duplicates: u64,
    /// A worker's calls that have failed.
    pub failures: u64,
    /// The longest that a heartbeat was late, in microseconds: behind other work of the process, such as
    /// that on a long list of keys, or because the process did not run.
    pub heartbeat_delay_us: u64,
    /// What has changed since the look before; None at the first one.
    pub rates: Option<Rates>,
    /// How long pushes of a worker took.
    pub push: Latency,
    /// How long pulls of a worker took.
    pub pull: Latency,
    /// How long pushes of a worker that pull as well took.
    pub pushpull: Latency,
    /// A worker's calls that have not ended.
    pub pending: u64,
    /// The oldest ones of them, at most 16.
    pub waiting: Vec<Waiting>,
    /// The workers that the rounds of a server waited for, at most 16.
    pub waited_for: Vec<WaitedFor>,
}

/// Changes in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// The time between two looks that these numbers are about.
    pub over_s: f64,
    /// Bytes that came in.
    pub bytes_in_per_s: f64,
    /// Bytes that went out.
    pub bytes_out_per_s: f64,
    /// Rounds: as [`Facts::rounds`].
    pub rounds_per_s: f64,
}

/// How long calls took. Quantiles are those of the calls since the look before, at the first look
/// those of all; they are up to a quarter too large.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// All calls of this kind.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_us: Option<u64>,
    /// Of a hundred, 99 took no longer.
    pub p99_us: Option<u64>,
    /// What all of them took together.
    pub sum_us: u64,
    /// How many took less than each of [`LATENCY_BOUNDS_US`].
    #[serde(skip)]
    pub below: [u64; LATENCY_BOUNDS_US.len()],
}

/// Times in microseconds: powers of two.
pub const LATENCY_BOUNDS_US: [u64; 11] = {
    let mut bounds = [0; 11];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = 1 << POWERS[at];
        at += 1;
    }
    bounds
};
pub(super) const POWERS: [u32; 11] = [6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26];

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waiting {
    /// `push`, `pull`, `barrier` and so on.
    pub call: &'static str,
    /// Its key, if it concerns one: a name, or a number.
    pub key: Option<String>,
    /// Its round, or the number of a barrier or a setting; 0 if it has none yet.
    pub round: u64,
    /// Since when.
    pub age_ms: u64,
    /// For whom, such as `worker 2`; nobody when it waits for earlier calls of its own worker.
    #[serde(rename = "for")]
    pub awaited: Vec<String>,
}

/// A worker that rounds waited for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WaitedFor {
    /// Its rank.
    pub worker: u32,
    /// Rounds of slices in which its push was the last one.
    pub rounds: u64,
    /// For how long it was the only one that was missing, all together; slices wait at the same
    /// time.
    pub seconds: f64,
}
