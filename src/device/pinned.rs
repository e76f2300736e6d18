//! Blocks of pinned host memory, which are used again when the work that uses them has passed.

use std::cell::Cell;
use std::sync::Mutex;

use super::context::{Device, lock};
use super::mark::Mark;
use super::memory::Pinned;
use super::stream::Stream;
use crate::error::Result;
use crate::tensor::{DType, Lent};

/// The least bytes of a block.
const LEAST: usize = 4096;

/// Blocks that no call holds, each with the mark behind its last use. All devices may use them.
static FREE: Mutex<Vec<(Pinned, Option<Mark>)>> = Mutex::new(Vec::new());

/// A block of pinned memory that a call holds. It goes back with the mark behind the work that
/// uses it; without one its content is no longer needed.
pub(crate) struct PinnedBlock {
    device: &'static Device,
    memory: Option<Pinned>,
    mark: Option<Mark>,
    /// Whether a copy has been queued, behind which there is no mark yet.
    is_queued: Cell<bool>,
}

impl PinnedBlock {
    /// A block of at least so many bytes that no queued work uses.
    pub(crate) fn take(device: &'static Device, bytes: usize) -> Result<Self> {
        let wanted = bytes.max(LEAST).next_power_of_two();
        let mut free = lock(&FREE);
        let is_free = |(block, mark): &(Pinned, Option<Mark>)| {
            block.bytes() == wanted
                && mark.as_ref().is_none_or(|mark| mark.has_passed().unwrap_or(false))
        };
        let found = free.iter().position(is_free).map(|at| free.swap_remove(at).0);
        drop(free);
        let memory = found.map_or_else(|| Pinned::allocate(device, wanted), Ok)?;
        Ok(Self { device, memory: Some(memory), mark: None, is_queued: Cell::new(false) })
    }

    fn memory(&self) -> &Pinned {
        self.memory.as_ref().expect("a block that is held has memory")
    }

    pub(crate) fn lent(&self, dtype: DType) -> Lent {
        self.memory().lent(dtype)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.memory.as_mut().expect("a block that is held has memory").write(bytes);
    }

    /// Queues a copy of the first bytes to the device.
    pub(crate) fn upload(&self, to: u64, bytes: usize, stream: &Stream) -> Result<()> {
        self.is_queued.set(true);
        self.memory().upload(self.device, to, bytes, stream)
    }

    /// Queues a copy of device memory to the first bytes.
    pub(crate) fn download(&self, from: u64, bytes: usize, stream: &Stream) -> Result<()> {
        self.is_queued.set(true);
        self.memory().download(self.device, from, bytes, stream)
    }

    /// Notes the mark behind the queued work that uses the block.
    pub(crate) fn keep_until(&mut self, mark: &Mark) {
        self.mark = Some(mark.clone());
        self.is_queued.set(false);
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        if self.is_queued.get() {
            // Queueing failed behind the copy, which may still run: the block is never used again.
            return;
        }
        if let Some(memory) = self.memory.take() {
            lock(&FREE).push((memory, self.mark.take()));
        }
    }
}
