//! Address translation and checks for the kernels of one device.

use super::{Allocation, Memories, Origin};
use crate::ptx::{Fault, FaultKind, Memory};

/// Number of entries of the cache of allocations.
const CACHE: usize = 64;
const PAGE_BITS: u32 = 12;

/// Looks up every access of a launch.
pub(crate) struct DeviceView<'a> {
    /// Allocations of the device and of its peers, by address.
    allocations: Vec<(u64, &'a mut Allocation)>,
    /// Indices of allocations, by the page of an address.
    cache: [u32; CACHE],
}

impl<'a> DeviceView<'a> {
    pub(crate) fn new(memories: &'a mut Memories, device: usize) -> Self {
        let Memories { allocations, peers, .. } = memories;
        let is_allowed = |it: &Allocation| {
            let owner = it.device;
            it.origin != Origin::Pinned
                && it.is_usable
                && (owner == device || peers.contains(&(device, owner)))
        };
        let allocations = allocations.iter_mut().filter(|(_, it)| is_allowed(it));
        let allocations = allocations.map(|(start, it)| (*start, it)).collect();
        Self { allocations, cache: [0; CACHE] }
    }

    #[inline]
    fn find(&mut self, address: u64, bytes: usize) -> Result<(usize, &mut Allocation), Fault> {
        let place = (address >> PAGE_BITS) as usize % CACHE;
        let offset_in = |(start, it): &(u64, &mut Allocation)| {
            let offset = address.checked_sub(*start)? as usize;
            (offset < it.bytes && it.bytes - offset >= bytes).then_some(offset)
        };
        let cached = self.cache[place] as usize;
        let found = self.allocations.get(cached).and_then(offset_in).map(|offset| (cached, offset));
        if let Some((index, offset)) = found {
            return Ok((offset, self.allocations[index].1));
        }
        let behind = self.allocations.partition_point(|(start, _)| *start <= address);
        let index = behind.wrapping_sub(1);
        let offset = self.allocations.get(index).and_then(offset_in);
        let offset = offset.ok_or(Fault::new(FaultKind::Address, address, bytes))?;
        self.cache[place] = index as u32;
        Ok((offset, self.allocations[index].1))
    }
}

impl Memory for DeviceView<'_> {
    fn load(&mut self, address: u64, bytes: usize) -> Result<u64, Fault> {
        let (offset, allocation) = self.find(address, bytes)?;
        if !allocation.written.has_few(offset, bytes) {
            return Err(Fault::new(FaultKind::Uninitialized, address, bytes));
        }
        Ok(allocation.mapping.load(offset, bytes))
    }

    fn store(&mut self, address: u64, bytes: usize, value: u64) -> Result<(), Fault> {
        let (offset, allocation) = self.find(address, bytes)?;
        allocation.written.set_few(offset, bytes);
        allocation.mapping.store(offset, bytes, value);
        Ok(())
    }
}
