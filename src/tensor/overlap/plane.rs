//! Tensors whose pieces have one stride, all compared at once: as rectangles in a plane, over which
//! a line sweeps (Shamos and Hoey, *Geometric intersection problems*, 1976).

use std::collections::{BTreeMap, BTreeSet};

use super::form::{Rectangle, RowSpans};
use super::{Stop, TimeLimit};

/// A tensor in the plane, and its index in the caller's list.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    pub(super) rows: RowSpans,
    pub(super) is_value: bool,
    pub(super) index: usize,
}

/// Events of the sweep: the end of a rectangle before the start of another one in its row.
type SweepEvent = (usize, bool, usize);

/// The rectangles under the line, by their first column. Those of outs are apart.
#[derive(Default)]
struct SweepLine {
    outs: BTreeMap<usize, usize>,
    values: BTreeSet<(usize, usize)>,
    /// Columns of the widest value so far.
    widest: usize,
}

/// Gives the indexes of two figures that overlap and are not both values, if there are any.
///
/// # Errors
/// `Late` if the time is over.
pub(super) fn find_clash(
    figures: &[Figure],
    watch: &mut TimeLimit<'_>,
) -> Result<Option<(usize, usize)>, Stop> {
    let all: Vec<(Rectangle, Figure)> = figures
        .iter()
        .flat_map(|figure| figure.rows.rectangles().map(move |rectangle| (rectangle, *figure)))
        .collect();
    let mut events: Vec<SweepEvent> = Vec::with_capacity(2 * all.len());
    for (at, (rectangle, _)) in all.iter().enumerate() {
        events.push((rectangle.rows.0, true, at));
        events.push((rectangle.rows.1, false, at));
    }
    events.sort_unstable();
    let mut line = SweepLine::default();
    for (_, begins, at) in events {
        if !begins {
            line.remove(&all, at);
            continue;
        }
        watch.tick()?;
        if let Some(other) = line.insert(&all, at) {
            return Ok(Some((all[other].1.index, all[at].1.index)));
        }
    }
    Ok(None)
}

impl SweepLine {
    /// Adds a rectangle, unless it overlaps one under the line, which is given then.
    fn insert(&mut self, all: &[(Rectangle, Figure)], at: usize) -> Option<usize> {
        let (Rectangle { columns: (start, end), .. }, Figure { is_value, .. }) = all[at];
        // Outs are apart: only the last one that begins before the end can be in the way.
        let out = self.outs.range(..end).next_back().map(|(_, &out)| out);
        let out = out.filter(|&out| all[out].0.columns.1 > start);
        if out.is_some() {
            return out;
        }
        if is_value {
            self.values.insert((start, at));
            self.widest = self.widest.max(end - start);
            return None;
        }
        // No value that begins earlier than this reaches the start.
        let first = (start + 1).saturating_sub(self.widest);
        let mut values = self.values.range((first, 0)..(end, 0));
        let value = values.find(|&&(_, value)| all[value].0.columns.1 > start);
        if value.is_none() {
            self.outs.insert(start, at);
        }
        value.map(|&(_, value)| value)
    }

    fn remove(&mut self, all: &[(Rectangle, Figure)], at: usize) {
        let (rectangle, figure) = all[at];
        if figure.is_value {
            self.values.remove(&(rectangle.columns.0, at));
        } else {
            self.outs.remove(&rectangle.columns.0);
        }
    }
}
