//! The driver of CUDA devices: its library, opened at run time, its functions, its errors.
//!
//! This file has the functions without pointers of the caller's; the others are in `memory.rs`.
#![allow(unsafe_code, reason = "functions of a library of C, found by name")]

mod counters;
mod error;
mod library;

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

pub(crate) use counters::DeviceCounters;
pub(super) use counters::PINNED;
pub(crate) use error::Code;
use library::{OLDEST, PoolProperties, Table, too_old};

use crate::error::{Result, fail};
use crate::sys;

/// An outcome of the driver.
pub(crate) type Outcome<T = ()> = std::result::Result<T, Code>;

/// The driver, which is never closed.
pub(crate) struct Driver {
    table: Table,
    /// As the option `cuda` named the library.
    path: Option<String>,
    /// As `cuDriverGetVersion` counts: 11020 is 11.2.
    version: i32,
    /// Devices that the driver shows to this process.
    devices: usize,
}

/// The process that uses the driver, as [`sys::fork_generation`] counts, or [`NONE`]. A forked child
/// asks here before it takes a lock, which another thread of its parent may have held.
static USED_BY: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;

/// The driver of this process, once it is open.
static OPENED: Mutex<Option<&'static Driver>> = Mutex::new(None);

/// Attributes of a pointer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pointer {
    /// 0 if the driver does not know the address, 1 host memory, 2 device memory.
    pub(crate) kind: u32,
    pub(crate) ordinal: i32,
    /// 0 for memory of a pool.
    pub(crate) context: u64,
    pub(crate) is_managed: bool,
    /// The allocation: its first address, and its bytes.
    pub(crate) start: u64,
    pub(crate) bytes: usize,
}

/// Restores the capture mode of a thread.
pub(crate) struct RelaxedCapture {
    driver: &'static Driver,
    before: u32,
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: a place for a number.
        unsafe { (self.driver.table.capture_mode)(&raw mut self.before) };
    }
}

fn outcome(status: u32) -> Outcome {
    if status == 0 { Ok(()) } else { Err(Code(status)) }
}

fn number(function: unsafe extern "C" fn(*mut i32) -> u32) -> Outcome<i32> {
    let mut number = 0;
    // SAFETY: a place for the result.
    outcome(unsafe { function(&raw mut number) }).map(|()| number)
}

impl Driver {
    /// The driver of this process; opens it at the first call. A failure is not remembered.
    pub(crate) fn open(path: Option<&str>) -> Result<&'static Self> {
        sys::watch_forks();
        let own = sys::fork_generation();
        let used_by = USED_BY.compare_exchange(NONE, own, Ordering::SeqCst, Ordering::SeqCst);
        if used_by.is_err_and(|other| other != own) {
            return Err(fail!(
                Device,
                "CUDA was in use before fork(), so this process cannot use it; start workers by \
                 spawn, or use tensors in host memory"
            ));
        }
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = *opened {
            return driver.check(path);
        }
        let started = Self::start(path);
        USED_BY.store(if started.is_ok() { own } else { NONE }, Ordering::SeqCst);
        let driver: &'static Self = Box::leak(Box::new(started?));
        *opened = Some(driver);
        Ok(driver)
    }

    /// Whether this process uses the driver: neither its parent nor no process.
    pub(crate) fn is_in_use() -> bool {
        USED_BY.load(Ordering::SeqCst) == sys::fork_generation()
    }

    fn check(&'static self, path: Option<&str>) -> Result<&'static Self> {
        if path.is_some_and(|path| self.path.as_deref() != Some(path)) {
            let own = self.path.as_deref().unwrap_or("auto");
            let path = path.unwrap_or_default();
            return Err(fail!(
                Device,
                "the option cuda is {path:?}, and this process has opened the driver {own:?}"
            ));
        }
        Ok(self)
    }

    fn start(path: Option<&str>) -> Result<Self> {
        let table = library::open(path)?;
        let path = path.map(Into::into);
        let mut driver = Self { table, path, version: 0, devices: 0 };
        // SAFETY: no pointers.
        let status = unsafe { (driver.table.init)(0) };
        outcome(status).map_err(|code| driver.error("cuInit", code))?;
        let version = number(driver.table.version);
        let version = version.map_err(|code| driver.error("cuDriverGetVersion", code))?;
        if version < OLDEST {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(fail!(Device, "the driver is one of CUDA {major}.{minor}; {}", too_old()));
        }
        let count = number(driver.table.device_count);
        let count = count.map_err(|code| driver.error("cuDeviceGetCount", code))?;
        driver.devices = usize::try_from(count).unwrap_or(0);
        driver.version = version;
        Ok(driver)
    }

    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// How many devices this process sees.
    pub(crate) fn devices(&self) -> u16 {
        u16::try_from(self.devices).unwrap_or(u16::MAX)
    }

    /// Refuses the number of a device that this process does not see.
    pub(crate) fn check_number(&self, ordinal: u16) -> Result<()> {
        let count = self.devices;
        if usize::from(ordinal) < count {
            return Ok(());
        }
        Err(fail!(
            InvalidArgument,
            "is on the CUDA device {ordinal}, and this process sees {count}; CUDA_VISIBLE_DEVICES may \
             hide others"
        ))
    }

    /// An error with CUDA's name of the status.
    pub(crate) fn error(&self, call: &str, code: Code) -> crate::Error {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: a place for a pointer.
        unsafe { (self.table.error_name)(code.0, &raw mut name) };
        if name.is_null() {
            return code.error(call, "unknown error of CUDA");
        }
        // SAFETY: a text of the driver, which lives as long as it.
        code.error(call, &unsafe { CStr::from_ptr(name) }.to_string_lossy())
    }

    pub(crate) fn attribute(&self, ordinal: i32, attribute: u32) -> Outcome<i32> {
        let mut value = 0;
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.device_attribute)(&raw mut value, attribute, ordinal) };
        outcome(status).map(|()| value)
    }

    /// The name of a device's model.
    pub(crate) fn device_name(&self, ordinal: i32) -> Outcome<String> {
        let mut name = [0; 256];
        // SAFETY: a place for so many bytes, the zero at the end included.
        outcome(unsafe { (self.table.device_name)(name.as_mut_ptr(), 256, ordinal) })?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Whether a device can access the memory of another one.
    pub(crate) fn can_access_peer(&self, ordinal: i32, peer: i32) -> Outcome<bool> {
        let mut can = 0;
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.can_access_peer)(&raw mut can, ordinal, peer) };
        outcome(status).map(|()| can != 0)
    }

    /// The primary context of a device, which is kept until the process ends.
    pub(crate) fn retain(&self, ordinal: i32) -> Outcome<u64> {
        let mut context = 0;
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.retain)(&raw mut context, ordinal) };
        outcome(status).map(|()| context)
    }

    pub(crate) fn push(&self, context: u64) -> Outcome {
        // SAFETY: a context that this driver gave.
        outcome(unsafe { (self.table.push)(context) })
    }

    pub(crate) fn pop(&self) {
        let mut context = 0;
        // SAFETY: a place for the result.
        unsafe { (self.table.pop)(&raw mut context) };
    }

    /// Lets a capture of another thread go on while this one allocates.
    pub(crate) fn relax_capture(&'static self) -> RelaxedCapture {
        const RELAXED: u32 = 2;
        let mut before = RELAXED;
        // SAFETY: a place for a number.
        unsafe { (self.table.capture_mode)(&raw mut before) };
        RelaxedCapture { driver: self, before }
    }

    /// Free bytes of the current device, and all.
    pub(crate) fn memory_info(&self) -> Outcome<(usize, usize)> {
        let (mut free, mut all) = (0, 0);
        // SAFETY: places for the results.
        let status = unsafe { (self.table.memory_info)(&raw mut free, &raw mut all) };
        outcome(status).map(|()| (free, all))
    }

    /// Allocates memory of the current device, which any stream may use at once.
    pub(crate) fn allocate_now(&self, bytes: usize) -> Outcome<u64> {
        let mut address = 0;
        // SAFETY: a place for the result.
        outcome(unsafe { (self.table.allocate_now)(&raw mut address, bytes) }).map(|()| address)
    }

    /// Frees memory that no work uses any more.
    pub(crate) fn free_now(&self, address: u64) -> Outcome {
        // SAFETY: an allocation of ours, whose owner gives it up.
        outcome(unsafe { (self.table.free_now)(address) })
    }

    /// A pool of memory of a device, which keeps what it has.
    pub(crate) fn create_pool(&self, ordinal: i32) -> Outcome<u64> {
        const RELEASE_THRESHOLD: u32 = 4;
        let (mut pool, mut keep) = (0, u64::MAX);
        let properties = PoolProperties::of(ordinal);
        // SAFETY: a place for the result, and properties.
        let status = unsafe { (self.table.pool_create)(&raw mut pool, &raw const properties) };
        outcome(status)?;
        // SAFETY: a pool of ours and a number.
        outcome(unsafe { (self.table.pool_set)(pool, RELEASE_THRESHOLD, &raw mut keep) })?;
        Ok(pool)
    }

    pub(crate) fn trim_pool(&self, pool: u64) -> Outcome {
        // SAFETY: a pool of ours.
        outcome(unsafe { (self.table.pool_trim)(pool, 0) })
    }

    pub(crate) fn allocate(&self, bytes: usize, pool: u64, stream: u64) -> Outcome<u64> {
        let mut address = 0;
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.allocate)(&raw mut address, bytes, pool, stream) };
        outcome(status).map(|()| address)
    }

    pub(crate) fn free(&self, address: u64, stream: u64) -> Outcome {
        // SAFETY: an allocation of ours, whose owner gives it up.
        outcome(unsafe { (self.table.free)(address, stream) })
    }

    pub(crate) fn fill(&self, to: u64, bytes: usize, stream: u64) -> Outcome {
        // SAFETY: device memory of ours.
        outcome(unsafe { (self.table.fill)(to, 0, bytes, stream) })
    }

    /// Queues a copy between devices, each an address and its context. The driver stages it where
    /// they cannot access each other.
    pub(crate) fn copy_peer(
        &self,
        to: (u64, u64),
        from: (u64, u64),
        bytes: usize,
        stream: u64,
    ) -> Outcome {
        // SAFETY: device memory that is checked or ours, in stream order.
        outcome(unsafe { (self.table.copy_peer)(to.0, to.1, from.0, from.1, bytes, stream) })
    }

    /// A stream of the current context that the legacy stream does not wait for.
    pub(crate) fn create_stream(&self, priority: i32) -> Outcome<u64> {
        const NON_BLOCKING: u32 = 1;
        let (mut least, mut greatest, mut stream) = (0, 0, 0);
        // SAFETY: places for the results.
        outcome(unsafe { (self.table.priorities)(&raw mut least, &raw mut greatest) })?;
        // A lower number is more urgent for CUDA, a larger one for a call.
        let priority = priority.saturating_neg().clamp(greatest.min(least), least.max(greatest));
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.stream_create)(&raw mut stream, NON_BLOCKING, priority) };
        outcome(status).map(|()| stream)
    }

    /// The number of a stream, which is never used again; None on drivers before CUDA 12.0.
    pub(crate) fn stream_id(&self, stream: u64) -> Option<u64> {
        let mut id = 0;
        // SAFETY: the caller's stream and a place for the result.
        let status = unsafe { (self.table.stream_id?)(stream, &raw mut id) };
        (status == 0).then_some(id)
    }

    pub(crate) fn stream_context(&self, stream: u64) -> Outcome<u64> {
        let mut context = 0;
        // SAFETY: the caller's stream and a place for the result.
        let status = unsafe { (self.table.stream_context)(stream, &raw mut context) };
        outcome(status).map(|()| context)
    }

    /// Whether a stream is being captured into a graph.
    pub(crate) fn is_captured(&self, stream: u64) -> Outcome<bool> {
        let mut capture = 0;
        // SAFETY: the caller's stream and a place for the result.
        let status = unsafe { (self.table.stream_capture)(stream, &raw mut capture) };
        match outcome(status) {
            Err(Code::CAPTURE_IMPLICIT) => Ok(true),
            outcome => outcome.map(|()| capture != 0),
        }
    }

    pub(crate) fn wait_event(&self, stream: u64, event: u64) -> Outcome {
        // SAFETY: a stream, and an event of ours.
        outcome(unsafe { (self.table.stream_wait)(stream, event, 0) })
    }

    pub(crate) fn create_event(&self) -> Outcome<u64> {
        const DISABLE_TIMING: u32 = 2;
        let mut event = 0;
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.event_create)(&raw mut event, DISABLE_TIMING) };
        outcome(status).map(|()| event)
    }

    pub(crate) fn record(&self, event: u64, stream: u64) -> Outcome {
        // SAFETY: an event of ours and a stream.
        outcome(unsafe { (self.table.event_record)(event, stream) })
    }

    pub(crate) fn has_passed(&self, event: u64) -> Outcome<bool> {
        // SAFETY: an event of ours.
        match outcome(unsafe { (self.table.event_query)(event) }) {
            Err(Code::NOT_READY) => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Loads a module of the current context; returns its kernel of a name.
    pub(crate) fn load(&self, text: &CStr, kernel: &CStr) -> Outcome<u64> {
        let (mut module, mut function) = (0, 0);
        let (options, values) = (std::ptr::null(), std::ptr::null());
        // SAFETY: a place for the result, a text, no options.
        let status =
            unsafe { (self.table.module_load)(&raw mut module, text.as_ptr(), 0, options, values) };
        outcome(status)?;
        // SAFETY: a place for the result, a module and a text.
        let status =
            unsafe { (self.table.module_function)(&raw mut function, module, kernel.as_ptr()) };
        outcome(status).map(|()| function)
    }

    /// Launches so many blocks of threads with addresses as arguments.
    pub(crate) fn launch(
        &self,
        function: u64,
        (blocks, threads): (u32, u32),
        stream: u64,
        arguments: &[u64; 4],
    ) -> Outcome {
        let pointers = arguments.each_ref().map(std::ptr::from_ref);
        let launch = self.table.launch;
        // SAFETY: a kernel of ours with four addresses, which the driver copies at the call.
        let status = unsafe {
            let (list, extra) = (pointers.as_ptr(), std::ptr::null());
            launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, list, extra)
        };
        outcome(status)
    }

    /// Attributes of an address.
    pub(crate) fn pointer(&self, address: u64) -> Outcome<Pointer> {
        const ATTRIBUTES: [u32; 6] = [2, 9, 1, 8, 11, 12];
        let mut found = Pointer { ordinal: -1, ..Pointer::default() };
        // The driver writes one byte or four.
        let mut is_managed = 0u32;
        let values: [*mut c_void; 6] = [
            (&raw mut found.kind).cast(),
            (&raw mut found.ordinal).cast(),
            (&raw mut found.context).cast(),
            (&raw mut is_managed).cast(),
            (&raw mut found.start).cast(),
            (&raw mut found.bytes).cast(),
        ];
        // SAFETY: as many attributes as places of their types; any address may be asked for.
        let status =
            unsafe { (self.table.pointer)(6, ATTRIBUTES.as_ptr(), values.as_ptr(), address) };
        found.is_managed = is_managed != 0;
        outcome(status).map(|()| found)
    }

    /// Frees pinned host memory.
    ///
    /// # Safety
    /// It is an allocation of [`Driver::allocate_host`], which nothing uses any more.
    pub(crate) unsafe fn free_host(&self, start: *mut u8) -> Outcome {
        // SAFETY: the caller's promise.
        outcome(unsafe { (self.table.host_free)(start) })
    }

    /// Pinned host memory.
    pub(crate) fn allocate_host(&self, bytes: usize) -> Outcome<*mut u8> {
        const PORTABLE: u32 = 1;
        let mut start = std::ptr::null_mut();
        // SAFETY: a place for the result.
        let status = unsafe { (self.table.host_allocate)(&raw mut start, bytes, PORTABLE) };
        outcome(status).map(|()| start)
    }

    /// Queues a copy from host memory.
    ///
    /// # Safety
    /// The bytes are there, and unchanged until the copy has run.
    pub(crate) unsafe fn copy_from_host(
        &self,
        to: u64,
        from: *const u8,
        bytes: usize,
        stream: u64,
    ) -> Outcome {
        // SAFETY: the caller's promise.
        outcome(unsafe { (self.table.from_host)(to, from, bytes, stream) })
    }

    /// Queues a copy to host memory.
    ///
    /// # Safety
    /// The bytes are there, and used by nothing else until the copy has run.
    pub(crate) unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: u64,
        bytes: usize,
        stream: u64,
    ) -> Outcome {
        // SAFETY: the caller's promise.
        outcome(unsafe { (self.table.to_host)(to, from, bytes, stream) })
    }
}
