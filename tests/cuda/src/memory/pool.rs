//! Memory pools for stream-ordered allocation, with a release threshold.

use super::{Memories, Origin};
use crate::error::{Code, Result};

#[derive(Debug)]
pub(super) struct Pool {
    device: usize,
    used: u64,
    /// Used and kept.
    reserved: u64,
    /// Bytes that it keeps when they are freed (`RELEASE_THRESHOLD`).
    threshold: u64,
}

impl Memories {
    const FIRST_POOL: u64 = 0x5000;

    pub(crate) fn create_pool(&mut self, device: usize) -> u64 {
        let handle = Self::FIRST_POOL + 16 * self.next_id;
        self.next_id += 1;
        self.pools.insert(handle, Pool { device, used: 0, reserved: 0, threshold: 0 });
        handle
    }

    fn pool(&mut self, handle: u64) -> Result<&mut Pool> {
        self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)
    }

    /// Live allocations stay until they are freed.
    pub(crate) fn destroy_pool(&mut self, handle: u64) -> Result<()> {
        let pool = self.pools.remove(&handle).ok_or(Code::INVALID_VALUE)?;
        self.reserved[pool.device] -= pool.reserved - pool.used;
        Ok(())
    }

    pub(crate) fn set_threshold(&mut self, handle: u64, threshold: u64) -> Result<()> {
        self.pool(handle)?.threshold = threshold;
        Ok(())
    }

    pub(crate) fn trim(&mut self, handle: u64, keep: u64) -> Result<()> {
        let pool = self.pool(handle)?;
        let after = pool.reserved.min(pool.used.max(keep));
        let (device, released) = (pool.device, pool.reserved - after);
        pool.reserved = after;
        self.reserved[device] -= released;
        Ok(())
    }

    /// A stream-ordered allocation: usable once its stream has run it.
    pub(crate) fn allocate_in_pool(&mut self, handle: u64, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let pool = self.pool(handle)?;
        let (device, used) = (pool.device, pool.used + bytes as u64);
        let more = used.saturating_sub(pool.reserved);
        self.reserve(device, more)?;
        let pool = self.pool(handle)?;
        (pool.used, pool.reserved) = (used, pool.reserved + more);
        self.map(device, bytes, Origin::Pool(handle), 0)
    }

    pub(super) fn free_in_pool(&mut self, handle: u64, device: usize, bytes: u64) {
        let released = match self.pools.get_mut(&handle) {
            // The pool was destroyed.
            None => bytes,
            Some(pool) => {
                pool.used -= bytes;
                let after = pool.reserved.min(pool.used.max(pool.threshold));
                let released = pool.reserved - after;
                pool.reserved = after;
                released
            }
        };
        self.reserved[device] -= released;
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Memories};

    #[test]
    fn a_pool_keeps_what_was_freed_up_to_its_threshold() {
        let mut memories = Memories::new(1, 1_000);
        let pool = memories.create_pool(0);
        let address = memories.allocate_in_pool(pool, 600).unwrap();
        assert_eq!(memories.info(0), (400, 1_000));
        memories.set_threshold(pool, 500).unwrap();
        memories.free(address, false).unwrap();
        assert_eq!(memories.info(0).0, 500);
        assert_eq!(memories.allocate(0, 700), Err(Code::OUT_OF_MEMORY));
        memories.trim(pool, 100).unwrap();
        assert_eq!(memories.info(0).0, 900);
        let address = memories.allocate_in_pool(pool, 50).unwrap();
        assert_eq!(memories.info(0).0, 900);
        memories.destroy_pool(pool).unwrap();
        assert_eq!(memories.info(0).0, 950);
        memories.free(address, false).unwrap();
        assert_eq!(memories.info(0).0, 1_000);
    }
}
