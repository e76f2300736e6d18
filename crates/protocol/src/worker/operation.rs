//! Operation: one request of the user's program, and its progress.

use super::undelivered::Undelivered;
use crate::bit_set::BitSet;
use crate::job::{MS, Peer, Time};
use crate::message::KeySpec;
use crate::telemetry::CallKind;

/// Number of an operation of one worker, ascending from 1.
pub type OpId = u64;

/// Maximum time before the deadline of a removal at which it is withdrawn.
const MOST_FOR_ANSWER: Time = 100 * MS;

/// Kind of an operation, with its arguments.
#[derive(Debug)]
pub(super) enum OperationKind<D> {
    Init {
        spec: Box<KeySpec>,
        data: D,
    },
    /// With `answer`, the value of its round is pulled as well. `setting` is the program's last one. `weight`, `part`
    /// and `scale` are those of the message.
    Push {
        round: u64,
        data: D,
        priority: i32,
        answer: bool,
        setting: u64,
        weight: u64,
        part: u64,
        scale: u64,
    },
    /// Of the whole value, or `wanted` has queries of slices in place of their bytes. `sought`: the key was
    /// searched again, as other workers may have moved it.
    Pull {
        round: u64,
        priority: i32,
        wanted: Option<D>,
        after: PullDependency,
        sought: bool,
    },
    /// Values and states of slices, in their order.
    Restore {
        slices: Vec<D>,
    },
    /// Look-up of the placement of a key.
    Find,
    /// Waits for the directory.
    Remove {
        back: RemovalRollback,
    },
    Set {
        version: u64,
        fields: Vec<u8>,
    },
    Learn(CatchUpTarget),
    /// `call` is what the program has called.
    Barrier {
        number: u64,
        call: &'static str,
    },
    Done,
    /// Waits for all workers, done or not.
    Resume {
        number: u64,
    },
    /// Waits until all workers listen for each other. In a group it asks for the book again and again, which the
    /// scheduler sends by itself once all workers of the job listen.
    Meet {
        asks_at: Time,
    },
    /// Makes the group of this machine known to all servers.
    Form,
    Close,
}

/// Withdrawal of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalRollback {
    No,
    /// The withdrawal was sent to the directory.
    Asked,
    /// The directory keeps the key.
    Kept,
}

/// Consistency of a pull: the pushes that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullDependency {
    /// All earlier pushes of this worker on the key.
    Own,
    /// None: the value of the last closed round.
    Nothing,
    /// All pushes of all workers: each is done, lost or has left.
    All,
}

/// Object that a worker that is done learns of.
#[derive(Debug, Clone, Copy)]
pub(super) enum CatchUpTarget {
    /// The first key from this one on.
    Key(u64),
    /// A version of the settings.
    Setting(u64),
}

#[derive(Debug)]
pub(super) struct Operation<D> {
    pub(super) what: OperationKind<D>,
    /// Key of the operation, 0 without one.
    pub(super) key: u64,
    pub(super) began: Time,
    pub(super) deadline: Time,
    pub(super) started: bool,
    /// The driver gets no more actions; messages are still delivered.
    pub(super) abandoned: bool,
    pub(super) asked: bool,
    /// Members that it waits for, once a query was answered.
    #[expect(clippy::box_collection, reason = "a call on a long list has very many operations")]
    pub(super) awaited: Option<Box<Vec<Peer>>>,
    /// Unacknowledged messages.
    pub(super) undelivered: Undelivered,
    /// Slices that wait for credit.
    pub(super) unsent: BitSet,
    /// Slices whose values have not arrived.
    pub(super) unanswered: BitSet,
}

impl<D> Operation<D> {
    pub(super) fn new(what: OperationKind<D>, key: u64, now: Time, deadline: Time) -> Self {
        Self {
            what,
            key,
            began: now,
            deadline,
            started: false,
            abandoned: false,
            asked: false,
            awaited: None,
            undelivered: Undelivered::default(),
            unsent: BitSet::default(),
            unanswered: BitSet::default(),
        }
    }

    /// Starts the operation: from now on it waits for other members, and may query them.
    pub(super) fn start(&mut self) {
        self.started = true;
        self.asked = false;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.started
            && self.undelivered.is_empty()
            && self.unsent.is_empty()
            && self.unanswered.is_empty()
    }

    /// Whether it concerns no key.
    pub(super) fn is_collective(&self) -> bool {
        use OperationKind::{Barrier, Close, Done, Form, Learn, Meet, Resume, Set};
        matches!(
            self.what,
            Set { .. }
                | Learn(_)
                | Barrier { .. }
                | Done
                | Resume { .. }
                | Meet { .. }
                | Form
                | Close
        )
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.what, OperationKind::Done | OperationKind::Close)
    }

    /// Whether it cannot succeed after the loss of a worker with `OnLoss::Fail`. A pull can: its server knows
    /// whether the round has closed.
    pub(super) fn needs_all_workers(&self) -> bool {
        !self.is_leaving()
            && !matches!(
                self.what,
                OperationKind::Pull { .. }
                    | OperationKind::Find
                    | OperationKind::Learn(_)
                    | OperationKind::Meet { .. }
            )
    }

    /// Whether no other operation on the key may run beside it.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(
            self.what,
            OperationKind::Init { .. }
                | OperationKind::Remove { .. }
                | OperationKind::Restore { .. }
        )
    }

    /// Whether it wants a value that a later push of this worker would change.
    pub(super) fn wants_value(&self) -> bool {
        matches!(self.what, OperationKind::Pull { .. } | OperationKind::Push { answer: true, .. })
    }

    /// Whether it wants whole values, without queries.
    pub(super) fn wants_whole_value(&self) -> bool {
        !matches!(&self.what, OperationKind::Pull { wanted: Some(_), .. })
    }

    /// The call, for texts and statistics.
    pub(super) fn kind(&self) -> CallKind {
        match &self.what {
            OperationKind::Init { .. } => CallKind::Init,
            OperationKind::Push { answer: false, .. } => CallKind::Push,
            OperationKind::Push { .. } => CallKind::Pushpull,
            OperationKind::Pull { .. } => CallKind::Pull,
            OperationKind::Restore { .. } => CallKind::Load,
            OperationKind::Find | OperationKind::Learn(CatchUpTarget::Key(_)) => CallKind::Find,
            OperationKind::Remove { .. } => CallKind::Remove,
            OperationKind::Set { .. } | OperationKind::Learn(CatchUpTarget::Setting(_)) => {
                CallKind::Setting
            }
            OperationKind::Barrier { .. } => CallKind::Barrier,
            OperationKind::Done => CallKind::Done,
            OperationKind::Resume { .. } => CallKind::Resume,
            OperationKind::Meet { .. } => CallKind::Meet,
            OperationKind::Form => CallKind::Form,
            OperationKind::Close => CallKind::Close,
        }
    }

    pub(super) fn round(&self) -> u64 {
        match self.what {
            OperationKind::Push { round, .. } | OperationKind::Pull { round, .. } => round,
            _ => 0,
        }
    }

    /// Moment of its next timer: a query of the members that it waits for, half way to the deadline, then the
    /// deadline.
    pub(super) fn next_moment(&self) -> Time {
        if let OperationKind::Meet { asks_at } = self.what {
            return asks_at.min(self.deadline);
        }
        if !self.asked {
            return self.first_moment();
        }
        match self.what {
            OperationKind::Remove { back: RemovalRollback::No } if self.started => {
                self.back_moment()
            }
            _ => self.deadline,
        }
    }

    /// Moment at which a removal is withdrawn, so that the answer arrives by the deadline.
    pub(super) fn back_moment(&self) -> Time {
        let time = self.deadline.saturating_sub(self.began);
        self.deadline - (time / 8).min(MOST_FOR_ANSWER)
    }

    /// Whether it was abandoned after its start. A later call waits only for messages in transit: a sent
    /// push, and the answer of the directory on a removal.
    pub(super) fn is_over(&self) -> bool {
        self.abandoned && self.started
    }

    /// Whether a message is in transit that no other one on the key may overtake.
    pub(super) fn is_in_transit(&self) -> bool {
        match self.what {
            OperationKind::Push { .. } => !self.undelivered.is_empty(),
            OperationKind::Remove { back } => back == RemovalRollback::Asked,
            _ => false,
        }
    }

    /// Lower bound of `next_moment`.
    pub(super) fn first_moment(&self) -> Time {
        if let OperationKind::Meet { asks_at } = self.what {
            return asks_at;
        }
        self.began + (self.deadline.saturating_sub(self.began)) / 2
    }
}
