//! Row-sparse calls of a worker: rows are summed on the worker, and each slice gets its parts of them.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::job::row_runs::{self, KeyPartition, UnitRun};
use crate::job::wanted::{self, ROWS, WANT_ROWS};
use crate::local::merge::{RowSums, Team};
use crate::local::plan::{Plan, RowsOf};
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes};
use crate::sys::DefaultFloats;
use crate::tensor::{Buffer, DType, INSIDE};
use kvstore_protocol::Placement;

/// Maximum number of rows, the same ones counted again, of a call whose memory is kept.
const MOST_ROWS: usize = 1 << 16;

/// Memory of the calls on rows of one thread.
#[derive(Default)]
pub(super) struct RowMemory {
    sums: RowSums,
    rows: Vec<usize>,
    runs: Vec<UnitRun>,
    head: Vec<u8>,
    /// Those of pulls that have ended, without a buffer.
    #[expect(clippy::vec_box, reason = "pulls have them behind a pointer")]
    spare: Vec<Box<WantedRows>>,
}

impl RowMemory {
    /// Frees the memory of large calls.
    pub(super) fn shrink(&mut self) {
        let pulled = self.spare.iter().map(|it| it.ids.capacity() + it.places.capacity()).sum();
        if self.sums.capacity().max(self.rows.capacity()).max(pulled) > MOST_ROWS {
            *self = Self::default();
        }
    }

    /// Keeps the memory of the rows of a pull that has ended.
    pub(super) fn keep(&mut self, mut wanted: Box<WantedRows>, blocks: &BlockPool) {
        let Ok(none) = Buffer::new(0) else { return };
        blocks.give_back(mem::replace(&mut wanted.buffer, none));
        self.spare.push(wanted);
    }

    /// Push of rows of one key, whose sums are of a dtype, as one message body for each slice.
    pub(super) fn push<'a>(
        &mut self,
        team: Team,
        (slot, dtype): (&Slot, DType),
        place: &Placement,
        pushed: impl Iterator<Item = RowsOf<'a>>,
        blocks: &Arc<BlockPool>,
    ) -> Result<Bytes> {
        let Self { sums, rows, runs, head, .. } = self;
        let _floats = DefaultFloats::enter();
        sums.prepare_as(team, (slot, dtype), (0..).zip(pushed))?;
        let summed = blocks.take(sums.bytes((slot, dtype)).max(1))?;
        sums.compact(team, (slot, dtype), rows, &summed);
        let (item, values) = (dtype.size(), summed.bytes());
        let slice = usize::try_from(place.slice_bytes).unwrap_or(usize::MAX);
        let made = blocks.encoded(ROWS, (slot.bytes(), slice), |slices| {
            for_each_slice(place, rows, runs, |_, runs, elements| {
                head.clear();
                row_runs::encode(runs, head);
                let data = &values[elements.start * item..elements.end * item];
                slices.push(blocks.join(&[head, data])?);
                Ok(())
            })
        });
        blocks.give_back(summed);
        sums.forget();
        made
    }

    /// Pull of rows of one key: where they arrive, and the queries of its slices. None for no rows.
    pub(super) fn pull<'a>(
        &mut self,
        slot: &Slot,
        place: &Placement,
        outs: impl Iterator<Item = RowsOf<'a>> + Clone,
        blocks: &Arc<BlockPool>,
    ) -> Result<Option<(Box<WantedRows>, Bytes)>> {
        let Self { rows, runs, head, .. } = self;
        rows.clear();
        outs.clone().for_each(|out| rows.extend_from_slice(out.ids));
        rows.sort_unstable();
        rows.dedup();
        let count = rows.len() * slot.row_length();
        if count == 0 {
            return Ok(None);
        }
        let mut shape = slot.shape.clone();
        if let Some(extent) = shape.first_mut() {
            *extent = rows.len().cast_signed() as i64;
        }
        let compact = Slot::new(slot.key, slot.order, slot.dtype, &shape, count)?;
        let buffer = blocks.take(compact.bytes().max(INSIDE + 1))?;
        let mut wanted = WantedRows::of(self.spare.pop(), compact, buffer);
        let WantedRows { places, ids, .. } = &mut *wanted;
        for out in outs {
            ids.extend(out.ids.iter().map(|id| rows.binary_search(id).unwrap_or(0)));
        }
        let asked = wanted::queries(place, blocks, |slices, numbers| {
            for_each_slice(place, rows, runs, |slice, runs, elements| {
                places.push(elements);
                if !runs.is_empty() {
                    head.clear();
                    head.push(WANT_ROWS);
                    row_runs::encode(runs, head);
                    slices.push(blocks.join(&[head])?);
                    numbers.push(slice);
                }
                Ok(())
            })
        })?;
        Ok(Some((wanted, asked)))
    }
}

/// Calls `each` for all slices of a key, in their order: with the parts of these rows, which ascend, in the slice, and
/// with the place of their elements in an array that has the rows one after the other. `runs` is memory for it.
fn for_each_slice(
    place: &Placement,
    rows: &[usize],
    runs: &mut Vec<UnitRun>,
    mut each: impl FnMut(u32, &[UnitRun], Range<usize>) -> Result<()>,
) -> Result<()> {
    let cut = KeyPartition::new(place);
    let mut fragments = rows.iter().flat_map(|row| cut.fragments(*row)).peekable();
    let mut start = 0;
    runs.clear();
    for slice in (0..).take(place.servers.len()) {
        let mut end = start;
        while let Some(fragment) = fragments.next_if(|fragment| fragment.slice == slice) {
            runs.push(fragment.run);
            end += fragment.elements;
        }
        each(slice, runs, start..end)?;
        runs.clear();
        start = end;
    }
    Ok(())
}

/// Rows of a pull, without duplicates, in the order of the key.
pub(super) struct WantedRows {
    /// A key of these rows only.
    slot: Slot,
    buffer: Buffer,
    /// The place of each slice's parts of the rows, in elements.
    places: Vec<Range<usize>>,
    /// Which of the rows the outs have, one out after the other.
    ids: Vec<usize>,
}

impl WantedRows {
    /// Rows that arrive in a buffer, in the memory of a pull that has ended, if there is one.
    fn of(spare: Option<Box<Self>>, slot: Slot, buffer: Buffer) -> Box<Self> {
        let Some(mut wanted) = spare else {
            return Box::new(Self { slot, buffer, places: Vec::new(), ids: Vec::new() });
        };
        wanted.places.clear();
        wanted.ids.clear();
        (wanted.slot, wanted.buffer) = (slot, buffer);
        wanted
    }

    /// Place of what a slice answers, in bytes.
    pub(super) fn place(&self, slice: u32) -> Range<usize> {
        let item = self.slot.dtype.size();
        let elements = self.places.get(slice as usize).cloned().unwrap_or_default();
        elements.start * item..elements.end * item
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    /// Copies the rows to outs of a plan.
    pub(super) fn hand_out(&self, team: Team, plan: &Plan, outs: Range<usize>) -> Result<()> {
        let mut ids = &self.ids[..];
        for index in outs {
            let out = &plan.outs[index];
            let planned = plan.rows.of(index, &out.lent);
            let (of_out, others) = ids.split_at(planned.ids.len());
            ids = others;
            if !out.shadowed {
                let rows = RowsOf { ids: of_out, ..planned };
                team.copy_rows(&self.slot, &self.buffer, &rows, None)?;
            }
        }
        Ok(())
    }
}
