//! Digests that observers see (also called: fingerprints, monitoring): the last round of each slice, and rounds
//! that two jobs have in common.

use smallvec::SmallVec;

use crate::digest::RunDigest;
use crate::sys::sync::Mutex;
use kvstore_protocol::{SliceDigest, SliceName};

/// Digests of a slice. Its lock is held for copies alone, because observers wait for it under that of the
/// process.
pub(super) struct PublishedDigests {
    /// First byte of the slice, its bytes, and those of its key.
    place: (u64, (u64, u64)),
    rounds: Mutex<RoundDigests>,
}

#[derive(Default)]
struct RoundDigests {
    /// Last round; 0 before it.
    round: u64,
    value: Option<u64>,
    states: SmallVec<[RunDigest; 4]>,
    /// Rounds whose numbers are powers of two, and digests of their values: two jobs that run at any distance
    /// have half of the rounds of the shorter one in common.
    earlier: Vec<(u64, u64)>,
}

impl PublishedDigests {
    pub(super) fn new(start: u64, bytes: u64, whole: u64) -> Self {
        Self { place: (start, (bytes, whole)), rounds: Mutex::default() }
    }

    /// A round has closed.
    pub(super) fn closed(&self, round: u64, value: RunDigest, states: &[RunDigest]) {
        let mut rounds = self.rounds.lock();
        (rounds.round, rounds.value) = (round, Some(value.sum));
        rounds.states.clear();
        rounds.states.extend_from_slice(states);
        if round.is_power_of_two() {
            rounds.earlier.push((round, value.sum));
        }
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
        let (place, round, value) = (self.place, rounds.round, rounds.value);
        let earlier = rounds.earlier.clone();
        (round > 0).then_some(SliceDigest { slice, place, round, value, states, earlier })
    }
}
