//! Which bytes a tensor touches, in the form in which two tensors can be compared at once.

use super::OverlapTensor;

/// The bytes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteLayout {
    /// All bytes of its reach.
    Whole,
    /// Equal pieces at equal distances, such as the columns of a matrix.
    Rows(RowSpans),
    /// Anything else.
    Odd,
}

/// `count` pieces of `len` bytes, each `stride` bytes after the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowSpans {
    pub(super) start: usize,
    pub(super) stride: usize,
    pub(super) count: usize,
    pub(super) len: usize,
}

/// A part of the plane whose rows are `stride` bytes long: half-open ranges of rows and of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub(super) rows: (usize, usize),
    pub(super) columns: (usize, usize),
}

impl ByteLayout {
    /// The form of a tensor with elements, whose first byte is `low`.
    pub(super) fn of(party: &OverlapTensor<'_>, low: usize) -> Self {
        let Some(strides) = party.lent.strides() else { return ByteLayout::Whole };
        Self::of_strides(party.shape, strides, party.lent.dtype().size(), low)
            .unwrap_or(ByteLayout::Odd)
    }

    /// The distance of the pieces, if there are several.
    pub(super) fn stride(&self) -> Option<usize> {
        match self {
            ByteLayout::Rows(rows) => Some(rows.stride),
            ByteLayout::Whole | ByteLayout::Odd => None,
        }
    }

    /// Dimension by dimension, from the smallest stride up. A stride of 0 repeats bytes, and a
    /// negative one only turns their order.
    fn of_strides(shape: &[i64], strides: &[i64], width: usize, low: usize) -> Option<Self> {
        let mut dims: Vec<(usize, usize)> = Vec::with_capacity(shape.len());
        for (&extent, &stride) in shape.iter().zip(strides) {
            if extent > 1 && stride != 0 {
                let stride = usize::try_from(stride.unsigned_abs()).ok()?.checked_mul(width)?;
                dims.push((stride, usize::try_from(extent).ok()?));
            }
        }
        dims.sort_unstable();
        let (mut len, mut rows) = (width, None::<(usize, usize)>);
        for (stride, extent) in dims {
            match &mut rows {
                None if stride == len => len *= extent,
                None if stride > len => rows = Some((stride, extent)),
                Some((outer, count)) if outer.checked_mul(*count) == Some(stride) => {
                    *count *= extent;
                }
                _ => return None,
            }
        }
        Some(match rows {
            None => ByteLayout::Whole,
            Some((stride, count)) => ByteLayout::Rows(RowSpans { start: low, stride, count, len }),
        })
    }
}

impl RowSpans {
    /// Whether one of the bytes `low` to `high` - 1 is touched.
    pub(super) fn touch(&self, low: usize, high: usize) -> bool {
        // The first piece that ends behind `low`.
        let first = (low + 1).saturating_sub(self.start + self.len).div_ceil(self.stride);
        first < self.count && self.start + first * self.stride < high
    }

    /// The rectangles that the pieces are in the plane of rows of their stride: one, or two if the
    /// pieces go beyond the end of the plane's rows. Byte addresses and places of the plane
    /// correspond one to one, so that tensors overlap where their rectangles do.
    pub(super) fn rectangles(&self) -> impl Iterator<Item = Rectangle> {
        let (row, column) = (self.start / self.stride, self.start % self.stride);
        let end = column + self.len;
        let first =
            Rectangle { rows: (row, row + self.count), columns: (column, end.min(self.stride)) };
        let second = (end > self.stride).then(|| Rectangle {
            rows: (row + 1, row + 1 + self.count),
            columns: (0, end - self.stride),
        });
        std::iter::once(first).chain(second)
    }

    /// Whether two tensors of one stride overlap.
    pub(super) fn meet(&self, other: &Self) -> bool {
        self.rectangles().any(|mine| other.rectangles().any(|its| mine.meets(&its)))
    }
}

impl Rectangle {
    pub(super) fn meets(&self, other: &Self) -> bool {
        let overlap = |a: (usize, usize), b: (usize, usize)| a.0 < b.1 && b.0 < a.1;
        overlap(self.rows, other.rows) && overlap(self.columns, other.columns)
    }
}
