//! The arithmetic of calls on rows: each row is summed, merged or copied by itself.

use std::ops::Range;

use smallvec::SmallVec;

use super::step::{BLOCK, MergeScratch, MergeStep, cut};
use super::{Cancel, Merge, PIECE_BYTES, Targets, Team, in_pieces};
use crate::error::Result;
#[cfg(feature = "dist")]
use crate::kernel::Pass;
use crate::kernel::{PartialSums, Position, Rule, SumOrder, Traffic};
use crate::local::plan::RowsOf;
use crate::local::sort::{SortItem, Sorter};
use crate::local::table::Slot;
use crate::optim::{KeyRule, Passes, RowRule, StateArrays};
use crate::pool::Help;
use crate::sys;
use crate::sys::sync::Mutex;
use crate::tensor::{Array, Buffer, DType, LINE, Lent};

/// Prefetch distance in rows: their addresses are unpredictable for a processor.
const ROWS_AHEAD: usize = 8;

/// Prefetched bytes of a row; the hardware prefetcher detects the rest of a long one.
const AHEAD_BYTES: usize = 512;

/// The sums of a push of rows: for each row of the key, the places of the rows added to it, in
/// summing order. Kept to reuse its memory.
#[derive(Default)]
pub(crate) struct RowSums {
    /// (row of the key, which of `parts`), ascending.
    sorter: Sorter,
    /// Rows of the pushed tensors, in call order.
    parts: Vec<Array>,
    /// Where the items of each row of the key begin, and the end of the last.
    starts: Vec<usize>,
    /// Where the parts of each pushed tensor end, and the position of the tensor in the sum.
    ends: Vec<(usize, u64)>,
    /// For each item, the joins before the next one of its row, if the sums are trees.
    joins: Vec<u8>,
    trees: PartialSums<()>,
    /// Tensors that had to be gathered or converted.
    ready: Vec<Buffer>,
}

/// The summands of one row, in order.
#[derive(Clone, Copy)]
struct RowParts<'a> {
    items: &'a [SortItem],
    parts: &'a [Array],
    order: SumOrder<'a>,
}

impl<'a> RowParts<'a> {
    fn arrays(self) -> impl ExactSizeIterator<Item = &'a Array> {
        self.items.iter().map(move |&(_, part)| &self.parts[part])
    }
}

impl RowSums {
    /// Finds the summands of each row. Each tensor has a position in the sum, which ascends.
    pub(crate) fn prepare<'a>(
        &mut self,
        team: Team,
        slot: &Slot,
        pushed: impl Iterator<Item = (u64, RowsOf<'a>)>,
    ) -> Result<()> {
        self.prepare_as(team, (slot, slot.dtype), pushed)
    }

    /// Finds the summands of each row, which are to be added in a dtype: the slot's, or a wider one.
    pub(crate) fn prepare_as<'a>(
        &mut self,
        team: Team,
        (slot, dtype): (&Slot, DType),
        pushed: impl Iterator<Item = (u64, RowsOf<'a>)>,
    ) -> Result<()> {
        self.sorter.items.clear();
        self.parts.clear();
        self.ready.clear();
        self.ends.clear();
        let length = slot.row_length();
        for (position, rows) in pushed {
            let mut array = if rows.lent.is_plain(slot.dtype) {
                rows.lent.array()
            } else {
                let buffer = team.gather(slot, &rows)?;
                let array = Array::of(&buffer, slot.dtype);
                self.ready.push(buffer);
                array
            };
            if dtype != slot.dtype {
                let count = rows.ids.len() * length;
                let wide = Buffer::fixed(count * dtype.size())?;
                team.isa.convert_array(&Array::of(&wide, dtype), &array, count);
                array = Array::of(&wide, dtype);
                self.ready.push(wide);
            }
            for (index, &id) in rows.ids.iter().enumerate() {
                self.sorter.items.push((id as u64, self.parts.len()));
                self.parts.push(array.part(&(index * length..(index + 1) * length)));
            }
            self.ends.push((self.parts.len(), position));
        }
        self.sorter.sort();
        let items = &self.sorter.items;
        self.starts.clear();
        let begins = |&at: &usize| at == 0 || items[at].0 != items[at - 1].0;
        self.starts.extend((0..items.len()).filter(begins));
        self.starts.push(items.len());
        self.joins.clear();
        if team.order == SumOrder::Tree {
            self.find_joins();
        }
        Ok(())
    }

    /// Finds the tree of each row: over the positions of the tensors that have it, and, for one that
    /// has it several times, over these below its position.
    fn find_joins(&mut self) {
        let Self { sorter, starts, ends, joins, trees, .. } = self;
        for row in starts.windows(2) {
            let (mut tensor, mut number) = (usize::MAX, 0);
            let positions = sorter.items[row[0]..row[1]].iter().map(|&(_, part)| {
                let own = ends.partition_point(|&(end, _)| end <= part);
                number = if own == tensor { number + 1 } else { 0 };
                tensor = own;
                Position::from(ends[own].1) << u64::BITS | number
            });
            trees.list_joins(positions, |count| joins.push(count));
            // Those of the last item.
            joins.push(0);
        }
    }

    /// How many rows of the key are pushed.
    fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// A pushed row, and its summands.
    #[allow(clippy::cast_possible_truncation, reason = "made from a usize")]
    fn row(&self, index: usize) -> (usize, RowParts<'_>) {
        let range = self.starts[index]..self.starts[index + 1];
        let joins = self.joins.get(range.clone());
        let order = joins.map_or(SumOrder::Linear, SumOrder::Joins);
        let items = &self.sorter.items[range];
        (items[0].0 as usize, RowParts { items, parts: &self.parts, order })
    }
}

#[cfg(feature = "dist")]
impl RowSums {
    /// Frees what was gathered or converted, and keeps the memory of the lists.
    pub(crate) fn forget(&mut self) {
        self.parts.clear();
        self.ready.clear();
    }

    /// Number of rows, the same ones counted again, for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.parts.capacity()
    }

    /// Number of bytes of the sums, in their dtype.
    pub(crate) fn bytes(&self, (slot, dtype): (&Slot, DType)) -> usize {
        self.rows() * slot.row_length() * dtype.size()
    }

    /// Gives the rows that are pushed, ascending, and writes their sums, one after the other, to a buffer of
    /// at least [`bytes`](Self::bytes).
    pub(crate) fn compact(
        &self,
        team: Team,
        (slot, dtype): (&Slot, DType),
        rows: &mut Vec<usize>,
        buffer: &Buffer,
    ) {
        assert!(self.bytes((slot, dtype)) <= buffer.len(), "sums inside of their buffer");
        let length = slot.row_length();
        let sums = Array::of(buffer, dtype);
        rows.clear();
        for index in 0..self.rows() {
            let (row, parts) = self.row(index);
            let inputs: SmallVec<[_; 4]> = parts.arrays().map(Array::start).collect();
            let outs = &[sums.part(&(index * length..(index + 1) * length)).start_mut()];
            let (count, traffic, order) = (length, Traffic::Cached, parts.order);
            let divisor = team.divisor;
            let pass = Pass { dtype, outs, inputs: &inputs, count, traffic, order, divisor };
            team.isa.sum_planned(&pass);
            rows.push(row);
        }
    }
}

impl Team<'_> {
    /// Prepares the data pushed to rows of a value, or of its replacement.
    pub(crate) fn rows<'a>(self, slot: &'a Slot, sums: &'a RowSums, stored: &Buffer) -> RowRun<'a> {
        let stored = Array::of(stored, slot.dtype);
        let targets = Targets { stored: Some(stored), outs: &[] };
        let (merge, traffic) = (Merge::Assign, Traffic::Cached);
        let (Self { isa, divisor, .. }, values, order) = (self, &[][..], SumOrder::Linear);
        let step = MergeStep { isa, slot, values, order, divisor, merge, targets, traffic };
        let row_bytes = slot.row_length() * slot.dtype.size();
        let help = Help::ask(self.threads - 1, (sums.parts.len() + sums.rows()) * row_bytes);
        RowRun { step, stored, sums, row_bytes, help }
    }

    /// The passes of a rule over the rows that are pushed.
    pub(crate) fn row_passes<'a>(
        self,
        slot: &'a Slot,
        sums: &'a RowSums,
        arrays: &'a StateArrays,
        stored: &Buffer,
    ) -> RowPasses<'a> {
        RowPasses { run: self.rows(slot, sums, stored), arrays }
    }

    /// Makes a buffer of the slot's size zero.
    pub(crate) fn clear(self, slot: &Slot, buffer: &Buffer) {
        let array = Array::of(buffer, slot.dtype);
        let help = Help::ask(self.threads - 1, slot.bytes());
        let size = PIECE_BYTES / slot.dtype.size();
        in_pieces(slot.count, size, 1 + help.helpers, None, &|piece| {
            array.part(&piece).clear(piece.len());
        });
    }

    /// A tensor of rows as a plain array of the slot's dtype.
    fn gather(self, slot: &Slot, rows: &RowsOf<'_>) -> Result<Buffer> {
        let (lent, count) = (rows.lent, rows.ids.len() * slot.row_length());
        let gathered = match lent.strides() {
            None => None,
            Some(strides) => {
                let buffer = Buffer::fixed(count * lent.dtype().size())?;
                let array = Array::of(&buffer, lent.dtype());
                array.gather(&lent.array(), rows.shape, strides, &(0..count));
                Some(buffer)
            }
        };
        let source = match gathered {
            Some(buffer) if lent.dtype() == slot.dtype => return Ok(buffer),
            Some(ref buffer) => Array::of(buffer, lent.dtype()),
            None => lent.array(),
        };
        let ready = Buffer::fixed(count * slot.dtype.size())?;
        self.isa.convert_array(&Array::of(&ready, slot.dtype), &source, count);
        Ok(ready)
    }

    /// Copies rows of the stored value to an out. Stops between pieces once `cancel` is set;
    /// returns whether it finished.
    pub(crate) fn copy_rows(
        self,
        slot: &Slot,
        stored: &Buffer,
        out: &RowsOf<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<bool> {
        let length = slot.row_length();
        if length == 0 {
            return Ok(true);
        }
        let (stored, row_bytes) = (Array::of(stored, slot.dtype), length * slot.dtype.size());
        let help = Help::ask(self.threads - 1, 2 * out.ids.len() * row_bytes);
        let threads = 1 + help.helpers;
        let odd = out.lent.strides().is_some();
        let scratch = if odd { MergeScratch::take(threads, 0)? } else { Vec::new() };
        let scratch = Mutex::new(scratch);
        let size = (PIECE_BYTES / row_bytes).max(1);
        let finished = in_pieces(out.ids.len(), size, threads, cancel, &|piece| {
            if !odd {
                self.copy_plain_rows(length, &stored, out, &piece);
                return;
            }
            let mine = scratch.lock().pop().expect("one for each thread");
            for row in piece {
                self.scatter_row(length, &stored, out, row, &mine);
            }
            scratch.lock().push(mine);
        });
        if odd {
            MergeScratch::give_back(std::mem::take(&mut scratch.lock()));
        }
        Ok(finished)
    }

    fn copy_plain_rows(
        self,
        length: usize,
        stored: &Array,
        out: &RowsOf<'_>,
        piece: &Range<usize>,
    ) {
        let array = out.lent.array();
        let row_bytes = length * stored.dtype().size();
        for row in piece.clone() {
            if let Some(id) = out.ids[..piece.end].get(row + ROWS_AHEAD) {
                ask_for(&stored.part(&(id * length..0)), row_bytes);
            }
            let source = stored.part(&(out.ids[row] * length..0));
            self.isa.convert_array(&array.part(&(row * length..0)), &source, length);
        }
    }

    /// Copies one row to a strided out.
    fn scatter_row(
        self,
        length: usize,
        stored: &Array,
        out: &RowsOf<'_>,
        row: usize,
        scratch: &MergeScratch,
    ) {
        let (array, strides) = (out.lent.array(), out.lent.strides().unwrap_or(&[]));
        let converted = Array::of(&scratch.gathered, array.dtype());
        for part in cut(&(0..length), BLOCK) {
            let mut source = stored.part(&(out.ids[row] * length + part.start..0));
            if array.dtype() != stored.dtype() {
                self.isa.convert_array(&converted, &source, part.len());
                source = converted;
            }
            let at = row * length + part.start;
            array.scatter(&source, out.shape, strides, &(at..at + part.len()));
        }
    }
}

/// Prefetches the first lines of a row.
fn ask_for(row: &Array, bytes: usize) {
    for offset in (0..bytes.min(AHEAD_BYTES)).step_by(LINE) {
        sys::prefetch(row.start().wrapping_add(offset));
    }
}

/// A push of rows, with all the memory that it needs.
pub(crate) struct RowRun<'a> {
    step: MergeStep<'a>,
    stored: Array,
    sums: &'a RowSums,
    row_bytes: usize,
    help: Help,
}

impl RowRun<'_> {
    /// Replaces each pushed row by its sum.
    pub(crate) fn assign(&self) {
        let step = &self.step;
        self.each(&[], &|parts, order, range| match parts {
            [only] if step.divisor.is_none() => {
                step.isa.convert_array(&self.stored.part(range), only, range.len());
            }
            _ => MergeStep { order, ..*step }.merge_parts(parts, range),
        });
    }

    /// Runs `work` for each pushed row, with its summands and the range of its elements in the key.
    /// `kept` are the arrays of the value's size that `work` uses.
    fn each(&self, kept: &[Array], work: &RowWork<'_>) {
        let length = self.step.slot.row_length();
        if length == 0 {
            return;
        }
        let size = (PIECE_BYTES / self.row_bytes).max(1);
        in_pieces(self.sums.rows(), size, 1 + self.help.helpers, None, &|piece| {
            for index in piece.clone() {
                if index + ROWS_AHEAD < piece.end {
                    self.ask(index + ROWS_AHEAD, kept);
                }
                let (row, parts) = self.sums.row(index);
                let arrays: SmallVec<[Array; 4]> = parts.arrays().copied().collect();
                work(&arrays, parts.order, &(row * length..(row + 1) * length));
            }
        });
    }

    /// Prefetches the memory of a row.
    fn ask(&self, index: usize, kept: &[Array]) {
        let (row, parts) = self.sums.row(index);
        let first = row * self.step.slot.row_length();
        for array in kept.iter().chain([&self.stored]) {
            ask_for(&array.part(&(first..0)), self.row_bytes);
        }
        parts.arrays().for_each(|part| ask_for(part, self.row_bytes));
    }
}

type RowWork<'a> = dyn Fn(&[Array], SumOrder<'_>, &Range<usize>) + Sync + 'a;

/// A push of rows under a rule.
pub(crate) struct RowPasses<'a> {
    run: RowRun<'a>,
    arrays: &'a StateArrays,
}

impl Passes for RowPasses<'_> {
    fn merge(&mut self, rule: &dyn Rule) {
        let step = MergeStep { merge: Merge::Rule(rule, self.arrays), ..self.run.step };
        self.run.each(&self.arrays.elements(), &|parts, order, range| {
            MergeStep { order, ..step }.merge_parts(parts, range);
        });
    }

    fn merge_key(&mut self, _: &dyn KeyRule) {
        unreachable!("a rule that measures the whole key is never used on single rows")
    }

    fn has_rows(&self) -> bool {
        self.arrays.rows.is_some()
    }

    fn merge_rows(&mut self, rows: &dyn RowRule) {
        let length = self.run.step.slot.row_length();
        self.run.each(&[], &|parts, order, range| {
            let row = range.start / length;
            // A step finds the row in arrays as large as the whole key.
            let whole = parts.iter().map(|part| Lent::of(part.back(range.start)));
            let values: SmallVec<[Lent; 4]> = whole.collect();
            let step = MergeStep { values: &values, order, ..self.run.step };
            step.merge_rows((rows, self.arrays), &(row..row + 1), length, None);
        });
    }
}
