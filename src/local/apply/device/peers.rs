//! What a device does for a call whose keys are on another one: copies there and back, and for
//! arrays of other strides or float types also copies into plain ones.

use smallvec::SmallVec;

use super::spans::CallSpans;
use crate::device::{CallQueue, JobList, Mark, Stage, Stream};
use crate::error::Result;
use crate::local::table::Slot;
use crate::tensor::Lent;

/// A copy of a plain array between the device of a key and another one.
struct PeerCopy {
    /// The addresses on the key's device, and on the other one.
    own: u64,
    other: u64,
    bytes: usize,
}

pub(super) struct PeerStaging<'a> {
    pub(super) queue: &'a CallQueue,
    memory: CallSpans,
    /// Work in front of the copies, and behind them.
    before: JobList,
    after: JobList,
    received: SmallVec<[PeerCopy; 4]>,
    sent: SmallVec<[PeerCopy; 4]>,
}

impl<'a> PeerStaging<'a> {
    pub(super) fn new(queue: &'a CallQueue) -> Self {
        Self {
            queue,
            memory: CallSpans::default(),
            before: JobList::default(),
            after: JobList::default(),
            received: SmallVec::new(),
            sent: SmallVec::new(),
        }
    }

    /// Copies a value of this device to a plain array on the key's.
    pub(super) fn receive(&mut self, slot: &Slot, own: u64, value: &Lent) -> Result<()> {
        let (address, bytes) = (value.data().addr() as u64, slot.bytes());
        let mut other = address;
        if !value.is_plain(slot.dtype) {
            let _scope = self.queue.device.enter()?;
            other = self.memory.take(self.queue, bytes)?;
            let dtypes = (value.dtype(), slot.dtype);
            let from = (address, value.strides());
            self.before.copy(Stage::Gather, dtypes, &slot.shape, from, (other, None))?;
        }
        self.received.push(PeerCopy { own, other, bytes });
        Ok(())
    }

    /// Copies a plain array on the key's device to an out of this one.
    pub(super) fn send(&mut self, slot: &Slot, own: u64, out: &Lent) -> Result<()> {
        let (address, bytes) = (out.data().addr() as u64, slot.bytes());
        let mut other = address;
        if !out.is_plain(slot.dtype) {
            let _scope = self.queue.device.enter()?;
            other = self.memory.take(self.queue, bytes)?;
            let dtypes = (slot.dtype, out.dtype());
            let to = (address, out.strides());
            self.after.copy(Stage::Scatter, dtypes, &slot.shape, (other, None), to)?;
        }
        self.sent.push(PeerCopy { own, other, bytes });
        Ok(())
    }

    /// Takes all memory and loads all kernels.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let _scope = self.queue.device.enter()?;
        let CallQueue { device, stream, .. } = self.queue;
        self.before.prepare(device, stream)?;
        self.after.prepare(device, stream)
    }

    /// Queues what comes in front of the copies, which the stream of the key's device follows.
    pub(super) fn begin(&mut self, stream: &Stream) -> Result<()> {
        let scope = self.queue.device.enter()?;
        self.memory.note_queued();
        self.before.queue(self.queue.device, &self.queue.stream)?;
        // The handle of the other stream is that of a stream of its own context.
        drop(scope);
        self.queue.mark()?.order(stream)
    }

    /// Queues the copies of values to the key's device.
    pub(super) fn copy_here(&self, home: &CallQueue) -> Result<()> {
        let (here, there) = (home.device, self.queue.device);
        self.received.iter().try_for_each(|&PeerCopy { own, other, bytes }| {
            here.copy_peer((here, own), (there, other), bytes, &home.stream)
        })
    }

    /// Queues the copies of results from the key's device.
    pub(super) fn copy_there(&self, home: &CallQueue) -> Result<()> {
        let (here, there) = (home.device, self.queue.device);
        self.sent.iter().try_for_each(|&PeerCopy { own, other, bytes }| {
            here.copy_peer((there, other), (here, own), bytes, &home.stream)
        })
    }

    /// Queues what comes behind the copies, whose end has been marked.
    pub(super) fn end(&mut self, copied: &Mark) -> Result<()> {
        self.queue.follow(copied)?;
        let _scope = self.queue.device.enter()?;
        let CallQueue { device, stream, .. } = self.queue;
        self.after.queue(device, stream)?;
        if self.before.has_table() || self.after.has_table() || !self.memory.is_empty() {
            let mark = self.queue.mark()?;
            self.before.finish(device, &mark, stream);
            self.after.finish(device, &mark, stream);
            self.memory.give(&mark, stream);
        }
        Ok(())
    }
}
