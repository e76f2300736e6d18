//! Where sums of squares of a key lie while a call runs.

use super::jobs::{JobList, KeyArrays};
use super::name::KernelName;
use crate::error::Result;
use crate::kernel::{Meter, TILE};
use crate::optim::NORM_BLOCK;

const WORD: usize = size_of::<f64>();

/// Sums of a tile, as in `kernels/norm.cuh`.
const SUMS: usize = 8;

/// The rows whose sums of squares are added up first: blocks of a key, or rows of its first axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormLayout {
    /// Elements of a row.
    pub(super) length: usize,
    pub(super) rows: usize,
    tiles: usize,
    /// Whether the value is measured too.
    with_value: bool,
}

impl NormLayout {
    /// For the norms of a key of so many elements.
    pub(crate) fn of_key(count: usize) -> Self {
        let (whole, rest) = (count / NORM_BLOCK, count % NORM_BLOCK);
        let tiles = whole * NORM_BLOCK.div_ceil(TILE) + rest.div_ceil(TILE);
        let rows = count.div_ceil(NORM_BLOCK);
        Self { length: NORM_BLOCK, rows, tiles, with_value: true }
    }

    /// For the norms of so many rows, each of so many elements.
    pub(crate) fn of_rows(rows: usize, length: usize) -> Self {
        Self { length, rows, tiles: rows * length.div_ceil(TILE), with_value: false }
    }

    fn parts(&self) -> usize {
        1 + usize::from(self.with_value)
    }

    /// Device memory for sums of tiles and of rows, and a number for each row.
    pub(crate) fn bytes(&self) -> usize {
        (self.parts() * SUMS * self.tiles + 2 * self.rows) * WORD
    }

    /// Whether it is for rows of the first axis.
    pub(super) fn is_of_rows(&self) -> bool {
        !self.with_value
    }

    /// Elements of a row, as an extent.
    pub(super) fn extent(&self) -> [u64; 1] {
        [self.length as u64]
    }

    /// Where two f64 of each row lie in memory of [`NormLayout::bytes`]: the sums of what was
    /// measured, and those of the value or a number of the row.
    pub(super) fn of_rows_at(&self, memory: u64) -> [u64; 2] {
        let tiles = self.parts() * SUMS * self.tiles;
        [0, 1].map(|part| memory + ((tiles + part * self.rows) * WORD) as u64)
    }

    /// Adds the measure of a key, and the sums of its rows.
    pub(super) fn add(
        &self,
        list: &mut JobList,
        meter: &dyn Meter,
        key: &KeyArrays<'_>,
        memory: u64,
    ) -> Result<()> {
        assert_eq!(meter.with_value(), self.with_value, "norms of keys are those of values too");
        let constants = list.constants().len();
        meter.constants(list.constants());
        let sums = [0, 1].map(|part| memory + (part * SUMS * self.tiles * WORD) as u64);
        let (outs, extents) = (&sums[..self.parts()], &self.extent());
        let work = key.work(outs, extents, constants);
        let kernel = KernelName::rule(meter.name(), key.dtype, key.is_master);
        list.measure(kernel, (key.count, self.tiles), &work)?;
        let of_row = self.length.div_ceil(TILE);
        for (sums, to) in outs.iter().zip(self.of_rows_at(memory)) {
            list.fold((self.tiles, of_row, self.rows), *sums, to)?;
        }
        Ok(())
    }
}
