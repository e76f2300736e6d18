//! Memory of CUDA devices as Rust programs lend it.

use std::ffi::c_void;

use super::dtype::DType;
use super::view::{Tensor, TensorMut};
use super::{element_count, text_of};
use crate::error::{Result, fail};

/// Elements in the memory of a CUDA device, one after the other. Also called: device buffer.
///
/// It stands for a value or an out where a slice of the host would, and owns nothing. The host does
/// not touch the elements.
///
/// ```
/// use std::ffi::c_void;
///
/// use kvstore::{DType, DeviceSlice, Result, Store, set_stream};
///
/// /// One step: the caller has queued the computation of the gradient on the stream.
/// fn step(
///     store: &Store,
///     weight: *mut c_void,
///     gradient: *mut c_void,
///     stream: *mut c_void,
/// ) -> Result<()> {
///     // SAFETY: arrays of 1000 floats on GPU 0 and a stream there, which the caller frees in
///     // stream order, after the work that has been queued on the stream.
///     let (mut weight, gradient) = unsafe {
///         set_stream(0, stream)?;
///         (
///             DeviceSlice::new(weight, 1000, DType::F32, 0)?,
///             DeviceSlice::new(gradient, 1000, DType::F32, 0)?,
///         )
///     };
///     store.push(7u64, &gradient)?;
///     store.pull(7u64, &mut weight)?; // queued: what follows on the stream sees the weight
///     assert_eq!(store.key_device(7u64)?, Some(0));
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct DeviceSlice {
    address: usize,
    dtype: DType,
    device: u16,
    shape: [i64; 1],
}

impl DeviceSlice {
    /// `len` elements from `start` on, in the memory of the CUDA device of a number.
    ///
    /// # Safety
    /// From each call that uses the slice until its work on the device is done, the memory stays
    /// allocated, and is written by no other work, nor read if it is an out. Work that is queued on
    /// the stream of the call ([`set_stream`](crate::set_stream)), and frees in the order of that
    /// stream, are behind a call that has returned. Other work has to wait for the stream. A call
    /// with a [`Scope`](crate::Scope) is done when the scope ends.
    ///
    /// # Errors
    /// `InvalidArgument` if `start` is null, not a multiple of the element's size, or so near to
    /// the end of the address space that the elements do not fit.
    #[allow(unsafe_code, reason = "the caller promises what the host cannot check")]
    pub unsafe fn new(start: *mut c_void, len: usize, dtype: DType, device: u16) -> Result<Self> {
        let (address, size) = (start.addr(), dtype.size());
        let bytes = len.checked_mul(size).filter(|&bytes| isize::try_from(bytes).is_ok());
        let fits = bytes.is_some_and(|bytes| address.checked_add(bytes).is_some());
        let (Ok(extent), true) = (i64::try_from(len), fits) else {
            return Err(fail!(
                InvalidArgument,
                "a device slice of {len} elements reaches beyond the address space"
            ));
        };
        if len > 0 && (start.is_null() || address & (size - 1) != 0) {
            return Err(fail!(
                InvalidArgument,
                "a device slice of {len} elements starts at {start:p}; the address must be a \
                 multiple of the element's {size} bytes, and not null"
            ));
        }
        Ok(Self { address, dtype, device, shape: [extent] })
    }

    /// Views the elements as a row-major tensor.
    ///
    /// # Errors
    /// `ShapeMismatch` if the shape does not have as many elements as the slice.
    pub fn tensor<'a>(&'a self, shape: &'a [i64]) -> Result<Tensor<'a>> {
        self.check(shape)?;
        Ok(Tensor::on_device(self.address, self.dtype, self.device, shape))
    }

    /// Views the elements as a row-major tensor that is written.
    ///
    /// # Errors
    /// As [`DeviceSlice::tensor`].
    pub fn tensor_mut<'a>(&'a mut self, shape: &'a [i64]) -> Result<TensorMut<'a>> {
        self.check(shape)?;
        Ok(TensorMut::on_device(self.address, self.dtype, self.device, shape))
    }

    fn check(&self, shape: &[i64]) -> Result<()> {
        let is_valid = shape.iter().all(|&extent| extent >= 0);
        if is_valid && element_count(shape) == Some(self.len()) {
            return Ok(());
        }
        let (text, len) = (text_of(self.dtype, shape), self.len());
        Err(fail!(ShapeMismatch, "a device slice of {len} elements cannot be viewed as {text}"))
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.shape[0]).unwrap_or(0)
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape[0] == 0
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of the CUDA device.
    #[must_use]
    pub fn device(&self) -> u16 {
        self.device
    }
}

impl<'a> From<&'a DeviceSlice> for Tensor<'a> {
    fn from(slice: &'a DeviceSlice) -> Self {
        Tensor::on_device(slice.address, slice.dtype, slice.device, &slice.shape)
    }
}

impl<'a> From<&'a mut DeviceSlice> for TensorMut<'a> {
    fn from(slice: &'a mut DeviceSlice) -> Self {
        TensorMut::on_device(slice.address, slice.dtype, slice.device, &slice.shape)
    }
}
