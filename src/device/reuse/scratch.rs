//! Blocks of device memory for the work of single calls. A stream uses a block again at once, in
//! stream order; other streams do when the mark behind its last use has passed.

use std::sync::Mutex;

use crate::device::context::{Device, lock};
use crate::device::mark::Mark;
use crate::device::memory::Span;
use crate::device::stream::Stream;
use crate::error::{ErrorKind, Result};

/// Minimum bytes of a block.
const LEAST: usize = 4096;

/// Maximum bytes of the free blocks of a device. The rest goes back to its memory pool.
const MOST_FREE: usize = 64 << 20;

/// A block that no call holds, with the mark behind its last use.
struct FreeScratch {
    device: &'static Device,
    span: Span,
    mark: Mark,
}

/// The free blocks of all devices, the last one used at the end.
static FREE: Mutex<Vec<FreeScratch>> = Mutex::new(Vec::new());

impl FreeScratch {
    fn fits(&self, device: &Device, bytes: usize) -> bool {
        self.device.ordinal == device.ordinal && self.span.bytes() == bytes
    }

    fn has_passed(&self) -> bool {
        self.mark.has_passed().unwrap_or(false)
    }
}

/// A block that a call holds.
pub(crate) struct ScratchBlock {
    device: &'static Device,
    span: Option<Span>,
    /// Behind its use by an earlier call; None if it is new.
    mark: Option<Mark>,
    is_queued: bool,
}

impl ScratchBlock {
    /// A block of at least so many bytes, which work on the stream may use.
    pub(crate) fn take(device: &'static Device, bytes: usize, stream: &Stream) -> Result<Self> {
        // Beyond the bound nothing is kept, and a power of two wastes much.
        let is_kept = (1..=MOST_FREE).contains(&bytes);
        let wanted = if is_kept { bytes.max(LEAST).next_power_of_two() } else { bytes };
        let found = is_kept.then(|| find(device, wanted, stream)).flatten();
        let (span, mark) = match found {
            Some(FreeScratch { span, mark, .. }) => (span, Some(mark)),
            None => (allocate(device, wanted, stream)?, None),
        };
        Ok(Self { device, span: Some(span), mark, is_queued: false })
    }

    pub(crate) fn address(&self) -> u64 {
        self.span.as_ref().map_or(0, Span::address)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.span.as_ref().map_or(0, Span::bytes)
    }

    /// Notes that work on the block is being queued: only a mark behind it ends its use.
    pub(crate) fn note_queued(&mut self) {
        self.is_queued = true;
    }

    /// Notes the mark behind its use so far; it may be used again on the same stream.
    pub(super) fn rest(&mut self, mark: &Mark) {
        self.mark = Some(mark.clone());
        self.is_queued = false;
    }

    /// Leaves the block for later calls, behind a mark at the end of a stream.
    pub(crate) fn give(mut self, mark: &Mark, stream: &Stream) {
        if let Some(span) = self.span.take().filter(|span| span.bytes() > 0) {
            keep(FreeScratch { device: self.device, span, mark: mark.clone() }, stream);
        }
    }
}

impl Drop for ScratchBlock {
    fn drop(&mut self) {
        match (self.span.take(), self.mark.take()) {
            // Queueing failed on the way: the device may still use the block.
            (Some(span), _) if self.is_queued => std::mem::forget(span),
            (Some(span), Some(mark)) => {
                lock(&FREE).push(FreeScratch { device: self.device, span, mark });
            }
            // A new block without a use is freed behind its allocation.
            (span, _) => drop(span),
        }
    }
}

/// Takes a free block of so many bytes: the last one that the same stream has used, else one whose
/// last use has passed.
fn find(device: &Device, bytes: usize, stream: &Stream) -> Option<FreeScratch> {
    let mut free = lock(&FREE);
    let position = |is_usable: &dyn Fn(&FreeScratch) -> bool| {
        free.iter().rposition(|block| block.fits(device, bytes) && is_usable(block))
    };
    let found = position(&|block| block.mark.is_of(stream));
    let found = found.or_else(|| position(&FreeScratch::has_passed));
    found.map(|at| free.remove(at))
}

/// Keeps a free block. While the device has too many free bytes, older blocks that have passed are
/// freed, else this one; each behind the end of the stream.
fn keep(block: FreeScratch, stream: &Stream) {
    let mut free = lock(&FREE);
    let ordinal = block.device.ordinal;
    let is_here = |other: &&FreeScratch| other.device.ordinal == ordinal;
    loop {
        let held = free.iter().filter(is_here).map(|it| it.span.bytes()).sum::<usize>();
        if held + block.span.bytes() <= MOST_FREE {
            return free.push(block);
        }
        let passed = free.iter().position(|it| is_here(&it) && it.has_passed());
        match passed.filter(|_| block.span.bytes() <= MOST_FREE) {
            Some(at) => free.remove(at).span.release(stream),
            None => return block.span.release(stream),
        }
    }
}

/// Allocates device memory; when there is none, frees the blocks that no call holds, and tries again.
pub(in crate::device) fn allocate(
    device: &'static Device,
    bytes: usize,
    stream: &Stream,
) -> Result<Span> {
    let made = Span::allocate(device, bytes, stream);
    if made.as_ref().is_err_and(|error| error.kind() == ErrorKind::OutOfMemory)
        && free_all(device, stream)?
    {
        return Span::allocate(device, bytes, stream);
    }
    made
}

/// Frees the blocks that no call holds, each behind its last use; returns whether there was one.
fn free_all(device: &Device, stream: &Stream) -> Result<bool> {
    let mut any = false;
    let mut free = lock(&FREE);
    while let Some(at) = free.iter().position(|it| it.device.ordinal == device.ordinal) {
        let FreeScratch { span, mark, .. } = free.remove(at);
        mark.order(stream)?;
        span.release(stream);
        any = true;
    }
    Ok(any)
}
