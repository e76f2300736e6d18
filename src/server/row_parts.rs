//! Rows that the contributions of a round have.

use std::cell::Cell;
use std::ops::Range;

use super::slice_context::lent;
use crate::error::{Result, fail};
use crate::job::row_runs;
use crate::local::plan::RowsOf;
use crate::local::table::Slot;
use crate::sys::kept;
use crate::tensor::{DType, Lent};

/// Maximum number of rows whose memory a thread keeps.
const MOST_ROWS: usize = 1 << 16;

/// Memory of a thread that merges rows, from one round to the next.
#[derive(Default)]
pub(super) struct RowParts {
    ids: Vec<usize>,
    /// Of each contribution: its position in a tree, the place of its rows in `ids`, and their values.
    parts: Vec<(u64, Range<usize>, Lent)>,
    /// Rows of the sum of all.
    summed: Vec<usize>,
}

thread_local! {
    static MEMORY: Cell<Option<RowParts>> = const { Cell::new(None) };
}

impl RowParts {
    /// The memory of this thread, without rows.
    pub(super) fn take() -> Self {
        kept::take(&MEMORY)
    }

    /// Keeps the memory for the next round.
    pub(super) fn leave(mut self) {
        self.ids.clear();
        self.parts.clear();
        if self.ids.capacity().max(self.summed.capacity()) <= MOST_ROWS {
            kept::keep(&MEMORY, self);
        }
    }

    /// Adds a contribution to single rows, whose values are of a dtype.
    pub(super) fn add(
        &mut self,
        position: u64,
        (slot, dtype): (&Slot, DType),
        bytes: &[u8],
    ) -> Result<()> {
        let bad = || fail!(InvalidArgument, "a push of rows that does not fit its slice");
        let (runs, taken) = row_runs::decode(bytes, slot.rows()).ok_or_else(bad)?;
        let (values, count) = (&bytes[taken..], runs.count());
        if values.len() != count * slot.row_length() * dtype.size() {
            return Err(bad());
        }
        let first = self.ids.len();
        self.ids.reserve(count);
        for run in runs.iter() {
            self.ids.extend((run.first..run.first + run.count).map(|id| id as usize));
        }
        self.parts.push((position, first..self.ids.len(), lent(values, dtype)));
        Ok(())
    }

    /// Adds a contribution to all rows.
    pub(super) fn add_all(&mut self, position: u64, slot: &Slot, values: Lent) {
        let first = self.ids.len();
        self.ids.extend(0..slot.rows());
        self.parts.push((position, first..self.ids.len(), values));
    }

    /// The contributions, and the memory for the rows of their sum.
    pub(super) fn pushed(&mut self) -> (impl Iterator<Item = (u64, RowsOf<'_>)>, &mut Vec<usize>) {
        let Self { ids, parts, summed } = self;
        let pushed = parts.iter().map(|(position, rows, lent)| {
            (*position, RowsOf { lent, shape: &[i64::MAX], ids: &ids[rows.clone()] })
        });
        (pushed, summed)
    }
}
