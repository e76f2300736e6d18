//! Coverage of a run over many seeds (also: fault coverage): counts of the events that the tests must
//! include.

use std::collections::BTreeMap;

use super::scenario::Trouble;

/// Counts over all runs.
#[derive(Debug, Default, Clone)]
pub(super) struct Met {
    pub(super) closed: u64,
    pub(super) duplicates: u64,
    pub(super) grants: u64,
    pub(super) bundles: u64,
    pub(super) damaged: u64,
    /// Lost connections, and the frames in flight that were lost with them.
    pub(super) connections_lost: u64,
    pub(super) lost_with_connections: u64,
    /// Messages and fields of later releases.
    pub(super) unknown_kinds: u64,
    pub(super) unknown_fields: u64,
    pub(super) most_held: u64,
    pub(super) failures: u64,
    pub(super) evictions: u64,
    pub(super) reports: u64,
    pub(super) waiting: u64,
    /// Frames of the hostile reader.
    pub(super) attacks: u64,
    /// Expired calls; then cancelled calls, and queries for missing keys.
    pub(super) overdue: u64,
    pub(super) cancelled: u64,
    pub(super) asked: u64,
    /// Runs in which the trouble of the scenario struck a running process.
    pub(super) troubles: BTreeMap<Trouble, u64>,
}

impl Met {
    pub(super) fn add(&mut self, other: &Self) {
        self.closed += other.closed;
        self.duplicates += other.duplicates;
        self.grants += other.grants;
        self.bundles += other.bundles;
        self.damaged += other.damaged;
        self.connections_lost += other.connections_lost;
        self.lost_with_connections += other.lost_with_connections;
        self.unknown_kinds += other.unknown_kinds;
        self.unknown_fields += other.unknown_fields;
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

    /// Checks that a range of this many seeds has included all events; otherwise it tests less than it
    /// claims.
    pub(super) fn check_that_all_was_met(&self, seeds: u64) {
        assert!(self.closed > 0 && self.duplicates > 0 && self.grants > 0 && self.damaged > 0);
        assert!(self.failures > 0 && self.evictions > 0 && self.most_held > 0);
        assert!(self.reports > 0 && self.waiting > 0 && self.bundles > 0);
        assert!(self.connections_lost > seeds && self.lost_with_connections > seeds / 4);
        assert!(self.unknown_kinds > 0 && self.unknown_fields > 0);
        assert!(self.overdue > 0 && self.cancelled > 0 && self.asked > 0);
        for trouble in Trouble::ALL {
            let count = self.troubles.get(&trouble).copied().unwrap_or(0);
            assert!(count >= seeds / 25, "{trouble:?} struck in {count} of {seeds} runs");
        }
    }
}
