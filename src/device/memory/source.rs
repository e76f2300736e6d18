//! Where memory of a device comes from: a pool in stream order, or blocks that are used again behind
//! an event, on drivers without pools (some of virtual GPUs).

use std::sync::Mutex;

use crate::device::context::{Device, lock};
use crate::device::driver::{Code, Outcome};
use crate::device::mark::Mark;
use crate::device::stream::Stream;

/// Free blocks that are kept, at most.
const KEPT: usize = 64;

/// A free block of a device, which work before a mark may still use.
struct FreeBlock {
    device: u16,
    address: u64,
    bytes: usize,
    mark: Mark,
}

/// The blocks of devices without a pool.
static FREE: Mutex<Vec<FreeBlock>> = Mutex::new(Vec::new());

impl Device {
    /// Takes memory that a stream may use at once, of so many bytes or more; gives its address and
    /// its bytes. The device's context is current.
    pub(super) fn take_memory(&self, bytes: usize, stream: &Stream) -> Outcome<(u64, usize)> {
        let Some(pool) = self.pool else { return self.take_block(bytes, stream) };
        let allocate = || self.driver.allocate(bytes, pool, stream.handle());
        let address = allocate().or_else(|code| {
            if code != Code::OUT_OF_MEMORY {
                return Err(code);
            }
            // Blocks that other streams have freed may be in the pool still.
            let _ = self.driver.trim_pool(pool);
            allocate()
        });
        self.counters.allocations.add(u64::from(address.is_ok()));
        address.map(|address| (address, bytes))
    }

    fn take_block(&self, bytes: usize, stream: &Stream) -> Outcome<(u64, usize)> {
        let mut free = lock(&FREE);
        // One that is not more than twice as large.
        let fits = |block: &FreeBlock| {
            block.device == self.ordinal && block.bytes >= bytes && block.bytes / 2 <= bytes
        };
        if let Some(at) = free.iter().position(fits)
            && free[at].mark.order(stream).is_ok()
        {
            let block = free.swap_remove(at);
            return Ok((block.address, block.bytes));
        }
        let address = self.driver.allocate_now(bytes).or_else(|code| {
            if code != Code::OUT_OF_MEMORY {
                return Err(code);
            }
            self.drop_blocks(&mut free, 0);
            self.driver.allocate_now(bytes)
        });
        self.counters.allocations.add(u64::from(address.is_ok()));
        address.map(|address| (address, bytes))
    }

    /// Gives memory back behind what a stream has queued. An error means that the device is lost or
    /// the process ends, and the memory with it.
    pub(super) fn give_memory(&'static self, address: u64, bytes: usize, stream: &Stream) {
        if self.pool.is_some() {
            let _ = self.driver.free(address, stream.handle());
        } else if let Ok(mark) = Mark::record(self, stream) {
            let mut free = lock(&FREE);
            self.drop_blocks(&mut free, KEPT - 1);
            free.push(FreeBlock { device: self.ordinal, address, bytes, mark });
        }
    }

    /// The function of the driver that allocates.
    pub(super) fn allocating(&self) -> &'static str {
        if self.pool.is_some() { "cuMemAllocFromPoolAsync" } else { "cuMemAlloc" }
    }

    /// Frees blocks of this device that no work uses any more, until so many are left of all.
    fn drop_blocks(&self, free: &mut Vec<FreeBlock>, left: usize) {
        let mut at = 0;
        while free.len() > left && at < free.len() {
            let block = &free[at];
            if block.device == self.ordinal && block.mark.has_passed().unwrap_or(false) {
                let _ = self.driver.free_now(free.swap_remove(at).address);
            } else {
                at += 1;
            }
        }
    }
}
