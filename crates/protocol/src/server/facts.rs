//! Statistics of a server: its rounds, and late workers (also: straggler detection).

use super::Server;
use crate::job::{Data, Mode, Time};
use crate::telemetry::{MOST_PEERS, ProcessStats, StragglerDelay};

/// Counters of a server.
#[derive(Debug, Default)]
pub(super) struct ServerTally {
    /// The moment of the last event.
    pub(super) now: Time,
    round: u64,
    rounds: u64,
    pub(super) stored_bytes: u64,
    /// By rank.
    late: Vec<StragglerDelay>,
}

impl ServerTally {
    pub(super) fn new(workers: u32) -> Self {
        let late =
            (0..workers).map(|rank| StragglerDelay { rank, ..StragglerDelay::default() }).collect();
        Self { late, ..Self::default() }
    }

    /// A round of a slice has closed.
    pub(super) fn closed(&mut self, round: u64) {
        self.round = self.round.max(round);
        self.rounds += 1;
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// A push closed its round; the push before it in that slice had arrived at the moment `before`.
    fn came_last(&mut self, rank: u32, before: Time) {
        if let Some(late) = self.late.get_mut(rank as usize) {
            late.rounds += 1;
            late.time += self.now.saturating_sub(before);
        }
    }
}

impl<D: Data> Server<D> {
    /// Records the lateness of a worker, if its push that has just been settled closed a round.
    pub(super) fn note_late(&mut self, rank: u32, before: Option<Time>, rounds: u64) {
        let several = self.workers.active().nth(1).is_some();
        let sync = self.workers.limits.mode == Mode::Sync;
        if let Some(before) = before.filter(|_| self.tally.rounds > rounds && sync && several) {
            self.tally.came_last(rank, before);
        }
    }

    /// Fills in the statistics of this server.
    pub(crate) fn report(&self, facts: &mut ProcessStats) {
        facts.counters.round = self.tally.round;
        facts.counters.rounds = self.tally.rounds;
        facts.counters.keys = self.keys.len() as u64;
        facts.counters.slices = self.keys.slice_names().count() as u64;
        facts.counters.stored_bytes = self.tally.stored_bytes;
        facts.counters.held_bytes = self.held_bytes;
        facts.counters.duplicates = self.duplicates;
        let mut late: Vec<StragglerDelay> =
            self.tally.late.iter().filter(|late| late.rounds > 0).copied().collect();
        late.sort_unstable_by_key(|late| (std::cmp::Reverse(late.time), late.rank));
        late.truncate(MOST_PEERS);
        facts.late = late;
    }
}
