//! One request of the user's program, and how far it is.

use std::collections::BTreeMap;

use super::slices::Slices;
use super::undelivered::Undelivered;
use crate::job::{MS, Peer, Time};
use crate::message::Spec;

/// The number of an operation of one worker.
pub type OpId = u64;

/// Maximum time before the deadline of a removal at which it is taken back.
const MOST_FOR_ANSWER: Time = 100 * MS;

/// What was requested.
#[derive(Debug)]
pub(super) enum What<D> {
    Init {
        spec: Spec,
        data: D,
    },
    /// With `answer`, the value of its round is pulled as well. `setting` is the one that the program
    /// had asked for last.
    Push {
        round: u64,
        data: D,
        priority: i32,
        answer: bool,
        setting: u64,
    },
    /// Of the whole value, or, slice by slice, of something else that the drivers know. `sought`: the key
    /// was looked for where others may have moved it.
    Pull {
        round: u64,
        priority: i32,
        wanted: BTreeMap<u32, Vec<u8>>,
        after: After,
        sought: bool,
    },
    /// Values and states of slices, in their order.
    Restore {
        slices: Vec<D>,
    },
    /// Where the key is.
    Find,
    /// Waits for the directory.
    Remove {
        back: Back,
    },
    Set {
        version: u64,
        fields: Vec<u8>,
    },
    Learn(Of),
    /// `call` is what the program has called.
    Barrier {
        number: u64,
        call: &'static str,
    },
    Done,
    Close,
}

/// Whether a removal is being taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    No,
    /// The directory has been asked to keep the key.
    Asked,
    /// The directory keeps the key.
    Kept,
}

/// What a pull waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// What this worker has pushed.
    Own,
    Nothing,
    /// All that all workers push: none of them goes on.
    All,
}

/// What there may be in a job, though this worker takes no part in it any more.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    /// The first key from this one on.
    Key(u64),
    /// A version of the settings.
    Setting(u64),
}

#[derive(Debug)]
pub(super) struct Operation<D> {
    pub(super) what: What<D>,
    /// 0 for what concerns no key.
    pub(super) key: u64,
    pub(super) began: Time,
    pub(super) deadline: Time,
    pub(super) started: bool,
    /// The driver has been told that it is overdue; its messages still go their way.
    pub(super) abandoned: bool,
    pub(super) asked: bool,
    /// Whom it waits for, once somebody has said so.
    pub(super) awaited: Option<Vec<Peer>>,
    /// Messages that have not arrived yet.
    pub(super) undelivered: Undelivered,
    /// Slices that are still to be sent, for want of credit.
    pub(super) unsent: Slices,
    /// Slices whose values have not come yet.
    pub(super) unanswered: Slices,
}

impl<D> Operation<D> {
    pub(super) fn new(what: What<D>, key: u64, now: Time, deadline: Time) -> Self {
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
            unsent: Slices::default(),
            unanswered: Slices::default(),
        }
    }

    /// From now on it waits for other processes, and may ask for which.
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

    /// It concerns no key.
    pub(super) fn is_collective(&self) -> bool {
        use What::{Barrier, Close, Done, Learn, Set};
        matches!(self.what, Set { .. } | Learn(_) | Barrier { .. } | Done | Close)
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.what, What::Done | What::Close)
    }

    /// It cannot succeed when a worker is lost and the job does not go on without it. A pull can:
    /// its server knows whether the round has closed.
    pub(super) fn needs_all_workers(&self) -> bool {
        !self.is_leaving() && !matches!(self.what, What::Pull { .. } | What::Find | What::Learn(_))
    }

    /// Nothing on the same key may run beside it.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(self.what, What::Init { .. } | What::Remove { .. } | What::Restore { .. })
    }

    /// It wants a value that a later push of the same worker would change.
    pub(super) fn wants_value(&self) -> bool {
        matches!(self.what, What::Pull { .. } | What::Push { answer: true, .. })
    }

    /// It wants nothing but values.
    pub(super) fn wants_whole_value(&self) -> bool {
        !matches!(&self.what, What::Pull { wanted, .. } if !wanted.is_empty())
    }

    pub(super) fn round(&self) -> u64 {
        match self.what {
            What::Push { round, .. } | What::Pull { round, .. } => round,
            _ => 0,
        }
    }

    /// When something is to be done about it: ask whom it waits for, half way to its deadline, and
    /// end it there.
    pub(super) fn next_moment(&self) -> Time {
        if !self.asked {
            return self.first_moment();
        }
        match self.what {
            What::Remove { back: Back::No } if self.started => self.back_moment(),
            _ => self.deadline,
        }
    }

    /// When a removal is taken back, so that the answer is here by its deadline.
    pub(super) fn back_moment(&self) -> Time {
        let time = self.deadline.saturating_sub(self.began);
        self.deadline - (time / 8).min(MOST_FOR_ANSWER)
    }

    /// The program hears no more of it, and no later call waits for it but for what is in transit: a
    /// push that has been sent, and the word of the directory on a removal.
    pub(super) fn is_over(&self) -> bool {
        self.abandoned && self.started
    }

    /// Whether something of it is in transit that nothing on the key may overtake.
    pub(super) fn is_in_transit(&self) -> bool {
        match self.what {
            What::Push { .. } => !self.undelivered.is_empty(),
            What::Remove { back } => back == Back::Asked,
            _ => false,
        }
    }

    /// The earliest that `next_moment` may ever be.
    pub(super) fn first_moment(&self) -> Time {
        self.began + (self.deadline.saturating_sub(self.began)) / 2
    }
}
