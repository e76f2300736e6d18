//! Devices that are in use: the primary context of each, made current for a scope.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::{Code, DeviceCounters, Driver, Outcome};
use super::name::KernelName;
use super::stream::{Stream, named};
use crate::error::{Error, Result, fail};

/// A device with all that the library has there; it lives until the process ends.
pub(crate) struct Device {
    pub(crate) driver: &'static Driver,
    pub(crate) ordinal: u16,
    context: u64,
    /// Its pool of memory, if the driver has pools.
    pub(super) pool: Option<u64>,
    pub(super) counters: DeviceCounters,
    /// The status with which the device was lost, or 0.
    lost: AtomicU32,
    pub(super) kernels: Mutex<HashMap<KernelName, u64>>,
    /// Streams of the library, by priority and by lane.
    streams: Mutex<HashMap<(i32, u64), Stream>>,
}

/// Devices in use, in the order of their first use.
static IN_USE: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a device's context current on this thread.
pub(crate) struct ContextScope(&'static Device);

impl Drop for ContextScope {
    fn drop(&mut self) {
        self.0.driver.pop();
    }
}

impl Device {
    /// The device of a number, with the driver of a path or the system's.
    pub(crate) fn of(path: Option<&str>, ordinal: u16) -> Result<&'static Self> {
        let driver = Driver::open(path)?;
        let mut in_use = lock(&IN_USE);
        if let Some(device) = in_use.iter().find(|device| device.ordinal == ordinal) {
            device.check_usable()?;
            return Ok(device);
        }
        driver.check_number(ordinal)?;
        let device: &'static Self = Box::leak(Box::new(Self::start(driver, ordinal)?));
        in_use.push(device);
        Ok(device)
    }

    fn start(driver: &'static Driver, ordinal: u16) -> Result<Self> {
        const MEMORY_POOLS: u32 = 115;
        let number = i32::from(ordinal);
        let named = |call: &'static str| {
            move |code| driver.error(call, code).at(format_args!("GPU {ordinal}"))
        };
        let _relaxed = driver.relax_capture();
        let pools = driver.attribute(number, MEMORY_POOLS);
        let has_pools = pools.map_err(named("cuDeviceGetAttribute"))? != 0;
        let context = driver.retain(number).map_err(named("cuDevicePrimaryCtxRetain"))?;
        let made = has_pools.then(|| driver.create_pool(number)).transpose();
        let pool = made.map_err(named("cuMemPoolCreate"))?;
        Ok(Self {
            driver,
            ordinal,
            context,
            pool,
            counters: DeviceCounters::default(),
            lost: AtomicU32::new(0),
            kernels: Mutex::default(),
            streams: Mutex::default(),
        })
    }

    /// Devices that this process has used.
    pub(super) fn in_use() -> Vec<&'static Self> {
        lock(&IN_USE).clone()
    }

    /// Makes the device's context current until the scope ends.
    pub(crate) fn enter(&'static self) -> Result<ContextScope> {
        let pushed = self.driver.push(self.context);
        pushed.map_err(|code| self.fail("cuCtxPushCurrent", code))?;
        Ok(ContextScope(self))
    }

    /// Queues a copy from the memory of one device to that of another; this one is current.
    pub(crate) fn copy_peer(
        &self,
        (to, to_address): (&Self, u64),
        (from, from_address): (&Self, u64),
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = ((to_address, to.context), (from_address, from.context));
        let outcome = self.driver.copy_peer(to, from, bytes, stream.handle());
        self.result("cuMemcpyPeerAsync", self.counters.between.note(outcome, bytes))
    }

    pub(crate) fn is_usable(&self) -> bool {
        // Relaxed: a device that is lost a moment later gives an error of its own.
        self.lost.load(Ordering::Relaxed) == 0
    }

    fn check_usable(&self) -> Result<()> {
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(self.fail("an earlier call", Code(code))),
        }
    }

    /// The error of a call of the driver; notes that the device is lost by it.
    pub(crate) fn fail(&self, call: &str, code: Code) -> Error {
        if code.loses_device() {
            self.lost.store(code.0, Ordering::Relaxed);
        }
        self.driver.error(call, code).at(format_args!("GPU {}", self.ordinal))
    }

    /// An outcome with the name of its call.
    pub(super) fn result<T>(&self, call: &str, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|code| self.fail(call, code))
    }

    /// The library's stream for work that is behind none of a caller's.
    pub(crate) fn own_stream(&self) -> Result<Stream> {
        self.stream_of_lane(0, 0)
    }

    /// The library's stream for operations of a priority behind a caller's stream. Callers' streams
    /// have different ones as far as possible: one that takes long holds up few others.
    pub(crate) fn stream_behind(&self, callers: &Stream, priority: i32) -> Result<Stream> {
        self.stream_of_lane(priority, callers.lane())
    }

    fn stream_of_lane(&self, priority: i32, lane: u64) -> Result<Stream> {
        let mut streams = lock(&self.streams);
        // More would be of no use: devices have few priorities.
        let priority = priority.clamp(-1, 8);
        if let Some(stream) = streams.get(&(priority, lane)) {
            return Ok(*stream);
        }
        let made = self.result("cuStreamCreate", self.driver.create_stream(priority))?;
        let stream = Stream::of(self.driver, self.ordinal, made);
        streams.insert((priority, lane), stream);
        Ok(stream)
    }

    /// The stream that this thread has named, whose context is current; no capture may use it.
    pub(super) fn callers_stream(&self) -> Result<Stream> {
        let handle = named(self.ordinal);
        // At first: other questions about a stream that is being captured end its capture.
        let captured = self.driver.is_captured(handle);
        if self.result("cuStreamIsCapturing", captured)? {
            return Err(fail!(
                Unsupported,
                "the stream of GPU {} is being captured into a graph; make the call outside of the \
                 capture",
                self.ordinal
            ));
        }
        Ok(Stream::of(self.driver, self.ordinal, handle))
    }

    /// Refuses a stream of another device, or of a context that is not the primary one.
    pub(super) fn check_stream(&self, stream: u64) -> Result<()> {
        match self.driver.stream_context(stream) {
            Ok(context) if context == self.context => Ok(()),
            _ => Err(fail!(
                InvalidArgument,
                "set_stream: it is no stream of GPU {} in its primary context",
                self.ordinal
            )),
        }
    }

    /// Refuses memory that the device cannot use, from one address to another; gives the end of its
    /// allocation.
    pub(crate) fn check_range(&self, (start, end): (usize, usize)) -> Result<(usize, usize)> {
        let own = self.ordinal;
        let found = self.result("cuPointerGetAttributes", self.driver.pointer(start as u64))?;
        if found.kind == 0 || found.kind == 1 {
            return Err(fail!(
                InvalidArgument,
                "is said to be in the memory of GPU {own}, and {start:#x} is not"
            ));
        }
        if found.is_managed {
            return Err(fail!(Unsupported, "is in managed memory, which this version cannot use"));
        }
        if found.ordinal != i32::from(own) {
            let other = found.ordinal;
            return Err(fail!(
                InvalidArgument,
                "is said to be in the memory of GPU {own}, and {start:#x} is in that of GPU {other}"
            ));
        }
        if found.context != 0 && found.context != self.context {
            return Err(fail!(
                Unsupported,
                "is of another context than the primary one of GPU {own}"
            ));
        }
        let first = usize::try_from(found.start).unwrap_or(0);
        let last = first.saturating_add(found.bytes);
        if end > last {
            return Err(fail!(
                InvalidArgument,
                "reaches {} bytes beyond its allocation on GPU {own}",
                end - last
            ));
        }
        Ok((first, last))
    }
}
