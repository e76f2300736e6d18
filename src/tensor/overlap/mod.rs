//! Which outs of a call share memory with each other or with its values. Also called: alias
//! analysis.
//!
//! Most calls have outs that lie one after the other. Otherwise the tensors are sorted by their
//! addresses; those whose byte ranges meet are compared. Tensors that consist of equal pieces at
//! one distance, such as the columns of a matrix, interleave by thousands: they are compared all at
//! once (`plane.rs`). What is left is compared in pairs.

mod form;
mod plane;
mod spans;
#[cfg(test)]
mod tests;

use form::ByteLayout;
use plane::Figure;

use super::layout;
use super::view::Lent;
use crate::deadline::LazyDeadline;
use crate::search;

/// A tensor of the call.
#[derive(Clone, Copy)]
pub(crate) struct OverlapTensor<'a> {
    pub(crate) lent: &'a Lent,
    pub(crate) shape: &'a [i64],
    pub(crate) at: Position,
}

impl OverlapTensor<'_> {
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

/// Why the tensors of a call are refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Two outs overlap in part.
    Outs(Position, Position),
    /// An out overlaps a value that it is not exactly.
    Value { out: Position, value: Position },
    /// The time of the call is over.
    Late,
}

/// The end of the time for comparing.
pub(crate) struct TimeLimit<'a> {
    patience: Option<&'a LazyDeadline>,
    comparisons: usize,
}

impl<'a> TimeLimit<'a> {
    /// Without patience the time never ends.
    pub(crate) fn new(patience: Option<&'a LazyDeadline>) -> Self {
        Self { patience, comparisons: 0 }
    }

    /// Counts a comparison. The clock is read once in many.
    fn tick(&mut self) -> Result<(), Stop> {
        search::step();
        self.comparisons += 1;
        let looks = self.comparisons.is_multiple_of(1024);
        let late = looks && self.patience.is_some_and(|it| it.end().has_passed());
        if late { Err(Stop::Late) } else { Ok(()) }
    }
}

/// The tensors of a call, as their positions give them.
pub(crate) trait CallTensors<'a> {
    fn out(&self, at: Position) -> OverlapTensor<'a>;
    fn value(&self, at: Position) -> OverlapTensor<'a>;
}

/// The comparison of the tensors of one call; kept to reuse its memory.
#[derive(Default)]
pub(crate) struct Overlaps {
    items: Vec<OverlapItem>,
    /// Tensors that fill their reach. Apart from the other forms, to reuse its memory.
    open_whole: OpenTensors,
    /// Whether an out begins before the end of the one added before it.
    meeting: bool,
    budget: usize,
}

/// A tensor with elements: its first byte, one past its last byte, and which it is.
#[derive(Clone, Copy)]
struct OverlapItem {
    low: usize,
    high: usize,
    is_value: bool,
    at: Position,
    form: ByteLayout,
}

/// Tensors of one form that the next tensors may still overlap.
#[derive(Default)]
struct OpenTensors {
    /// The stride of their pieces, if that is their form.
    stride: Option<usize>,
    outs: Vec<OverlapItem>,
    values: Vec<OverlapItem>,
}

impl Overlaps {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.meeting = false;
    }

    /// Adds an out to the comparison.
    pub(crate) fn add_out(&mut self, out: &OverlapTensor<'_>) {
        if let Some(item) = OverlapItem::of(out, false) {
            self.meeting |= self.items.last().is_some_and(|before| before.high > item.low);
            self.items.push(item);
        }
    }

    /// Whether each out lies beyond all those added before it, as in most calls.
    pub(crate) fn outs_are_apart(&self) -> bool {
        !self.meeting
    }

    /// Compares the outs with each other and with the values. Outs that are exactly one tensor are
    /// allowed; the indexes of those that a later one overwrites go to `shadowed`. A value that is
    /// exactly an out of the same key is allowed too.
    pub(crate) fn find<'a>(
        &mut self,
        parties: &impl CallTensors<'a>,
        values: impl Iterator<Item = Position>,
        shadowed: &mut Vec<usize>,
        watch: &mut TimeLimit<'_>,
    ) -> Result<(), Stop> {
        self.budget = spans::ROW_BUDGET;
        if self.items.is_empty() {
            return Ok(());
        }
        if self.outs_are_apart_in_order() {
            return self.find_one_by_one(parties, values, watch);
        }
        self.items.extend(values.filter_map(|at| OverlapItem::of(&parties.value(at), true)));
        self.items.sort_unstable_by_key(|item| (item.low, item.is_value, item.at));
        self.take_twins(parties, shadowed)?;
        self.compare_planes(watch)?;
        self.compare_pairs(parties, watch)
    }

    /// Whether no two outs overlap; they are then in the order of their addresses.
    fn outs_are_apart_in_order(&mut self) -> bool {
        if self.meeting {
            self.items.sort_unstable_by_key(|item| item.low);
            self.meeting = self.items.windows(2).any(|pair| pair[0].high > pair[1].low);
        }
        self.outs_are_apart()
    }

    /// Compares values with outs that are in order and apart. Most values lie between the same two outs as
    /// the value before, or between the next two.
    fn find_one_by_one<'a>(
        &mut self,
        parties: &impl CallTensors<'a>,
        values: impl Iterator<Item = Position>,
        watch: &mut TimeLimit<'_>,
    ) -> Result<(), Stop> {
        let mut first = 0;
        for value in values.filter_map(|at| OverlapItem::of(&parties.value(at), true)) {
            let is_first = |first: usize| {
                let before = first.checked_sub(1).map(|before| &self.items[before]);
                before.is_none_or(|out| out.high <= value.low)
                    && self.items.get(first).is_none_or(|out| out.high > value.low)
            };
            let near =
                [first, first + 1].into_iter().find(|it| *it <= self.items.len() && is_first(*it));
            first = near.unwrap_or_else(|| self.items.partition_point(|out| out.high <= value.low));
            for out in self.items[first..].iter().take_while(|out| out.low < value.high) {
                watch.tick()?;
                let twin = || {
                    let (out, value) = (parties.out(out.at), parties.value(value.at));
                    out.at.group == value.at.group && same(&out, &value)
                };
                if !twin() && meet(parties, out, &value, &mut self.budget) {
                    return Err(stop(out, &value));
                }
            }
        }
        Ok(())
    }

    /// Leaves one of the outs that are exactly one tensor, the last, and none of the values that
    /// are exactly outs of their keys. Tensors with the same first byte overlap, so that they are
    /// allowed only as such.
    fn take_twins<'a>(
        &mut self,
        parties: &impl CallTensors<'a>,
        shadowed: &mut Vec<usize>,
    ) -> Result<(), Stop> {
        let (mut kept, mut first) = (0, 0);
        while let Some(&OverlapItem { low, .. }) = self.items.get(first) {
            let run = self.items[first..].iter().take_while(|item| item.low == low).count();
            let next = first + run;
            let (outs, values) = split(&self.items[first..next]);
            for pair in outs.windows(2) {
                if !same(&parties.out(pair[0].at), &parties.out(pair[1].at)) {
                    return Err(stop(&pair[0], &pair[1]));
                }
                shadowed.push(pair[0].at.index);
            }
            for (out, value) in outs.iter().flat_map(|out| values.iter().map(move |it| (out, it))) {
                let twins = out.at.group == value.at.group
                    && same(&parties.out(out.at), &parties.value(value.at));
                if !twins {
                    return Err(stop(out, value));
                }
            }
            let left = match outs.len() {
                0 => first..next,
                count => first + count - 1..first + count,
            };
            let count = left.len();
            self.items.copy_within(left, kept);
            (kept, first) = (kept + count, next);
        }
        self.items.truncate(kept);
        Ok(())
    }

    /// Compares tensors whose pieces have one stride, for each stride.
    fn compare_planes(&self, watch: &mut TimeLimit<'_>) -> Result<(), Stop> {
        let figures = self.items.iter().enumerate().filter_map(|(index, item)| match item.form {
            ByteLayout::Rows(rows) => Some(Figure { rows, is_value: item.is_value, index }),
            _ => None,
        });
        let mut figures: Vec<Figure> = figures.collect();
        figures.sort_unstable_by_key(|figure| (figure.rows.stride, figure.index));
        for plane in figures.chunk_by(|a, b| a.rows.stride == b.rows.stride) {
            if let Some((one, other)) = plane::find_clash(plane, watch)? {
                return Err(stop(&self.items[one], &self.items[other]));
            }
        }
        Ok(())
    }

    /// Compares each tensor with those of other forms, and with odd ones, whose byte ranges overlap
    /// its own.
    fn compare_pairs<'a>(
        &mut self,
        parties: &impl CallTensors<'a>,
        watch: &mut TimeLimit<'_>,
    ) -> Result<(), Stop> {
        let Self { items, open_whole, budget, .. } = self;
        open_whole.outs.clear();
        open_whole.values.clear();
        let (mut odd, mut rows) = (OpenTensors::default(), Vec::<OpenTensors>::new());
        for item in &*items {
            open_whole.compare(parties, item, budget, watch)?;
            odd.compare(parties, item, budget, watch)?;
            let stride = item.form.stride();
            for open in rows.iter_mut().filter(|open| open.stride != stride) {
                open.compare(parties, item, budget, watch)?;
            }
            let home = match item.form {
                ByteLayout::Whole => &mut *open_whole,
                ByteLayout::Odd => &mut odd,
                ByteLayout::Rows(_) => {
                    // Entries that need no further comparison have an empty tensor.
                    rows.retain(|open| open.stride == stride || !open.is_empty());
                    let place = rows.iter().position(|open| open.stride == stride);
                    let place = place.unwrap_or_else(|| {
                        rows.push(OpenTensors { stride, ..OpenTensors::default() });
                        rows.len() - 1
                    });
                    &mut rows[place]
                }
            };
            if item.is_value { home.values.push(*item) } else { home.outs.push(*item) }
        }
        Ok(())
    }
}

impl OverlapItem {
    /// None for a tensor without elements.
    fn of(party: &OverlapTensor<'_>, is_value: bool) -> Option<Self> {
        let (low, high) = reach(party)?;
        Some(Self { low, high, is_value, at: party.at, form: ByteLayout::of(party, low) })
    }

    fn party<'a>(&self, parties: &impl CallTensors<'a>) -> OverlapTensor<'a> {
        if self.is_value { parties.value(self.at) } else { parties.out(self.at) }
    }
}

impl OpenTensors {
    fn is_empty(&self) -> bool {
        self.outs.is_empty() && self.values.is_empty()
    }

    /// Compares the next tensor with the open outs, and an out with the open values too.
    fn compare<'a>(
        &mut self,
        parties: &impl CallTensors<'a>,
        item: &OverlapItem,
        budget: &mut usize,
        watch: &mut TimeLimit<'_>,
    ) -> Result<(), Stop> {
        let with_values = if item.is_value { None } else { Some(&mut self.values) };
        for list in std::iter::once(&mut self.outs).chain(with_values) {
            list.retain(|open| open.high > item.low);
            for open in &*list {
                watch.tick()?;
                if meet(parties, open, item, budget) {
                    return Err(stop(open, item));
                }
            }
        }
        Ok(())
    }
}

/// The outs and the values of tensors that are sorted so.
fn split(items: &[OverlapItem]) -> (&[OverlapItem], &[OverlapItem]) {
    items.split_at(items.partition_point(|item| !item.is_value))
}

/// The error of two tensors that overlap. Of two outs the later one comes first.
fn stop(one: &OverlapItem, other: &OverlapItem) -> Stop {
    match (one.is_value, other.is_value) {
        (false, false) => Stop::Outs(one.at.max(other.at), one.at.min(other.at)),
        (false, true) => Stop::Value { out: one.at, value: other.at },
        (true, _) => Stop::Value { out: other.at, value: one.at },
    }
}

/// Whether two tensors with overlapping byte ranges share a byte.
fn meet<'a>(
    parties: &impl CallTensors<'a>,
    one: &OverlapItem,
    other: &OverlapItem,
    budget: &mut usize,
) -> bool {
    match (one.form, other.form) {
        (ByteLayout::Whole, ByteLayout::Whole) => true,
        (ByteLayout::Whole, ByteLayout::Rows(rows)) => rows.touch(one.low, one.high),
        (ByteLayout::Rows(rows), ByteLayout::Whole) => rows.touch(other.low, other.high),
        (ByteLayout::Rows(a), ByteLayout::Rows(b)) if a.stride == b.stride => a.meet(&b),
        _ => spans::meet(&one.party(parties), &other.party(parties), budget),
    }
}

/// First byte, and one past the last byte; None of a tensor without elements.
fn reach(out: &OverlapTensor<'_>) -> Option<(usize, usize)> {
    if out.lent.strides().is_none() {
        let (low, bytes) = (out.lent.data().addr(), out.bytes()?);
        return (bytes > 0).then_some((low, low + bytes));
    }
    let empty = layout::count(out.shape) == Some(0);
    (!empty).then(|| out.lent.byte_range(out.shape))
}

/// Whether the two are one tensor: same elements at the same places.
fn same(a: &OverlapTensor<'_>, b: &OverlapTensor<'_>) -> bool {
    let plain = a.lent.strides().is_none() && b.lent.strides().is_none();
    a.lent.data() == b.lent.data()
        && a.lent.dtype() == b.lent.dtype()
        && if plain {
            layout::count(a.shape) == layout::count(b.shape)
        } else {
            a.lent.strides() == b.lent.strides() && a.shape == b.shape
        }
}
