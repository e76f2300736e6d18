//! Arrays on their way from a device: one after the other, cut into pieces. As many pieces are queued at
//! first as there are blocks, and another one whenever the host has read one.

use smallvec::SmallVec;

use super::{IN_FLIGHT, Wait, piece_bytes};
use crate::device::context::Device;
use crate::device::mark::Mark;
use crate::device::queue::CallQueue;
use crate::device::reuse::pinned::PinnedBlock;
use crate::error::Result;
use crate::tensor::{DType, LINE, Lent};

/// An array in device memory.
#[derive(Clone, Copy)]
struct Source {
    address: u64,
    bytes: usize,
    /// Where it begins in all pieces together.
    start: usize,
}

impl Source {
    fn end(&self) -> usize {
        self.start + self.bytes
    }
}

/// The downloads of a call from one device, through a few blocks in turn. Arrays are read in the order in
/// which they were added.
#[derive(Default)]
pub(crate) struct Downloads {
    sources: Vec<Source>,
    /// The end of the last one.
    end: usize,
    blocks: SmallVec<[PinnedBlock; IN_FLIGHT]>,
    /// Pieces that have been queued, and the first array that is not among them as a whole.
    queued: usize,
    first: usize,
    /// Pieces that have arrived.
    arrived: usize,
}

impl Downloads {
    /// Adds an array; returns its number. One that fits into a piece lies in one piece.
    pub(crate) fn add(&mut self, address: u64, bytes: usize) -> usize {
        let (piece, mut start) = (piece_bytes(), self.end.next_multiple_of(LINE));
        if start % piece + bytes > piece {
            start = start.next_multiple_of(piece);
        }
        self.end = start + bytes;
        self.sources.push(Source { address, bytes, start });
        self.sources.len() - 1
    }

    fn pieces(&self) -> usize {
        self.end.div_ceil(piece_bytes())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether all pieces have been queued.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued == self.pieces()
    }

    /// Takes pinned memory. No array is added after it.
    pub(crate) fn prepare(&mut self, device: &'static Device) -> Result<()> {
        let piece = piece_bytes();
        for number in self.blocks.len()..self.pieces().min(IN_FLIGHT) {
            let bytes = (self.end - number * piece).min(piece);
            self.blocks.push(PinnedBlock::take(device, bytes)?);
        }
        Ok(())
    }

    /// Queues the first pieces.
    pub(crate) fn queue(&mut self, queue: &CallQueue) -> Result<()> {
        let first = self.pieces().min(IN_FLIGHT);
        (self.queued..first).try_for_each(|_| self.queue_piece(queue))
    }

    /// Queues the next piece, whose block has been read.
    fn queue_piece(&mut self, queue: &CallQueue) -> Result<()> {
        let start = self.queued * piece_bytes();
        let end = start + piece_bytes();
        let is_only = self.pieces() == 1;
        let block = &mut self.blocks[self.queued % IN_FLIGHT];
        self.queued += 1;
        while let Some(source) = self.sources.get(self.first).filter(|it| it.start < end) {
            let part = source.start.max(start)..source.end().min(end);
            let from = source.address + (part.start - source.start) as u64;
            block.download(part.start - start..part.end - start, from, &queue.stream)?;
            if source.end() > end {
                break;
            }
            self.first += 1;
        }
        if !is_only {
            block.keep_until(&queue.mark()?);
        }
        Ok(())
    }

    /// Notes the mark behind the only piece.
    pub(crate) fn finish(&mut self, mark: &Mark) {
        if let [only] = &mut self.blocks[..] {
            only.keep_until(mark);
        }
    }

    /// Waits for an array, and hands its parts over, each with its offset in the array.
    pub(crate) fn fetch(
        &mut self,
        index: usize,
        queue: &CallQueue,
        wait: Wait<'_>,
        mut take: impl FnMut(usize, Lent, usize) -> Result<()>,
    ) -> Result<()> {
        let (piece, source) = (piece_bytes(), self.sources[index]);
        let mut done = 0;
        while done < source.bytes {
            let number = (source.start + done) / piece;
            let offset = (source.start + done) % piece;
            let bytes = (piece - offset).min(source.bytes - done);
            self.await_piece(number, queue, wait)?;
            take(done, self.blocks[number % IN_FLIGHT].lent(offset, DType::U8), bytes)?;
            done += bytes;
            let next = self.sources.get(index + 1).map_or(self.end, |it| it.start);
            let is_read = done < source.bytes || next >= (number + 1) * piece;
            if is_read && !self.is_queued() {
                self.queue_piece(queue)?;
            }
        }
        Ok(())
    }

    /// Waits until a piece has arrived; those before it have been read.
    fn await_piece(&mut self, number: usize, queue: &CallQueue, wait: Wait<'_>) -> Result<()> {
        while self.queued <= number {
            self.queue_piece(queue)?;
        }
        if self.arrived <= number {
            self.blocks[number % IN_FLIGHT].wait(wait)?;
            self.arrived = number + 1;
        }
        Ok(())
    }

    /// Waits for an array, and gives it where it lies in a block until all is cleared. None if it is in
    /// parts, or its block will be used again.
    pub(crate) fn in_place(
        &mut self,
        index: usize,
        queue: &CallQueue,
        wait: Wait<'_>,
        dtype: DType,
    ) -> Result<Option<Lent>> {
        let (piece, Source { start, bytes, .. }) = (piece_bytes(), self.sources[index]);
        if bytes == 0 || bytes > piece || self.pieces() > IN_FLIGHT {
            return Ok(None);
        }
        self.await_piece(start / piece, queue, wait)?;
        Ok(Some(self.blocks[start / piece].lent(start % piece, dtype)))
    }

    /// Gives the blocks back.
    pub(crate) fn clear(&mut self) {
        self.sources.clear();
        self.blocks.clear();
        (self.end, self.queued, self.first, self.arrived) = (0, 0, 0, 0);
    }
}
