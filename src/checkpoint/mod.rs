//! Checkpoint files: safetensors with checksums, replaced as a whole or not at all. Also called:
//! atomic file replacement, snapshots.
//!
//! A file is 8 bytes with the length of its header, the header in JSON, and the bytes of the
//! tensors in the header's order, without gaps. The last tensor has the checksums of everything
//! before it. What the other tensors stand for is not known here.

mod foreign;
mod header;
mod inspect;
mod name;
mod reader;
mod replacement;
mod writer;

pub(crate) use foreign::ForeignTensors;
pub(crate) use header::{FileHeader, TensorEntry};
pub use inspect::{InspectedTensor, Inspection, TensorState};
pub(crate) use name::{KeyName, part_name, split_part};
pub(crate) use reader::FileReader;
#[cfg(feature = "dist")]
pub(crate) use replacement::Replacement;
pub(crate) use writer::FileWriter;

/// The tensor of checksums: a CRC-32C of the header, then one of each tensor before this one.
const CHECKSUM: &str = "#checksum";

/// Prefix of the names of padding tensors. They align each tensor to a multiple of its elements'
/// size: some readers map the file's memory as it is.
const PAD: &str = "#pad.";

/// Bytes that are checked and read or written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Size of the buffer that joins small tensors; larger ones bypass it.
const BUFFER_BYTES: usize = 256 << 10;
