//! What a device is: a GPU of compute capability 8.0.

use crate::error::{Code, Result};
use crate::variables::Settings;

const FIRST_CONTEXT: u64 = 0x7000;
const STEP: u64 = 64;

/// The handle of the primary context of a device.
pub(crate) fn context_of(device: usize) -> u64 {
    FIRST_CONTEXT + STEP * device as u64
}

pub(crate) fn device_of(context: u64) -> Option<usize> {
    let distance = context.checked_sub(FIRST_CONTEXT)?;
    distance.is_multiple_of(STEP).then_some((distance / STEP) as usize)
}

pub(crate) const CAPABILITY: (u32, u32) = (8, 0);

pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"cuda-stand-in-00";
    uuid[15] += u8::try_from(device).unwrap_or(9);
    uuid
}

/// The value of a `CUdevice_attribute`.
pub(crate) fn attribute(settings: &Settings, device: usize, attribute: u32) -> Result<i32> {
    let value = match attribute {
        // Threads of a block, all and along each axis.
        1..=3 => 1024,
        4 => 64,
        // Blocks of a grid along each axis.
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Bytes of shared memory of a block, threads of a warp, registers of a block.
        8 => 49_152,
        10 => 32,
        12 => 65_536,
        // Clock rates of processors and memory in kHz, alignment of textures.
        13 | 36 => 1_000_000,
        14 => 512,
        // Multiprocessors.
        16 => 4,
        // Copies while it computes; maps host memory; runs kernels concurrently; has one address space
        // with the host; priorities of streams.
        15 | 19 | 31 | 41 | 78 => 1,
        // Integrated with the host; compute mode; ECC; device and domain on the bus; TCC; compute
        // capability, minor; managed memory; on a board with others; host access to pageable memory.
        18 | 20 | 32 | 34 | 35 | 50 | 76 | 83 | 84 | 88 | 89 => 0,
        // Bus.
        33 => i32::try_from(device).unwrap_or_default() + 1,
        // Bits of the memory bus, bytes of the second cache, threads of a multiprocessor.
        37 => 256,
        38 => 1 << 20,
        39 => 2048,
        // Engines for copies.
        40 => 2,
        // Compute capability, major.
        75 => 8,
        // Memory pools.
        115 => i32::from(settings.has_pools),
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(value)
}

/// The newest PTX that a driver of a version knows.
pub(crate) fn ptx_version(driver: u32) -> (u32, u32) {
    match driver {
        ..11_000 => (6, 5),
        // 11.0 knows 7.0, 11.8 knows 7.8.
        11_000..12_000 => (7, (driver - 11_000) / 10),
        12_000..12_060 => (8, (driver - 12_000) / 10),
        // 12.6 knows no more than 12.5.
        12_060..13_000 => (8, (driver - 12_000) / 10 - 1),
        _ => (9, 0),
    }
}
