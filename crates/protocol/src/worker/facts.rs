//! Statistics of a worker: latencies of calls, and the members that pending calls wait for.

use super::operation::{CatchUpTarget, Operation, OperationKind};
use super::{OpId, Worker, errors};
use crate::job::{Data, Peer, Time};
use crate::message::COLLECTIVE;
use crate::telemetry::{CallKind, Histogram, MOST_WAITING, ProcessStats, WaitingCall};

/// Names of keys, from the driver. Called in the machine's steps: it must not block.
pub trait KeyNameLookup: Send + Sync {
    /// Name of a key, if it has one.
    fn name(&self, key: u64) -> Option<String>;
    /// Second hash of a key's name, which detects collisions of the first one, the key; 0 if there is none,
    /// or if it is not known.
    fn second_hash(&self, key: u64) -> u64;
}

/// An ended call.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Kind of the call.
    pub call: CallKind,
    /// Key of the call, 0 without one.
    pub key: u64,
    /// Round of a push or pull, else 0.
    pub round: u64,
    /// Moment of the request.
    pub began: Time,
    /// Moment of the end.
    pub end: Time,
}

/// Counters of ended calls.
#[derive(Default)]
pub(super) struct WorkerTally {
    /// Moment of the last event.
    pub(super) now: Time,
    round: u64,
    rounds: u64,
    failures: u64,
    push: Histogram,
    pull: Histogram,
    pushpull: Histogram,
    naming: Option<Box<dyn KeyNameLookup>>,
}

impl std::fmt::Debug for WorkerTally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tally").field("rounds", &self.rounds).finish_non_exhaustive()
    }
}

impl WorkerTally {
    pub(super) fn second_hash(&self, key: u64) -> u64 {
        self.naming.as_ref().map_or(0, |naming| naming.second_hash(key))
    }

    /// Counts an ended call, successful or failed.
    pub(super) fn ended<D>(&mut self, op: &Operation<D>, well: bool) -> Ended {
        let took = self.now.saturating_sub(op.began);
        match op.what {
            _ if !well => self.failures += 1,
            OperationKind::Push { answer, round, .. } => {
                self.round = self.round.max(round);
                self.rounds += 1;
                if answer { &mut self.pushpull } else { &mut self.push }.add(took);
            }
            OperationKind::Pull { .. } => self.pull.add(took),
            _ => {}
        }
        let (call, key, round) = (op.kind(), op.key, op.round());
        Ended { call, key, round, began: op.began, end: self.now }
    }
}

impl<D: Data> Worker<D> {
    /// Sets the names of keys, for observers, and for the directory, which compares their hashes.
    pub fn name_keys(&mut self, naming: impl KeyNameLookup + 'static) {
        self.tally.naming = Some(Box::new(naming));
    }

    /// Fills in the statistics of this worker, and queries the members that its oldest calls wait for.
    pub(crate) fn report(&mut self, facts: &mut ProcessStats) {
        let now = self.tally.now;
        let mut oldest: Vec<(Time, OpId)> = self
            .ops
            .iter()
            .filter(|(_, op)| !op.abandoned)
            .map(|(id, op)| (op.began, id))
            .collect();
        facts.pending = oldest.len() as u64;
        if oldest.len() > MOST_WAITING {
            oldest.select_nth_unstable(MOST_WAITING);
            oldest.truncate(MOST_WAITING);
        }
        oldest.sort_unstable();
        for (_, id) in oldest {
            facts.waiting.extend(self.ops.get(id).map(|op| self.waiting(op, now)));
            if self.ops.get(id).is_some_and(|op| op.started) {
                self.ask(id);
            }
        }
        let tally = &self.tally;
        facts.counters.round = tally.round;
        facts.counters.rounds = tally.rounds;
        facts.counters.failures = tally.failures;
        facts.counters.keys = self.keys.values().filter(|key| key.place().is_some()).count() as u64;
        facts.push.clone_from(&tally.push);
        facts.pull.clone_from(&tally.pull);
        facts.pushpull.clone_from(&tally.pushpull);
    }

    fn waiting(&self, op: &Operation<D>, now: Time) -> WaitingCall {
        let call = op.kind();
        let round = match op.what {
            OperationKind::Barrier { number, .. } | OperationKind::Resume { number } => number,
            OperationKind::Set { version, .. }
            | OperationKind::Learn(CatchUpTarget::Setting(version)) => version & !COLLECTIVE,
            _ => op.round(),
        };
        let naming = self.tally.naming.as_ref().filter(|_| call.has_key());
        WaitingCall {
            call,
            started: op.started,
            key: op.key,
            name: naming.and_then(|naming| naming.name(op.key)).unwrap_or_default(),
            round,
            age: now.saturating_sub(op.began),
            awaited: self.awaited(op),
        }
    }

    /// Members that a call waits for, as far as this worker knows.
    fn awaited(&self, op: &Operation<D>) -> Vec<Peer> {
        match &op.awaited {
            Some(peers) if !peers.is_empty() => peers.to_vec(),
            _ if !op.started => Vec::new(),
            _ => vec![errors::silent(op, self.keys.get(&op.key))],
        }
    }
}
