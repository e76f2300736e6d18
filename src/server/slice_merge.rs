//! Sums and merges of a slice (also called: aggregation, kernels), with the code of the local store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::row_parts::RowParts;
use super::slice_context::{SliceContext, lent};
use super::tree_sum::wide_slot;
use crate::error::{Result, fail};
use crate::job::row_runs;
use crate::kernel::SumOrder;
use crate::local::apply::{CallLimits, KeyPush};
use crate::local::merge::Team;
use crate::local::merger::Merger;
use crate::local::plan::RowsOf;
use crate::local::table::Slot;
use crate::runtime::{Block, BlockPool, Bytes};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, DType, Lent};

/// Sum of contributions; elements of 16 bits are summed in 32 bits, and rounded once at the end.
pub(super) struct SliceSum {
    pub(super) buffer: Buffer,
    pub(super) dtype: DType,
}

/// How the sum of a round merges: divided first, if it has weights, and scaled, if it is clipped.
#[derive(Clone, Copy)]
pub(super) struct Divided<'a> {
    pub(super) merger: &'a Merger,
    pub(super) divisor: Option<f64>,
    /// 1 for a round that is not clipped.
    pub(super) scale: f64,
}

impl Divided<'_> {
    /// For a sum that has been divided.
    pub(super) fn undivided(self) -> Self {
        Self { divisor: None, ..self }
    }
}

/// Merges values into the stored one.
pub(super) fn merge(of: SliceContext<'_>, values: &[Lent], by: Divided<'_>) -> Result<()> {
    let ours = !matches!(by.merger, Merger::Updater(_));
    let _floats = ours.then(DefaultFloats::enter);
    let (applier, value) = (&of.local.applier, &mut of.slot.value.own());
    let merge = |push: &KeyPush<'_>| applier.merge(push, by.merger, value, None);
    as_push(of, values, (by.divisor, by.scale), merge).map(|_| ())
}

/// Merges a sum in a wider dtype than the slot's: divides it there, and rounds it once.
pub(super) fn divide(of: SliceContext<'_>, sum: Lent, by: Divided<'_>) -> Result<()> {
    if by.divisor.is_none() {
        return merge(of, &[sum], by);
    }
    let SliceContext { slot, local, blocks, .. } = of;
    let wide = wide_slot(slot)?;
    let quotient = blocks.take(wide.bytes())?;
    let team = local.keys.team.divided_by(by.divisor);
    let divided = {
        let _floats = DefaultFloats::enter();
        team.sum(&wide, &[sum], &quotient)
    };
    let quotients = [Lent::of(Array::of(&quotient, wide.dtype))];
    let merged = divided.and_then(|()| merge(of, &quotients, by.undivided()));
    blocks.give_back(quotient);
    merged
}

/// Adds a contribution to the sum before it, if there is one, in memory of its own; the last one of a round with
/// its divisor.
pub(super) fn fold(
    of: SliceContext<'_>,
    before: Option<SliceSum>,
    next: &Bytes,
    divisor: Option<f64>,
) -> Result<SliceSum> {
    let SliceContext { slot, local, blocks, .. } = of;
    let dtype = match slot.dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    };
    let shape = [i64::try_from(slot.count).unwrap_or(i64::MAX)];
    let wide = Slot::new(slot.key, slot.order, dtype, &shape, slot.count)?;
    let buffer = blocks.take(wide.bytes())?;
    let _floats = DefaultFloats::enter();
    let added = next.read(|bytes| {
        let so_far = before.as_ref().map(|sum| Lent::of(Array::of(&sum.buffer, sum.dtype)));
        let values: SmallVec<[Lent; 2]> =
            so_far.into_iter().chain([lent(bytes, slot.dtype)]).collect();
        local.keys.team.divided_by(divisor).sum(&wide, &values, &buffer)
    });
    if let Some(before) = before {
        blocks.give_back(before.buffer);
    }
    added.unwrap_or(Ok(()))?;
    Ok(SliceSum { buffer, dtype })
}

/// Merges pushed rows, whose sums are made in a dtype and an order.
pub(super) fn merge_rows(
    of: SliceContext<'_>,
    (dtype, order): (DType, SumOrder<'static>),
    parts: &mut RowParts,
    by: Divided<'_>,
) -> Result<()> {
    let (pushed, ids) = parts.pushed();
    // Rows are merged one by one.
    let of = SliceContext { digester: None, ..of };
    let SliceContext { slot, local, blocks, .. } = of;
    let value = &mut slot.value.own();
    if dtype == slot.dtype {
        let merge = |push: &KeyPush<'_>| {
            local.applier.merge_pushed_rows(push, order, pushed, value, by.merger)
        };
        return as_push(of, &[], (by.divisor, 1.0), merge).map(|_| ());
    }
    // Each row is rounded once, when its sum is pushed.
    let wide = wide_slot(slot)?;
    let take = |bytes| blocks.take(bytes);
    let team = Team { order, divisor: by.divisor, ..local.keys.team };
    let sums = local.applier.sum_pushed_rows(team, &wide, pushed, ids, take)?;
    let (lent, shape) = (Lent::of(Array::of(&sums, dtype)), [i64::MAX]);
    let rounded = [(0, RowsOf { lent: &lent, shape: &shape, ids })].into_iter();
    let merged = as_push(of, &[], (None, 1.0), |push| {
        local.applier.merge_pushed_rows(push, order, rounded, value, by.merger)
    });
    blocks.give_back(sums);
    merged.map(|_| ())
}

/// Merges like a push of the local store, without an outer deadline or a cancellation.
fn as_push<T>(
    of: SliceContext<'_>,
    values: &[Lent],
    (divisor, scale): (Option<f64>, f64),
    merge: impl FnOnce(&KeyPush<'_>) -> T,
) -> T {
    let patience = crate::deadline::LazyDeadline::new(None);
    let limits = CallLimits { patience: &patience, cancel: None };
    let SliceContext { slot, digester, .. } = of;
    let (call, outs, touched, keeping) = ("push", &[][..], 0, None);
    merge(&KeyPush { call, slot, values, outs, limits, touched, digester, divisor, scale, keeping })
}

/// Copies the requested rows of a value, contiguously.
pub(super) fn rows_of(
    stored: &[u8],
    runs: &[u8],
    slot: &Slot,
    blocks: &Arc<BlockPool>,
) -> Result<Block> {
    let unit = slot.row_length() * slot.dtype.size();
    let bad = || fail!(InvalidArgument, "rows that are not there");
    let (runs, _) = row_runs::decode(runs, slot.rows()).ok_or_else(bad)?;
    blocks.make(runs.count() * unit, |room| {
        for run in runs.iter() {
            let start = run.first as usize * unit;
            room.put(stored[start..start + run.count as usize * unit].into());
        }
    })
}
