//! What a process can say of itself while its job runs.
//!
//! Everything here is counted under locks that are held anyway, and has a bound: a job of any size is
//! looked at in messages of a known size.

mod histogram;

pub(crate) use histogram::BUCKETS;
pub use histogram::Histogram;

use super::job::{Peer, Time};

/// Calls that wait, the oldest ones, in one report.
pub(crate) const MOST_WAITING: usize = 16;
/// Peers that one call waits for, and workers that a server tells of, in one report.
pub(crate) const MOST_PEERS: usize = 16;
/// Bytes of a key's name.
pub(crate) const MOST_NAME: usize = 64;

/// What has gone over the links of a process; bytes are those of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    /// Messages that were sent more than once.
    pub resent: u64,
    /// Deliveries with something that is no frame.
    pub bad: u64,
    /// Messages in line, and bytes that are not known to have arrived, at the moment.
    pub queued: u64,
    pub in_flight: u64,
}

/// What a call of a program is, for whoever looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    Init = 0,
    Push = 1,
    Pushpull = 2,
    Pull = 3,
    Load = 4,
    Find = 5,
    Remove = 6,
    Setting = 7,
    Barrier = 8,
    Done = 9,
    Close = 10,
}

impl CallKind {
    const NAMES: [(Self, &str); 11] = [
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
    ];

    #[must_use]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::NAMES.get(usize::from(code)).map(|(kind, _)| *kind)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Whether it concerns a key.
    #[must_use]
    pub fn has_key(self) -> bool {
        !matches!(self, Self::Setting | Self::Barrier | Self::Done | Self::Close)
    }
}

/// A call that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub call: CallKind,
    /// It waits for others, and not behind earlier calls of its own worker.
    pub(crate) started: bool,
    pub key: u64,
    /// Of the key, if it has one.
    pub name: String,
    pub round: u64,
    /// How long it has waited.
    pub age: Time,
    pub awaited: Vec<Peer>,
}

/// By how much the others waited for one worker, on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Late {
    pub rank: u32,
    /// Rounds of slices that its push was the last one of.
    pub rounds: u64,
    /// From the last push but one to that one, all together.
    pub time: Time,
}

/// What one process says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Since it began.
    pub age: Time,
    /// The last round that it has pushed, or closed.
    pub round: u64,
    /// Pushes that have ended, or rounds of slices that have closed.
    pub rounds: u64,
    pub traffic: Traffic,
    pub keys: u64,
    pub slices: u64,
    /// Of the values that it has.
    pub stored_bytes: u64,
    /// Of pushes whose turn has not come.
    pub held_bytes: u64,
    pub duplicates: u64,
    /// Calls that failed.
    pub failures: u64,
    /// The longest that a heartbeat was late.
    pub delay: Time,
    pub push: Histogram,
    pub pull: Histogram,
    pub pushpull: Histogram,
    /// Calls that have not ended, and the oldest ones of them.
    pub pending: u64,
    pub waiting: Vec<Waiting>,
    pub late: Vec<Late>,
}
