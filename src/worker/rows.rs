//! Row-sparse calls of a worker: rows are summed on the worker, and each slice gets its parts of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Result;
use crate::job::row_runs::{self, KeyPartition, UnitRun};
use crate::job::wanted::{ROWS, WANT_ROWS};
use crate::local::merge::{RowSums, Team};
use crate::local::plan::{PlannedOut, RowsOf};
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes, Encoded};
use crate::sys::DefaultFloats;
use crate::tensor::Buffer;
use kvstore_protocol::Placement;

/// Push of rows of one key, as one message body for each slice.
pub(crate) fn push<'a>(
    team: Team,
    slot: &Slot,
    place: &Placement,
    pushed: impl Iterator<Item = RowsOf<'a>>,
    blocks: &Arc<BlockPool>,
) -> Result<Bytes> {
    let cut = KeyPartition::new(place);
    let _floats = DefaultFloats::enter();
    let mut sums = RowSums::default();
    sums.prepare(team, slot, pushed)?;
    let (rows, summed) = sums.compact(team, slot)?;
    let (item, values) = (slot.dtype.size(), summed.bytes());
    let mut parts: Vec<(Vec<UnitRun>, Vec<u8>)> = vec![Default::default(); place.servers.len()];
    for (index, row) in rows.into_iter().enumerate() {
        for fragment in cut.fragments(row) {
            let start = (index * cut.row + fragment.in_row) * item;
            let Some((runs, data)) = parts.get_mut(fragment.slice as usize) else { continue };
            runs.push(fragment.run);
            data.extend_from_slice(&values[start..start + fragment.elements * item]);
        }
    }
    let mut slices = Vec::with_capacity(parts.len());
    for (runs, data) in parts {
        let head = row_runs::encode(&runs);
        slices.push(blocks.join(&[&head, &data])?);
    }
    let slice = usize::try_from(place.slice_bytes).unwrap_or(usize::MAX);
    Ok(Bytes::of_encoded(Encoded { codec: ROWS, len: slot.bytes(), slice, slices }))
}

/// Rows of a pull, without duplicates, in the order of the key.
pub(crate) struct WantedRows {
    /// A key of these rows only.
    slot: Slot,
    buffer: Buffer,
    /// By slice, the places of its parts of rows, in elements.
    places: BTreeMap<u32, Vec<(usize, usize)>>,
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
        let cut = KeyPartition::new(place);
        let mut rows: Vec<usize> = outs.clone().flat_map(|out| out.ids.to_vec()).collect();
        rows.sort_unstable();
        rows.dedup();
        let place_of = |id: &usize| rows.binary_search(id).unwrap_or(0);
        let lists =
            outs.map(|out| (out.ids.iter().map(place_of).collect(), out.shape.to_vec())).collect();
        let mut places: BTreeMap<u32, Vec<(usize, usize)>> = BTreeMap::new();
        let mut runs: BTreeMap<u32, Vec<UnitRun>> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            for fragment in cut.fragments(*row) {
                let to = (index * cut.row + fragment.in_row, fragment.elements);
                places.entry(fragment.slice).or_default().push(to);
                runs.entry(fragment.slice).or_default().push(fragment.run);
            }
        }
        let mut shape = slot.shape.to_vec();
        if let Some(extent) = shape.first_mut() {
            *extent = rows.len().cast_signed() as i64;
        }
        let count = rows.len() * slot.row_length();
        let compact = Slot::new(slot.key, slot.order, slot.dtype, &shape, count)?;
        let buffer = Buffer::fixed(compact.bytes())?;
        let ask = |runs: Vec<UnitRun>| [vec![WANT_ROWS], row_runs::encode(&runs)].concat();
        let asked = runs.into_iter().map(|(slice, runs)| (slice, ask(runs))).collect();
        Ok((Self { slot: compact, buffer, places, lists }, asked))
    }

    /// Places of the parts of a slice, in bytes, contiguous in its answer: (place, length).
    pub(crate) fn places(&self, slice: u32) -> impl Iterator<Item = (usize, usize)> {
        let item = self.slot.dtype.size();
        let places = self.places.get(&slice).map(Vec::as_slice).unwrap_or_default();
        places.iter().map(move |(at, elements)| (at * item, elements * item))
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
