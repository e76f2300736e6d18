//! Queries of a pull on the wire, and the codec number of a push of rows.

use std::sync::Arc;

use crate::error::Result;
use crate::runtime::{Block, BlockPool, Bytes};
use kvstore_protocol::Placement;

/// Codec number on the wire of a push of rows.
pub(crate) const ROWS: u16 = 2;

/// First byte of a query: rows, the whole state, the residual that a worker deposited, or the value even if
/// the last round was not merged; digests of the value and of the state; who took part in the last round.
pub(crate) const WANT_ROWS: u8 = 1;
pub(crate) const WANT_STATE: u8 = 2;
pub(crate) const WANT_UNSENT: u8 = 3;
pub(crate) const WANT_VALUE: u8 = 4;
pub(crate) const WANT_DIGEST: u8 = 5;
pub(crate) const WANT_ROUND: u8 = 6;

/// Queries of some slices of a key, which `fill` adds with the numbers of these slices, ascending.
pub(crate) fn queries(
    place: &Placement,
    blocks: &Arc<BlockPool>,
    fill: impl FnOnce(&mut Vec<Block>, &mut Vec<u32>) -> Result<()>,
) -> Result<Bytes> {
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    blocks.queries((size(place.spec.bytes().unwrap_or(0)), size(place.slice_bytes)), fill)
}

/// The same query of the first slices of a key.
pub(crate) fn query_of_first(
    count: usize,
    wanted: &[u8],
    place: &Placement,
    blocks: &Arc<BlockPool>,
) -> Result<Bytes> {
    let query = blocks.join(&[wanted])?;
    queries(place, blocks, |slices, numbers| {
        numbers.extend((0..).take(count));
        slices.resize(numbers.len(), query);
        Ok(())
    })
}
