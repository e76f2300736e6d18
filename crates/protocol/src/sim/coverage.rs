//! What the seeds of a run have met, so that a test can see that it met everything.

use std::collections::BTreeMap;

use super::scenario::Trouble;

/// Sums over everything that happened in runs.
#[derive(Debug, Default, Clone)]
pub(super) struct Met {
    pub(super) closed: u64,
    pub(super) duplicates: u64,
    pub(super) grants: u64,
    pub(super) bundles: u64,
    pub(super) damaged: u64,
    pub(super) most_held: u64,
    pub(super) failures: u64,
    pub(super) evictions: u64,
    pub(super) reports: u64,
    pub(super) waiting: u64,
    /// Frames of a reader that says whatever it likes.
    pub(super) attacks: u64,
    /// Calls that were given up, and keys that were asked for in vain.
    pub(super) overdue: u64,
    pub(super) cancelled: u64,
    pub(super) asked: u64,
    /// Runs in which the trouble of the scenario struck a process that was at work.
    pub(super) troubles: BTreeMap<Trouble, u64>,
}

impl Met {
    pub(super) fn add(&mut self, other: &Self) {
        self.closed += other.closed;
        self.duplicates += other.duplicates;
        self.grants += other.grants;
        self.bundles += other.bundles;
        self.damaged += other.damaged;
        self.most_held = self.most_held.max(other.most_held);
        self.failures += other.failures;
        self.evictions += other.evictions;
        self.reports += other.reports;
        self.waiting += other.waiting;
        self.attacks += other.attacks;
        self.overdue += other.overdue;
        self.cancelled += other.cancelled;
        self.asked += other.asked;
        for (trouble, count) in &other.troubles {
            *self.troubles.entry(*trouble).or_default() += count;
        }
    }

    /// A range of so many seeds that leaves something out tests less than it seems to.
    pub(super) fn check_that_all_was_met(&self, seeds: u64) {
        assert!(self.closed > 0 && self.duplicates > 0 && self.grants > 0 && self.damaged > 0);
        assert!(self.failures > 0 && self.evictions > 0 && self.most_held > 0);
        assert!(self.reports > 0 && self.waiting > 0 && self.bundles > 0);
        assert!(self.overdue > 0 && self.cancelled > 0 && self.asked > 0);
        for trouble in Trouble::ALL {
            let count = self.troubles.get(&trouble).copied().unwrap_or(0);
            assert!(count >= seeds / 25, "{trouble:?} struck in {count} of {seeds} runs");
        }
    }
}
