//! Tensors of any dtype as bytes: for element types that Rust has no type for, and for `bool`, of
//! which only two bit patterns are valid.

use std::slice;

use super::{Tensor, TensorMut};
use crate::error::{Result, fail};
use crate::tensor::memory::Memory;
use crate::tensor::{DType, element_count, text_of};

/// Refuses bytes that are not the elements of a shape.
fn check(dtype: DType, shape: &[i64], bytes: &[u8]) -> Result<()> {
    let count = element_count(shape).filter(|_| shape.iter().all(|&extent| extent >= 0));
    if count.and_then(|count| count.checked_mul(dtype.size())) != Some(bytes.len()) {
        let (text, len) = (text_of(dtype, shape), bytes.len());
        return Err(fail!(ShapeMismatch, "{len} bytes cannot be viewed as {text}"));
    }
    if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(dtype.align()) {
        let (text, align) = (text_of(dtype, shape), dtype.align());
        return Err(fail!(
            InvalidArgument,
            "bytes at {:p} cannot be viewed as {text}: the address is not a multiple of {align}",
            bytes.as_ptr()
        ));
    }
    Ok(())
}

impl<'a> Tensor<'a> {
    /// A row-major tensor of any dtype over the bytes of its elements, which are those of this
    /// machine.
    ///
    /// # Errors
    /// `ShapeMismatch` if the shape does not have as many bytes as the slice, `InvalidArgument` if the
    /// slice is misaligned for the dtype.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8], shape: &'a [i64]) -> Result<Self> {
        check(dtype, shape, bytes)?;
        Ok(Self::of_array(bytes.as_ptr(), dtype, shape))
    }

    /// The bytes of the elements in row-major order, if these have no gaps and are in host memory.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        if self.memory != Memory::Host || self.strides.is_some() {
            return None;
        }
        match self.count() * self.dtype.size() {
            0 => Some(&[]),
            // SAFETY: every way to make a Tensor checks or guarantees its elements for 'a, and the
            // host may touch them.
            len => Some(unsafe { slice::from_raw_parts(self.data, len) }),
        }
    }
}

impl<'a> TensorMut<'a> {
    /// See [`Tensor::from_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8], shape: &'a [i64]) -> Result<Self> {
        let start = bytes.as_mut_ptr();
        let mut tensor = Tensor::from_bytes(dtype, bytes, shape)?;
        tensor.data = start;
        Ok(Self { tensor, life: std::marker::PhantomData })
    }
}

/// The elements of a slice of `bool`; an out is made with [`TensorMut::from_bytes`], because a byte of
/// a file or of another process need not be a `bool`.
impl<'a> From<&'a [bool]> for Tensor<'a> {
    #[allow(clippy::cast_possible_wrap, reason = "a slice has at most isize::MAX elements")]
    fn from(data: &'a [bool]) -> Self {
        let shape = super::Shape::Slice([data.len() as i64]);
        Self { shape, ..Self::of_array(data.as_ptr().cast(), DType::Bool, &[]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn bytes_are_elements_where_size_and_address_fit() {
        #[repr(align(8))]
        struct Aligned([u8; 40]);
        let mut all = Aligned(std::array::from_fn(|at| u8::try_from(at).unwrap()));
        let kind = |bytes, dtype, shape: &[i64]| {
            Tensor::from_bytes(dtype, bytes, shape).map(|_| ()).unwrap_err().kind()
        };
        assert_eq!(kind(&all.0, DType::C128, &[2]), ErrorKind::ShapeMismatch);
        assert_eq!(kind(&all.0[..32], DType::C128, &[-1, -2]), ErrorKind::ShapeMismatch);
        assert_eq!(kind(&all.0[..32], DType::C128, &[i64::MAX, 2]), ErrorKind::ShapeMismatch);
        assert_eq!(kind(&all.0[4..36], DType::C128, &[2]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&all.0[2..10], DType::C64, &[1]), ErrorKind::InvalidArgument);
        assert!(Tensor::from_bytes(DType::F32, &all.0[1..1], &[0, 3]).is_ok());
        let tensor = Tensor::from_bytes(DType::C64, &all.0[4..36], &[2, 2]).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (DType::C64, &[2i64, 2][..]));
        assert_eq!(tensor.as_bytes(), Some(&all.0[4..36]));
        let out = TensorMut::from_bytes(DType::Bool, &mut all.0[..2], &[2]).unwrap();
        assert_eq!(out.as_tensor().as_bytes(), Some(&[0, 1][..]));
        assert_eq!(Tensor::from(&[true, false][..]).as_bytes(), Some(&[1, 0][..]));
    }
}
