//! Tensors: element types, checked views of borrowed memory, and owned buffers. Also called:
//! n-dimensional arrays.
#![allow(
    clippy::cast_ptr_alignment,
    reason = "views check the alignment of their elements when they are made"
)]
#![allow(unsafe_code, reason = "views over foreign memory are made and read here")]

mod array;
mod buffer;
#[cfg(feature = "cuda")]
mod device_slice;
mod dtype;
mod layout;
mod memory;
mod overlap;
mod place;
mod spec;
mod view;

pub(crate) use array::Array;
#[cfg(feature = "dist")]
pub(crate) use buffer::INSIDE;
pub(crate) use buffer::{Buffer, LINE, PageOffset};
#[cfg(feature = "cuda")]
pub use device_slice::DeviceSlice;
pub use dtype::{DType, Element};
pub(crate) use layout::{count as element_count, text_of};
pub(crate) use memory::Memory;
pub(crate) use overlap::{CallTensors, OverlapTensor, Overlaps, Position, Stop, TimeLimit};
pub(crate) use place::Place;
pub(crate) use spec::TensorSpec;
pub(crate) use view::{Lent, RawTensor, RawTensors};
pub use view::{Tensor, TensorMut};
