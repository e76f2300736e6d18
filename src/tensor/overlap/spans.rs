//! The exact comparison of two tensors of any strides, row by row, within a budget.

use super::{OverlapTensor, reach};
use crate::tensor::layout::{self, RowWalk};

/// Rows that the comparisons of one call may walk; overlaps beyond that stay unseen.
pub(super) const ROW_BUDGET: usize = 1 << 16;

/// Whether the two, whose byte ranges may meet, share a byte.
pub(super) fn meet(a: &OverlapTensor<'_>, b: &OverlapTensor<'_>, budget: &mut usize) -> bool {
    let (Some(first), Some(second)) = (reach(a), reach(b)) else {
        return false;
    };
    if first.0 >= second.1 || second.0 >= first.1 {
        return false;
    }
    let (Some(mut spans), Some(others)) = (spans(a, 0, budget), spans(b, 1, budget)) else {
        return false;
    };
    spans.extend(others);
    spans.sort_unstable();
    // Rows of one tensor never overlap here: stride-0 outs are refused before, and values that
    // overlap themselves only repeat their own bytes.
    let mut covered = [0usize; 2];
    spans.iter().any(|&(low, high, side)| {
        let hit = low < covered[1 - side];
        covered[side] = covered[side].max(high);
        hit
    })
}

/// The bytes a tensor touches, as (low, high, side) spans, or None if they are too many to walk.
fn spans(
    out: &OverlapTensor<'_>,
    side: usize,
    budget: &mut usize,
) -> Option<Vec<(usize, usize, usize)>> {
    let count = layout::count(out.shape)?;
    let width = out.lent.dtype().size();
    let base = out.lent.data().addr();
    let Some(strides) = out.lent.strides() else {
        return Some(vec![(base, base + count * width, side)]);
    };
    let last = out.shape.last().map_or(1, |&extent| extent.max(1));
    let unit = strides.last().is_none_or(|&stride| stride == 1);
    let rows = if unit { count / usize::try_from(last).ok()? } else { count };
    *budget = budget.checked_sub(rows)?;
    let mut spans = Vec::with_capacity(rows);
    let place = |offset: i64| {
        let bytes = isize::try_from(offset).ok()?.checked_mul(isize::try_from(width).ok()?)?;
        base.checked_add_signed(bytes)
    };
    for row in RowWalk::new(out.shape, strides, 0, count) {
        if unit {
            let low = place(row.offset)?;
            spans.push((low, low + row.len * width, side));
        } else {
            for i in 0..i64::try_from(row.len).ok()? {
                let low = place(row.offset + i * row.stride)?;
                spans.push((low, low + width, side));
            }
        }
    }
    Some(spans)
}
