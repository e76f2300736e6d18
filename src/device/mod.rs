//! CUDA devices: their driver, memory, streams and kernels. Also called: GPUs, accelerators.
//!
//! Nothing here knows keys or tickets. The driver is opened at the first use of a device; the library
//! runs without one. Work is queued in stream order; the host waits only for bytes that it reads.

mod budget;
mod context;
mod driver;
mod jobs;
mod kept;
mod kernel;
mod mark;
mod memory;
mod name;
mod norms;
mod passes;
mod queue;
mod report;
mod reuse;
mod stream;
mod transfer;

pub(crate) use budget::MemoryBudget;
pub(crate) use context::Device;
pub(crate) use jobs::{JobList, KeyArrays, Stage};
pub(crate) use kept::{KeyMemory, WantedSpans};
pub(crate) use mark::Mark;
pub(crate) use memory::Span;
pub(crate) use norms::NormLayout;
pub(crate) use passes::DevicePasses;
pub(crate) use queue::{CallMarks, CallQueue, CallQueues};
pub(crate) use report::statistics;
pub use report::{GpuProbe, GpuReport, GpuState, examine_gpus};
pub(crate) use reuse::Spares;
pub(crate) use reuse::scratch::ScratchBlock;
pub(crate) use stream::Stream;
pub(crate) use transfer::{DirectCopies, Downloads, Room, Uploads, Wait, piece_bytes, takes_waits};

use crate::config::CudaChoice;
use crate::error::{Result, fail};

/// The device of a number, by the option `cuda`.
pub(crate) fn open(choice: &CudaChoice, ordinal: u16) -> Result<&'static Device> {
    match choice {
        CudaChoice::No => Err(fail!(
            Unsupported,
            "lives in CUDA memory, and the option cuda is no; copy it to host memory (tensor.cpu())"
        )),
        CudaChoice::Auto => Device::of(None, ordinal),
        CudaChoice::Library(path) => Device::of(Some(path), ordinal),
    }
}

/// Names the stream of this thread's calls for a device.
pub(crate) fn set_stream(choice: &CudaChoice, ordinal: u16, handle: u64) -> Result<()> {
    let device = open(choice, ordinal)?;
    if stream::may_be_foreign(handle) {
        let _scope = device.enter()?;
        device.check_stream(handle)?;
    }
    stream::name(ordinal, handle);
    Ok(())
}

/// The stream of this thread's calls for a device, as it was named.
pub(crate) fn stream_of(choice: &CudaChoice, ordinal: u16) -> Result<u64> {
    open(choice, ordinal).map(|device| stream::named(device.ordinal))
}
