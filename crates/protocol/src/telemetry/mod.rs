//! Statistics of a process while its job runs (also: metrics, telemetry).
//!
//! All counters are updated by the machines, in steps that the driver serialises anyway, and every list has a
//! bound: a report has a known maximum size in a job of any size.

mod counters;
mod histogram;

pub use counters::{CONTENTS, Counter, FAULTS, ProcessCounters, ROUNDS, TRAFFIC, Unit};
pub(crate) use histogram::BUCKETS;
pub use histogram::Histogram;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::job::{Peer, Time};

/// Maximum waiting calls in one report, the oldest ones.
pub(crate) const MOST_WAITING: usize = 16;
/// Maximum peers that a reported call waits for, and maximum late workers in the report of a server.
pub(crate) const MOST_PEERS: usize = 16;
/// Maximum transports in one report, and bytes of the reasons against others.
pub(crate) const MOST_TRANSPORTS: usize = 6;
pub(crate) const MOST_REASON: usize = 200;
/// Maximum bytes of a key's name.
pub(crate) const MOST_NAME: usize = 64;

/// Kind of a call of a program; the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// [`Worker::init`](crate::Worker::init)
    Init = 0,
    /// [`Worker::push`](crate::Worker::push)
    Push = 1,
    /// [`Worker::pushpull`](crate::Worker::pushpull)
    Pushpull = 2,
    /// [`Worker::pull`](crate::Worker::pull) and [`Worker::pull_wanted`](crate::Worker::pull_wanted)
    Pull = 3,
    /// [`Worker::restore`](crate::Worker::restore)
    Load = 4,
    /// [`Worker::find`](crate::Worker::find) and [`Worker::learn_key`](crate::Worker::learn_key)
    Find = 5,
    /// [`Worker::remove`](crate::Worker::remove)
    Remove = 6,
    /// [`Worker::set`](crate::Worker::set) and [`Worker::learn_setting`](crate::Worker::learn_setting)
    Setting = 7,
    /// [`Worker::barrier`](crate::Worker::barrier) and [`Worker::barrier_of`](crate::Worker::barrier_of)
    Barrier = 8,
    /// [`Worker::finish_pushing`](crate::Worker::finish_pushing)
    Done = 9,
    /// [`Worker::close`](crate::Worker::close)
    Close = 10,
    /// [`Worker::resume`](crate::Worker::resume)
    Resume = 11,
    /// [`Worker::meet`](crate::Worker::meet)
    Meet = 12,
    /// [`Worker::form`](crate::Worker::form)
    Form = 13,
}

impl CallKind {
    const NAMES: [(Self, &str); 14] = [
        (Self::Init, "init"),
        (Self::Push, "push"),
        (Self::Pushpull, "pushpull"),
        (Self::Pull, "pull"),
        (Self::Load, "load"),
        (Self::Find, "find"),
        (Self::Remove, "remove"),
        (Self::Setting, "setting"),
        (Self::Barrier, "barrier"),
        (Self::Done, "done"),
        (Self::Close, "close"),
        (Self::Resume, "resume"),
        (Self::Meet, "meet"),
        (Self::Form, "group"),
    ];

    #[must_use]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::NAMES.get(usize::from(code)).map(|(kind, _)| *kind)
    }

    /// Name for logs and statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Whether the call concerns a key.
    #[must_use]
    pub fn has_key(self) -> bool {
        !matches!(
            self,
            Self::Setting
                | Self::Barrier
                | Self::Done
                | Self::Close
                | Self::Resume
                | Self::Meet
                | Self::Form
        )
    }
}

/// A pending call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingCall {
    /// Kind of the call.
    pub call: CallKind,
    /// It waits for other members, not behind earlier calls of its own worker.
    pub(crate) started: bool,
    /// Key of the call, 0 without one.
    pub key: u64,
    /// Name of the key, cut to 64 bytes; empty without one.
    pub name: String,
    /// Round of a push or pull, number of a barrier, version of a setting; else 0.
    pub round: u64,
    /// Time since the call began.
    pub age: Time,
    /// Members that the call waits for, as far as is known; at most 16.
    pub awaited: Vec<Peer>,
}

/// Lateness of one worker, observed by one server (also: straggler).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StragglerDelay {
    /// Rank of the worker.
    pub rank: u32,
    /// Rounds of slices in which its push arrived last.
    pub rounds: u64,
    /// Time from the last push but one to that push, summed over these rounds.
    pub time: Time,
}

/// Statistics of one process; counters are totals since it began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessStats {
    /// Age of the process: the driver's clock, which is 0 at its start.
    pub age: Time,
    /// Counters and gauges.
    pub counters: ProcessCounters,
    /// Worker: latency of pushes.
    pub push: Histogram,
    /// Worker: latency of pulls.
    pub pull: Histogram,
    /// Worker: latency of pushes with an answer.
    pub pushpull: Histogram,
    /// Worker: pending calls.
    pub pending: u64,
    /// Worker: the oldest pending calls, at most 16.
    pub waiting: Vec<WaitingCall>,
    /// Server: the latest workers, by time, at most 16.
    pub late: Vec<StragglerDelay>,
    /// What carries the frames to the peers, at most 6.
    pub transports: Vec<TransportUse>,
}

/// What carries the frames of a process to some of its peers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportUse {
    /// Name of the transport.
    pub transport: String,
    /// Why preferred transports do not, such as `shm: shm=no`; cut to 200 bytes.
    pub others: String,
    /// Number of these peers.
    pub count: u32,
    /// The first of them, at most 16.
    pub peers: Vec<Peer>,
}

/// By the address of a peer: the transport that carries frames to it, and why preferred ones do not.
pub type TransportsByAddress = BTreeMap<Arc<str>, (&'static str, String)>;

/// The transports to these peers, one entry for all peers with an equal one.
pub(crate) fn transport_uses<'a>(
    known: &TransportsByAddress,
    peers: impl Iterator<Item = (Peer, &'a str)>,
) -> Vec<TransportUse> {
    let mut uses: BTreeMap<&(&'static str, String), (u32, Vec<Peer>)> = BTreeMap::new();
    for (peer, address) in peers {
        let Some(transport) = known.get(address) else { continue };
        let (count, first) = uses.entry(transport).or_default();
        *count += 1;
        if first.len() < MOST_PEERS {
            first.push(peer);
        }
    }
    let one = |((transport, others), (count, peers)): (&(&str, String), _)| TransportUse {
        transport: (*transport).into(),
        others: others.clone(),
        count,
        peers,
    };
    uses.into_iter().take(MOST_TRANSPORTS).map(one).collect()
}
