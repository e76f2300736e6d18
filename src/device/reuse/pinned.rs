//! Blocks of pinned host memory, which are used again when the work that uses them has passed.

use std::cell::Cell;
use std::sync::Mutex;

use crate::device::context::{Device, lock};
use crate::device::mark::Mark;
use crate::device::memory::Pinned;
use crate::device::stream::Stream;
use crate::error::Result;
use crate::tensor::{DType, Lent};

/// The least bytes of a block.
const LEAST: usize = 4096;

/// Blocks that no call holds, each with the mark behind its last use. All devices may use them.
static FREE: Mutex<Vec<(Pinned, Option<Mark>)>> = Mutex::new(Vec::new());

/// Takes a free block of so many bytes whose last use has passed.
fn find(free: &mut Vec<(Pinned, Option<Mark>)>, bytes: usize) -> Option<Pinned> {
    let is_free = |(block, mark): &(Pinned, Option<Mark>)| {
        block.bytes() == bytes && mark.as_ref().is_none_or(|it| it.has_passed().unwrap_or(false))
    };
    let at = free.iter().position(is_free)?;
    let (block, passed) = free.remove(at);
    // The blocks of one call share its mark: one question to the driver is enough for all.
    let is_passed = |mark: &Mark| passed.as_ref().is_some_and(|it| it.is_same(mark));
    let others = free[at..].iter_mut().map(|(_, mark)| mark);
    let same = others.take_while(|mark| mark.as_ref().is_some_and(is_passed));
    same.for_each(|mark| *mark = None);
    Some(block)
}

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
        let found = find(&mut lock(&FREE), wanted);
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
