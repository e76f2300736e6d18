//! Device memory for one call.

use crate::device::{CallQueue, Mark, ScratchBlock, Stream};
use crate::error::Result;

/// Borders of arrays in memory that is shared: as those of allocations.
const ALIGN: usize = 256;

/// The most that is allocated for more than one array.
const SHARED: usize = 1 << 20;

/// Memory of a device for one call, and how much of the last is in use.
#[derive(Default)]
pub(super) struct CallSpans {
    blocks: Vec<ScratchBlock>,
    used: usize,
}

impl CallSpans {
    /// The address of so many bytes.
    pub(super) fn take(&mut self, queue: &CallQueue, bytes: usize) -> Result<u64> {
        let (last, mut start) = (self.blocks.last(), self.used.next_multiple_of(ALIGN));
        if last.is_none_or(|block| start + bytes > block.bytes()) {
            // The keys of a list share larger and larger ones.
            let more = last.map_or(0, |block| (2 * block.bytes()).min(SHARED));
            self.blocks.push(ScratchBlock::take(queue.device, bytes.max(more), &queue.stream)?);
            start = 0;
        }
        self.used = start + bytes;
        Ok(self.blocks.last().map_or(0, |block| block.address() + start as u64))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Notes that work on all of it is being queued: behind an error the device may still use it.
    pub(super) fn note_queued(&mut self) {
        self.blocks.iter_mut().for_each(ScratchBlock::note_queued);
    }

    /// Leaves all of it for later calls, behind a mark at the end of a stream.
    pub(super) fn give(&mut self, mark: &Mark, stream: &Stream) {
        self.blocks.drain(..).for_each(|block| block.give(mark, stream));
        self.used = 0;
    }

    /// Gives up what has not been used, and keeps the list.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.used = 0;
    }
}
