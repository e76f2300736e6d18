//! Terms of all modules: members of a job, time, limits (also: job configuration), failures.

use std::fmt;
use std::vec::Drain;

/// Maximum capacity, in elements, that a drained list keeps: the actions of a server on a bundle of slices.
const MOST_ROOM: usize = 2_048;

/// Microseconds since any fixed moment, by the monotonic clock of the driver. `Time::MAX` is never.
pub type Time = u64;

/// A millisecond.
pub const MS: Time = 1_000;

/// Maximum keys that one step of a machine processes: heartbeats and calls of other threads wait behind a
/// step. A key takes about a microsecond. Few in tests, so that the simulator's keys take several steps.
pub(super) const AT_ONCE: usize = if cfg!(test) { 2 } else { 1_024 };

/// Role of a process in its job; the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Keeps the membership and the barriers; one for each job.
    Scheduler = 0,
    /// Pushes and pulls values: a client of the servers.
    Worker = 1,
    /// Holds slices of values; server 0 also holds the directory of keys.
    Server = 2,
}

impl Role {
    /// Name for logs, views and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
            Self::Server => "server",
        }
    }

    #[must_use]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Scheduler, Self::Worker, Self::Server].into_iter().find(|role| *role as u8 == code)
    }
}

/// A member of the job, by role and rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Role in the job.
    pub role: Role,
    /// Rank among the members of the role, from 0; 0 for the scheduler.
    pub rank: u32,
}

/// Rank of a process before the scheduler has assigned one.
pub const NO_RANK: u32 = u32::MAX;

impl Peer {
    /// The scheduler.
    pub const SCHEDULER: Self = Self { role: Role::Scheduler, rank: 0 };

    /// The worker of this rank.
    #[must_use]
    pub fn worker(rank: u32) -> Self {
        Self { role: Role::Worker, rank }
    }

    /// The server of this rank.
    #[must_use]
    pub fn server(rank: u32) -> Self {
        Self { role: Role::Server, rank }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.role.name();
        match (self.role, self.rank) {
            (Role::Scheduler, _) => write!(f, "the {name}"),
            (_, NO_RANK) => write!(f, "a {name} without a rank"),
            (_, rank) => write!(f, "{name} {rank}"),
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

/// Key in texts of a process that does not have its name.
pub(crate) fn label(key: u64) -> String {
    if key >> 63 == 0 { format!("key {key}") } else { format!("key {key:#018x}") }
}

/// Kind of a failure; the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Deadline of the request. A push may still take effect.
    Timeout = 1,
    /// A process that the request needs is lost or has left.
    PeerLost = 2,
    /// The scheduler declared this process lost; the job continues without it.
    Evicted = 3,
    /// No worker has initialised the key, or all workers have removed it.
    KeyNotFound = 4,
    /// The worker has initialised the key before.
    KeyExists = 5,
    /// The key exists with another shape.
    ShapeMismatch = 6,
    /// The key exists with another dtype.
    DtypeMismatch = 7,
    /// The request differs from that of the lowest rank.
    Differs = 8,
    /// The scheduler refuses this process: world size, rank, terms, job or version.
    Refused = 9,
    /// The request violates the order or the sizes of the protocol: a push after done, a wrong length.
    Invalid = 10,
    /// The worker has been closed.
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

/// Part of a text for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TextPart {
    Words(String),
    /// A key, of which the store has the name.
    Key(u64),
}

/// A text that names no key.
pub(crate) fn words(text: impl Into<String>) -> Vec<TextPart> {
    vec![TextPart::Words(text.into())]
}

/// A text that names a key.
pub(crate) fn naming(before: &str, key: u64, after: impl Into<String>) -> Vec<TextPart> {
    vec![TextPart::Words(before.into()), TextPart::Key(key), TextPart::Words(after.into())]
}

/// A failed request: its kind for programs, its text for users. It is displayed with the numbers of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the failure.
    pub reason: Reason,
    /// The call, the key, the round, and the members that it waits for.
    pub(crate) text: Vec<TextPart>,
}

impl Failure {
    /// A failure with this text, which names no key.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: words(text) }
    }

    /// Text for users, with the names that `name` has for keys.
    pub fn text(&self, name: impl Fn(u64) -> String) -> String {
        let part = |part: &TextPart| match part {
            TextPart::Words(words) => words.clone(),
            TextPart::Key(key) => name(*key),
        };
        self.text.iter().map(part).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(label))
    }
}

/// Consistency of pushes: synchronous rounds, asynchronous, or bounded staleness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In rounds: a round closes when every active worker has contributed to it (`dist_sync`).
    Sync,
    /// Each push by itself (`dist_async`).
    Async {
        /// Maximum lead, in pushes of a key, over the slowest worker; a push beyond it waits. None is no
        /// bound.
        staleness: Option<u64>,
    },
}

/// Reaction of the job to the loss of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// No round and no barrier ends any more.
    Fail,
    /// Rounds and barriers go on without the worker.
    Continue,
}

/// Order in which servers add the contributions of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumOrder {
    /// By rank, from the left.
    Linear,
    /// By the binary tree over ranks: halves are added pairwise, and missing ranks are skipped.
    Tree,
}

/// Limits of a job. All its processes have the same `job`, `workers` and `servers`, and all workers the same
/// [`JobTerms`], which the servers and the scheduler adopt from them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Identity of the job; frames of another job are dropped.
    pub job: u64,
    /// Workers of the job, from 1.
    pub workers: u32,
    /// Servers of the job, from 1.
    pub servers: u32,
    /// Consistency of pushes.
    pub mode: Mode,
    /// Reaction to the loss of a worker.
    pub on_loss: OnLoss,
    /// Timeout of a silent peer, at most [`LONGEST_MS`](crate::LONGEST_MS) milliseconds. Heartbeats,
    /// retransmissions and delayed acknowledgements are fractions of it: 1/16, 1/32 to 1/8, and 1/128.
    pub peer_timeout: Time,
    /// Timeout of the start of the job, and of a scheduler that is away and may be started again.
    pub start_timeout: Time,
    /// Worker 0, a server and the scheduler are one process, as other workers and servers are: none of them is
    /// started again by itself.
    pub embedded: bool,
    /// Block of the codecs, in elements, at least 1. Slices are multiples of it, so that slicing never
    /// changes a result.
    pub block_elements: u64,
    /// Size of a slice in bytes, rounded down to a multiple of the block; at least one block.
    pub slice_bytes: u64,
    /// Maximum bytes of pushes that a server holds out of turn. Each worker has an equal share as credit.
    pub hold_bytes: u64,
    /// Maximum lead, in rounds, of a push over the last closed round of its slice; from 1.
    pub max_rounds_ahead: u64,
    /// Order of the sums of servers. The state machines give contributions in the order of ranks to drivers,
    /// which add them up.
    pub sum_order: SumOrder,
    /// Send window of one link, in frames. A more urgent message overtakes only those behind the window.
    pub window_frames: usize,
    /// Smallest send window of one link, in bytes: no frame of data is sent while as many as the window are
    /// unacknowledged. It grows to twice what the link delivers in a round trip.
    pub window_bytes: u64,
    /// Half duplex, where both directions are work for the same few processors: workers queue pulls behind
    /// pushes, and servers hold values back while the worker has more to send. Each process decides for
    /// itself.
    pub one_way_at_a_time: bool,
}

/// Limits that the workers of a job agree on. Servers and the scheduler adopt them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTerms {
    /// Consistency of pushes.
    pub mode: Mode,
    pub(crate) on_loss: OnLoss,
    /// Timeout of a silent peer.
    pub peer_timeout: Time,
    pub(crate) slice_bytes: u64,
    /// Maximum bytes of pushes that a server holds out of turn.
    pub hold_bytes: u64,
    pub(crate) max_rounds_ahead: u64,
    pub(crate) sum_order: SumOrder,
}

/// Maximum of [`Limits::peer_timeout`] in milliseconds: a year, so that sums of
/// moments and timeouts do not overflow.
pub const LONGEST_MS: u64 = 31_536_000_000;

impl Limits {
    /// Asserts what every state machine relies on.
    pub(crate) fn check(&self) {
        debug_assert!(self.max_rounds_ahead > 0, "a worker may push the open round");
        debug_assert!(self.slice_bytes > 0 && self.block_elements > 0, "slices have bytes");
        debug_assert!((1..=LONGEST_MS * MS).contains(&self.peer_timeout), "a year at most");
    }

    /// Maximum lead of a worker in pushes of a key: over the last closed round, or over the slowest worker.
    pub(super) fn lead(&self) -> Option<u64> {
        match self.mode {
            Mode::Sync => Some(self.max_rounds_ahead),
            Mode::Async { staleness } => staleness,
        }
    }

    #[must_use]
    pub(crate) fn terms(&self) -> JobTerms {
        JobTerms {
            mode: self.mode,
            on_loss: self.on_loss,
            peer_timeout: self.peer_timeout,
            slice_bytes: self.slice_bytes,
            hold_bytes: self.hold_bytes,
            max_rounds_ahead: self.max_rounds_ahead,
            sum_order: self.sum_order,
        }
    }

    /// Adopts the terms of the workers.
    pub(crate) fn adopt(&mut self, terms: &JobTerms) {
        let JobTerms {
            mode,
            on_loss,
            peer_timeout,
            slice_bytes,
            hold_bytes,
            max_rounds_ahead,
            sum_order,
        } = *terms;
        self.mode = mode;
        self.on_loss = on_loss;
        self.peer_timeout = peer_timeout;
        self.slice_bytes = slice_bytes;
        self.hold_bytes = hold_bytes;
        self.max_rounds_ahead = max_rounds_ahead;
        self.sum_order = sum_order;
    }

    /// Timeout of a silent peer. A process that stopped for less than `peer_timeout` is never lost: the
    /// silence that its peers observe begins up to one heartbeat earlier, and another heartbeat is
    /// slack for delays. The loss reaches every process within `peer_timeout` / 8 more.
    #[must_use]
    pub(crate) fn silence(&self) -> Time {
        self.peer_timeout + self.pause()
    }

    /// Timeout of a scheduler that is away, behind the start.
    pub(crate) fn scheduler_timeout(&self) -> Time {
        if self.embedded { self.peer_timeout } else { self.start_timeout }
    }

    /// Minimum time without an event that counts as a pause of the process itself: two heartbeats.
    pub(super) fn pause(&self) -> Time {
        (self.peer_timeout / 8).max(2)
    }

    /// Interval of the heartbeats of an idle link.
    #[must_use]
    pub(crate) fn heartbeat(&self) -> Time {
        (self.peer_timeout / 16).max(1)
    }

    /// First retransmission timeout of a frame, unless two round trips are longer; doubled each time, up to four
    /// times this.
    #[must_use]
    pub(crate) fn resend(&self) -> Time {
        (self.peer_timeout / 32).max(1)
    }

    /// Maximum delay of an acknowledgement that the sender is not blocked on.
    #[must_use]
    pub(crate) fn patience(&self) -> Time {
        self.resend() / 4
    }

    /// Credit of a worker at one server: maximum bytes in flight to it or held out of turn there.
    #[must_use]
    pub(crate) fn credit(&self) -> u64 {
        self.hold_bytes / u64::from(self.workers.max(1))
    }
}

/// Drains a list, which keeps its memory. That of a list that was long is freed once the list is empty.
pub(super) fn take_all<T>(list: &mut Vec<T>) -> Drain<'_, T> {
    if list.is_empty() && list.capacity() > MOST_ROOM {
        *list = Vec::new();
    }
    list.drain(..)
}

/// Identifies a message whose acknowledgement the sender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeliveryToken {
    /// Operation of the message.
    pub(super) operation: u64,
    /// Attempt of the operation.
    pub(super) attempt: u32,
    /// Group of the operation; 0 for the workers of the job.
    pub(super) group: u64,
}

/// Payload of values, owned by the driver. The machines cut it into slices and never read it. Clones are
/// made for each retransmission, so they should share the memory.
pub trait Data: Clone {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// The `len` bytes from `at`; both are within the value.
    #[must_use]
    fn part(&self, at: u64, len: u64) -> Self;
    /// Codec of the parts; 0 is raw values. Parts of an encoded value may have any length.
    fn codec(&self) -> u16 {
        0
    }
}
