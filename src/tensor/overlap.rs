//! Which outs of a call share memory with each other or with its values.

use super::layout::{self, Rows};
use super::view::Lent;

/// Rows that the exact test of one call may walk; overlaps beyond that stay unseen.
const ROW_BUDGET: usize = 1 << 16;

/// A tensor of the call.
#[derive(Clone, Copy)]
pub(crate) struct Party<'a> {
    pub(crate) lent: &'a Lent,
    pub(crate) shape: &'a [i64],
    pub(crate) at: Position,
}

impl Party<'_> {
    fn bytes(&self) -> Option<usize> {
        Some(layout::count(self.shape)? * self.lent.dtype().size())
    }
}

/// Which tensor of the call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Of its key, in processing order.
    pub(crate) group: usize,
    /// Of the tensor, among the outs or the values of the call.
    pub(crate) index: usize,
}

/// Two tensors of the call that overlap and must not.
pub(crate) struct Clash {
    pub(crate) out: Position,
    /// Another out, or a value.
    pub(crate) other: Position,
}

/// The comparison of the tensors of one call; kept for its memory.
#[derive(Default)]
pub(crate) struct Overlaps {
    /// The bytes of each out, ascending.
    outs: Vec<Reach>,
    /// Those of `outs` that the next one may still overlap.
    open: Vec<Reach>,
    /// Whether an out begins before the end of the one added before it.
    meeting: bool,
    budget: usize,
}

/// First byte, one past the last byte, and whose they are.
type Reach = (usize, usize, Position);

impl Overlaps {
    pub(crate) fn clear(&mut self) {
        self.outs.clear();
        self.meeting = false;
    }

    /// Adds an out to the comparison.
    pub(crate) fn add_out(&mut self, out: &Party<'_>) {
        if let Some((low, high)) = reach(out) {
            self.meeting |= self.outs.last().is_some_and(|&(_, end, _)| end > low);
            self.outs.push((low, high, out.at));
        }
    }

    /// Whether each out lies beyond all those added before it, as in most calls.
    pub(crate) fn outs_are_apart(&self) -> bool {
        !self.meeting
    }

    /// Compares the outs with each other. Outs that are exactly one tensor are allowed; the
    /// indexes of those that a later one overwrites go to `shadowed`.
    pub(crate) fn among_outs<'a>(
        &mut self,
        out_at: impl Fn(Position) -> Party<'a>,
        shadowed: &mut Vec<usize>,
    ) -> Result<(), Clash> {
        self.budget = ROW_BUDGET;
        if self.outs_are_apart() {
            return Ok(());
        }
        self.outs.sort_unstable();
        self.open.clear();
        for &(low, high, at) in &self.outs {
            self.open.retain(|&(_, end, _)| end > low);
            let this = out_at(at);
            let mut twin = false;
            for open in &mut self.open {
                let other = out_at(open.2);
                if same(&other, &this) {
                    // Equal bytes sort by position: `this` is the later one.
                    shadowed.push(open.2.index);
                    open.2 = at;
                    twin = true;
                    break;
                }
                if meet(&other, &this, &mut self.budget) {
                    return Err(Clash { out: at, other: open.2 });
                }
            }
            if !twin {
                self.open.push((low, high, at));
            }
        }
        Ok(())
    }

    /// Compares each value with the outs given to [`Self::among_outs`]. A value that is exactly an
    /// out of the same key is allowed.
    pub(crate) fn with_values<'a>(
        &mut self,
        out_at: impl Fn(Position) -> Party<'a>,
        values: impl Iterator<Item = Party<'a>>,
    ) -> Result<(), Clash> {
        if self.outs.is_empty() {
            return Ok(());
        }
        let widest = self.outs.iter().map(|&(low, high, _)| high - low).max().unwrap_or(0);
        for value in values {
            let Some((low, high)) = reach(&value) else {
                continue;
            };
            let first =
                self.outs.partition_point(|&(start, ..)| start < low.saturating_sub(widest));
            for &(start, end, at) in &self.outs[first..] {
                if start >= high {
                    break;
                }
                let out = out_at(at);
                let twin = at.group == value.at.group && same(&out, &value);
                if end > low && !twin && meet(&out, &value, &mut self.budget) {
                    return Err(Clash { out: at, other: value.at });
                }
            }
        }
        Ok(())
    }
}

fn reach(out: &Party<'_>) -> Option<(usize, usize)> {
    if out.lent.strides().is_none() {
        let (low, bytes) = (out.lent.data().addr(), out.bytes()?);
        return (bytes > 0).then_some((low, low + bytes));
    }
    let empty = layout::count(out.shape) == Some(0);
    (!empty).then(|| out.lent.byte_range(out.shape))
}

/// Whether the two are one tensor: same elements at the same places.
fn same(a: &Party<'_>, b: &Party<'_>) -> bool {
    let plain = a.lent.strides().is_none() && b.lent.strides().is_none();
    a.lent.data() == b.lent.data()
        && a.lent.dtype() == b.lent.dtype()
        && if plain {
            layout::count(a.shape) == layout::count(b.shape)
        } else {
            a.lent.strides() == b.lent.strides() && a.shape == b.shape
        }
}

/// Whether the two, whose byte ranges may meet, share a byte.
fn meet(a: &Party<'_>, b: &Party<'_>, budget: &mut usize) -> bool {
    let (Some(first), Some(second)) = (reach(a), reach(b)) else {
        return false;
    };
    if first.0 >= second.1 || second.0 >= first.1 {
        return false;
    }
    if a.lent.strides().is_none() && b.lent.strides().is_none() {
        return true;
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
fn spans(out: &Party<'_>, side: usize, budget: &mut usize) -> Option<Vec<(usize, usize, usize)>> {
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
    for row in Rows::new(out.shape, strides, 0, count) {
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
