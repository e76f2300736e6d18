//! What work on a slice needs beside its state.

use std::sync::Arc;

use crate::local::Local;
use crate::local::merge::StepDigester;
use crate::local::table::Slot;
use crate::runtime::BlockPool;
use crate::tensor::{DType, Lent};

/// The slice as a key of its own, and the store and the memory of its server.
#[derive(Clone, Copy)]
pub(super) struct SliceContext<'a> {
    pub(super) slot: &'a Slot,
    pub(super) local: &'a Local,
    pub(super) blocks: &'a Arc<BlockPool>,
    /// Digests the merge of a round.
    pub(super) digester: Option<&'a StepDigester>,
}

/// A contribution as an array of the merge.
pub(super) fn lent(bytes: &[u8], dtype: DType) -> Lent {
    Lent::plain(bytes.as_ptr().cast_mut(), dtype)
}
