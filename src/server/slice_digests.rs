//! Digests of the rounds of one slice (also called: fingerprints), for the log of its server and for observers.

use std::mem::offset_of;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::digest::{Contributions, DigestLog, RoundRecord, RunDigest};
use crate::job::row_runs;
use crate::local::digest::state_runs;
use crate::local::merge::StepDigester;
use crate::local::merger::Handling;
use crate::local::table::{Slot, Value};
use crate::runtime::Bytes;
use crate::sys;
use crate::sys::sync::Mutex;
use kvstore_protocol::{Data as _, SliceDigest, SliceName};

/// What the slices of a server digest.
#[derive(Clone)]
pub(super) struct DigestOptions {
    pub(super) log: Option<Arc<DigestLog>>,
    /// Whether states and contributions have digests.
    pub(super) all: bool,
}

/// How a round has closed.
pub(super) struct RoundEnd<'a> {
    pub(super) round: u64,
    /// Sum of the weights of its contributions; 0 without weights.
    pub(super) weight: f64,
    pub(super) failed: bool,
    /// Whether the value is the only contribution now.
    pub(super) is_contribution: bool,
    /// The digest of the value, if it was received with it.
    pub(super) received: Option<RunDigest>,
    /// Has digested the merge, if one was made.
    pub(super) digester: Option<&'a StepDigester>,
}

/// The place of a slice in its key, and its digests. Its lock is held for copies alone, because observers wait for
/// it under that of the process.
pub(super) struct SliceDigests {
    rounds: Mutex<RoundDigests>,
    options: DigestOptions,
    /// First byte of the slice, bytes of the slice, and bytes of the key.
    start: u64,
    bytes: u64,
    whole: u64,
    /// Of the open round.
    pushes: Mutex<Contributions>,
}

#[derive(Default)]
struct RoundDigests {
    /// Last round; 0 before it.
    round: u64,
    /// Digest of the value since the last round; None if a call has replaced the value.
    value: Option<u64>,
    states: Vec<RunDigest>,
    /// Rounds whose numbers are powers of two, and digests of their values: two jobs that run at any distance
    /// have half of the rounds of the shorter one in common.
    earlier: Vec<(u64, u64)>,
}

impl SliceDigests {
    pub(super) fn new(options: DigestOptions, (start, bytes): (u64, u64), whole: u64) -> Self {
        let (rounds, pushes) = (Mutex::default(), Mutex::default());
        Self { rounds, options, start, bytes, whole, pushes }
    }

    /// Prefetches them: a task follows soon.
    pub(super) fn announce(&self) {
        let start = std::ptr::from_ref(self).cast::<u8>();
        (0..offset_of!(Self, pushes))
            .step_by(64)
            .for_each(|at| sys::prefetch(start.wrapping_add(at)));
    }

    /// The digest of the value, if it is known.
    pub(super) fn value(&self) -> Option<RunDigest> {
        self.rounds.lock().value.map(|sum| RunDigest { sum, len: self.bytes })
    }

    /// A call has replaced the value.
    pub(super) fn replaced(&self) {
        let mut rounds = self.rounds.lock();
        rounds.value = None;
        rounds.states.clear();
    }

    /// What observers see; None before the first round.
    pub(super) fn shown(&self, slice: SliceName) -> Option<SliceDigest> {
        let rounds = self.rounds.lock();
        let states = rounds.states.iter().map(|run| (run.sum, run.len)).collect();
        let (round, value, earlier) = (rounds.round, rounds.value, rounds.earlier.clone());
        let place = (self.start, (self.bytes, self.whole));
        (round > 0).then_some(SliceDigest { slice, place, round, value, states, earlier })
    }

    /// Notes a contribution to the open round.
    pub(super) fn add(&self, first: bool, rank: u64, data: &Bytes) {
        let known = data.known_digest().map(|sum| RunDigest { sum, len: data.len() });
        self.note(first, rank, || known.or_else(|| data.read(RunDigest::of)));
    }

    /// Notes a contribution to rows: the digest is that of each row's number in the key (8 bytes) and its
    /// values, in the order of rows.
    pub(super) fn add_rows(&self, first: bool, rank: u64, data: &Bytes, slot: &Slot) {
        let before = self.start / ((slot.row_length() * slot.dtype.size()) as u64).max(1);
        self.note(first, rank, || {
            data.read(|bytes| {
                let Some((runs, taken)) = row_runs::decode(bytes, slot.rows()) else {
                    return RunDigest::default();
                };
                let ids = runs.iter().flat_map(|run| run.first..run.first + run.count);
                // Rows of a sum by a tree may be wider than the key's dtype.
                let unit = bytes[taken..].len() / runs.count().max(1);
                let rows = bytes[taken..].chunks_exact(unit.max(1));
                let digest = |(id, row): (u32, &[u8])| {
                    let number = (before + u64::from(id)).to_le_bytes();
                    RunDigest::of(&number).then(RunDigest::of(row))
                };
                RunDigest::joined(ids.zip(rows).map(digest))
            })
        });
    }

    fn note(&self, first: bool, rank: u64, digest: impl FnOnce() -> Option<RunDigest>) {
        if !self.options.all {
            return;
        }
        let digest = digest().unwrap_or_default();
        let mut pushes = self.pushes.lock();
        if first {
            pushes.clear();
        }
        pushes.extend(u32::try_from(rank).map(|rank| (rank, digest)));
    }

    /// Whether states and contributions have digests.
    pub(super) fn has_all(&self) -> bool {
        self.options.all
    }

    /// Logs the round that has closed: the value is that of the slice now.
    pub(super) fn close(
        &self,
        (slot, end): (&Slot, RoundEnd<'_>),
        stored: &[u8],
        value: &Value,
        handling: &Handling,
    ) {
        let RoundEnd { round, weight, failed, is_contribution, received, digester } = end;
        let pushes = self.options.all.then(|| std::mem::take(&mut *self.pushes.lock()));
        let received = match pushes.as_deref() {
            Some([(_, only)]) if is_contribution => Some(*only),
            _ => received,
        };
        let optimizer = handling.merger_of(slot.key).optimizer().filter(|_| self.options.all);
        let mut states = SmallVec::<[_; 4]>::new();
        let digester = digester.filter(|_| received.is_none());
        let digest = match (received, digester.and_then(|it| it.finish(slot))) {
            (None, Some(made)) => {
                states = made.states;
                made.value
            }
            (received, _) => {
                states.extend(state_runs(optimizer, value));
                received.unwrap_or_else(|| RunDigest::of(stored))
            }
        };
        self.publish(round, digest, &states);
        let Some(log) = &self.options.log else { return };
        let record = RoundRecord {
            key: slot.key.id(),
            round,
            setting: handling.version,
            start: self.start,
            whole: self.whole,
            value: digest,
            states,
            pushes: pushes.unwrap_or_default(),
            weight,
            failed,
        };
        log.add(record, || handling.describe());
    }

    fn publish(&self, round: u64, value: RunDigest, states: &[RunDigest]) {
        let mut rounds = self.rounds.lock();
        (rounds.round, rounds.value) = (round, Some(value.sum));
        rounds.states.clear();
        rounds.states.extend_from_slice(states);
        if round.is_power_of_two() {
            rounds.earlier.push((round, value.sum));
        }
    }
}
