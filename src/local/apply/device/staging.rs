//! The work of a call on a device, collected before it is queued: copies, jobs, memory for both.

use smallvec::SmallVec;

use super::peers::PeerStaging;
use super::spans::CallSpans;
use crate::device::{CallQueue, JobList, KernelName, Mark, PinnedBlock, Spares, Stage};
use crate::error::Result;
use crate::local::apply::with_default_floats;
use crate::local::merge::Team;
use crate::local::table::Slot;
use crate::tensor::{Buffer, DType, Lent, Memory};

/// A copy between a pinned block and device memory.
struct StagedCopy {
    /// Which of the blocks.
    block: usize,
    address: u64,
    bytes: usize,
}

pub(super) struct Staging<'a> {
    pub(super) queue: &'a CallQueue,
    /// Of all devices of the call.
    queues: &'a [CallQueue],
    pub(super) jobs: JobList,
    lists: StagedLists,
    /// What other devices have to do for it.
    peers: SmallVec<[PeerStaging<'a>; 1]>,
}

/// The lists of a staging, whose memory later ones use.
#[derive(Default)]
struct StagedLists {
    /// Device memory for this call only.
    memory: CallSpans,
    blocks: Vec<PinnedBlock>,
    uploads: Vec<StagedCopy>,
    downloads: Vec<StagedCopy>,
}

thread_local! {
    static LISTS: Spares<StagedLists> = const { Spares::new() };
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let mut lists = std::mem::take(&mut self.lists);
        lists.memory.clear();
        lists.blocks.clear();
        lists.uploads.clear();
        lists.downloads.clear();
        Spares::put(&LISTS, lists);
    }
}

impl<'a> Staging<'a> {
    pub(super) fn new(queue: &'a CallQueue, queues: &'a [CallQueue]) -> Self {
        Self {
            queue,
            queues,
            jobs: JobList::default(),
            lists: Spares::take(&LISTS),
            peers: SmallVec::new(),
        }
    }

    /// Whether memory is that of the device of this staging.
    pub(super) fn is_own(&self, memory: Memory) -> bool {
        memory.device() == Some(self.queue.device.ordinal)
    }

    /// The part of another device of the call.
    fn peer(&mut self, memory: Memory) -> Option<&mut PeerStaging<'a>> {
        let other = memory.device().filter(|_| !self.is_own(memory))?;
        let queue = self.queues.iter().find(|queue| queue.device.ordinal == other)?;
        let known = self.peers.iter().position(|peer| std::ptr::eq(peer.queue, queue));
        let at = known.unwrap_or_else(|| {
            self.peers.push(PeerStaging::new(queue));
            self.peers.len() - 1
        });
        self.peers.get_mut(at)
    }

    /// Copies a plain array of a key to an out of another device.
    pub(super) fn send(&mut self, slot: &Slot, own: u64, out: &Lent) -> Result<()> {
        self.peer(out.memory()).map_or(Ok(()), |peer| peer.send(slot, own, out))
    }

    /// The address of device memory for this call.
    pub(super) fn span(&mut self, bytes: usize) -> Result<u64> {
        self.lists.memory.take(self.queue, bytes)
    }

    /// A new pinned block, by its number.
    pub(super) fn block(&mut self, bytes: usize) -> Result<usize> {
        self.lists.blocks.push(PinnedBlock::take(self.queue.device, bytes)?);
        Ok(self.lists.blocks.len() - 1)
    }

    /// The content of a block.
    pub(super) fn content(&self, block: usize, dtype: DType) -> Lent {
        self.lists.blocks[block].lent(dtype)
    }

    /// A copy of the first bytes of a block.
    pub(super) fn copy(&self, block: usize, bytes: usize) -> Result<Buffer> {
        let mut buffer = Buffer::zeroed(bytes, false)?;
        let content = self.content(block, DType::U8).array();
        buffer.bytes_mut().copy_from_slice(content.slice::<u8>(&(0..bytes)));
        Ok(buffer)
    }

    pub(super) fn write(&mut self, block: usize, bytes: &[u8]) {
        self.lists.blocks[block].write(bytes);
    }

    pub(super) fn upload(&mut self, block: usize, address: u64, bytes: usize) {
        self.lists.uploads.push(StagedCopy { block, address, bytes });
    }

    pub(super) fn download(&mut self, block: usize, address: u64, bytes: usize) {
        self.lists.downloads.push(StagedCopy { block, address, bytes });
    }

    /// The address of a plain array on the device with a value of a key.
    pub(super) fn value(&mut self, team: Team, slot: &Slot, value: &Lent) -> Result<u64> {
        let bytes = slot.bytes();
        if value.memory() == Memory::Host {
            let (block, address) = (self.block(bytes)?, self.span(bytes)?);
            let to = self.content(block, slot.dtype).array();
            with_default_floats(|| team.gather_value(slot, value, to))?;
            self.upload(block, address, bytes);
            return Ok(address);
        }
        let address = value.data().addr() as u64;
        if !self.is_own(value.memory()) {
            let own = self.span(bytes)?;
            let peer = self.peer(value.memory());
            peer.map_or(Ok(()), |peer| peer.receive(slot, own, value))?;
            return Ok(own);
        }
        if value.is_plain(slot.dtype) {
            return Ok(address);
        }
        let to = self.span(bytes)?;
        let kernel = KernelName::copy(value.dtype(), slot.dtype);
        let from = (address, value.strides());
        self.jobs.copy(Stage::Gather, kernel, &slot.shape, from, (to, None))?;
        Ok(to)
    }

    /// The address of a plain array on the device with the sum of a key's values.
    pub(super) fn sum(&mut self, team: Team, slot: &Slot, values: &[Lent]) -> Result<u64> {
        let inputs = values.iter().map(|it| self.value(team, slot, it));
        let inputs = inputs.collect::<Result<SmallVec<[u64; 8]>>>()?;
        if let [only] = inputs[..] {
            return Ok(only);
        }
        let sum = self.span(slot.bytes())?;
        self.jobs.sum(KernelName::sum(slot.dtype), slot.count, &inputs, &[sum])?;
        Ok(sum)
    }

    /// Copies a plain array of a key to an out of other strides or another float type.
    pub(super) fn scatter(&mut self, slot: &Slot, from: u64, out: &Lent) -> Result<()> {
        let kernel = KernelName::copy(slot.dtype, out.dtype());
        let to = (out.data().addr() as u64, out.strides());
        self.jobs.copy(Stage::Scatter, kernel, &slot.shape, (from, None), to)
    }

    /// Whether there is nothing to queue.
    pub(super) fn is_empty(&self) -> bool {
        let no_copies = self.lists.uploads.is_empty() && self.lists.downloads.is_empty();
        no_copies && self.jobs.is_empty() && self.peers.is_empty()
    }

    /// Takes all memory and loads all kernels, so that queueing fails with the device only. No job
    /// is added after it.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let CallQueue { device, stream, .. } = self.queue;
        self.jobs.prepare(device, stream)?;
        self.peers.iter_mut().try_for_each(PeerStaging::prepare)
    }

    /// Queues all of it: copies to the device, one table with its launches, copies from the device.
    /// Returns the mark behind it. It has been prepared.
    pub(super) fn queue(&mut self) -> Result<Mark> {
        let CallQueue { device, stream, .. } = self.queue;
        self.peers.iter_mut().try_for_each(|peer| peer.begin(stream))?;
        let StagedLists { memory, blocks, uploads, downloads } = &mut self.lists;
        memory.note_queued();
        for StagedCopy { block, address, bytes } in uploads.drain(..) {
            blocks[block].upload(address, bytes, stream)?;
        }
        self.peers.iter().try_for_each(|peer| peer.copy_here(self.queue))?;
        self.jobs.queue(device, stream)?;
        for StagedCopy { block, address, bytes } in downloads.drain(..) {
            blocks[block].download(address, bytes, stream)?;
        }
        self.peers.iter().try_for_each(|peer| peer.copy_there(self.queue))?;
        let mark = Mark::record(device, stream)?;
        memory.give(&mark, stream);
        self.jobs.finish(&mark, stream);
        blocks.iter_mut().for_each(|block| block.keep_until(&mark));
        self.peers.iter_mut().try_for_each(|peer| peer.end(&mark))?;
        Ok(mark)
    }
}
