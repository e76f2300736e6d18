//! A group that this worker is in (also called: communicator), as its calls know it.

use std::sync::{Arc, Weak};

use crate::local::Local;
use crate::sys::sync::{AtomicBool, Ordering};
use kvstore_protocol::GroupTerms;

/// A group that this worker is in.
pub(in crate::worker) struct WorkerGroup {
    /// Its number in the protocol, the hash of its name.
    pub(in crate::worker) id: u64,
    pub(in crate::worker) name: String,
    /// Ranks of its workers in the job, ascending.
    pub(in crate::worker) ranks: Vec<u32>,
    /// Calls that have ended keep the group, not its store.
    local: Weak<Local>,
    has_ended: AtomicBool,
}

impl WorkerGroup {
    pub(super) fn new(id: u64, terms: GroupTerms, local: &Arc<Local>) -> Self {
        let (name, ranks) = (terms.name, terms.ranks);
        Self { id, name, ranks, local: Arc::downgrade(local), has_ended: AtomicBool::new(false) }
    }

    /// Notes that this worker leaves the group; false if it has left before.
    pub(super) fn end(&self) -> bool {
        !self.has_ended.swap(true, Ordering::SeqCst)
    }

    /// Place in the group of a worker of the job.
    pub(in crate::worker) fn place_of(&self, rank: u32) -> Option<u32> {
        self.ranks.binary_search(&rank).ok().and_then(|at| u32::try_from(at).ok())
    }

    /// Calls `work` with the store of a call, that of its group or the job's; not if that is gone.
    pub(in crate::worker) fn with_local<T>(
        group: Option<&Arc<Self>>,
        of_job: &Arc<Local>,
        work: impl FnOnce(&Arc<Local>) -> T,
    ) -> Option<T> {
        match group {
            None => Some(work(of_job)),
            Some(group) => group.local.upgrade().as_ref().map(work),
        }
    }

    pub(super) fn size(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }
}
