//! Tensors that are lent to a collective call: their memory, and copies between it and plain arrays.
#![allow(unsafe_code, reason = "plain arrays are copied in the memory that callers lend")]

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::local::plan::Tensors;
#[cfg(feature = "dist")]
use crate::tensor::DType;
use crate::tensor::{Lent, Tensor};

/// A tensor that is lent to a call.
pub(crate) struct LentTensor {
    pub(crate) lent: Lent,
    pub(super) shape: SmallVec<[i64; 4]>,
    pub(crate) count: usize,
}

impl LentTensor {
    fn new(tensor: &Tensor<'_>) -> Self {
        let shape = tensor.shape().iter().copied().collect();
        Self { lent: Lent::new(tensor), shape, count: tensor.count() }
    }

    /// A plain array that the caller keeps until the call has ended.
    #[cfg(feature = "dist")]
    pub(crate) fn of_array(start: *mut u8, dtype: DType, count: usize) -> Self {
        let extent = i64::try_from(count).unwrap_or(i64::MAX);
        Self { lent: Lent::plain(start, dtype), shape: [extent].into_iter().collect(), count }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count * self.lent.dtype().size()
    }

    /// Where its elements lie, if they lie one behind the other.
    pub(crate) fn plain(&self) -> Option<*mut u8> {
        self.lent.strides().is_none().then(|| self.lent.data())
    }

    /// Copies its elements to a plain array.
    pub(crate) fn copy_to(&self, to: *mut u8) {
        let (to, from) = (Lent::plain(to, self.lent.dtype()).array(), self.lent.array());
        match self.lent.strides() {
            Some(strides) => to.gather(&from, &self.shape, strides, &(0..self.count)),
            None => copy(to.start_mut(), from.start(), self.bytes()),
        }
    }

    /// Copies a plain array to its elements.
    pub(crate) fn copy_from(&self, from: *const u8) {
        let (to, from) =
            (self.lent.array(), Lent::plain(from.cast_mut(), self.lent.dtype()).array());
        match self.lent.strides() {
            Some(strides) => to.scatter(&from, &self.shape, strides, &(0..self.count)),
            None => copy(to.start_mut(), from.start(), self.bytes()),
        }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.lent.byte_range(&self.shape), other.lent.byte_range(&other.shape));
        self.count > 0 && other.count > 0 && a.0 < b.1 && b.0 < a.1
    }

    /// Whether elements share an address.
    pub(super) fn is_folded(&self) -> bool {
        let strides = self.lent.strides().unwrap_or_default();
        strides.iter().zip(&self.shape).any(|(stride, extent)| *stride == 0 && *extent > 1)
    }

    /// Whether both are one plain array.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.plain().is_some() && self.plain() == other.plain() && self.bytes() == other.bytes()
    }
}

/// Copies bytes of arrays that are one, or do not overlap.
pub(crate) fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    if to.cast_const() != from && bytes > 0 {
        // SAFETY: the checks of the call have found both arrays, and that they do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }
}

/// The tensors of a call; errors name the call and the tensor's part in it.
pub(super) fn lend(
    call: &str,
    what: &str,
    tensors: Tensors<'_>,
) -> Result<SmallVec<[LentTensor; 4]>> {
    let one = |at: usize| -> Result<LentTensor> {
        let tensor = tensors.get(at).and_then(Tensor::in_host_memory);
        let tensor = tensor.map_err(|error| {
            Error::new(error.kind(), format!("{call}: {what} {at} {}", error.message()))
        })?;
        Ok(LentTensor::new(&tensor))
    };
    (0..tensors.len()).map(one).collect()
}
