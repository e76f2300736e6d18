//! Copies between host memory and a device, in pieces that go through a few pinned blocks: while the
//! copies of some pieces run, the host fills or reads another one. Also called: multiple buffering. Large
//! arrays in pinned memory of the caller's are copied as they are.

mod direct;
mod downloads;
mod uploads;

use std::env;
use std::sync::OnceLock;

pub(crate) use direct::DirectCopies;
pub(crate) use downloads::Downloads;
pub(crate) use uploads::{Room, Uploads};

use super::mark::Mark;
use crate::error::Result;
use crate::tensor::LINE;

/// Maximum bytes of a piece: a copy takes some 75 us at 55 GB/s, beside which the start of a copy and of the
/// host's threads, about 10 us each, is small; of 64 MiB one sixteenth is copied without overlap.
const PIECE: usize = 4 << 20;

/// Pieces of one direction that a call has in flight at most: as many as it has pinned blocks. With three
/// the device has a copy queued behind the one that runs while the host works on the third.
const IN_FLIGHT: usize = 3;

/// How a call waits for a mark: with its deadline, and until it is cancelled.
pub(crate) type Wait<'a> = &'a dyn Fn(&Mark) -> Result<()>;

/// Maximum bytes of a piece, a multiple of a cache line. `KV_TEST_PIECE_BYTES`, which is read once,
/// makes pieces small, so that small arrays take several in tests.
pub(crate) fn piece_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    let read = || env::var("KV_TEST_PIECE_BYTES").ok()?.parse::<usize>().ok();
    *BYTES.get_or_init(|| read().unwrap_or(PIECE).clamp(LINE, PIECE).next_multiple_of(LINE))
}

/// Whether a copy of so many bytes waits for an earlier piece of its own.
pub(crate) fn takes_waits(bytes: usize) -> bool {
    bytes > IN_FLIGHT * piece_bytes()
}
