//! A piece of a step: one pass over memory if its tensors are plain arrays of the key's dtype, else
//! block by block, so that what is gathered or converted stays in the cache.

use std::ops::Range;
use std::sync::Mutex;

use smallvec::SmallVec;

use super::{Merge, Targets};
use crate::error::Result;
use crate::kernel::{DigestScope, Isa, Meter, Pass, PassDigests, Squares, SumOrder, TILE, Traffic};
use crate::local::table::Slot;
use crate::optim::StateArrays;
use crate::tensor::{Array, Buffer, DType, LINE, Lent};

/// Elements that are gathered, converted or copied again at a time, so that they stay in the cache.
pub(super) const BLOCK: usize = 4096;

/// The addresses of a pass, without an allocation for up to 16.
type Addresses<T> = SmallVec<[T; 16]>;

/// Memory for values that cannot be summed in place: one block for each, and one to gather into
/// before a conversion. Allocated before the first byte is written, so that a lack of memory leaves
/// no half a result.
pub(super) struct MergeScratch {
    pub(super) blocks: Vec<Buffer>,
    pub(super) gathered: Buffer,
}

/// Scratch of earlier steps, one for each of a step's threads. Taken only with `try_lock`: in the
/// child of a fork a thread of the parent may hold the lock.
static SPARE: Mutex<Vec<Vec<MergeScratch>>> = Mutex::new(Vec::new());

/// How many steps' scratch is kept for later.
const MOST_SPARE: usize = 16;

impl MergeScratch {
    /// Takes scratch for so many threads or more.
    pub(super) fn take(threads: usize, odd_values: usize) -> Result<Vec<Self>> {
        let mut all = SPARE.try_lock().ok().and_then(|mut spare| spare.pop()).unwrap_or_default();
        while all.len() < threads {
            all.push(Self { blocks: Vec::new(), gathered: block()? });
        }
        for scratch in &mut all {
            while scratch.blocks.len() < odd_values {
                scratch.blocks.push(block()?);
            }
        }
        Ok(all)
    }

    pub(super) fn give_back(all: Vec<Self>) {
        if let Ok(mut spare) = SPARE.try_lock()
            && spare.len() < MOST_SPARE
        {
            spare.push(all);
        }
    }
}

fn block() -> Result<Buffer> {
    // Codecs see slices of it, whose elements must be defined.
    Buffer::zeroed(BLOCK * DType::F64.size(), false)
}

/// State shared by all pieces of a step.
#[derive(Clone, Copy)]
pub(super) struct MergeStep<'a> {
    pub(super) isa: Isa,
    pub(super) slot: &'a Slot,
    pub(super) values: &'a [Lent],
    pub(super) order: SumOrder<'a>,
    /// What the sum is divided by.
    pub(super) divisor: Option<f64>,
    pub(super) merge: Merge<'a>,
    pub(super) targets: Targets<'a>,
    pub(super) traffic: Traffic,
}

impl MergeStep<'_> {
    fn live_outs(&self) -> impl Iterator<Item = &Lent> {
        self.targets.outs.iter().filter(|out| !out.shadowed).map(|out| &out.lent)
    }

    /// A piece of a step whose tensors are all plain arrays of the slot's dtype. Streaming stores to
    /// several outs need equal places in a cache line.
    pub(super) fn straight(&self, piece: &Range<usize>) {
        let (inputs, outs) = self.addresses(piece);
        if self.needs_tiles(&outs) {
            self.in_tiles(piece);
        } else {
            self.pass(&inputs, &outs, piece, self.traffic);
        }
    }

    /// Whether pieces of a straight step have passes that digest the arrays of a scope.
    pub(super) fn digests_in_passes(&self, scope: DigestScope) -> bool {
        let (inputs, outs) = self.addresses(&(0..0));
        let pass = self.planned(&inputs, &outs, 0, self.traffic);
        let has_loops = match self.merge {
            Merge::Assign => self.isa.digests_sum(&pass, scope),
            Merge::Rule(rule, arrays) => {
                !arrays.has_master() && rule.digests(self.isa, &pass, scope)
            }
            Merge::Parts(..) => false,
        };
        has_loops && !self.needs_tiles(&outs)
    }

    /// [`Self::straight`] of a step with such passes; continues the digests.
    pub(super) fn straight_digested(
        &self,
        piece: &Range<usize>,
        digests: (&mut PassDigests, DigestScope),
    ) {
        let (inputs, outs) = self.addresses(piece);
        let pass = self.planned(&inputs, &outs, piece.len(), self.traffic);
        match (self.merge, &self.targets.stored) {
            (Merge::Rule(rule, arrays), Some(stored)) => {
                let target = arrays.target(stored, piece);
                self.isa.merge_digested_planned(rule, &pass, &target, digests);
            }
            _ => self.isa.sum_digested_planned(&pass, digests),
        }
    }

    /// Whether stores past the caches would go to unequal places in a cache line.
    fn needs_tiles(&self, outs: &[*mut u8]) -> bool {
        let is_apart = |out: &*mut u8| out.addr() % LINE != outs[0].addr() % LINE;
        self.traffic.streams() && outs.iter().any(is_apart)
    }

    /// Adds up arrays and merges them into a range of the stored value, without outs.
    pub(super) fn merge_parts(&self, parts: &[Array], range: &Range<usize>) {
        let inputs: SmallVec<[_; 4]> = parts.iter().map(Array::start).collect();
        let outs: SmallVec<[_; 1]> = self.written(range).into_iter().collect();
        self.pass(&inputs, &outs, range, self.traffic);
    }

    /// The only value, if it replaces the stored one bit for bit.
    pub(super) fn assigned(&self) -> Option<Array> {
        match (self.merge, self.values) {
            _ if self.divisor.is_some() => None,
            (Merge::Assign, [only]) if only.is_plain(self.slot.dtype) => Some(only.array()),
            _ => None,
        }
    }

    /// Whether a pass only writes the stored value, so that stores past the caches leave nothing of it there.
    pub(super) fn writes_stored(&self) -> bool {
        self.written(&(0..0)).is_some()
    }

    /// Where a piece of each value and of each out of the pass begins.
    #[inline]
    fn addresses(&self, piece: &Range<usize>) -> (Addresses<*const u8>, Addresses<*mut u8>) {
        let inputs = self.values.iter().map(|value| value.array().part(piece).start());
        let outs = self.live_outs().map(|out| out.array().part(piece).start_mut());
        (inputs.collect(), self.written(piece).into_iter().chain(outs).collect())
    }

    /// The stored value's piece, if a pass only writes it.
    fn written(&self, piece: &Range<usize>) -> Option<*mut u8> {
        let whole = match self.merge {
            Merge::Assign => true,
            Merge::Rule(_, arrays) | Merge::Parts(_, arrays, _) => arrays.has_master(),
        };
        self.targets.stored.filter(|_| whole).map(|stored| stored.part(piece).start_mut())
    }

    /// Streams to outs with unequal offsets in their cache lines: tile by tile, so that all but the
    /// first read from the cache.
    fn in_tiles(&self, piece: &Range<usize>) {
        for tile in blocks(piece) {
            let (inputs, outs) = self.addresses(&tile);
            let (source, rest) = if let ([only], None) = (&*inputs, self.targets.stored) {
                (*only, &*outs)
            } else {
                self.pass(&inputs, &outs[..1], &tile, self.traffic.stored());
                (outs[0].cast_const(), &outs[1..])
            };
            for &out in rest {
                self.copy(source, out, tile.len());
            }
        }
    }

    /// Streams from one array to another.
    fn copy(&self, from: *const u8, to: *mut u8, count: usize) {
        let (inputs, outs) = (&[from], &[to]);
        let (dtype, traffic, order) = (self.slot.dtype, Traffic::Streaming, SumOrder::Linear);
        self.isa.sum_planned(&Pass { dtype, outs, inputs, count, traffic, order, divisor: None });
    }

    /// A pass over so many elements.
    fn planned<'p>(
        &'p self,
        inputs: &'p [*const u8],
        outs: &'p [*mut u8],
        count: usize,
        traffic: Traffic,
    ) -> Pass<'p> {
        let Self { order, divisor, .. } = *self;
        Pass { dtype: self.slot.dtype, outs, inputs, count, traffic, order, divisor }
    }

    /// Adds up a range of the values and merges it, in one pass.
    fn pass(&self, inputs: &[*const u8], outs: &[*mut u8], range: &Range<usize>, traffic: Traffic) {
        let pass = self.planned(inputs, outs, range.len(), traffic);
        match (self.merge, &self.targets.stored) {
            (Merge::Rule(rule, arrays), Some(stored)) => {
                self.isa.merge_planned(rule, &pass, &arrays.target(stored, range));
            }
            (Merge::Parts(rule, arrays, parts), Some(stored)) => {
                let target = arrays.target(stored, range);
                self.isa.merge_parts_planned(rule, &pass, &target, parts);
            }
            _ if outs.is_empty() => {}
            _ => self.isa.sum_planned(&pass),
        }
    }

    /// A piece of a step with tensors of other dtypes or with strides.
    pub(super) fn in_blocks(&self, piece: &Range<usize>, scratch: &MergeScratch) {
        for block in blocks(piece) {
            let inputs = self.inputs(&block, Some(scratch));
            let result = self.targets.stored.map(|stored| {
                let outs: SmallVec<[_; 1]> = self.written(&block).into_iter().collect();
                self.pass(&inputs, &outs, &block, Traffic::Cached);
                stored.part(&block)
            });
            let result = result.unwrap_or_else(|| self.values[0].array().part(&block));
            self.deliver(&result, &block, &scratch.gathered);
        }
    }

    /// Measures a range, tile by tile from its start, in parts of so many elements or of a tile.
    /// The sums, passed to `take` in order, do not depend on the layout of the values.
    pub(super) fn measure(
        &self,
        (meter, arrays): (&dyn Meter, &StateArrays),
        range: &Range<usize>,
        scratch: Option<&MergeScratch>,
        part: usize,
        take: &mut dyn FnMut(Squares),
    ) {
        let (dtype, traffic) = (self.slot.dtype, self.traffic.stored());
        let Self { order, divisor, .. } = *self;
        let Some(stored) = self.targets.stored else { return };
        for block in blocks(range) {
            let inputs = self.inputs(&block, scratch);
            for tile in cut(&block, TILE) {
                let offset = (tile.start - block.start) * dtype.size();
                let inputs: Addresses<_> =
                    inputs.iter().map(|input| input.wrapping_add(offset)).collect();
                let (outs, inputs, count) = (&[][..], &*inputs, tile.len());
                let pass = Pass { dtype, outs, inputs, count, traffic, order, divisor };
                let target = arrays.target(&stored, &tile);
                self.isa.measure_planned(meter, &pass, &target, part.min(TILE), take);
            }
        }
    }

    /// Where a block of each value begins, gathered and converted if need be.
    pub(super) fn inputs(
        &self,
        block: &Range<usize>,
        scratch: Option<&MergeScratch>,
    ) -> Addresses<*const u8> {
        let dtype = self.slot.dtype;
        let mut free = scratch.iter().flat_map(|scratch| &scratch.blocks);
        let place = |value: &Lent| {
            if value.is_plain(dtype) {
                return value.array().part(block);
            }
            // As many blocks as values that need one.
            let room = free.next().zip(scratch);
            let (ready, scratch) = room.expect("taken before the step began");
            prepare(self.isa, self.slot, value, block, Array::of(ready, dtype), &scratch.gathered)
        };
        self.values.iter().map(place).map(|part| part.start()).collect()
    }

    /// Copies a block of the result to every out.
    fn deliver(&self, result: &Array, block: &Range<usize>, converted: &Buffer) {
        for out in self.live_outs() {
            let Some(strides) = out.strides() else {
                self.isa.convert_array(&out.array().part(block), result, block.len());
                continue;
            };
            let mut source = *result;
            if out.dtype() != self.slot.dtype {
                source = Array::of(converted, out.dtype());
                self.isa.convert_array(&source, result, block.len());
            }
            out.array().scatter(&source, &self.slot.shape, strides, block);
        }
    }
}

/// A block of a value, gathered and converted to the dtype of `ready`, in there.
pub(super) fn prepare(
    isa: Isa,
    slot: &Slot,
    value: &Lent,
    block: &Range<usize>,
    ready: Array,
    gathered: &Buffer,
) -> Array {
    let Some(strides) = value.strides() else {
        isa.convert_array(&ready, &value.array().part(block), block.len());
        return ready;
    };
    if value.dtype() == ready.dtype() {
        ready.gather(&value.array(), &slot.shape, strides, block);
        return ready;
    }
    let gathered = Array::of(gathered, value.dtype());
    gathered.gather(&value.array(), &slot.shape, strides, block);
    isa.convert_array(&ready, &gathered, block.len());
    ready
}

/// The blocks of a piece.
fn blocks(piece: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    cut(piece, BLOCK)
}

/// A range in parts of one size.
pub(super) fn cut(range: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(size).map(move |start| start..end.min(start + size))
}
