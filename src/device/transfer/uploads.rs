//! Arrays on their way to a device: the host fills a piece, and queues its copies when it is full.

use smallvec::SmallVec;

use super::{IN_FLIGHT, Wait, piece_bytes};
use crate::device::context::Device;
use crate::device::mark::Mark;
use crate::device::queue::CallQueue;
use crate::device::reuse::pinned::PinnedBlock;
use crate::error::Result;
use crate::tensor::{DType, LINE, Lent};

/// A part of the piece that is being filled. It is valid until the next one is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    offset: usize,
    bytes: usize,
}

/// A copy from the piece that is being filled.
struct PieceCopy {
    room: Room,
    address: u64,
}

/// The uploads of a call to one device, through a few blocks in turn.
#[derive(Default)]
pub(crate) struct Uploads {
    blocks: SmallVec<[PinnedBlock; IN_FLIGHT]>,
    /// The number of the piece that is being filled, and its bytes that are in use.
    piece: usize,
    used: usize,
    copies: Vec<PieceCopy>,
}

impl Uploads {
    /// Takes pinned memory for arrays of so many bytes in all, each a multiple of a cache line: for all
    /// of them, or for as many pieces as may be in flight.
    pub(crate) fn reserve(&mut self, device: &'static Device, bytes: usize) -> Result<()> {
        let piece = piece_bytes();
        if bytes == 0 || !self.blocks.is_empty() {
            return Ok(());
        }
        self.blocks.push(PinnedBlock::take(device, bytes.min(piece))?);
        for _ in 1..bytes.div_ceil(piece).min(IN_FLIGHT) {
            self.blocks.push(PinnedBlock::take(device, piece)?);
        }
        Ok(())
    }

    fn current(&mut self) -> Option<&mut PinnedBlock> {
        self.blocks.get_mut(self.piece % IN_FLIGHT)
    }

    /// Takes so many bytes of a piece, at most a whole one. A piece that is full is queued; waits for
    /// the one before it when both are.
    pub(crate) fn room(&mut self, queue: &CallQueue, bytes: usize, wait: Wait<'_>) -> Result<Room> {
        debug_assert!(bytes <= piece_bytes());
        self.reserve(queue.device, bytes.max(1).next_multiple_of(LINE))?;
        let mut offset = self.used.next_multiple_of(LINE);
        let capacity = self.current().map_or(0, |block| block.bytes().min(piece_bytes()));
        if offset + bytes > capacity {
            self.advance(queue, wait)?;
            offset = 0;
        }
        self.used = offset + bytes;
        Ok(Room { offset, bytes })
    }

    /// Queues the copies of a full piece, and goes on to the next.
    fn advance(&mut self, queue: &CallQueue, wait: Wait<'_>) -> Result<()> {
        self.queue(queue)?;
        self.finish(&queue.mark()?);
        (self.piece, self.used) = (self.piece + 1, 0);
        let Some(next) = self.current() else {
            self.blocks.push(PinnedBlock::take(queue.device, piece_bytes())?);
            return Ok(());
        };
        next.wait(wait)?;
        if next.bytes() < piece_bytes() {
            *next = PinnedBlock::take(queue.device, piece_bytes())?;
        }
        Ok(())
    }

    /// The memory of a part.
    pub(crate) fn lent(&mut self, room: Room, dtype: DType) -> Lent {
        let block = self.current().expect("there is room in a block only");
        block.lent(room.offset, dtype)
    }

    /// Adds a copy of a part, which has been filled, to device memory.
    pub(crate) fn copy(&mut self, room: Room, address: u64) {
        self.copies.push(PieceCopy { room, address });
    }

    /// Whether there is nothing that has not been queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Whether pieces have been queued before all uploads are known: the device uses their memory.
    pub(crate) fn has_begun(&self) -> bool {
        self.piece > 0
    }

    /// Queues the copies of the piece that is being filled.
    pub(crate) fn queue(&mut self, queue: &CallQueue) -> Result<()> {
        let Some(block) = self.blocks.get(self.piece % IN_FLIGHT) else { return Ok(()) };
        self.copies.drain(..).try_for_each(|PieceCopy { room: Room { offset, bytes }, address }| {
            block.upload(offset..offset + bytes, address, &queue.stream)
        })
    }

    /// Notes the mark behind the last piece.
    pub(crate) fn finish(&mut self, mark: &Mark) {
        self.current().into_iter().for_each(|block| block.keep_until(mark));
    }

    /// Gives the blocks back.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.copies.clear();
        (self.piece, self.used) = (0, 0);
    }
}
