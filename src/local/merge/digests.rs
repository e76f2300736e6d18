//! Digests of a step: of arrays while a pass loads and stores them, where passes can, and of the others piece by piece
//! while the caches hold what it has read and written.

use std::ops::Range;

use kvstore_checksum::crc64;
use smallvec::SmallVec;

use super::step::{MergeScratch, MergeStep};
use super::{Merge, MergeRun};
use crate::digest::{Contributions, RunDigest};
use crate::kernel::{DigestScope, MOST_DIGESTED, PassDigests};
use crate::local::table::Slot;
use crate::sys::sync::Mutex;
use crate::tensor::{Array, DType, Lent};

/// Bytes of stored value in a piece of a step whose arrays are digested behind its passes: all its arrays fit in a
/// second-level cache.
pub(super) const DIGEST_BYTES: usize = 64 << 10;

/// What is digested of a step, and the digests so far.
pub(crate) struct StepDigester {
    /// Whether states are digested.
    states: bool,
    /// Whether the values are, which are plain arrays and no outs.
    values: bool,
    /// Runs of pieces: one, unless several threads make them.
    runs: Mutex<SmallVec<[PieceRun; 1]>>,
}

/// How the pieces of a step are digested.
#[derive(Clone, Copy)]
pub(super) struct DigestPlan {
    /// What passes digest; None if they cannot.
    in_pass: Option<DigestScope>,
    /// Whether arrays are digested behind the passes.
    pub(super) follows: bool,
}

/// Digests of adjacent pieces.
#[derive(Default)]
struct PieceRun {
    /// Elements.
    range: Range<usize>,
    sums: PassDigests,
    /// Number of the arrays of state that are digested, with the master.
    states: usize,
    /// Number of the values that are digested, and the digests of those that no pass digests.
    values: usize,
    more_values: Vec<u64>,
}

/// Digests of a step.
#[derive(Default)]
pub(crate) struct StepDigests {
    /// Of the stored value.
    pub(crate) value: RunDigest,
    /// Of each array of state, the master last.
    pub(crate) states: SmallVec<[RunDigest; 4]>,
    /// Of each value, with its place; None if they are not digested.
    pub(crate) values: Option<Contributions>,
}

impl StepDigester {
    pub(crate) fn new(states: bool, values: bool) -> Self {
        Self { states, values, runs: Mutex::default() }
    }

    pub(crate) fn has_values(&self) -> bool {
        self.values
    }

    /// How the pieces of a step are digested.
    pub(super) fn plan(&self, step: &MergeStep<'_>, is_straight: bool) -> DigestPlan {
        let has_states = self.states && matches!(step.merge, Merge::Rule(..));
        // The only value, if it is assigned, has the digest of the stored one.
        let has_values = self.values && step.assigned().is_none();
        let whole = if has_states || has_values {
            DigestScope::All { inputs: has_values }
        } else {
            DigestScope::Value
        };
        let can = |scope: &DigestScope| is_straight && step.digests_in_passes(*scope);
        let in_pass = Some(whole).filter(can).or_else(|| Some(DigestScope::Value).filter(can));
        DigestPlan { in_pass, follows: in_pass != Some(whole) }
    }

    /// Makes a piece of a step, and digests it. A step on one thread is `alone`: its pieces follow one another.
    pub(super) fn piece(
        &self,
        (step, plan): (&MergeStep<'_>, DigestPlan),
        piece: &Range<usize>,
        scratch: Option<&MergeScratch>,
        alone: bool,
    ) {
        let mut runs = self.runs.lock();
        let place = runs.iter().position(|run| run.range.end == piece.start);
        let place = place.unwrap_or_else(|| {
            runs.push(PieceRun::beginning_at(piece.start));
            runs.len() - 1
        });
        if alone {
            self.make((step, plan), piece, scratch, &mut runs[place]);
            return;
        }
        let mut run = runs.swap_remove(place);
        drop(runs);
        self.make((step, plan), piece, scratch, &mut run);
        self.runs.lock().push(run);
    }

    fn make(
        &self,
        (step, plan): (&MergeStep<'_>, DigestPlan),
        piece: &Range<usize>,
        scratch: Option<&MergeScratch>,
        run: &mut PieceRun,
    ) {
        run.range.end = piece.end;
        if let Some(scope) = plan.in_pass {
            step.straight_digested(piece, (&mut run.sums, scope));
        } else {
            MergeRun::piece(step, piece, scratch);
            let written = step.assigned().or(step.targets.stored);
            written.iter().for_each(|array| append(&mut run.sums.value, array, piece));
        }
        if self.values {
            let is_done = matches!(plan.in_pass, Some(DigestScope::All { inputs: true }));
            run.add_values(step, piece, is_done);
        }
        if let (true, Merge::Rule(_, arrays)) = (self.states, step.merge) {
            let arrays = arrays.elements();
            run.states = arrays.len();
            if !matches!(plan.in_pass, Some(DigestScope::All { .. })) {
                for (state, array) in run.sums.states.iter_mut().zip(&arrays) {
                    append(state, array, piece);
                }
            }
        }
    }

    /// The digests of a key; None if the step has not made just one pass over its elements.
    pub(crate) fn finish(&self, slot: &Slot) -> Option<StepDigests> {
        let mut runs = self.runs.lock();
        if runs.len() > 1 {
            runs.sort_unstable_by_key(|run| run.range.start);
            let whole = runs.drain(..).reduce(|first, next| first.then(&next, slot.dtype));
            runs.extend(whole);
        }
        let whole = runs.first().filter(|run| run.range == (0..slot.count))?;
        Some(whole.digests(slot.dtype))
    }
}

impl PieceRun {
    fn beginning_at(start: usize) -> Self {
        Self { range: start..start, ..Self::default() }
    }

    /// Digests a piece of the values, unless a pass has digested them.
    fn add_values(&mut self, step: &MergeStep<'_>, piece: &Range<usize>, is_done: bool) {
        self.values = step.values.len();
        if step.assigned().is_some() {
            self.sums.inputs[0] = self.sums.value;
        } else if !is_done {
            self.more_values.resize(self.values.saturating_sub(MOST_DIGESTED), 0);
            let digests = self.sums.inputs.iter_mut().chain(&mut self.more_values);
            digests.zip(step.values).for_each(|(digest, value)| {
                append(digest, &value.array(), piece);
            });
        }
    }

    /// This run with another one behind it; an empty run at a place that is wrong for it.
    fn then(mut self, next: &Self, dtype: DType) -> Self {
        if self.range.end != next.range.start {
            return Self::default();
        }
        let join = |size: usize| {
            let len = (next.range.len() * size) as u64;
            move |(first, second): (&mut u64, &u64)| *first = crc64::combine(*first, *second, len)
        };
        let (of_value, of_state) = (join(dtype.size()), join(dtype.full().size()));
        of_value((&mut self.sums.value, &next.sums.value));
        self.sums.states.iter_mut().zip(&next.sums.states).for_each(of_state);
        let inputs = self.sums.inputs.iter_mut().zip(&next.sums.inputs);
        inputs.chain(self.more_values.iter_mut().zip(&next.more_values)).for_each(of_value);
        self.range.end = next.range.end;
        self
    }

    fn digests(&self, dtype: DType) -> StepDigests {
        let run = |size: usize| {
            let len = (self.range.len() * size) as u64;
            move |sum: &u64| RunDigest { sum: *sum, len }
        };
        let (of_value, of_state) = (run(dtype.size()), run(dtype.full().size()));
        let values = self.sums.inputs.iter().chain(&self.more_values).map(of_value);
        StepDigests {
            value: of_value(&self.sums.value),
            states: self.sums.states.iter().take(self.states).map(of_state).collect(),
            values: (self.values > 0).then(|| (0..).zip(values.take(self.values)).collect()),
        }
    }
}

/// Appends a piece of an array to the digest of what is before it.
fn append(digest: &mut u64, array: &Array, piece: &Range<usize>) {
    let (size, bytes) = (array.dtype().size(), Lent::plain(array.start_mut(), DType::U8).array());
    let bytes = bytes.slice::<u8>(&(piece.start * size..piece.end * size));
    *digest = crc64::append(*digest, bytes);
}
