//! Pushed values passing through a codec: encoded, decoded and added up, block by block, so that
//! all data stays in the cache.

use std::ops::Range;

use smallvec::SmallVec;

use super::step::{MergeScratch, cut, prepare};
use super::{PIECE_BYTES, Team, in_pieces};
use crate::codec::{BLOCK, Codec, Origin, Residuals};
use crate::error::Result;
use crate::kernel::{Isa, Pass, SumOrder, Traffic};
use crate::local::table::Slot;
use crate::sys::sync::Mutex;
use crate::tensor::{Array, Buffer, DType, Lent};

/// Elements of a piece: whole blocks, so that borders change nothing.
const PIECE: usize = PIECE_BYTES / DType::F32.size();

const _: () = assert!(PIECE.is_multiple_of(BLOCK));

/// Scratch blocks beside those of the values: for bytes, for a value in f32, for decoded elements.
const OTHERS: usize = 3;

/// A sum of values that go through a codec, with all the memory that it needs.
pub(crate) struct Compression<'a> {
    isa: Isa,
    codec: &'a Codec,
    slot: &'a Slot,
    values: &'a [Lent],
    residuals: &'a mut Residuals,
    sum: Array,
    /// What the sum is divided by.
    divisor: Option<f64>,
    /// One for each thread.
    scratch: Mutex<Vec<MergeScratch>>,
}

/// The arrays that a block is worked on in.
struct EncodingArrays<'a> {
    bytes: Array,
    value: Array,
    decoded: Array,
    /// The sum, in the key's dtype.
    addends: &'a [Buffer],
    gathered: &'a Buffer,
}

impl Team<'_> {
    /// Prepares the sum of values, whose target is `sum`. An error means that nothing has changed.
    pub(crate) fn compression<'a>(
        self,
        codec: &'a Codec,
        slot: &'a Slot,
        values: &'a [Lent],
        residuals: &'a mut Residuals,
        sum: &Buffer,
    ) -> Result<Compression<'a>> {
        let threads = self.threads.min(slot.count.div_ceil(PIECE)).max(1);
        let scratch = MergeScratch::take(threads, OTHERS + values.len())?;
        let (sum, scratch) = (Array::of(sum, slot.dtype), Mutex::new(scratch));
        let Self { isa, divisor, .. } = self;
        Ok(Compression { isa, codec, slot, values, residuals, sum, divisor, scratch })
    }
}

impl Compression<'_> {
    /// How many arrays it reads and writes.
    pub(crate) fn passed(&self) -> usize {
        let kept = if self.residuals.array(0).is_some() { 2 } else { 0 };
        self.values.len() * (1 + kept)
    }

    /// Computes the sum, on at most so many threads: this is the next round of the key.
    pub(crate) fn run(&mut self, threads: usize) {
        let threads = threads.min(self.scratch.lock().len());
        self.run_pieces(threads);
        self.residuals.end_round();
    }

    fn run_pieces(&self, threads: usize) {
        in_pieces(self.slot.count, PIECE, threads, None, &|piece| {
            let mine = self.scratch.lock().pop().expect("one for each thread");
            cut(&piece, BLOCK).for_each(|block| self.block(&block, &mine));
            self.scratch.lock().push(mine);
        });
    }

    fn block(&self, block: &Range<usize>, scratch: &MergeScratch) {
        let (others, addends) = scratch.blocks.split_at(OTHERS);
        let [bytes, value, decoded] = [&others[0], &others[1], &others[2]];
        let desk = EncodingArrays {
            bytes: Array::of(bytes, DType::U8),
            value: Array::of(value, DType::F32),
            decoded: Array::of(decoded, DType::F32),
            addends,
            gathered: &scratch.gathered,
        };
        let dtype = self.slot.dtype;
        let addends: SmallVec<[*const u8; 16]> =
            (0..self.values.len()).map(|at| self.send(at, block, &desk).start()).collect();
        let out = self.sum.part(block).start_mut();
        let (outs, inputs, count) = (&[out][..], &*addends, block.len());
        let (traffic, order) = (Traffic::Cached, SumOrder::Linear);
        let divisor = self.divisor;
        self.isa.sum_planned(&Pass { dtype, outs, inputs, count, traffic, order, divisor });
    }

    /// Encodes and decodes a block of a value; returns the result in the key's dtype.
    fn send(&self, at: usize, block: &Range<usize>, desk: &EncodingArrays<'_>) -> Array {
        let (value, whole) = (&self.values[at], 0..block.len());
        let input = if value.is_plain(DType::F32) {
            value.array().part(block)
        } else {
            prepare(self.isa, self.slot, value, block, desk.value, desk.gathered)
        };
        let arrived = Array::of(&desk.addends[at], self.slot.dtype);
        let is_f32 = self.slot.dtype == DType::F32;
        let mut sent = if is_f32 { arrived } else { desk.decoded };
        let mut residual = self.residuals.array(at).map(|residual| residual.part(block));
        let origin = Origin {
            key: self.slot.key.id(),
            rank: 0,
            round: self.residuals.round(),
            block: (block.start / BLOCK) as u64,
        };
        let mut bytes = desk.bytes;
        self.codec.send(
            self.isa,
            origin,
            input.slice(&whole),
            residual.as_mut().map(|residual| residual.slice_mut(&whole)),
            bytes.slice_mut(&(0..self.codec.bytes(block.len()))),
            sent.slice_mut(&whole),
        );
        if !is_f32 {
            self.isa.convert_array(&arrived, &sent, block.len());
        }
        arrived
    }
}

impl Drop for Compression<'_> {
    fn drop(&mut self) {
        MergeScratch::give_back(std::mem::take(&mut self.scratch.lock()));
    }
}
