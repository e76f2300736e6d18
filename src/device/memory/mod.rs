//! Memory of devices, in stream order; and pinned host memory.
#![allow(unsafe_code, reason = "pinned memory is written by devices and by the host")]

mod source;

use std::ops::Range;
use std::slice;

use crate::device::context::Device;
use crate::device::driver::{Code, PINNED};
use crate::device::stream::Stream;
use crate::error::{Error, Result, fail};
use crate::tensor::{DType, Lent};

/// A block of a device's memory. Its owner frees it with [`Span::release`], in stream order; when it
/// is dropped before, it is freed behind the work of the stream that it was allocated for.
pub(crate) struct Span {
    device: &'static Device,
    address: u64,
    bytes: usize,
    /// Bytes of the allocation.
    size: usize,
    stream: Stream,
}

impl Span {
    /// Allocates bytes that the stream may use at once; other streams wait for a mark behind it.
    pub(crate) fn allocate(device: &'static Device, bytes: usize, stream: &Stream) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { device, address: 0, bytes, size: 0, stream: *stream });
        }
        match device.take_memory(bytes, stream) {
            Ok((address, size)) => Ok(Self { device, address, bytes, size, stream: *stream }),
            Err(Code::OUT_OF_MEMORY) => Err(no_memory(device, bytes)),
            Err(code) => Err(device.fail(device.allocating(), code)),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets all bytes to zero, in stream order.
    pub(crate) fn clear(&self, stream: &Stream) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let outcome = self.device.driver.fill(self.address, self.bytes, stream.handle());
        outcome.map_err(|code| self.device.fail("cuMemsetD8Async", code))
    }

    /// Lets a drop free it behind what another stream has queued.
    pub(super) fn move_to(&mut self, stream: &Stream) {
        self.stream = *stream;
    }

    /// Frees the memory behind what a stream has queued.
    pub(crate) fn release(mut self, stream: &Stream) {
        self.free(*stream);
    }

    fn free(&mut self, stream: Stream) {
        if self.bytes > 0 {
            self.device.give_memory(self.address, self.size, &stream);
            self.bytes = 0;
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.bytes > 0
            && self.device.is_usable()
            && let Ok(_scope) = self.device.enter()
        {
            self.free(self.stream);
        }
    }
}

fn no_memory(device: &Device, bytes: usize) -> Error {
    const MB: usize = 1 << 20;
    let (free, all) = device.driver.memory_info().unwrap_or((0, 0));
    let needed = bytes.div_ceil(MB);
    fail!(
        OutOfMemory,
        "GPU {} has {} MB free of {} MB, {needed} MB are needed; other allocators of this process may \
         hold the rest (PyTorch: torch.cuda.empty_cache)",
        device.ordinal,
        free / MB,
        all / MB
    )
}

/// An array in pinned memory, the caller's or a part of a block, which is lent to a copy until that has run.
#[derive(Clone, Copy)]
pub(super) struct LentArray {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a pointer with a length; who makes one orders the uses of the memory.
unsafe impl Send for LentArray {}

impl LentArray {
    /// The first bytes of a plain array, if the driver knows them as pinned. The caller keeps them lent to
    /// copies until those have run.
    pub(super) fn find(device: &Device, from: &Lent, bytes: usize) -> Option<Self> {
        const HOST: u32 = 1;
        let start = from.data().cast::<u8>();
        let found = device.driver.pointer(start.addr() as u64).ok()?;
        let last = found.start.saturating_add(found.bytes as u64);
        let is_pinned = found.kind == HOST && !found.is_managed;
        let is_whole = found.start <= start.addr() as u64 && (start.addr() + bytes) as u64 <= last;
        (is_pinned && is_whole).then_some(Self { start, bytes })
    }

    /// Queues a copy of it to a device.
    pub(super) fn upload(&self, device: &Device, to: u64, stream: &Stream) -> Result<()> {
        let Self { start, bytes } = *self;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: so many bytes are there, and lent until the copy has run.
        let outcome = unsafe { device.driver.copy_from_host(to, start, bytes, stream.handle()) };
        device.result("cuMemcpyHtoDAsync", device.counters.to_device.note(outcome, bytes))
    }

    /// Queues a copy from a device to it.
    pub(super) fn download(&self, device: &Device, from: u64, stream: &Stream) -> Result<()> {
        let Self { start, bytes } = *self;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: so many bytes are there, and lent until the copy has run.
        let outcome = unsafe { device.driver.copy_to_host(start, from, bytes, stream.handle()) };
        device.result("cuMemcpyDtoHAsync", device.counters.to_host.note(outcome, bytes))
    }
}

/// A block of pinned host memory, which lives until [`Pinned::free`].
pub(super) struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: owns its memory.
unsafe impl Send for Pinned {}
// SAFETY: gives a pointer only; its owner orders the uses of the host and of devices.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn allocate(device: &'static Device, bytes: usize) -> Result<Self> {
        let _relaxed = device.driver.relax_capture();
        match device.driver.allocate_host(bytes) {
            Ok(start) => {
                PINNED.add(bytes as u64);
                Ok(Self { start, bytes })
            }
            Err(Code::OUT_OF_MEMORY) => {
                Err(fail!(OutOfMemory, "the driver cannot pin {bytes} bytes of host memory"))
            }
            Err(code) => Err(device.fail("cuMemHostAlloc", code)),
        }
    }

    /// Frees the block; the device's context is current, and no queued copy uses the block.
    pub(super) fn free(self, device: &Device) {
        let _relaxed = device.driver.relax_capture();
        // An error: the device is lost, or the process is ending.
        // SAFETY: an allocation of this driver, whose owner ends here.
        let _ = unsafe { device.driver.free_host(self.start) };
        PINNED.subtract(self.bytes as u64);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory from an offset on, as a plain tensor.
    pub(super) fn lent(&self, offset: usize, dtype: DType) -> Lent {
        Lent::plain(self.start.wrapping_add(offset), dtype)
    }

    /// A range of its bytes, for a copy: the block is given back with a mark behind it.
    fn part(&self, part: &Range<usize>) -> LentArray {
        assert!(part.end <= self.bytes, "a block is at least as large as asked for");
        LentArray { start: self.start.wrapping_add(part.start), bytes: part.len() }
    }

    /// Writes the first bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes, "a block is at least as large as asked for");
        // SAFETY: so many bytes are there, and no copy that is queued uses the block.
        unsafe { slice::from_raw_parts_mut(self.start, bytes.len()) }.copy_from_slice(bytes);
    }

    /// Queues a copy of a range of its bytes to a device.
    pub(super) fn upload(
        &self,
        device: &Device,
        part: Range<usize>,
        to: u64,
        stream: &Stream,
    ) -> Result<()> {
        self.part(&part).upload(device, to, stream)
    }

    /// Queues a copy from a device to a range of its bytes.
    pub(super) fn download(
        &self,
        device: &Device,
        part: Range<usize>,
        from: u64,
        stream: &Stream,
    ) -> Result<()> {
        self.part(&part).download(device, from, stream)
    }
}
