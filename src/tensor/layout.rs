//! Shapes and strides: how many elements, where they lie, and in which rows they can be walked.

use crate::tensor::DType;

/// Number of elements of a shape, or None if it does not fit in memory.
pub(crate) fn count(shape: &[i64]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |count, &extent| {
        count
            .checked_mul(usize::try_from(extent).ok()?)
            .filter(|&count| isize::try_from(count).is_ok())
    })
}

/// Whether the strides are those of a row-major tensor without gaps.
pub(crate) fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent != 1 && stride != expected {
            return false;
        }
        expected = expected.wrapping_mul(extent);
    }
    true
}

/// The lowest and the highest element offset that a strided tensor with elements touches, or None
/// if they do not fit in memory.
pub(crate) fn reach(shape: &[i64], strides: &[i64]) -> Option<(i64, i64)> {
    let mut low = 0i64;
    let mut high = 0i64;
    for (&extent, &stride) in shape.iter().zip(strides) {
        let far = (extent - 1).checked_mul(stride)?;
        let end = if far < 0 { &mut low } else { &mut high };
        *end = end.checked_add(far)?;
    }
    Some((low, high))
}

/// Whether two elements of one tensor may share an address, judged by strides alone: exact for
/// everything that slicing makes.
pub(crate) fn overlaps_itself(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return false;
    }
    let mut dims: Vec<(i64, i64)> = shape
        .iter()
        .zip(strides)
        .filter(|&(&extent, _)| extent > 1)
        .map(|(&extent, &stride)| (stride.saturating_abs(), extent))
        .collect();
    dims.sort_unstable();
    let mut covered = 0i64;
    dims.iter().any(|&(stride, extent)| {
        let collides = stride <= covered;
        covered = covered.saturating_add(stride.saturating_mul(extent - 1));
        collides
    })
}

/// A piece of a tensor's last dimension: `len` elements from element offset `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) offset: i64,
    pub(crate) len: usize,
    pub(crate) stride: i64,
}

/// Walks the elements `start .. start + len`, in row-major order, of a strided tensor row by row.
pub(crate) struct RowWalk<'a> {
    shape: &'a [i64],
    strides: &'a [i64],
    next: usize,
    left: usize,
}

impl<'a> RowWalk<'a> {
    pub(crate) fn new(shape: &'a [i64], strides: &'a [i64], start: usize, len: usize) -> Self {
        Self { shape, strides, next: start, left: len }
    }
}

#[allow(
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "extents are not negative and the element count fits in isize, checked by the view"
)]
impl Iterator for RowWalk<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.left == 0 {
            return None;
        }
        let (Some(&extent), Some(&stride)) = (self.shape.last(), self.strides.last()) else {
            self.left = 0;
            return Some(Row { offset: 0, len: 1, stride: 1 });
        };
        let extent = extent as usize;
        let column = self.next % extent;
        let mut row = self.next / extent;
        let mut offset = column as i64 * stride;
        let outer = self.shape.len() - 1;
        for (&extent, &stride) in self.shape[..outer].iter().zip(&self.strides[..outer]).rev() {
            offset += (row % extent as usize) as i64 * stride;
            row /= extent as usize;
        }
        let len = (extent - column).min(self.left);
        self.next += len;
        self.left -= len;
        Some(Row { offset, len, stride })
    }
}

/// A dtype and shape as people write them: `float32[3,4]`.
pub(crate) fn text_of(dtype: DType, shape: &[i64]) -> String {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("{}[{}]", dtype.name(), extents.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_refuse_what_does_not_fit() {
        assert_eq!(count(&[]), Some(1));
        assert_eq!(count(&[3, 4]), Some(12));
        assert_eq!(count(&[1 << 40, 1 << 40, 0]), Some(0));
        assert_eq!(count(&[1 << 40, 1 << 40]), None);
    }

    #[test]
    #[allow(clippy::cast_possible_wrap, reason = "rows of at most 4")]
    fn rows_visit_each_element_in_row_major_order() {
        let (shape, strides) = ([2i64, 3, 4], [-50i64, 7, 2]);
        let mut expected = Vec::new();
        for a in 0..2 {
            for b in 0..3 {
                for c in 0..4 {
                    expected.push(a * -50 + b * 7 + c * 2);
                }
            }
        }
        for start in 0..24 {
            for len in 0..=24 - start {
                let walked: Vec<i64> = RowWalk::new(&shape, &strides, start, len)
                    .flat_map(|row| (0..row.len as i64).map(move |i| row.offset + i * row.stride))
                    .collect();
                assert_eq!(walked, expected[start..start + len]);
            }
        }
    }

    #[test]
    fn self_overlap_is_seen() {
        assert!(overlaps_itself(&[2, 3], &[0, 1]));
        assert!(overlaps_itself(&[3, 3], &[1, 1]));
        assert!(!overlaps_itself(&[2, 3], &[-3, 1]));
        assert!(!overlaps_itself(&[1, 3], &[0, 1]));
        assert!(!overlaps_itself(&[3, 2], &[1, 3]));
    }
}
