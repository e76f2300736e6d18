//! Allocations: bounds, lifetime, access by devices, and shadow memory of initialized bytes.

mod pool;
mod shadow;
mod view;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::error::{Code, Result};
use crate::mapping::{Access, Mapping, Reservation};
use crate::ptx::{Fault, FaultKind};
use pool::Pool;
use shadow::Shadow;
pub(crate) use view::DeviceView;

/// Number of freed allocations whose addresses are not used again.
const MAX_RETIRED: usize = 4096;

/// The kind of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Device,
    /// In stream order, from the pool of this handle.
    Pool(u64),
    Pinned,
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) origin: Origin,
    pub(crate) device: usize,
    pub(crate) bytes: usize,
    /// Unique in the life of the process.
    pub(crate) id: u64,
    /// Flags of pinned memory.
    pub(crate) flags: u32,
    /// A stream-ordered allocation is usable once its stream has run it.
    is_usable: bool,
    written: Shadow,
    mapping: Mapping,
}

/// All memory of all devices.
#[derive(Debug)]
pub(crate) struct Memories {
    allocations: BTreeMap<u64, Allocation>,
    pools: HashMap<u64, Pool>,
    /// Bytes in use or kept by pools, for each device.
    reserved: Vec<u64>,
    capacity: u64,
    retired: VecDeque<Reservation>,
    next_id: u64,
    /// Which pairs of devices (user, owner) have peer access.
    pub(crate) peers: Vec<(usize, usize)>,
}

impl Memories {
    pub(crate) fn new(devices: usize, capacity: u64) -> Self {
        Self {
            allocations: BTreeMap::new(),
            pools: HashMap::new(),
            reserved: vec![0; devices],
            capacity,
            retired: VecDeque::new(),
            next_id: 1,
            peers: Vec::new(),
        }
    }

    fn map(&mut self, device: usize, bytes: usize, origin: Origin, flags: u32) -> Result<u64> {
        let is_pinned = origin == Origin::Pinned;
        let access = if is_pinned { Access::Host } else { Access::None };
        let mapping = Mapping::new(bytes, access).map_err(|_| Code::OUT_OF_MEMORY)?;
        let (address, id) = (mapping.address(), self.next_id);
        self.next_id += 1;
        let is_usable = !matches!(origin, Origin::Pool(_));
        let written = Shadow::new(bytes);
        let allocation =
            Allocation { origin, device, bytes, id, flags, is_usable, written, mapping };
        self.allocations.insert(address, allocation);
        Ok(address)
    }

    fn reserve(&mut self, device: usize, bytes: u64) -> Result<()> {
        let after = self.reserved[device] + bytes;
        if after > self.capacity {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.reserved[device] = after;
        Ok(())
    }

    pub(crate) fn allocate(&mut self, device: usize, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.reserve(device, bytes as u64)?;
        self.map(device, bytes, Origin::Device, 0)
    }

    pub(crate) fn allocate_pinned(
        &mut self,
        device: usize,
        bytes: usize,
        flags: u32,
    ) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.map(device, bytes, Origin::Pinned, flags)
    }

    /// Bytes of all pinned memory.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let pinned = self.allocations.values().filter(|it| it.origin == Origin::Pinned);
        pinned.map(|it| it.bytes as u64).sum()
    }

    /// Frees the allocation at an address at once; queued commands that use it fail.
    pub(crate) fn free(&mut self, address: u64, is_pinned: bool) -> Result<()> {
        let found = self.allocations.get(&address);
        if found.is_none_or(|it| (it.origin == Origin::Pinned) != is_pinned) {
            return Err(Code::INVALID_VALUE);
        }
        let Some(allocation) = self.allocations.remove(&address) else { return Ok(()) };
        let bytes = allocation.bytes as u64;
        match allocation.origin {
            Origin::Device => self.reserved[allocation.device] -= bytes,
            Origin::Pool(pool) => self.free_in_pool(pool, allocation.device, bytes),
            Origin::Pinned => {}
        }
        self.retired.extend(allocation.mapping.retire());
        while self.retired.len() > MAX_RETIRED {
            self.retired.pop_front();
        }
        Ok(())
    }

    /// Frees the memory of a context that is reset. Pools belong to the device.
    pub(crate) fn free_context(&mut self, device: usize) {
        let of_context = |(address, it): (&u64, &Allocation)| {
            let is_of_context = it.device == device && !matches!(it.origin, Origin::Pool(_));
            is_of_context.then_some((*address, it.origin == Origin::Pinned))
        };
        let freed: Vec<(u64, bool)> = self.allocations.iter().filter_map(of_context).collect();
        for (address, is_pinned) in freed {
            // Each of them begins there.
            let _ = self.free(address, is_pinned);
        }
    }

    /// The stream has run the allocation.
    pub(crate) fn make_usable(&mut self, address: u64) {
        if let Some(allocation) = self.allocations.get_mut(&address) {
            allocation.is_usable = true;
        }
    }

    /// Bytes that are free, and all bytes.
    pub(crate) fn info(&self, device: usize) -> (u64, u64) {
        (self.capacity - self.reserved[device], self.capacity)
    }

    /// The allocation in which an address lies, and where it begins.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.bytes as u64).then_some((*start, allocation))
    }

    pub(crate) fn is_pinned(&self, address: u64, bytes: usize) -> bool {
        self.find(address).is_some_and(|(start, it)| {
            it.origin == Origin::Pinned && address - start + bytes as u64 <= it.bytes as u64
        })
    }

    fn may_use(&self, user: usize, owner: usize) -> bool {
        user == owner || self.peers.contains(&(user, owner))
    }

    /// The allocation and the offset of a range that a device may use.
    fn range(
        &self,
        device: usize,
        address: u64,
        bytes: usize,
    ) -> std::result::Result<(u64, usize), Fault> {
        let fault = Fault::new(FaultKind::Address, address, bytes);
        let (start, it) = self.find(address).ok_or(fault)?;
        let offset = (address - start) as usize;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= it.bytes);
        let is_allowed =
            it.origin != Origin::Pinned && it.is_usable && self.may_use(device, it.device);
        if is_inside && is_allowed { Ok((start, offset)) } else { Err(fault) }
    }

    fn allocation(&mut self, start: u64) -> &mut Allocation {
        self.allocations.get_mut(&start).expect("an allocation that was found")
    }

    /// Reads for a copy to the host. All bytes were written before.
    pub(crate) fn read(
        &mut self,
        device: usize,
        address: u64,
        bytes: usize,
    ) -> std::result::Result<Vec<u8>, Fault> {
        let (start, offset) = self.range(device, address, bytes)?;
        let allocation = self.allocation(start);
        if !allocation.written.has(offset, bytes) {
            return Err(Fault::new(FaultKind::Uninitialized, address, bytes));
        }
        let mut read = vec![0; bytes];
        allocation.mapping.read(offset, &mut read);
        Ok(read)
    }

    pub(crate) fn write(
        &mut self,
        device: usize,
        address: u64,
        bytes: &[u8],
    ) -> std::result::Result<(), Fault> {
        let (start, offset) = self.range(device, address, bytes.len())?;
        let allocation = self.allocation(start);
        allocation.mapping.write(offset, bytes);
        allocation.written.set(offset, bytes.len());
        Ok(())
    }

    pub(crate) fn fill(
        &mut self,
        device: usize,
        address: u64,
        bytes: usize,
        byte: u8,
    ) -> std::result::Result<(), Fault> {
        let (start, offset) = self.range(device, address, bytes)?;
        let allocation = self.allocation(start);
        allocation.mapping.fill(offset, bytes, byte);
        allocation.written.set(offset, bytes);
        Ok(())
    }

    /// Copies between ranges of devices, along with the shadow memory: uninitialized bytes may be copied.
    pub(crate) fn copy(
        &mut self,
        to: (usize, u64),
        from: (usize, u64),
        bytes: usize,
    ) -> std::result::Result<(), Fault> {
        let (from_start, from_offset) = self.range(from.0, from.1, bytes)?;
        let (to_start, to_offset) = self.range(to.0, to.1, bytes)?;
        let source = self.allocation(from_start);
        let mut moved = vec![0; bytes];
        source.mapping.read(from_offset, &mut moved);
        let written = source.written.copy(from_offset, bytes);
        let target = self.allocation(to_start);
        target.mapping.write(to_offset, &moved);
        target.written.replace(to_offset, bytes, &written);
        Ok(())
    }
}
