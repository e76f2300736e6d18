//! What server 0 keeps for a group, as the scheduler does for the job: the barriers at which its workers have arrived,
//! and the resumes in which they take part.

use std::collections::BTreeMap;

use crate::job::Peer;
use crate::message::ResumePoint;

#[derive(Default)]
pub(super) struct GroupKeeper {
    /// The last barriers at which workers have arrived, and that they were told of.
    arrived: BTreeMap<u32, u64>,
    told: u64,
    /// Counts with which workers take part in their last resumes.
    parts: BTreeMap<u32, ResumePoint>,
    /// The last resume in which all took part, and the counts from which they went on.
    resumed: ResumePoint,
}

impl GroupKeeper {
    pub(super) fn arrive(&mut self, rank: u32, barrier: u64) {
        let arrived = self.arrived.entry(rank).or_default();
        *arrived = barrier.max(*arrived);
    }

    /// Last barrier at which a worker has arrived.
    fn reached(&self, rank: u32) -> u64 {
        self.arrived.get(&rank).copied().unwrap_or(0)
    }

    /// Workers that a barrier waits for.
    pub(super) fn late(&self, barrier: u64, active: &[u32]) -> Vec<Peer> {
        let late = active.iter().copied().filter(|rank| self.reached(*rank) < barrier);
        late.map(Peer::worker).collect()
    }

    /// Workers that are to be told of an open barrier, and which, if one has opened now.
    pub(super) fn opened(&mut self, active: &[u32]) -> Vec<(u32, u64)> {
        let open = active.iter().map(|rank| self.reached(*rank)).min().unwrap_or(0);
        if open <= self.told {
            return Vec::new();
        }
        self.told = open;
        self.arrived.iter().map(|(rank, arrived)| (*rank, open.min(*arrived))).collect()
    }

    /// Whether workers still meet for a resume: later ones are for the machine of the group.
    pub(super) fn is_next(&self, resume: u64) -> bool {
        resume > self.resumed.number
    }

    pub(super) fn take_part(&mut self, rank: u32, point: ResumePoint) {
        self.parts.insert(rank, point);
    }

    /// Workers here that a resume waits for.
    pub(super) fn missing(&self, resume: u64, here: &[u32]) -> Vec<Peer> {
        let takes_part = |rank: &u32| self.parts.get(rank).is_some_and(|it| it.number >= resume);
        here.iter().filter(|rank| !takes_part(rank)).copied().map(Peer::worker).collect()
    }

    /// The counts from which all workers here go on, once all take part in the next resume.
    pub(super) fn resumed(&mut self, here: &[u32]) -> Option<ResumePoint> {
        let number = self.resumed.number + 1;
        if here.is_empty() || !self.missing(number, here).is_empty() {
            return None;
        }
        let start = ResumePoint { number, ..ResumePoint::default() };
        let parts = here.iter().filter_map(|rank| self.parts.get(rank));
        self.resumed = parts.fold(start, ResumePoint::with);
        self.told = self.resumed.barriers;
        here.iter().for_each(|rank| _ = self.arrived.insert(*rank, self.told));
        Some(self.resumed)
    }
}
