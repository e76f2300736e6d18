//! The arithmetic of one key: values into a sum, the sum into the stored value, the result into
//! outs; in pieces, on as many threads as the store may use, and in one pass over memory wherever
//! tensors allow it. Also called: reduction.

pub(crate) mod compression;
pub(crate) mod digests;
pub(crate) mod keeper;
pub(crate) mod passes;
pub(crate) mod rows;
pub(crate) mod squares;
pub(crate) mod step;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::PlannedOut;
use super::table::Slot;
use crate::error::Result;
use crate::kernel::{Isa, PartNumbers, Rule, SumOrder, Traffic};
use crate::optim::StateArrays;
use crate::pool::{Help, SPLIT_BYTES, pool};
use crate::sys::DefaultFloats;
use crate::sys::caches::CacheSizes;
use crate::sys::sync::{AtomicBool as Cancel, Mutex};
use crate::tensor::{Array, Buffer, LINE, Lent, PageOffset};

pub(crate) use compression::Compression;
use digests::DIGEST_BYTES;
pub(crate) use digests::{StepDigester, StepDigests};
use keeper::Keeper;
use passes::KeyPasses;
pub(crate) use rows::RowSums;
use step::{MergeScratch, MergeStep};

/// Bytes of stored value in a piece: the unit of threads, and of stopping early.
const PIECE_BYTES: usize = 256 << 10;

/// The least bytes of a piece where smaller ones give each thread its share.
const LEAST_PIECE_BYTES: usize = 32 << 10;

/// Size of one array from which stores may go past the caches.
pub(crate) const STREAM_BYTES: usize = 128 << 10;

/// Bytes touched by a step below which it is one short pass, if on one thread.
const AHEAD_BYTES: usize = 1 << 20;

/// How a store computes. The calling thread must have the default floating-point state.
#[derive(Clone, Copy)]
pub(crate) struct Team<'a> {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    /// The order of the values of a call.
    pub(crate) order: SumOrder<'static>,
    /// Bytes that the current call touches, as far as the caller has counted them.
    pub(crate) touched: usize,
    /// Digests the current push, if it is to be.
    pub(crate) digester: Option<&'a StepDigester>,
    /// What the sums of the current call are divided by.
    pub(crate) divisor: Option<f64>,
    /// Keeps what the current push changes.
    pub(crate) keeper: Option<&'a Keeper<'a>>,
}

/// The arrays that a step passes over beside the values and the outs.
#[derive(Clone, Copy)]
struct KeptArrays {
    /// How many there are.
    count: usize,
    /// How many of them are read and written.
    changed: usize,
}

/// Where a step writes its result.
#[derive(Clone, Copy)]
struct Targets<'a> {
    /// Our own memory, first; None for a pull.
    stored: Option<Array>,
    outs: &'a [PlannedOut],
}

/// How a sum gets into the stored value.
#[derive(Clone, Copy)]
enum Merge<'a> {
    /// It replaces it.
    Assign,
    /// By an element-wise rule, which changes the arrays that it keeps for the key.
    Rule(&'a dyn Rule, &'a StateArrays),
    /// An element-wise rule with a number for each part of the piece, which has at most a tile's
    /// elements.
    Parts(&'a dyn Rule, &'a StateArrays, PartNumbers<'a>),
}

impl<'t> Team<'t> {
    /// Writes the sum of the values to `stored`, which has the slot's dtype and shape, and to the
    /// outs. The values may be the output of a compression. A push is never left half done, so this
    /// does not stop early; an error means that nothing has been written.
    pub(crate) fn merge(
        self,
        slot: &Slot,
        values: &[Lent],
        stored: &Buffer,
        outs: &[PlannedOut],
        compression: Option<&mut Compression<'_>>,
    ) -> Result<()> {
        let targets = Targets { stored: Some(Array::of(stored, slot.dtype)), outs };
        let more = compression.as_ref().map_or(0, |it| it.passed());
        let run = self.run(slot, values, targets, KeptArrays { count: 1 + more, changed: 0 })?;
        if let Some(compression) = compression {
            compression.run(run.threads);
        }
        run.whole(Merge::Assign, None);
        Ok(())
    }

    /// The passes that a rule may make over the sum of the values, `stored` and the outs. The
    /// values may be the output of a compression. An error means that nothing has been written.
    #[inline]
    pub(crate) fn passes<'a>(
        self,
        slot: &'a Slot,
        values: &'a [Lent],
        arrays: &'a StateArrays,
        stored: &Buffer,
        outs: &'a [PlannedOut],
        compression: Option<&mut Compression<'_>>,
    ) -> Result<KeyPasses<'a>>
    where
        't: 'a,
    {
        let targets = Targets { stored: Some(Array::of(stored, slot.dtype)), outs };
        let more = compression.as_ref().map_or(0, |it| it.passed());
        let changed = 1 + arrays.passed();
        let kept = KeptArrays { count: changed + more, changed };
        let run = self.run(slot, values, targets, kept)?;
        if let Some(compression) = compression {
            compression.run(run.threads);
        }
        Ok(KeyPasses { run, arrays })
    }

    /// Writes the sum of the values to `stored`, which has the slot's dtype and shape.
    pub(crate) fn sum(self, slot: &Slot, values: &[Lent], stored: &Buffer) -> Result<()> {
        self.merge(slot, values, stored, &[], None)
    }

    /// Computes the output of a compression.
    pub(crate) fn compress(self, slot: &Slot, compression: &mut Compression<'_>) {
        let help = Help::ask(self.threads - 1, compression.passed() * slot.bytes());
        compression.run(1 + help.helpers);
    }

    /// Moves the stored value to the address at which a pass over it, the values and the outs is
    /// fastest. The value is about to be replaced.
    pub(crate) fn place(slot: &Slot, values: &[Lent], stored: &mut Buffer, outs: &[PlannedOut]) {
        let outs = outs.iter().filter(|out| !out.shadowed).map(|out| &out.lent);
        if let Some(first) = outs.chain(values).find(|it| it.is_plain(slot.dtype)) {
            stored.place(first.data(), PageOffset::Stored);
        }
    }

    /// Copies the stored value to the outs. Stops between pieces once `cancel` is set; returns
    /// whether it finished.
    pub(crate) fn copy_out(
        self,
        slot: &Slot,
        stored: &Buffer,
        outs: &[PlannedOut],
        cancel: Option<&Cancel>,
    ) -> Result<bool> {
        let stored = [Lent::of(Array::of(stored, slot.dtype))];
        let (targets, kept) = (Targets { stored: None, outs }, KeptArrays { count: 0, changed: 0 });
        Ok(self.undivided().run(slot, &stored, targets, kept)?.whole(Merge::Assign, cancel))
    }

    /// Copies a value to a plain array of the slot's dtype.
    #[cfg(feature = "cuda")]
    pub(crate) fn gather_value(self, slot: &Slot, value: &Lent, to: Array) -> Result<()> {
        let targets = Targets { stored: Some(to), outs: &[] };
        let kept = KeptArrays { count: 1, changed: 0 };
        let team = self.undivided();
        team.run(slot, std::slice::from_ref(value), targets, kept)?.whole(Merge::Assign, None);
        Ok(())
    }

    /// Copies bytes, as arrays of `u8`.
    #[cfg(feature = "cuda")]
    pub(crate) fn copy_bytes(self, from: Array, to: Array, bytes: usize) {
        let help = Help::ask(self.threads - 1, 2 * bytes);
        in_pieces(bytes, PIECE_BYTES, 1 + help.helpers, None, &|part| {
            let mut to = to;
            to.slice_mut::<u8>(&part).copy_from_slice(from.slice::<u8>(&part));
        });
    }

    /// Copies a plain array of the slot's dtype to an out.
    #[cfg(feature = "cuda")]
    pub(crate) fn fill_out(self, slot: &Slot, from: Array, out: &PlannedOut) -> Result<()> {
        let targets = Targets { stored: None, outs: std::slice::from_ref(out) };
        let kept = KeptArrays { count: 0, changed: 0 };
        self.undivided().run(slot, &[Lent::of(from)], targets, kept)?.whole(Merge::Assign, None);
        Ok(())
    }

    /// Copies a buffer of the slot's size.
    pub(crate) fn copy(self, slot: &Slot, dst: &Buffer, src: &Buffer) -> Result<()> {
        self.undivided().sum(slot, &[Lent::of(Array::of(src, slot.dtype))], dst)
    }

    /// The same, whose sums are divided by a number.
    pub(crate) fn divided_by(self, divisor: Option<f64>) -> Self {
        Self { divisor, ..self }
    }

    /// The same for copies.
    fn undivided(self) -> Self {
        self.divided_by(None)
    }

    /// Whether a step that touches so many bytes is one short pass on this thread.
    pub(crate) fn is_short(self, touched: usize) -> bool {
        touched < if self.threads > 1 { SPLIT_BYTES } else { AHEAD_BYTES }
    }

    /// How a step on so many threads treats the caches, if the key's arrays take `own` bytes.
    fn traffic(self, slot: &Slot, own: usize, threads: usize) -> Traffic {
        let (caches, touched) = (CacheSizes::get(), own.max(self.touched));
        let streams = slot.bytes() >= STREAM_BYTES && touched > caches.usable(threads);
        match (streams, caches.looks_ahead(touched)) {
            (false, false) => Traffic::Cached,
            (false, true) => Traffic::Ahead,
            (true, false) => Traffic::Streaming,
            (true, true) => Traffic::Far,
        }
    }

    /// Prepares a step.
    #[inline]
    fn run<'a>(
        self,
        slot: &'a Slot,
        values: &'a [Lent],
        targets: Targets<'a>,
        kept: KeptArrays,
    ) -> Result<MergeRun<'a>>
    where
        't: 'a,
    {
        let live = targets.outs.iter().filter(|out| !out.shadowed).count();
        let own = (values.len() + live + kept.count) * slot.bytes();
        let odd = values.iter().filter(|value| !value.is_plain(slot.dtype)).count();
        let straight = odd == 0 && targets.outs.iter().all(|out| out.lent.is_plain(slot.dtype));
        let help = Help::ask(self.threads - 1, own + kept.changed * slot.bytes());
        let threads = 1 + help.helpers;
        // At most as many as can have scratch memory, for any pieces.
        let threads = threads.min(slot.bytes().div_ceil(LEAST_PIECE_BYTES)).max(1);
        let traffic = self.traffic(slot, own, threads);
        let scratch = if straight { Vec::new() } else { MergeScratch::take(threads, odd)? };
        let (Self { isa, order, divisor, .. }, merge) = (self, Merge::Assign);
        let step = MergeStep { isa, slot, values, order, divisor, merge, targets, traffic };
        let (digester, keeper, scratch) = (self.digester, self.keeper, Mutex::new(scratch));
        Ok(MergeRun { step, threads, straight, digester, keeper, scratch, _help: help })
    }
}

/// A step with all the memory that its pieces need.
struct MergeRun<'a> {
    step: MergeStep<'a>,
    threads: usize,
    /// Whether every tensor is a plain array of the slot's dtype.
    straight: bool,
    digester: Option<&'a StepDigester>,
    keeper: Option<&'a Keeper<'a>>,
    /// One for each thread, unless the step is straight.
    scratch: Mutex<Vec<MergeScratch>>,
    _help: Help,
}

impl Drop for MergeRun<'_> {
    fn drop(&mut self) {
        if !self.straight {
            MergeScratch::give_back(std::mem::take(&mut self.scratch.lock()));
        }
    }
}

impl MergeRun<'_> {
    /// Merges the whole key. Stops between pieces once `cancel` is set; returns whether it
    /// finished.
    fn whole(&self, merge: Merge<'_>, cancel: Option<&Cancel>) -> bool {
        let (slot, mut step) = (self.step.slot, MergeStep { merge, ..self.step });
        if let Some(keeper) = self.keeper {
            return self.whole_kept(&step, keeper);
        }
        let digester = self.digester.filter(|_| step.targets.stored.is_some());
        let digesting = digester.map(|it| (it, it.plan(&step, self.straight)));
        let follows = digesting.is_some_and(|(_, plan)| plan.follows);
        if follows && step.writes_stored() && step.assigned().is_none() {
            step.traffic = step.traffic.stored();
        }
        let alone = self.threads == 1;
        let make = |piece: &Range<usize>, scratch: Option<&MergeScratch>| match digesting {
            Some((digester, plan)) => digester.piece((&step, plan), piece, scratch, alone),
            None => Self::piece(&step, piece, scratch),
        };
        // A pass that leaves the caches is faster in pieces, also on one thread. One that may be
        // cancelled stops between them.
        let may_stop = cancel.is_some() && slot.bytes() > PIECE_BYTES;
        let is_one = self.straight && !step.traffic.streams() && !may_stop && !follows;
        if alone && is_one {
            make(&(0..slot.count), None);
            return true;
        }
        let work = |piece| self.with_scratch(|scratch| make(&piece, scratch));
        // Whole lines, wherever an array begins in them.
        let share = slot.bytes().div_ceil(self.threads).next_multiple_of(LINE);
        let most = if follows { DIGEST_BYTES } else { PIECE_BYTES };
        let piece = share.clamp(LEAST_PIECE_BYTES, most) / slot.dtype.size();
        in_pieces(slot.count, piece, self.threads, cancel, &work)
    }

    /// Merges a piece.
    fn piece(step: &MergeStep<'_>, piece: &Range<usize>, scratch: Option<&MergeScratch>) {
        match scratch {
            Some(scratch) => step.in_blocks(piece, scratch),
            None => step.straight(piece),
        }
    }

    /// Runs `work` with scratch memory of its own, unless the step is straight.
    fn with_scratch(&self, work: impl FnOnce(Option<&MergeScratch>)) {
        if self.straight {
            return work(None);
        }
        let mine = self.scratch.lock().pop().expect("one for each thread");
        work(Some(&mine));
        self.scratch.lock().push(mine);
    }
}

/// Runs `work` over pieces of `size` of `count` elements, so that their borders are fixed. Stops
/// between pieces once `cancel` is set; returns whether it finished.
fn in_pieces(
    count: usize,
    size: usize,
    threads: usize,
    cancel: Option<&Cancel>,
    work: &(dyn Fn(Range<usize>) + Sync),
) -> bool {
    let (pieces, skipped) = (count.div_ceil(size), AtomicBool::new(false));
    let run = |index: usize| {
        // Relaxed: stopping a little later is as good; the end of the split orders `skipped`.
        if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            skipped.store(true, Ordering::Relaxed);
        } else {
            work(index * size..count.min((index + 1) * size));
        }
    };
    if threads == 1 {
        (0..pieces).for_each(run);
    } else {
        pool().split(threads - 1, pieces, &|index| {
            let _floats = DefaultFloats::enter();
            run(index);
        });
    }
    !skipped.into_inner()
}
