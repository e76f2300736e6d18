//! The C interface of the stand-in, and what tests do with it.
#![allow(unsafe_code, reason = "functions of C are declared here")]

use std::ffi::{CStr, c_void};

// The stand-in is linked in.
use cuda_stand_in as _;

macro_rules! declare {
    ($(fn $name:ident($($argument:ident: $kind:ty),*);)*) => {
        // SAFETY: references are the pointers that the functions expect; host memory that commands use
        // later is that of the driver, which knows how long it lives.
        unsafe extern "C" {
            $(pub safe fn $name($($argument: $kind),*) -> u32;)*
        }
    };
}

declare! {
    fn cuInit(flags: u32);
    fn cuDriverGetVersion(version: &mut i32);
    fn cuDeviceGetCount(count: &mut i32);
    fn cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
    fn cuDeviceCanAccessPeer(can: &mut i32, device: i32, peer: i32);
    fn cuDevicePrimaryCtxRetain(context: &mut u64, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32);
    fn cuCtxPushCurrent_v2(context: u64);
    fn cuCtxPopCurrent_v2(context: &mut u64);
    fn cuCtxGetCurrent(context: &mut u64);
    fn cuCtxGetDevice(device: &mut i32);
    fn cuCtxEnablePeerAccess(peer: u64, flags: u32);
    fn cuCtxSynchronize();
    fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    fn cuMemAlloc_v2(address: &mut u64, bytes: usize);
    fn cuMemFree_v2(address: u64);
    fn cuMemHostAlloc(address: &mut u64, bytes: usize, flags: u32);
    fn cuMemFreeHost(address: u64);
    fn cuMemHostGetFlags(flags: &mut u32, address: u64);
    fn cuMemPoolCreate(pool: &mut u64, properties: &[u32; 22]);
    fn cuMemPoolDestroy(pool: u64);
    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: &mut u64);
    fn cuMemPoolTrimTo(pool: u64, keep: usize);
    fn cuMemAllocFromPoolAsync(address: &mut u64, bytes: usize, pool: u64, stream: u64);
    fn cuMemFreeAsync(address: u64, stream: u64);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    fn cuMemcpyPeerAsync(to: u64, at: u64, from: u64, there: u64, bytes: usize, stream: u64);
    fn cuMemsetD8Async(to: u64, byte: u8, bytes: usize, stream: u64);
    fn cuStreamCreate(stream: &mut u64, flags: u32);
    fn cuStreamCreateWithPriority(stream: &mut u64, flags: u32, priority: i32);
    fn cuStreamGetPriority(stream: u64, priority: &mut i32);
    fn cuStreamDestroy_v2(stream: u64);
    fn cuStreamQuery(stream: u64);
    fn cuStreamSynchronize(stream: u64);
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    fn cuStreamGetId(stream: u64, id: &mut u64);
    fn cuStreamGetCtx(stream: u64, context: &mut u64);
    fn cuStreamIsCapturing(stream: u64, status: &mut u32);
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32);
    fn cuStreamEndCapture(stream: u64, graph: &mut u64);
    fn cuThreadExchangeStreamCaptureMode(mode: &mut u32);
    fn cuEventCreate(event: &mut u64, flags: u32);
    fn cuEventRecord(event: u64, stream: u64);
    fn cuEventQuery(event: u64);
    fn cuEventSynchronize(event: u64);
    fn cuEventDestroy_v2(event: u64);
    fn cuModuleUnload(module: u64);
    fn cuModuleGetFunction(function: &mut u64, module: u64, name: *const u8);
    fn cuModuleLoadDataEx(
        module: &mut u64, image: *const u8, count: u32, options: *const u32, values: *const u64
    );
    fn cuFuncGetAttribute(value: &mut i32, attribute: u32, function: u64);
    fn cuLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: u64, arguments: *const *const u64, extra: *const c_void
    );
    fn cuPointerGetAttribute(value: &mut u64, attribute: u32, address: u64);
    fn cuPointerGetAttributes(
        count: u32, attributes: &[u32; 4], values: &[*mut u64; 4], address: u64
    );
    fn cuGetErrorName(error: u32, name: &mut *const std::ffi::c_char);
}

// SAFETY: functions that the stand-in exports for tests, with these types.
unsafe extern "C" {
    safe fn kv_cuda_stand_in_calls(function: *const u8) -> u64;
    safe fn kv_cuda_stand_in_fail(plan: *const u8);
    safe fn kv_cuda_stand_in_message(text: &mut [u8; 400], room: usize);
    /// Drops what is queued and all faults; draws orders from another seed.
    #[link_name = "kv_cuda_stand_in_seed"]
    pub safe fn seed(seed: u64);
}

/// A status that is not success, or what else is wrong.
pub type Outcome<T = ()> = Result<T, String>;

/// The name of a status.
pub fn name(status: u32) -> String {
    let mut name = std::ptr::null();
    if cuGetErrorName(status, &mut name) != 0 {
        return format!("error {status}");
    }
    // SAFETY: a text that lives as long as the process.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
}

pub fn check(status: u32) -> Outcome {
    if status == 0 { Ok(()) } else { Err(name(status)) }
}

/// Calls a function that puts a number.
pub fn made<T: Default>(call: impl FnOnce(&mut T) -> u32) -> Outcome<T> {
    let mut value = T::default();
    check(call(&mut value)).map(|()| value)
}

pub fn calls(function: &CStr) -> u64 {
    kv_cuda_stand_in_calls(function.as_ptr().cast())
}

pub fn fail(plan: &CStr) {
    kv_cuda_stand_in_fail(plan.as_ptr().cast());
}

pub fn message() -> String {
    let mut text = [0; 400];
    kv_cuda_stand_in_message(&mut text, 400);
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
}

/// Makes the primary context of a device current.
pub fn start(device: i32) -> u64 {
    check(cuInit(0)).unwrap();
    let context = made(|context| cuDevicePrimaryCtxRetain(context, device)).unwrap();
    check(cuCtxPushCurrent_v2(context)).unwrap();
    context
}

const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

pub fn load(text: &str) -> Outcome<u64> {
    assert!(text.ends_with('\0'));
    let (options, values) = (std::ptr::null(), std::ptr::null());
    made(|module| cuModuleLoadDataEx(module, text.as_ptr(), 0, options, values))
}

pub fn kernels() -> u64 {
    load(KERNELS).unwrap()
}

pub fn function(module: u64, name: &CStr) -> u64 {
    made(|function| cuModuleGetFunction(function, module, name.as_ptr().cast())).unwrap()
}

/// Launches blocks of 32 threads.
pub fn launch(function: u64, blocks: u32, stream: u64, arguments: &[u64]) -> Outcome {
    let pointers: Vec<*const u64> = arguments.iter().map(std::ptr::from_ref).collect();
    let (list, extra) = (pointers.as_ptr(), std::ptr::null());
    check(cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, list, extra))
}

/// Host memory that the driver knows.
pub struct Pinned {
    pub address: u64,
    pub words: usize,
}

impl Pinned {
    pub fn new(words: usize) -> Self {
        Self::try_new(words).unwrap()
    }

    /// Fails when the device is lost.
    pub fn try_new(words: usize) -> Outcome<Self> {
        let address = made(|address| cuMemHostAlloc(address, 4 * words, 0))?;
        Ok(Self { address, words })
    }

    pub fn set(&self, values: &[u32]) {
        assert!(values.len() <= self.words);
        // SAFETY: an allocation of so many words; only the driver reads it, between calls of this thread.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), self.address as *mut u32, values.len());
        }
    }

    pub fn get(&self) -> Vec<u32> {
        // SAFETY: so many words of pinned memory are there.
        (0..self.words)
            .map(|index| unsafe { (self.address as *const u32).add(index).read() })
            .collect()
    }
}

/// Reads where only a device may.
pub fn touch(address: u64) -> u8 {
    // SAFETY: it is not; the process ends by it.
    unsafe { (address as *const u8).read_volatile() }
}

/// Memory of the current device.
pub fn memory(words: usize) -> u64 {
    made(|address| cuMemAlloc_v2(address, 4 * words)).unwrap()
}

/// Copies words to the host in stream order, and waits.
pub fn words_at(address: u64, words: usize, stream: u64) -> Outcome<Vec<u32>> {
    let pinned = Pinned::try_new(words)?;
    let copied = check(cuMemcpyDtoHAsync_v2(pinned.address, address, 4 * words, stream));
    let waited = copied.and_then(|()| check(cuStreamSynchronize(stream)));
    let values = pinned.get();
    cuMemFreeHost(pinned.address);
    waited.map(|()| values)
}

/// Runs a check in a forked child. Whether it holds.
pub fn in_fork(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls the driver, which locks no more than it has unlocked, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(!holds());
        // SAFETY: ends the child without the handlers of the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a child of ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status == 0
}

/// Whether a built library has a function, as the loader sees it.
pub fn library_has(path: &CStr, functions: &[&str]) -> Vec<bool> {
    // SAFETY: the stand-in has no code that runs when it is opened.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?} does not open");
    let has = |name: &&str| {
        let name = std::ffi::CString::new(*name).unwrap();
        // SAFETY: an open library and a text.
        !unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
    };
    let found = functions.iter().map(has).collect();
    // SAFETY: opened above; no pointer into it is left.
    unsafe { libc::dlclose(library) };
    found
}
