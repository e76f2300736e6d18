//! Device memory for one call.

use std::mem::ManuallyDrop;

use crate::device::{CallQueue, Span, Stream};
use crate::error::Result;

/// Borders of arrays in memory that is shared: as those of allocations.
const ALIGN: usize = 256;

/// The most that is allocated for more than one array.
const SHARED: usize = 1 << 20;

/// Memory of a device for one call, and how much of the last is in use.
#[derive(Default)]
pub(super) struct CallSpans {
    spans: Vec<Span>,
    used: usize,
}

impl CallSpans {
    /// The address of so many bytes.
    pub(super) fn take(&mut self, queue: &CallQueue, bytes: usize) -> Result<u64> {
        let (last, mut start) = (self.spans.last(), self.used.next_multiple_of(ALIGN));
        if last.is_none_or(|span| start + bytes > span.bytes()) {
            // The keys of a list share larger and larger ones.
            let more = last.map_or(0, |span| (2 * span.bytes()).min(SHARED));
            self.spans.push(Span::allocate(queue.device, bytes.max(more), &queue.stream)?);
            start = 0;
        }
        self.used = start + bytes;
        Ok(self.spans.last().map_or(0, |span| span.address() + start as u64))
    }

    /// Takes all memory, for a time in which work on it is queued.
    pub(super) fn hold(&mut self) -> HeldSpans {
        HeldSpans(std::mem::take(&mut self.spans).into_iter().map(ManuallyDrop::new).collect())
    }
}

/// Memory that is freed by [`HeldSpans::release`] only: behind an error of queueing the device may
/// still use it.
pub(super) struct HeldSpans(Vec<ManuallyDrop<Span>>);

impl HeldSpans {
    /// Frees it behind what the stream has.
    pub(super) fn release(self, stream: &Stream) {
        self.0.into_iter().for_each(|span| ManuallyDrop::into_inner(span).release(stream));
    }
}
