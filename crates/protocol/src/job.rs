//! What all rooms of the protocol speak of: members of a job, time, limits, failures.

use std::fmt;

/// Room for so many elements is kept at most in lists that are emptied again and again.
const MOST_ROOM: usize = 256;

/// Microseconds since any fixed moment; the driver's clock, which never goes back.
pub type Time = u64;

pub const MS: Time = 1_000;

/// Maximum keys that are gone through in one step of a machine: heartbeats and calls of other threads
/// wait behind a step. A key takes about a microsecond. Few in tests, so that the simulator's keys are
/// more than one step as well.
pub(super) const AT_ONCE: usize = if cfg!(test) { 2 } else { 1_024 };

/// What a process is in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Scheduler = 0,
    Worker = 1,
    Server = 2,
}

impl Role {
    #[must_use]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Scheduler, Self::Worker, Self::Server].into_iter().find(|role| *role as u8 == code)
    }
}

/// A member of the job, by what it is and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    pub role: Role,
    pub rank: u32,
}

/// The rank of a process that leaves the choice to the scheduler, until it has one.
pub const NO_RANK: u32 = u32::MAX;

impl Peer {
    pub const SCHEDULER: Self = Self { role: Role::Scheduler, rank: 0 };

    #[must_use]
    pub fn worker(rank: u32) -> Self {
        Self { role: Role::Worker, rank }
    }

    #[must_use]
    pub fn server(rank: u32) -> Self {
        Self { role: Role::Server, rank }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.role {
            Role::Scheduler => return f.write_str("the scheduler"),
            Role::Worker => "worker",
            Role::Server => "server",
        };
        match self.rank {
            NO_RANK => write!(f, "a {name} without a rank"),
            rank => write!(f, "{name} {rank}"),
        }
    }
}

/// `worker 0, worker 2`; at most eight of them, then how many more.
pub(crate) fn list(peers: &[Peer]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = peers.iter().take(SHOWN).map(ToString::to_string).collect();
    match peers.len() {
        0 => "nobody".into(),
        count if count > SHOWN => format!("{} and {} more", names.join(", "), count - SHOWN),
        _ => names.join(", "),
    }
}

/// A key as people know it; names are the business of the store, which knows them.
pub(crate) fn label(key: u64) -> String {
    if key >> 63 == 0 { format!("key {key}") } else { format!("key {key:#018x}") }
}

/// What became of a request that failed; the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The deadline passed. A push may still take effect.
    Timeout = 1,
    /// A process that the request needs is gone.
    PeerLost = 2,
    /// This process was declared lost; the job went on without it.
    Evicted = 3,
    KeyNotFound = 4,
    KeyExists = 5,
    ShapeMismatch = 6,
    DtypeMismatch = 7,
    /// The ranks disagree about something else.
    Differs = 8,
    /// The scheduler does not take this process: world size, rank or version.
    Refused = 9,
    /// The request does not fit what was asked before: a push after done, a wrong length.
    Invalid = 10,
    Closed = 11,
    /// The updater on a server failed.
    Callback = 12,
    /// Another worker has the key under another name with the same hash.
    NameCollision = 13,
}

impl Reason {
    #[must_use]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use Reason::{
            Callback, Closed, Differs, DtypeMismatch, Evicted, Invalid, KeyExists, KeyNotFound,
            NameCollision, PeerLost, Refused, ShapeMismatch, Timeout,
        };
        [
            Timeout,
            PeerLost,
            Evicted,
            KeyNotFound,
            KeyExists,
            ShapeMismatch,
            DtypeMismatch,
            Differs,
            Refused,
            Invalid,
            Closed,
            Callback,
            NameCollision,
        ]
        .into_iter()
        .find(|reason| *reason as u8 == code)
    }
}

/// Why a request failed, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: Reason,
    pub text: String,
}

impl Failure {
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// When a push takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In rounds.
    Sync,
    /// At once; with a bound, the push that would lead the slowest worker by more waits.
    Async { staleness: Option<u64> },
}

/// What the job does when a worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    Fail,
    Continue,
}

/// The numbers of a job, equal in all its processes.
#[derive(Debug, Clone)]
pub struct Limits {
    pub job: u64,
    pub workers: u32,
    pub servers: u32,
    pub mode: Mode,
    pub on_loss: OnLoss,
    pub peer_timeout: Time,
    pub start_timeout: Time,
    /// Slices are multiples of the blocks of codecs, so that slicing never changes a result.
    pub block_elements: u64,
    pub slice_bytes: u64,
    pub hold_bytes: u64,
    pub max_rounds_ahead: u64,
    /// What one link sends ahead of its acknowledgement: so many frames at most, and no other once
    /// so many bytes are on their way. More urgent ones overtake only what is not among them.
    pub window_frames: usize,
    pub window_bytes: u64,
    /// Values and pushes do not travel at the same time, where both directions are work for the same few
    /// processors: workers put pulls behind pushes that are queued, and servers hold values back while
    /// more comes from the worker. Each process decides for itself.
    pub one_way_at_a_time: bool,
}

/// What the workers of a job have agreed on. Servers and the scheduler learn it from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub mode: Mode,
    pub(crate) on_loss: OnLoss,
    pub peer_timeout: Time,
    pub(crate) slice_bytes: u64,
    pub hold_bytes: u64,
    pub(crate) max_rounds_ahead: u64,
}

impl Terms {
    /// The first thing that differs: what it is called, here and there.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let texts = |terms: &Self| {
            let (kind, staleness) = match terms.mode {
                Mode::Sync => ("dist_sync", "none".into()),
                Mode::Async { staleness: None } => ("dist_async", "none".into()),
                Mode::Async { staleness: Some(most) } => ("dist_async", most.to_string()),
            };
            let loss = if terms.on_loss == OnLoss::Fail { "fail" } else { "continue" };
            [
                ("the store type", kind.to_string()),
                ("staleness", staleness),
                ("on_worker_loss", loss.into()),
                ("peer_timeout_ms", (terms.peer_timeout / MS).to_string()),
                ("slice_bytes", terms.slice_bytes.to_string()),
                ("hold_bytes", terms.hold_bytes.to_string()),
                ("max_rounds_ahead", terms.max_rounds_ahead.to_string()),
            ]
        };
        let mut pairs = texts(self).into_iter().zip(texts(other));
        let (ours, theirs) = pairs.find(|(ours, theirs)| ours != theirs)?;
        Some((ours.0, ours.1, theirs.1))
    }
}

impl Limits {
    /// By how many pushes of a key a worker may lead: the last closed round, or the slowest one.
    pub(super) fn lead(&self) -> Option<u64> {
        match self.mode {
            Mode::Sync => Some(self.max_rounds_ahead),
            Mode::Async { staleness } => staleness,
        }
    }

    #[must_use]
    pub(crate) fn terms(&self) -> Terms {
        Terms {
            mode: self.mode,
            on_loss: self.on_loss,
            peer_timeout: self.peer_timeout,
            slice_bytes: self.slice_bytes,
            hold_bytes: self.hold_bytes,
            max_rounds_ahead: self.max_rounds_ahead,
        }
    }

    /// Goes by what the workers have agreed on.
    pub(crate) fn adopt(&mut self, terms: &Terms) {
        self.mode = terms.mode;
        self.on_loss = terms.on_loss;
        self.peer_timeout = terms.peer_timeout;
        self.slice_bytes = terms.slice_bytes;
        self.hold_bytes = terms.hold_bytes;
        self.max_rounds_ahead = terms.max_rounds_ahead;
    }

    /// Timeout of a silent peer. A process that stopped for less than `peer_timeout` is never lost: the
    /// silence that its peers observe begins up to one heartbeat earlier, and another heartbeat is
    /// slack for delays. The news reaches every process within `peer_timeout` / 8 more.
    #[must_use]
    pub(crate) fn silence(&self) -> Time {
        self.peer_timeout + self.pause()
    }

    /// Minimum time without an event that a process takes for a pause of its own: two heartbeats.
    pub(super) fn pause(&self) -> Time {
        (self.peer_timeout / 8).max(2)
    }

    /// Interval of the heartbeats of an idle link.
    #[must_use]
    pub(crate) fn heartbeat(&self) -> Time {
        (self.peer_timeout / 16).max(1)
    }

    /// A frame that was not acknowledged is sent again after this, later after up to four times.
    #[must_use]
    pub(crate) fn resend(&self) -> Time {
        (self.peer_timeout / 32).max(1)
    }

    /// An acknowledgement that nobody waits for may come so late.
    #[must_use]
    pub(crate) fn patience(&self) -> Time {
        self.resend() / 4
    }

    /// What each worker may have on its way to, or out of turn at, one server.
    #[must_use]
    pub(crate) fn credit(&self) -> u64 {
        self.hold_bytes / u64::from(self.workers.max(1))
    }
}

/// Takes what is in a list, and leaves an empty one with room for as much the next time.
pub(super) fn take_all<T>(list: &mut Vec<T>) -> Vec<T> {
    let next = Vec::with_capacity(list.len().min(MOST_ROOM));
    std::mem::replace(list, next)
}

/// What a message is called whose arrival its sender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    /// The operation that it is of.
    pub(super) operation: u64,
    /// Which of its attempts.
    pub(super) attempt: u32,
}

/// A value on its way, by reference: the machines cut it into slices, and never look inside.
pub trait Data: Clone {
    fn len(&self) -> u64;
    /// `len` bytes from `at`; both are inside.
    #[must_use]
    fn part(&self, at: u64, len: u64) -> Self;
    /// How its parts are encoded; 0 is not at all. Those of an encoded value have other lengths.
    fn codec(&self) -> u16 {
        0
    }
}
