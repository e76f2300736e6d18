//! Allocations, pools, pinned memory, and what a pointer is.

use super::functions;
use super::pointers::{Argument, In, Out};
use crate::driver::{Driver, context_of};
use crate::error::{Code, Result};
use crate::memory::Origin;

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: u32 = 4;
/// Types of memory.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// Of a pointer that is not CUDA's.
const NO_DEVICE: i32 = -2;

/// The beginning of `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProperties {
    /// 1 is memory that devices pin.
    allocation: u32,
    handles: u32,
    /// 1 is a device.
    place: u32,
    ordinal: i32,
}

/// Puts the attribute of a pointer that CUDA does not know.
fn put_nothing(attribute: u32, out: Argument) -> Result<()> {
    match attribute {
        1 | 3 | 4 | 7 | 11 | 12 => out.out::<u64>().set(0),
        2 => out.out::<u32>().set(0),
        8 | 13 => out.out::<u8>().set(0),
        9 => out.out::<i32>().set(NO_DEVICE),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn put_attribute(driver: &Driver, attribute: u32, address: u64, out: Argument) -> Result<()> {
    let Some((start, allocation)) = driver.machine.memories.find(address) else {
        return put_nothing(attribute, out);
    };
    let is_pinned = allocation.origin == Origin::Pinned;
    match attribute {
        // Memory of a pool has no context.
        1 => out.out::<u64>().set(match allocation.origin {
            Origin::Pool(_) => 0,
            _ => context_of(allocation.device),
        }),
        2 => out.out::<u32>().set(if is_pinned { HOST } else { DEVICE }),
        3 => out.out::<u64>().set(address),
        4 => out.out::<u64>().set(if is_pinned { address } else { 0 }),
        7 => out.out::<u64>().set(allocation.id),
        8 => out.out::<u8>().set(0),
        9 => out.out::<i32>().set(i32::try_from(allocation.device).unwrap_or_default()),
        11 => out.out::<u64>().set(start),
        12 => out.out::<usize>().set(allocation.bytes),
        13 => out.out::<u8>().set(1),
        _ => Err(Code::INVALID_VALUE),
    }
}

functions! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |driver| {
        let (unused, all) = driver.machine.memories.info(driver.current()?);
        free.set(unused as usize)?;
        total.set(all as usize)?;
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) |driver| {
        let device = driver.current()?;
        driver.check_unsafe_call()?;
        address.set(driver.machine.memories.allocate(device, bytes)?)?;
    }

    fn cuMemFree_v2(address: u64) |driver| {
        driver.current()?;
        driver.check_unsafe_call()?;
        if address != 0 {
            driver.machine.memories.free(address, false)?;
        }
    }

    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) |driver| {
        let device = driver.current()?;
        driver.check_unsafe_call()?;
        address.set(driver.machine.memories.allocate_pinned(device, bytes, 0)?)?;
    }

    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: u32) |driver| {
        let device = driver.current()?;
        driver.check_unsafe_call()?;
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        address.set(driver.machine.memories.allocate_pinned(device, bytes, flags)?)?;
    }

    fn cuMemFreeHost(address: u64) |driver| {
        driver.current()?;
        driver.check_unsafe_call()?;
        driver.machine.memories.free(address, true)?;
    }

    fn cuMemHostGetFlags(flags: Out<u32>, address: u64) |driver| {
        driver.current()?;
        let found = driver.machine.memories.find(address).map(|(_, allocation)| allocation);
        let pinned = found.filter(|it| it.origin == Origin::Pinned).ok_or(Code::INVALID_VALUE)?;
        flags.set(pinned.flags)?;
    }

    fn cuMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>) |driver| {
        driver.check_initialized()?;
        let properties = properties.get(0)?;
        let is_known = properties.allocation == 1 && properties.place == 1;
        if !is_known || properties.handles != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if !driver.settings.has_pools {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = driver.ordinal(properties.ordinal)?;
        pool.set(driver.machine.memories.create_pool(device))?;
    }

    fn cuMemPoolDestroy(pool: u64) |driver| {
        driver.check_initialized()?;
        driver.machine.memories.destroy_pool(pool)?;
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: Argument) |driver| {
        driver.check_initialized()?;
        match attribute {
            RELEASE_THRESHOLD => driver.machine.memories.set_threshold(pool, value.number(8)?)?,
            // Rules for the reuse of memory: the stand-in reuses none.
            1..=3 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemPoolTrimTo(pool: u64, keep: usize) |driver| {
        driver.check_initialized()?;
        driver.machine.memories.trim(pool, keep as u64)?;
    }

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: u64) |driver| {
        let pool = driver.default_pool(driver.current()?);
        address.set(driver.allocate_async(pool, bytes, stream)?)?;
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: u64, stream: u64) |driver| {
        address.set(driver.allocate_async(pool, bytes, stream)?)?;
    }

    fn cuMemFreeAsync(address: u64, stream: u64) |driver| {
        driver.free_async(address, stream)?;
    }

    fn cuPointerGetAttribute(out: Argument, attribute: u32, address: u64) |driver| {
        driver.check_initialized()?;
        driver.machine.memories.find(address).ok_or(Code::INVALID_VALUE)?;
        put_attribute(driver, attribute, address, out)?;
    }

    fn cuPointerGetAttributes(
        count: u32,
        attributes: In<u32>,
        outs: In<Argument>,
        address: u64,
    ) |driver| {
        driver.check_initialized()?;
        for index in 0..count as usize {
            put_attribute(driver, attributes.get(index)?, address, outs.get(index)?)?;
        }
    }
}
