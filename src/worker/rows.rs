//! Row-sparse calls of a worker: rows are summed on the worker, and each slice gets its parts of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::job::row_runs::{self, KeyPartition, UnitRun};
use crate::job::wanted::{ROWS, WANT_ROWS};
use crate::local::merge::{RowSums, Team};
use crate::local::plan::{PlannedOut, RowsOf};
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes};
use crate::sys::DefaultFloats;
use crate::tensor::{Buffer, DType};
use kvstore_protocol::Placement;

/// Maximum number of rows, the same ones counted again, of a push whose memory is kept.
const MOST_ROWS: usize = 1 << 16;

/// Memory of the pushes of rows of one thread.
#[derive(Default)]
pub(super) struct RowMemory {
    sums: RowSums,
    rows: Vec<usize>,
    runs: Vec<UnitRun>,
    head: Vec<u8>,
}

impl RowMemory {
    /// Frees the memory of a large push.
    pub(super) fn shrink(&mut self) {
        if self.sums.capacity() > MOST_ROWS {
            *self = Self::default();
        }
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
        let Self { sums, rows, runs, head } = self;
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
}

/// Calls `each` for all slices of a key: with the parts of these rows, which ascend, in the slice, and with
/// the place of their elements in an array that has the rows one after the other. `runs` is memory for it.
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
pub(crate) struct WantedRows {
    /// A key of these rows only.
    slot: Slot,
    buffer: Buffer,
    /// The place of each slice's parts of the rows, in elements.
    places: BTreeMap<u32, Range<usize>>,
    /// Rows of each out.
    lists: Vec<(Vec<usize>, Vec<i64>)>,
}

impl WantedRows {
    /// Collects the rows of a pull; gives also the query of each slice.
    pub(crate) fn new<'a>(
        slot: &Slot,
        place: &Placement,
        outs: impl Iterator<Item = RowsOf<'a>> + Clone,
    ) -> Result<(Self, BTreeMap<u32, Vec<u8>>)> {
        let mut rows = Vec::with_capacity(outs.clone().map(|out| out.ids.len()).sum());
        outs.clone().for_each(|out| rows.extend_from_slice(out.ids));
        rows.sort_unstable();
        rows.dedup();
        let place_of = |id: &usize| rows.binary_search(id).unwrap_or(0);
        let lists =
            outs.map(|out| (out.ids.iter().map(place_of).collect(), out.shape.to_vec())).collect();
        let (mut places, mut asked) = (BTreeMap::new(), BTreeMap::new());
        for_each_slice(place, &rows, &mut Vec::new(), |slice, runs, elements| {
            if !runs.is_empty() {
                let mut query = vec![WANT_ROWS];
                row_runs::encode(runs, &mut query);
                asked.insert(slice, query);
                places.insert(slice, elements);
            }
            Ok(())
        })?;
        let mut shape = slot.shape.to_vec();
        if let Some(extent) = shape.first_mut() {
            *extent = rows.len().cast_signed() as i64;
        }
        let count = rows.len() * slot.row_length();
        let compact = Slot::new(slot.key, slot.order, slot.dtype, &shape, count)?;
        let buffer = Buffer::fixed(compact.bytes())?;
        Ok((Self { slot: compact, buffer, places, lists }, asked))
    }

    /// Place of what a slice answers, in bytes.
    pub(crate) fn place(&self, slice: u32) -> Range<usize> {
        let item = self.slot.dtype.size();
        let elements = self.places.get(&slice).cloned().unwrap_or_default();
        elements.start * item..elements.end * item
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    /// Copies the rows to the outs.
    pub(crate) fn hand_out(&self, team: Team, outs: &[PlannedOut]) -> Result<()> {
        for ((ids, shape), out) in self.lists.iter().zip(outs).filter(|(_, out)| !out.shadowed) {
            let rows = RowsOf { lent: &out.lent, shape, ids };
            team.copy_rows(&self.slot, &self.buffer, &rows, None)?;
        }
        Ok(())
    }
}
