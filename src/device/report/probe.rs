//! What a process can do with the GPUs of its machine, for `kvstore doctor`.

use std::time::{Duration, Instant};

use super::super::context::Device;
use super::super::driver::Driver;
use super::super::jobs::JobList;
use super::super::memory::Span;
use super::super::queue::CallQueue;
use super::super::reuse::pinned::PinnedBlock;
use crate::config::{Config, CudaChoice};
use crate::error::{Result, fail};
use crate::tensor::DType;

/// Maximum duration of the kernel of a probe.
const PATIENCE: Duration = Duration::from_secs(10);
/// Elements of each array of a probe, and their bytes.
const COUNT: usize = 1024;
const BYTES: usize = 4 * COUNT;

/// The driver of GPUs, and what it shows to this process.
#[derive(Debug)]
pub struct GpuReport {
    /// The CUDA version of the driver, major and minor.
    pub version: (i32, i32),
    /// All GPUs, by number.
    pub gpus: Vec<GpuProbe>,
    /// Pairs of GPUs of which each can access the memory of the other.
    pub peers: Vec<(u16, u16)>,
}

/// A GPU.
#[derive(Debug)]
pub struct GpuProbe {
    /// As CUDA counts, from 0.
    pub number: u16,
    /// The name of its model.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Its state, or why it cannot be used.
    pub state: Result<GpuState>,
}

/// A GPU that can be used.
#[derive(Debug, Clone, Copy)]
pub struct GpuState {
    /// Memory in bytes that is free, and all.
    pub memory: (usize, usize),
    /// The duration of compiling a kernel, or of finding it in the driver's cache.
    pub load: Duration,
}

/// Opens the driver that a configuration names, and runs a kernel on each GPU.
///
/// # Errors
/// `Unsupported` with `cuda=no`; `Device` without a driver that can be used.
pub fn examine_gpus(config: &Config) -> Result<GpuReport> {
    let path = match CudaChoice::new(config)? {
        CudaChoice::No => return Err(fail!(Unsupported, "the option cuda is no")),
        CudaChoice::Auto => None,
        CudaChoice::Library(path) => Some(path),
    };
    let driver = Driver::open(path.as_deref())?;
    let (version, count) = (driver.version(), driver.devices());
    let gpus = (0..count).map(|number| examine(driver, path.as_deref(), number)).collect();
    let reaches = |a: u16, b: u16| driver.can_access_peer(a.into(), b.into()).unwrap_or(false);
    let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
    let peers = pairs.filter(|&(a, b)| reaches(a, b) && reaches(b, a)).collect();
    Ok(GpuReport { version: (version / 1000, version % 1000 / 10), gpus, peers })
}

fn examine(driver: &'static Driver, path: Option<&str>, number: u16) -> GpuProbe {
    const CAPABILITY: [u32; 2] = [75, 76];
    let attribute = |which| driver.attribute(number.into(), which).unwrap_or(0);
    let [major, minor] = CAPABILITY.map(attribute);
    let state = Device::of(path, number).and_then(|device| {
        let load = run_kernel(device)?;
        let _scope = device.enter()?;
        let memory = driver.memory_info().map_err(|code| device.fail("cuMemGetInfo", code))?;
        Ok(GpuState { memory, load })
    });
    let name = driver.device_name(number.into()).unwrap_or_else(|_| "unknown model".into());
    GpuProbe { number, name, capability: (major, minor), state }
}

/// Numbers whose sums show rounding, and subnormal ones, whose sums show a flush to zero.
fn numbers() -> [Vec<f32>; 2] {
    let of = |step: u32| {
        (0..1024u32).map(move |index| match index % 2 {
            0 => f32::from_bits(index.wrapping_mul(step) & 0x007F_FFFF),
            _ => f32::from_bits(0x3F00_0000 + (index.wrapping_mul(step) & 0x00FF_FFFF)),
        })
    };
    [of(0x9E37_79B1).collect(), of(0x85EB_CA77).collect()]
}

/// Adds arrays on a device, and compares the bits with the processor's. The duration of loading the
/// kernel.
fn run_kernel(device: &'static Device) -> Result<Duration> {
    let queue = CallQueue::own(device)?;
    let _scope = queue.begin()?;
    let stream = &queue.stream;
    let inputs = numbers();
    let bytes = inputs.iter().flatten().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
    let (mut given, mut got) =
        (PinnedBlock::take(device, bytes.len())?, PinnedBlock::take(device, BYTES)?);
    given.write(&bytes);
    let memory = Span::allocate(device, 3 * BYTES, stream)?;
    let [first, second, sum] = [0, 1, 2].map(|at| memory.address() + at * BYTES as u64);
    let mut jobs = JobList::default();
    jobs.sum(DType::F32, COUNT, &[first, second], &[sum])?;
    let start = Instant::now();
    jobs.prepare(device, stream)?;
    let load = start.elapsed();
    given.upload(0..bytes.len(), first, stream)?;
    jobs.queue(device, stream)?;
    got.download(0..BYTES, sum, stream)?;
    memory.release(stream);
    let mark = queue.mark()?;
    jobs.finish(device, &mark, stream);
    [&mut given, &mut got].into_iter().for_each(|it| it.keep_until(&mark));
    let end = Instant::now() + PATIENCE;
    if !mark.wait(|| Instant::now() > end)? {
        let (number, limit) = (device.ordinal, PATIENCE.as_secs());
        return Err(fail!(
            Timeout,
            "GPU {number} has not run a kernel within {limit} s; see what runs there (nvidia-smi)"
        ));
    }
    let array = got.lent(0, DType::F32).array();
    compare(device.ordinal, array.slice::<f32>(&(0..COUNT)), &inputs)?;
    Ok(load)
}

/// Compares sums with those of the processor.
fn compare(number: u16, got: &[f32], inputs: &[Vec<f32>; 2]) -> Result<()> {
    let wanted = inputs[0].iter().zip(&inputs[1]).map(|(a, b)| a + b);
    for (got, wanted) in got.iter().zip(wanted) {
        if got.to_bits() != wanted.to_bits() {
            let (got, wanted) = (got.to_bits(), wanted.to_bits());
            return Err(fail!(
                Device,
                "GPU {number} has {got:#010x} as a sum instead of {wanted:#010x}; it, its memory or \
                 its driver is faulty: do not use it"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{COUNT, compare, numbers};

    #[test]
    fn a_sum_that_differs_in_one_bit_is_found() {
        let inputs = numbers();
        assert!(inputs.iter().all(|it| it.len() == COUNT && it.iter().all(|it| it.is_finite())));
        let subnormal = inputs[0].iter().filter(|it| it.is_subnormal()).count();
        assert!(subnormal > COUNT / 3, "{subnormal} subnormal numbers");
        let mut sums: Vec<f32> =
            (0..COUNT).map(|index| inputs[0][index] + inputs[1][index]).collect();
        compare(0, &sums, &inputs).unwrap();
        sums[COUNT - 1] = f32::from_bits(sums[COUNT - 1].to_bits() ^ 1);
        let error = compare(3, &sums, &inputs).unwrap_err();
        assert!(error.message().contains("GPU 3") && error.message().contains("faulty"), "{error}");
    }
}
