//! Stores of groups of workers (also: communicators, process sets): keys, rounds, settings and barriers of their own,
//! over the processes and connections of the job.

mod seat;

use std::sync::Arc;

use super::{StoreKeyNames, WorkerMachine, WorkerStore, closed};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::job::remote::JobMember;
use crate::key::Key;
use crate::local::Local;
use crate::local::collective::WorkerPlace;
use kvstore_protocol::{GROUPS, GroupExit, GroupTerms};
pub(super) use seat::WorkerGroup;

impl WorkerStore {
    /// The store of a group, for the workers of these ranks; each of them makes this call. Returns when all servers
    /// know the group.
    pub(super) fn open_group(
        &self,
        local: &Arc<Local>,
        name: &str,
        ranks: &[u32],
    ) -> Result<Box<dyn JobMember>> {
        self.check_writes("group")?;
        if let Some(group) = &self.group {
            return Err(fail!(
                Unsupported,
                "group: this is the store of group {:?}; make groups of the job's store",
                group.name
            ));
        }
        self.check_knows("group", GROUPS)?;
        let ranks = self.checked_ranks(ranks)?;
        let (id, name) = (Key::of_name(name).id(), name.to_owned());
        let terms = GroupTerms { name, ranks };
        let group = Arc::new(WorkerGroup::new(id, terms.clone(), local));
        let begun = self.driver.step(|node, _| node.begin_group(id, terms)).ok_or_else(closed)?;
        if !begun {
            return Err(fail!(
                InvalidArgument,
                "group: {:?} is open in this process; close its store first",
                group.name
            ));
        }
        let store = self.of_group(local, group);
        let names = StoreKeyNames(Arc::downgrade(&local.keys.names));
        let named = store.step(|worker, _| worker.name_keys(names));
        let formed = named.and_then(|()| store.request(local.deadline(), WorkerMachine::form));
        if let (Err(_), Some(group)) = (&formed, &store.group) {
            store.leave_group(group, GroupExit::NotFormed, &closed());
        }
        formed.map(|()| Box::new(store) as Box<dyn JobMember>)
    }

    /// The ranks of a group in ascending order.
    fn checked_ranks(&self, ranks: &[u32]) -> Result<Vec<u32>> {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        let mut pairs = sorted.iter().zip(sorted.iter().skip(1));
        if let Some((twice, _)) = pairs.find(|(one, next)| one == next) {
            return Err(fail!(InvalidArgument, "group: rank {twice} is there twice"));
        }
        if let Some(last) = sorted.last().filter(|last| **last >= self.workers) {
            return Err(fail!(
                InvalidArgument,
                "group: rank {last}; the job has {} workers",
                self.workers
            ));
        }
        if sorted.binary_search(&self.rank).is_err() {
            return Err(fail!(
                InvalidArgument,
                "group: this worker has rank {}, which is not in the list; only the workers of a group \
                 make this call",
                self.rank
            ));
        }
        Ok(sorted)
    }

    fn of_group(&self, local: &Arc<Local>, group: Arc<WorkerGroup>) -> Self {
        Self {
            local: Arc::clone(local),
            driver: Arc::clone(&self.driver),
            rank: self.rank,
            workers: self.workers,
            servers: self.servers,
            kind: self.kind,
            slice_bytes: self.slice_bytes,
            sums: self.sums,
            server_updater: false,
            reads_only: false,
            found: super::Mutex::default(),
            whole: super::Mutex::default(),
            unsent: super::Mutex::default(),
            unfinished: super::Mutex::default(),
            exchanges: Arc::clone(&self.exchanges),
            group: Some(group),
        }
    }

    /// Number of the group in the protocol; 0 for the job.
    pub(super) fn group_id(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.id)
    }

    /// Place of this worker among those of the store.
    pub(super) fn seat(&self) -> WorkerPlace {
        match &self.group {
            Some(group) => {
                WorkerPlace { rank: group.place_of(self.rank).unwrap_or(0), workers: group.size() }
            }
            None => WorkerPlace { rank: self.rank, workers: self.workers },
        }
    }

    /// Whether a worker of the job is one of this store.
    pub(super) fn has_worker(&self, rank: u32) -> bool {
        self.group.as_ref().is_none_or(|group| group.place_of(rank).is_some())
    }

    /// Number of the group's workers that are lost.
    pub(super) fn lost_of(&self, group: &WorkerGroup) -> usize {
        let lost =
            self.step(|worker, _| group.ranks.iter().filter(|rank| worker.is_lost(**rank)).count());
        lost.unwrap_or(0)
    }

    /// Leaves a group, once: its calls fail, and its other workers go on without this one.
    pub(super) fn leave_group(&self, group: &WorkerGroup, how: GroupExit, why: &Error) {
        if !group.end() {
            return;
        }
        self.end_exchanges();
        self.driver.step(|node, _| node.drop_group(group.id, how));
        self.driver.host.abort_group(&self.driver, group.id, why);
    }

    /// Closes the store of a group.
    pub(super) fn close_group(&self, group: &WorkerGroup, deadline: Deadline) -> Result<()> {
        let result = self.request(deadline, WorkerMachine::close);
        let how = if result.is_ok() { GroupExit::Closed } else { GroupExit::Dropped };
        self.leave_group(group, how, &closed());
        match result {
            // The job was closed before.
            Err(error) if error.kind() == ErrorKind::Closed => Ok(()),
            other => other,
        }
    }

    /// Refuses a call that only the store of the job has.
    pub(super) fn check_of_job(&self, call: &str, instead: &str) -> Result<()> {
        match &self.group {
            Some(group) => Err(fail!(
                Unsupported,
                "{call}: group {:?} does not have it; {instead}",
                group.name
            )),
            None => Ok(()),
        }
    }
}
