//! Plain arrays whose dtype is known at run time: what kernels read and write.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "a view's extents and offsets were found to fit in memory when it was made"
)]

use std::ops::Range;
use std::slice;

use super::buffer::Buffer;
use super::dtype::{DType, Element};
use super::layout::RowWalk;
use super::memory::Memory;
use super::view::Lent;

/// The start of an array of elements, or of a strided tensor's memory.
///
/// It has neither length nor lifetime. The plan of an operation guarantees that the ranges it uses
/// exist, and the loan that they stay.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    start: *mut u8,
    dtype: DType,
}

// SAFETY: only a pointer; threads of one operation use disjoint ranges of what it writes.
unsafe impl Send for Array {}
// SAFETY: only a pointer; threads of one operation use disjoint ranges of what it writes.
unsafe impl Sync for Array {}

impl Array {
    /// See [`Array::copy_few`].
    pub(crate) const FEW: usize = 128;

    pub(crate) fn of(buffer: &Buffer, dtype: DType) -> Self {
        Self { start: buffer.as_ptr(), dtype }
    }

    pub(crate) fn start(&self) -> *const u8 {
        self.start
    }

    pub(crate) fn start_mut(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The array from the start of a range of elements on.
    pub(crate) fn part(&self, range: &Range<usize>) -> Self {
        Self { start: self.start.wrapping_add(range.start * self.dtype.size()), ..*self }
    }

    /// An array in which this one is the part from element `first` on.
    pub(crate) fn back(&self, first: usize) -> Self {
        Self { start: self.start.wrapping_sub(first * self.dtype.size()), ..*self }
    }

    /// Makes the first elements zero.
    pub(crate) fn clear(&self, count: usize) {
        // SAFETY: the plan of the operation guarantees that the elements are there.
        unsafe { self.start.write_bytes(0, count * self.dtype.size()) };
    }

    /// Copies up to [`Array::FEW`] bytes from an array that does not overlap this one: too few for
    /// a call of the C library to be worth its time.
    #[inline]
    pub(crate) fn copy_few(&self, from: &Array, bytes: usize) {
        /// Copies the first and the last `N` bytes, which may meet.
        ///
        /// # Safety
        /// The bytes are there, and at least `N`.
        #[inline]
        unsafe fn both_ends<const N: usize>(to: *mut u8, from: *const u8, bytes: usize) {
            // SAFETY: the caller's promise.
            unsafe {
                to.copy_from_nonoverlapping(from, N);
                to.add(bytes - N).copy_from_nonoverlapping(from.add(bytes - N), N);
            }
        }
        debug_assert!(bytes <= Self::FEW);
        // SAFETY: the plan of the operation guarantees that the bytes are there.
        unsafe {
            match bytes {
                65.. => both_ends::<64>(self.start, from.start, bytes),
                33.. => both_ends::<32>(self.start, from.start, bytes),
                17.. => both_ends::<16>(self.start, from.start, bytes),
                9.. => both_ends::<8>(self.start, from.start, bytes),
                5.. => both_ends::<4>(self.start, from.start, bytes),
                3.. => both_ends::<2>(self.start, from.start, bytes),
                1.. => both_ends::<1>(self.start, from.start, bytes),
                0 => {}
            }
        }
    }

    /// A range of the elements. The plan guarantees that it exists and has no concurrent writer.
    pub(crate) fn slice<T: Element>(&self, range: &Range<usize>) -> &[T] {
        debug_assert!(self.dtype == T::DTYPE);
        if range.is_empty() {
            return &[];
        }
        // SAFETY: the plan guarantees the elements, and that they have been written before.
        unsafe { slice::from_raw_parts(self.part(range).start.cast(), range.len()) }
    }

    /// A writable range of the elements. The plan guarantees that no other thread uses it
    /// concurrently.
    pub(crate) fn slice_mut<T: Element>(&mut self, range: &Range<usize>) -> &mut [T] {
        debug_assert!(self.dtype == T::DTYPE);
        if range.is_empty() {
            return &mut [];
        }
        // SAFETY: the plan guarantees the elements, written before, and no other access now.
        unsafe { slice::from_raw_parts_mut(self.part(range).start.cast(), range.len()) }
    }

    /// An element of an f32 or f64 array.
    pub(crate) fn number(&self, at: usize) -> f64 {
        let from = self.part(&(at..at + 1)).start;
        // SAFETY: the plan guarantees the element, and that no thread writes it now.
        unsafe {
            match self.dtype {
                DType::F64 => from.cast::<f64>().read(),
                _ => from.cast::<f32>().read().into(),
            }
        }
    }

    /// Rounds a number into an element of an f32 or f64 array.
    pub(crate) fn set_number(&self, at: usize, number: f64) {
        let to = self.part(&(at..at + 1)).start;
        // SAFETY: the plan guarantees the element, and that no other thread uses it now.
        unsafe {
            match self.dtype {
                DType::F64 => to.cast::<f64>().write(number),
                _ => to.cast::<f32>().write(number as f32),
            }
        }
    }

    /// Copies a range of a strided tensor's elements, in row-major order, to this array's start.
    pub(crate) fn gather(
        &self,
        from: &Array,
        shape: &[i64],
        strides: &[i64],
        range: &Range<usize>,
    ) {
        let mut done = 0;
        for row in RowWalk::new(shape, strides, range.start, range.len()) {
            let to = self.part(&(done..done + row.len));
            copy_row(self.dtype, (to.start, 1), (from.at(row.offset), row.stride), row.len);
            done += row.len;
        }
    }

    /// Copies an array's first elements to a range of this strided tensor's elements, in row-major
    /// order.
    pub(crate) fn scatter(
        &self,
        from: &Array,
        shape: &[i64],
        strides: &[i64],
        range: &Range<usize>,
    ) {
        let mut done = 0;
        for row in RowWalk::new(shape, strides, range.start, range.len()) {
            let from = from.part(&(done..done + row.len));
            copy_row(self.dtype, (self.at(row.offset), row.stride), (from.start, 1), row.len);
            done += row.len;
        }
    }

    /// The address of an element offset, which may be negative.
    fn at(&self, offset: i64) -> *mut u8 {
        // No overflow: the view's byte range was checked when it was made.
        self.start.wrapping_offset(offset as isize * self.dtype.size() as isize)
    }
}

/// Copies `len` elements between two strided rows, strides in elements.
fn copy_row(dtype: DType, to: (*mut u8, i64), from: (*const u8, i64), len: usize) {
    /// # Safety
    /// Both rows are there, aligned, and do not overlap.
    unsafe fn rows<T: Copy>(to: (*mut u8, i64), from: (*const u8, i64), len: usize) {
        let (dst, src) = (to.0.cast::<T>(), from.0.cast::<T>());
        // SAFETY: the caller's promise.
        unsafe {
            if (to.1, from.1) == (1, 1) {
                dst.copy_from_nonoverlapping(src, len);
                return;
            }
            for i in 0..len as isize {
                *dst.offset(i * to.1 as isize) = *src.offset(i * from.1 as isize);
            }
        }
    }
    // SAFETY: views are checked when they are made, and outs overlap nothing that is read here.
    unsafe {
        match dtype.size() {
            1 => rows::<u8>(to, from, len),
            2 => rows::<u16>(to, from, len),
            4 => rows::<u32>(to, from, len),
            8 if dtype.align() == 4 => rows::<[u32; 2]>(to, from, len),
            8 => rows::<u64>(to, from, len),
            _ => rows::<[u64; 2]>(to, from, len),
        }
    }
}

impl Lent {
    /// Our own memory as a value of a step.
    pub(crate) fn of(array: Array) -> Self {
        Self::plain(array.start, array.dtype)
    }

    /// The elements; of host memory.
    pub(crate) fn array(&self) -> Array {
        debug_assert!(self.memory() == Memory::Host, "no kernel of the host takes device memory");
        Array { start: self.data(), dtype: self.dtype() }
    }
}
