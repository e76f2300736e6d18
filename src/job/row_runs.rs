//! Rows of keys in slices (also called: row-sparse values). A unit divides both rows and slices: each of them
//! has whole units.

use std::ops::Range;

use kvstore_protocol::Placement;

/// Run of units `first .. first + count` of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnitRun {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Partition of a key into slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyPartition {
    /// Elements of a row, of a slice but the last, and of the key.
    pub(crate) row: usize,
    slice: usize,
    count: usize,
    pub(crate) unit: usize,
}

/// Part of a row in one slice: its units in the slice, and its place in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowFragment {
    pub(crate) slice: u32,
    pub(crate) run: UnitRun,
    pub(crate) in_row: usize,
    pub(crate) elements: usize,
}

impl KeyPartition {
    pub(crate) fn new(place: &Placement) -> Self {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let item = place.spec.item_bytes().max(1);
        let count = size(place.spec.bytes().unwrap_or(0) / item);
        let rows = place.spec.shape.first().map_or(1, |rows| size(*rows)).max(1);
        let row = (count / rows).max(1);
        let whole = place.servers.len() <= 1;
        let slice = if whole { count.max(1) } else { size(place.slice_bytes / item).max(1) };
        let unit = if whole { row } else { divisor(row, slice) };
        Self { row, slice, count, unit }
    }

    /// Parts of a row, slice by slice.
    pub(crate) fn fragments(&self, row: usize) -> impl Iterator<Item = RowFragment> + use<> {
        let Self { row: length, slice, unit, count } = *self;
        let Range { start, end } = row * length..((row + 1) * length).min(count);
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let index = at / slice;
            let stop = end.min((index + 1) * slice);
            let number = |elements: usize| u32::try_from(elements / unit).unwrap_or(u32::MAX);
            let fragment = RowFragment {
                slice: u32::try_from(index).unwrap_or(u32::MAX),
                run: UnitRun { first: number(at - index * slice), count: number(stop - at) },
                in_row: at - start,
                elements: stop - at,
            };
            at = stop;
            Some(fragment)
        })
    }
}

fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Appends encoded runs, padded so that elements may follow.
pub(crate) fn encode(runs: &[UnitRun], bytes: &mut Vec<u8>) {
    let len = (size_of::<u32>() + size_of_val(runs)).next_multiple_of(8);
    let end = bytes.len() + len;
    bytes.reserve(len);
    bytes.extend_from_slice(&u32::try_from(runs.len()).unwrap_or(u32::MAX).to_le_bytes());
    for run in runs {
        bytes.extend_from_slice(&run.first.to_le_bytes());
        bytes.extend_from_slice(&run.count.to_le_bytes());
    }
    bytes.resize(end, 0);
}

/// Runs of a slice, encoded, whose units are in the slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodedRuns<'a>(&'a [[[u8; 4]; 2]]);

impl<'a> EncodedRuns<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = UnitRun> + use<'a> {
        self.0.iter().map(|[first, count]| UnitRun {
            first: u32::from_le_bytes(*first),
            count: u32::from_le_bytes(*count),
        })
    }

    /// Number of units of the runs.
    pub(crate) fn count(self) -> usize {
        self.iter().map(|run| run.count as usize).sum()
    }
}

/// Decodes runs of a slice of this many units; gives them and their length in bytes. None for bytes that are
/// not runs, or for runs of other units.
pub(crate) fn decode(bytes: &[u8], units: usize) -> Option<(EncodedRuns<'_>, usize)> {
    let (count, rest) = bytes.split_first_chunk()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
    let len = count.checked_mul(8)?;
    let runs = EncodedRuns(rest.get(..len)?.as_chunks::<4>().0.as_chunks::<2>().0);
    let inside = |run: UnitRun| u64::from(run.first) + u64::from(run.count) <= units as u64;
    // A request has each unit once: the result is never larger than the slice.
    let total: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
    let taken = (4 + len).next_multiple_of(8);
    let fits = runs.iter().all(inside) && total <= units as u64 && taken <= bytes.len();
    fits.then_some((runs, taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvstore_protocol::KeySpec;

    #[test]
    fn fragments_make_up_their_row_and_are_whole_units() {
        for (rows, row, slice_bytes, slices) in
            [(7u64, 300u64, 8192u64, 2u16), (5, 2048, 8192, 5), (9, 1001, 8192, 5), (3, 10, 400, 1)]
        {
            let spec =
                KeySpec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![rows, row], whole: false };
            let place = Placement { spec, slice_bytes, servers: vec![0; slices.into()] };
            let cut = KeyPartition::new(&place);
            for index in 0..usize::try_from(rows).unwrap() {
                let mut at = 0;
                for fragment in cut.fragments(index) {
                    assert_eq!(fragment.in_row, at);
                    assert_eq!(fragment.elements, fragment.run.count as usize * cut.unit);
                    let first = fragment.run.first as usize * cut.unit;
                    let slice = if slices == 1 { 0 } else { fragment.slice as usize * 2048 };
                    assert_eq!(slice + first, index * cut.row + at);
                    at += fragment.elements;
                }
                assert_eq!(at, cut.row);
            }
        }
    }

    fn encoded(runs: &[UnitRun]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(runs, &mut bytes);
        bytes
    }

    #[test]
    fn runs_come_back_and_others_are_refused() {
        let runs = [UnitRun { first: 0, count: 2 }, UnitRun { first: 7, count: 1 }];
        let bytes = encoded(&runs);
        let decode = |bytes: &[u8], units| {
            decode(bytes, units).map(|(runs, taken)| (runs.iter().collect::<Vec<_>>(), taken))
        };
        assert_eq!(decode(&bytes, 8), Some((runs.to_vec(), bytes.len())));
        assert_eq!(decode(&bytes, 7), None);
        let twice = encoded(&[UnitRun { first: 0, count: 5 }, UnitRun { first: 0, count: 5 }]);
        assert_eq!(decode(&twice, 8), None, "more than there is");
        (0..bytes.len()).for_each(|end| assert_eq!(decode(&bytes[..end], 8), None));
        assert_eq!(decode(&[255; 16], 8), None);
    }
}
