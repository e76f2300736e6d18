//! Tensors: element types, checked views of memory that somebody else owns, and our own memory.
#![allow(unsafe_code, reason = "views over foreign memory are made and read here")]

mod array;
mod buffer;
mod dtype;
mod layout;
mod overlap;
mod view;

pub(crate) use array::Array;
pub(crate) use buffer::Buffer;
pub use dtype::{DType, Element};
pub(crate) use layout::text_of;
pub(crate) use overlap::{Overlaps, Party, Position};
pub use view::{Tensor, TensorMut};
pub(crate) use view::{Lent, RawTensor};
