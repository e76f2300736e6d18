//! Checked views of borrowed memory.

mod bytes;

use std::fmt;
use std::marker::PhantomData;
#[cfg(feature = "cuda")]
use std::ptr;
use std::slice;

use ndarray::{ArrayBase, Data, DataMut, Dimension};

use super::buffer::Buffer;
use super::dtype::{DType, Element};
use super::layout;
use super::memory::Memory;
use super::spec::TensorSpec;
use crate::error::{Error, Result, fail};

/// Extents of a tensor: borrowed, or the one of a plain slice.
#[derive(Clone, Copy)]
enum Shape<'a> {
    Slice([i64; 1]),
    Borrowed(&'a [i64]),
}

/// A read-only tensor: borrowed elements with a shape and strides.
///
/// Made from a slice (one dimension), from a slice and a shape, or from an `ndarray` of any layout.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    data: *const u8,
    dtype: DType,
    memory: Memory,
    shape: Shape<'a>,
    /// In elements; None for row-major without gaps.
    strides: Option<&'a [i64]>,
    life: PhantomData<&'a [u8]>,
}

/// A writable tensor; otherwise like [`Tensor`].
pub struct TensorMut<'a> {
    tensor: Tensor<'a>,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a Tensor is a shared borrow of elements, all of which are Sync.
unsafe impl Send for Tensor<'_> {}
// SAFETY: a Tensor is a shared borrow of elements, all of which are Sync.
unsafe impl Sync for Tensor<'_> {}
// SAFETY: a TensorMut is a unique borrow of elements, all of which are Send.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: through a shared TensorMut the elements can only be read.
unsafe impl Sync for TensorMut<'_> {}

/// A tensor as a C caller passes it, unchecked: the layout of `DLTensor`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTensor {
    pub(crate) data: *mut u8,
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
    pub(crate) ndim: i32,
    pub(crate) dtype: u32,
    pub(crate) shape: *const i64,
    pub(crate) strides: *const i64,
    pub(crate) byte_offset: u64,
}

/// The names of all element types.
fn all_names() -> String {
    DType::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" ")
}

/// The name of an element type in numpy and PyTorch, by its DLPack code and its bits.
fn foreign_name(code: u8, bits: u8) -> String {
    let kind = match code {
        0 => "int",
        1 => "uint",
        2 => "float",
        3 => return "opaque handle".into(),
        4 => "bfloat",
        5 => "complex",
        6 => return "bool".into(),
        7..=16 => return format!("float of {bits} bits"),
        _ => return "unknown".into(),
    };
    format!("{kind}{bits}")
}

impl RawTensor {
    const CPU: i32 = 1;
    const CUDA: i32 = 2;
    const CUDA_HOST: i32 = 3;
    const CUDA_MANAGED: i32 = 13;
    /// The last device type that DLPack 1.1 knows.
    const LAST: i32 = 18;

    fn dtype(&self) -> Result<DType> {
        DType::from_code(self.dtype).ok_or_else(|| {
            let [code, bits, low, high] = self.dtype.to_le_bytes();
            let lanes = u16::from_le_bytes([low, high]);
            let name = foreign_name(code, bits);
            fail!(
                InvalidArgument,
                "has the dtype {name} (DLPack code {code}, {bits} bits, {lanes} lanes), which is not \
                 stored; there are {}, one lane", all_names()
            )
        })
    }

    /// The data, if a quick check finds a plain array in ordinary memory of a dtype and shape. May
    /// answer None where the full check succeeds.
    ///
    /// # Safety
    /// The pointers are NULL or valid for what the other fields say.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "the loop over a list is little more than this")]
    unsafe fn fits(&self, spec: &TensorSpec) -> Option<*mut u8> {
        let (address, extents) = (self.data.addr(), spec.extents());
        let plain = self.dtype == spec.dtype().code()
            && self.device_type == Self::CPU
            && self.byte_offset == 0
            && usize::try_from(self.ndim) == Ok(extents.len())
            && address != 0
            && address & (spec.align() - 1) == 0
            && address.checked_add(spec.bytes()).is_some()
            && (extents.is_empty() || !self.shape.is_null());
        // SAFETY: the caller's promise; there are `ndim` extents.
        let same = |(at, &own): (usize, &u32)| unsafe { *self.shape.add(at) } == i64::from(own);
        (plain
            && extents.iter().enumerate().all(same)
            // SAFETY: the caller's promise.
            && (self.strides.is_null() || unsafe { self.is_row_major(extents.len()) }))
        .then_some(self.data)
    }

    /// # Safety
    /// The shape and the strides have `ndim` numbers.
    #[cold]
    unsafe fn is_row_major(&self, ndim: usize) -> bool {
        // SAFETY: the caller's promise.
        let (shape, strides) = unsafe { (extents(self.shape, ndim), extents(self.strides, ndim)) };
        shape.zip(strides).is_some_and(|(shape, strides)| layout::is_row_major(shape, strides))
    }

    fn memory(&self) -> Result<Memory> {
        match self.device_type {
            Self::CPU | Self::CUDA_HOST => Ok(Memory::Host),
            Self::CUDA => self.device_memory(),
            Self::CUDA_MANAGED => Err(fail!(
                Unsupported,
                "lives in CUDA managed memory, which this version cannot use; copy it to the host \
                 (tensor.cpu()) or to device memory first"
            )),
            other @ 4..=Self::LAST => Err(fail!(
                Unsupported,
                "lives on the DLPack device type {other}, which this version cannot use; copy it to \
                 the host first"
            )),
            other => Err(fail!(
                InvalidArgument,
                "lives on the unknown device type {other}; use 1 (CPU), 2 (CUDA) or 3 (CUDA host \
                 memory)"
            )),
        }
    }

    #[cfg(feature = "cuda")]
    fn device_memory(&self) -> Result<Memory> {
        let id = self.device_id;
        let ordinal = u16::try_from(id);
        ordinal.map(Memory::Device).map_err(|_| {
            fail!(InvalidArgument, "is on the CUDA device {id}; devices are numbered from 0")
        })
    }

    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self, reason = "the other build reads the number of the device")]
    fn device_memory(&self) -> Result<Memory> {
        Err(in_device_memory())
    }
}

/// The error of a tensor in CUDA memory where only tensors of the host are served.
fn in_device_memory() -> Error {
    fail!(
        Unsupported,
        "lives in CUDA memory, which this call cannot use; copy it to the host first (tensor.cpu(), \
         or pinned memory)"
    )
}

/// The tensors of a call of the C interface; each is checked on access.
#[derive(Clone, Copy)]
pub(crate) struct RawTensors<'a>(&'a [RawTensor]);

impl<'a> RawTensors<'a> {
    /// # Safety
    /// The pointers of each tensor are NULL or valid for what its other fields say, for `'a`.
    pub(crate) unsafe fn new(tensors: &'a [RawTensor]) -> Self {
        Self(tensors)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A tensor in any memory.
    pub(crate) fn get(&self, index: usize) -> Result<Tensor<'a>> {
        // SAFETY: promised when the list was made.
        unsafe { Tensor::from_raw(&self.0[index]) }
    }

    /// See [`RawTensor::fits`].
    #[inline]
    pub(crate) fn fits(&self, index: usize, spec: &TensorSpec) -> Option<*mut u8> {
        // SAFETY: promised when the list was made.
        unsafe { self.0[index].fits(spec) }
    }
}

/// Reads an array of a C caller.
///
/// # Safety
/// `start` is NULL or points to `len` numbers that live for `'a`.
unsafe fn extents<'a>(start: *const i64, len: usize) -> Option<&'a [i64]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: not NULL here; the rest is the caller's promise.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start, len) })
}

impl<'a> Tensor<'a> {
    /// A row-major tensor over a slice.
    ///
    /// # Errors
    /// `ShapeMismatch` if the shape does not have as many elements as the slice.
    pub fn new<T: Element>(data: &'a [T], shape: &'a [i64]) -> Result<Self> {
        if shape.iter().any(|&extent| extent < 0) || layout::count(shape) != Some(data.len()) {
            let (text, len) = (layout::text_of(T::DTYPE, shape), data.len());
            return Err(fail!(
                ShapeMismatch,
                "a slice of {len} elements cannot be viewed as {text}"
            ));
        }
        Ok(Self {
            data: data.as_ptr().cast(),
            dtype: T::DTYPE,
            memory: Memory::Host,
            shape: Shape::Borrowed(shape),
            strides: None,
            life: PhantomData,
        })
    }

    /// Checks a tensor of the C interface.
    ///
    /// # Safety
    /// The pointers are NULL or valid for what the other fields say, for `'a`.
    unsafe fn from_raw(raw: &RawTensor) -> Result<Self> {
        let (dtype, memory) = (raw.dtype()?, raw.memory()?);
        let Ok(ndim) = usize::try_from(raw.ndim) else {
            return Err(fail!(InvalidArgument, "has the negative ndim {}", raw.ndim));
        };
        // SAFETY: the caller's promise.
        let (shape, strides) = unsafe { (extents(raw.shape, ndim), extents(raw.strides, ndim)) };
        let Some(shape) = shape else {
            return Err(fail!(InvalidArgument, "has ndim {ndim} and a NULL shape"));
        };
        if let Some(extent) = shape.iter().find(|&&extent| extent < 0) {
            return Err(fail!(InvalidArgument, "has the negative extent {extent}"));
        }
        let strides = strides.filter(|strides| !layout::is_row_major(shape, strides));
        let offset = isize::try_from(raw.byte_offset).ok().map(isize::unsigned_abs);
        let Some(offset) = offset.filter(|&offset| raw.data.addr().checked_add(offset).is_some())
        else {
            return Err(fail!(
                InvalidArgument,
                "has the byte_offset {}, which leads out of the address space",
                raw.byte_offset
            ));
        };
        let data = raw.data.cast_const().wrapping_add(offset);
        let shape = Shape::Borrowed(shape);
        let tensor = Self { data, dtype, memory, shape, strides, life: PhantomData };
        tensor.check_memory(raw.data.is_null())?;
        Ok(tensor)
    }

    /// A plain array in the memory of a CUDA device.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(address: usize, dtype: DType, device: u16, shape: &'a [i64]) -> Self {
        let mut tensor = Self::of_array(ptr::without_provenance(address), dtype, shape);
        tensor.memory = Memory::Device(device);
        tensor
    }

    /// The tensor, if the host may touch its elements.
    pub(crate) fn in_host_memory(self) -> Result<Self> {
        if self.memory == Memory::Host { Ok(self) } else { Err(in_device_memory()) }
    }

    fn check_memory(&self, null: bool) -> Result<()> {
        let align = self.dtype.align();
        let Some(count) = layout::count(self.shape()) else {
            return Err(fail!(InvalidArgument, "{self:?} has more elements than memory can hold"));
        };
        if count == 0 {
            return Ok(());
        }
        if null {
            return Err(fail!(InvalidArgument, "{self:?} has elements and its data is NULL"));
        }
        if !self.data.addr().is_multiple_of(align) {
            return Err(fail!(
                InvalidArgument,
                "{self:?} is misaligned: address {:p} is not a multiple of {align} bytes",
                self.data
            ));
        }
        if self.byte_range().is_none() {
            return Err(fail!(InvalidArgument, "{self:?} reaches beyond the address space"));
        }
        Ok(())
    }

    /// The first and one past the last byte that the tensor touches; None beyond the address space.
    fn byte_range(&self) -> Option<(usize, usize)> {
        let size = i64::try_from(self.dtype.size()).ok()?;
        let (low, high) = match self.strides {
            Some(strides) => layout::reach(self.shape(), strides)?,
            None => (0, i64::try_from(layout::count(self.shape())?).ok()?.checked_sub(1)?),
        };
        let low = isize::try_from(low.checked_mul(size)?).ok()?;
        let high = isize::try_from(high.checked_add(1)?.checked_mul(size)?).ok()?;
        let start = self.data.addr();
        Some((start.checked_add_signed(low)?, start.checked_add_signed(high)?))
    }

    /// The data, if this is a plain array in host memory of a dtype and shape.
    #[inline]
    pub(crate) fn fits(&self, spec: &TensorSpec) -> Option<*mut u8> {
        let plain =
            self.dtype == spec.dtype() && self.memory == Memory::Host && self.strides.is_none();
        (plain && spec.has_shape(self.shape())).then_some(self.data.cast_mut())
    }

    /// Calls `visit` with each element of an i64 tensor, in row-major order.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "extents and offsets were found to fit in memory when the view was made"
    )]
    pub(crate) fn for_each_i64(&self, mut visit: impl FnMut(i64)) {
        if let Some(plain) = self.as_slice::<i64>() {
            return plain.iter().for_each(|&number| visit(number));
        }
        let Some(strides) = self.strides.filter(|_| self.dtype == DType::I64) else {
            return;
        };
        let start = self.data.cast::<i64>();
        for row in layout::RowWalk::new(self.shape(), strides, 0, self.count()) {
            for i in 0..row.len as i64 {
                let offset = (row.offset + i * row.stride) as isize;
                // SAFETY: every way to make a Tensor checks that its elements are there, aligned.
                visit(unsafe { start.offset(offset).read() });
            }
        }
    }

    /// Whether two of its elements share an address, so that it cannot be an out.
    pub(crate) fn overlaps_itself(&self) -> bool {
        self.strides.is_some_and(|strides| layout::overlaps_itself(self.shape(), strides))
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extent of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        match &self.shape {
            Shape::Slice(extent) => extent,
            Shape::Borrowed(extents) => extents,
        }
    }

    /// The elements in row-major order, if they are of this type, have no gaps, and are in host
    /// memory.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        if self.dtype != T::DTYPE || self.memory != Memory::Host || self.strides.is_some() {
            return None;
        }
        let count = layout::count(self.shape())?;
        if count == 0 {
            return Some(&[]);
        }
        // SAFETY: every way to make a Tensor checks or guarantees that `count` aligned elements
        // of the dtype are there for 'a; the host may touch them.
        Some(unsafe { slice::from_raw_parts(self.data.cast(), count) })
    }

    /// The merged sum of an operation, for its updater: a row-major array of the key's elements.
    pub(crate) fn of_array(data: *const u8, dtype: DType, shape: &'a [i64]) -> Self {
        let (shape, memory) = (Shape::Borrowed(shape), Memory::Host);
        Self { data, dtype, memory, shape, strides: None, life: PhantomData }
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> usize {
        // Never None: every way to make a Tensor has counted the elements.
        layout::count(self.shape()).unwrap_or(usize::MAX)
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.data
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    /// The number of the CUDA device in whose memory the elements are; None in host memory. Updaters
    /// of a store with `updater_memory=device` get such tensors.
    #[must_use]
    pub fn device(&self) -> Option<u16> {
        self.memory.device()
    }
}

impl<'a> TensorMut<'a> {
    /// A plain array in the memory of a CUDA device.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(address: usize, dtype: DType, device: u16, shape: &'a [i64]) -> Self {
        Self { tensor: Tensor::on_device(address, dtype, device, shape), life: PhantomData }
    }

    /// A row-major tensor over a slice.
    ///
    /// # Errors
    /// `ShapeMismatch` if the shape does not have as many elements as the slice.
    pub fn new<T: Element>(data: &'a mut [T], shape: &'a [i64]) -> Result<Self> {
        let start = data.as_mut_ptr();
        let mut tensor = Tensor::new(data, shape)?;
        tensor.data = start.cast();
        Ok(Self { tensor, life: PhantomData })
    }

    /// A stored value, for its updater.
    pub(crate) fn of_buffer(buffer: &'a mut Buffer, dtype: DType, shape: &'a [i64]) -> Self {
        Self { tensor: Tensor::of_array(buffer.as_ptr(), dtype, shape), life: PhantomData }
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    /// The extent of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        self.tensor.shape()
    }

    /// The elements in row-major order, if they are of this type and have no gaps.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        self.tensor.as_slice()
    }

    /// The elements in row-major order, to change them, if they are of this type without gaps.
    #[must_use]
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        let (start, len) = {
            let elements = self.tensor.as_slice::<T>()?;
            (self.tensor.data.cast_mut().cast::<T>(), elements.len())
        };
        if len == 0 {
            return Some(&mut []);
        }
        // SAFETY: `as_slice` has checked type and layout; `self` borrows the memory uniquely.
        Some(unsafe { slice::from_raw_parts_mut(start, len) })
    }

    pub(crate) fn as_tensor(&self) -> &Tensor<'a> {
        &self.tensor
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&layout::text_of(self.dtype, self.shape()))
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

#[allow(clippy::cast_possible_wrap, reason = "a slice has at most isize::MAX elements")]
impl<'a, T: Element> From<&'a [T]> for Tensor<'a> {
    fn from(data: &'a [T]) -> Self {
        let shape = Shape::Slice([data.len() as i64]);
        let (data, memory) = (data.as_ptr().cast(), Memory::Host);
        Self { data, dtype: T::DTYPE, memory, shape, strides: None, life: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for TensorMut<'a> {
    fn from(data: &'a mut [T]) -> Self {
        let start = data.as_mut_ptr();
        let mut tensor = Tensor::from(&*data);
        tensor.data = start.cast();
        Self { tensor, life: PhantomData }
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for Tensor<'a> {
    fn from(data: &'a Vec<T>) -> Self {
        data.as_slice().into()
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for TensorMut<'a> {
    fn from(data: &'a mut Vec<T>) -> Self {
        data.as_mut_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for Tensor<'a> {
    fn from(data: &'a [T; N]) -> Self {
        data.as_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for TensorMut<'a> {
    fn from(data: &'a mut [T; N]) -> Self {
        data.as_mut_slice().into()
    }
}

impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> From<&'a ArrayBase<S, D>> for Tensor<'a> {
    fn from(array: &'a ArrayBase<S, D>) -> Self {
        // SAFETY: ndarray's extents are below isize::MAX, and isize is 64 bits wide (asserted
        // below), so usize, isize and i64 have one representation; both borrow from the array.
        let (shape, strides) = unsafe {
            let (shape, strides) = (array.shape(), array.strides());
            (
                slice::from_raw_parts(shape.as_ptr().cast::<i64>(), shape.len()),
                slice::from_raw_parts(strides.as_ptr().cast::<i64>(), strides.len()),
            )
        };
        Self {
            data: array.as_ptr().cast(),
            dtype: T::DTYPE,
            memory: Memory::Host,
            shape: Shape::Borrowed(shape),
            strides: (!layout::is_row_major(shape, strides)).then_some(strides),
            life: PhantomData,
        }
    }
}

impl<'a, T: Element, S: DataMut<Elem = T>, D: Dimension> From<&'a mut ArrayBase<S, D>>
    for TensorMut<'a>
{
    fn from(array: &'a mut ArrayBase<S, D>) -> Self {
        let start = array.as_mut_ptr();
        let mut tensor = Tensor::from(&*array);
        tensor.data = start.cast_const().cast();
        Self { tensor, life: PhantomData }
    }
}

const _: () = assert!(size_of::<usize>() == 8, "extents and strides of ndarray are read as i64");

/// The memory of a tensor during an operation: no lifetime, because an operation with a ticket
/// outlives the call that lent it.
/// The holder of a `Lent` must drop it when the loan ends: before the call returns, or before the
/// operation's ticket completes. The shape is the key's, which every tensor of an operation has
/// been compared with.
/// operation has been compared with.
pub(crate) struct Lent {
    data: *mut u8,
    dtype: DType,
    memory: Memory,
    strides: Option<Box<[i64]>>,
}

// SAFETY: the memory is lent to the operation, on whichever thread it runs.
unsafe impl Send for Lent {}
// SAFETY: the memory is lent to the operation; its threads write disjoint parts of an out, or read
// a value.
unsafe impl Sync for Lent {}

impl Lent {
    pub(crate) fn new(tensor: &Tensor<'_>) -> Self {
        Self {
            data: tensor.data.cast_mut(),
            dtype: tensor.dtype,
            memory: tensor.memory,
            strides: tensor.strides.map(Into::into),
        }
    }

    pub(crate) fn plain(data: *mut u8, dtype: DType) -> Self {
        Self { data, dtype, memory: Memory::Host, strides: None }
    }

    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    /// None for row-major without gaps.
    pub(crate) fn strides(&self) -> Option<&[i64]> {
        self.strides.as_deref()
    }

    /// Whether it can be used as an array of this dtype as it is.
    pub(crate) fn is_plain(&self, dtype: DType) -> bool {
        self.dtype == dtype && self.strides.is_none()
    }

    /// The first and one past the last byte that it touches, for a key's shape with elements.
    pub(crate) fn byte_range(&self, shape: &[i64]) -> (usize, usize) {
        let view = Tensor {
            data: self.data,
            dtype: self.dtype,
            memory: self.memory,
            shape: Shape::Borrowed(shape),
            strides: self.strides(),
            life: PhantomData,
        };
        // None is impossible: the view was checked when it was made.
        view.byte_range().unwrap_or((0, usize::MAX))
    }
}
