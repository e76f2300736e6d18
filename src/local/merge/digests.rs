//! Digests of a step, made piece by piece while the caches hold what it has read and written.

use std::ops::Range;

use smallvec::SmallVec;

use super::Merge;
use super::step::MergeStep;
use crate::digest::{Contributions, RunDigest};
use crate::sys::sync::Mutex;
use crate::tensor::{Array, DType, Lent};

/// Bytes of stored value in a piece of a step that is digested: all its arrays fit in a second-level cache.
pub(crate) const DIGEST_BYTES: usize = 64 << 10;

/// What is digested of a step, and the digests so far.
pub(crate) struct StepDigester {
    /// Whether states are digested.
    states: bool,
    /// Whether the values are, which are plain arrays and no outs.
    values: bool,
    /// Runs of pieces.
    runs: Mutex<Vec<PieceRun>>,
}

/// Adjacent pieces.
struct PieceRun {
    /// Elements.
    range: Range<usize>,
    digests: StepDigests,
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

    /// Digests a piece of a step that has just been made.
    pub(super) fn add(&self, step: &MergeStep<'_>, piece: &Range<usize>) {
        let mut run = self.run_before(piece.start);
        run.range.end = piece.end;
        let StepDigests { value, states, values } = &mut run.digests;
        if self.values {
            let places = (0..).zip(step.values).map(|(place, _)| (place, RunDigest::default()));
            let values = values.get_or_insert_with(|| places.collect());
            for ((_, digest), pushed) in values.iter_mut().zip(step.values) {
                append(digest, &pushed.array(), piece);
            }
        }
        match (step.assigned(), values.as_deref(), step.targets.stored) {
            (Some(_), Some([(_, only)]), _) => *value = *only,
            (Some(only), ..) => append(value, &only, piece),
            (None, _, Some(stored)) => append(value, &stored, piece),
            (None, _, None) => {}
        }
        if let (true, Merge::Rule(_, arrays)) = (self.states, step.merge) {
            let arrays = arrays.elements();
            states.resize(arrays.len(), RunDigest::default());
            for (state, array) in states.iter_mut().zip(&arrays) {
                append(state, array, piece);
            }
        }
        self.runs.lock().push(run);
    }

    /// Takes the run that ends where a piece begins; an empty one if there is none.
    fn run_before(&self, start: usize) -> PieceRun {
        let mut runs = self.runs.lock();
        match runs.iter().position(|run| run.range.end == start) {
            Some(at) => runs.swap_remove(at),
            None => PieceRun { range: start..start, digests: StepDigests::default() },
        }
    }

    /// The digests of so many elements; None if the step has not made just one pass over them.
    pub(crate) fn finish(self, count: usize) -> Option<StepDigests> {
        let mut runs = std::mem::take(&mut *self.runs.lock());
        runs.sort_by_key(|run| run.range.start);
        let whole = runs.into_iter().reduce(PieceRun::then)?;
        (whole.range == (0..count)).then_some(whole.digests)
    }
}

impl PieceRun {
    /// This run with another one behind it; an empty run at a place that is wrong for it.
    fn then(self, next: Self) -> Self {
        if self.range.end != next.range.start {
            return Self { range: 0..0, digests: StepDigests::default() };
        }
        let joined = |first: RunDigest, next: &RunDigest| first.then(*next);
        let (first, second) = (self.digests, next.digests);
        let values = first.values.zip(second.values).map(|(first, second)| {
            first
                .into_iter()
                .zip(&second)
                .map(|((at, it), (_, next))| (at, joined(it, next)))
                .collect()
        });
        let states =
            first.states.into_iter().zip(&second.states).map(|(it, next)| joined(it, next));
        let digests = StepDigests {
            value: joined(first.value, &second.value),
            states: states.collect(),
            values,
        };
        Self { range: self.range.start..next.range.end, digests }
    }
}

/// Appends a piece of an array to the digest of what is before it.
fn append(digest: &mut RunDigest, array: &Array, piece: &Range<usize>) {
    let (size, bytes) = (array.dtype().size(), Lent::plain(array.start_mut(), DType::U8).array());
    digest.append(bytes.slice::<u8>(&(piece.start * size..piece.end * size)));
}
