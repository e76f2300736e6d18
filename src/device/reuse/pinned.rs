//! Blocks of pinned host memory, which are used again when the work that uses them has passed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::env;
use std::ops::Range;
use std::sync::{Mutex, OnceLock};

use crate::device::context::{Device, lock};
use crate::device::mark::Mark;
use crate::device::memory::Pinned;
use crate::device::stream::Stream;
use crate::error::Result;
use crate::tensor::{DType, Lent};

/// The least bytes of a block.
const LEAST: usize = 4096;

/// From here on a block has a multiple of `STEP` bytes; smaller ones have a power of two.
const LARGE: usize = 8 << 20;
const STEP: usize = 2 << 20;

/// Maximum bytes of the blocks that no call holds, unless `KV_PINNED_BYTES` sets another number. It is
/// one for the process, as the blocks are.
const MOST_FREE: usize = 128 << 20;

/// Blocks that no call holds, the one that was used last at the end, each with the mark behind its
/// last use. All devices may use them.
struct FreeBlocks {
    blocks: VecDeque<(Pinned, Option<Mark>)>,
    bytes: usize,
}

static FREE: Mutex<FreeBlocks> = Mutex::new(FreeBlocks { blocks: VecDeque::new(), bytes: 0 });

fn has_passed(mark: Option<&Mark>) -> bool {
    mark.is_none_or(|mark| mark.has_passed().unwrap_or(false))
}

/// The bound of free bytes; the variable is read once.
fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    let read = || env::var("KV_PINNED_BYTES").ok()?.parse().ok();
    *LIMIT.get_or_init(|| read().unwrap_or(MOST_FREE))
}

impl FreeBlocks {
    /// Takes a block of so many bytes whose last use has passed.
    fn take(&mut self, bytes: usize) -> Option<Pinned> {
        let mut blocks = self.blocks.iter();
        let at =
            blocks.position(|(block, mark)| block.bytes() == bytes && has_passed(mark.as_ref()))?;
        let (block, passed) = self.blocks.remove(at)?;
        self.bytes -= bytes;
        // The blocks of one call share its mark: one question to the driver is enough for all.
        let is_passed = |mark: &Mark| passed.as_ref().is_some_and(|it| it.is_same(mark));
        let others = self.blocks.iter_mut().skip(at).map(|(_, mark)| mark);
        let same = others.take_while(|mark| mark.as_ref().is_some_and(is_passed));
        same.for_each(|mark| *mark = None);
        Some(block)
    }

    /// Adds a block. While there are too many bytes, takes the one that is free for the longest time
    /// out, if its last use has passed, and calls `free` with it.
    fn put(&mut self, block: Pinned, mark: Option<Mark>, mut free: impl FnMut(Pinned)) {
        self.bytes += block.bytes();
        self.blocks.push_back((block, mark));
        while self.bytes > limit() {
            if self.blocks.front().is_some_and(|(_, mark)| !has_passed(mark.as_ref())) {
                return;
            }
            let Some((block, _)) = self.blocks.pop_front() else { return };
            self.bytes -= block.bytes();
            free(block);
        }
    }
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
        let wanted = if bytes < LARGE {
            bytes.max(LEAST).next_power_of_two()
        } else {
            bytes.next_multiple_of(STEP)
        };
        let found = lock(&FREE).take(wanted);
        let memory = found.map_or_else(|| Pinned::allocate(device, wanted), Ok)?;
        Ok(Self { device, memory: Some(memory), mark: None, is_queued: Cell::new(false) })
    }

    fn memory(&self) -> &Pinned {
        self.memory.as_ref().expect("a block that is held has memory")
    }

    /// Bytes that it has, at least as many as asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.memory().bytes()
    }

    /// The memory from an offset on.
    pub(crate) fn lent(&self, offset: usize, dtype: DType) -> Lent {
        self.memory().lent(offset, dtype)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.memory.as_mut().expect("a block that is held has memory").write(bytes);
    }

    /// Queues a copy of a range of its bytes to the device.
    pub(crate) fn upload(&self, part: Range<usize>, to: u64, stream: &Stream) -> Result<()> {
        self.is_queued.set(true);
        self.memory().upload(self.device, part, to, stream)
    }

    /// Queues a copy of device memory to a range of its bytes.
    pub(crate) fn download(&self, part: Range<usize>, from: u64, stream: &Stream) -> Result<()> {
        self.is_queued.set(true);
        self.memory().download(self.device, part, from, stream)
    }

    /// Waits for the mark behind the work that uses the block, if it has one.
    pub(crate) fn wait(&mut self, wait: impl Fn(&Mark) -> Result<()>) -> Result<()> {
        self.mark.iter().try_for_each(wait)?;
        self.mark = None;
        Ok(())
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
            lock(&FREE).put(memory, self.mark.take(), |block| {
                // Without a context the device is lost, and so is the block.
                if let Ok(_scope) = self.device.enter() {
                    block.free(self.device);
                }
            });
        }
    }
}
