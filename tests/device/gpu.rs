//! A driver as a program uses it: memory of a GPU, streams, kernels. That of the tests is the stand-in,
//! which also counts calls and plans faults, or the one that `KV_TEST_CUDA` names: a path, or `auto`.
#![allow(unsafe_code, reason = "functions of a library of C, found by name")]

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The variable that names a driver of GPUs, which takes the place of the stand-in.
pub const DRIVER: &str = "KV_TEST_CUDA";
/// The status of a child whose test needs the stand-in from some line on.
pub const NEEDS_STAND_IN: i32 = 77;
/// How the variables of the stand-in begin.
const PREFIX: &str = "KV_CUDA_STAND_IN_";

/// The library of the driver. Cargo builds the stand-in beside the tests.
pub fn library() -> PathBuf {
    match env::var(DRIVER) {
        Ok(name) if name == "auto" => "libcuda.so.1".into(),
        Ok(path) => path.into(),
        Err(_) => env::current_exe().unwrap().parent().unwrap().join("libcuda_stand_in.so"),
    }
}

pub fn is_stand_in() -> bool {
    env::var_os(DRIVER).is_none()
}

/// Why a test with these variables of the stand-in cannot run on the driver here.
pub fn reason_to_skip(variables: &[(&str, &str)]) -> Option<String> {
    if is_stand_in() {
        return None;
    }
    let reason = |(name, value): &(&str, &str)| match name.strip_prefix(PREFIX)? {
        "SEED" | "PEERS" | "RACES" => None,
        "DEVICES" => {
            let (here, wanted) = (devices(), value.parse().unwrap());
            match wanted {
                0 => Some("needs a driver without a GPU".into()),
                _ => (here < wanted).then(|| format!("needs {wanted} GPUs, here are {here}")),
            }
        }
        other => Some(format!("needs the stand-in for {other}={value}")),
    };
    variables.iter().find_map(reason)
}

/// How many GPUs the driver shows.
pub fn devices() -> i32 {
    assert_eq!(init(0), 0);
    made(device_count)
}

/// Ends the child of a test that cannot go on with another driver than the stand-in.
#[allow(clippy::print_stderr, reason = "the parent reads the reason")]
fn need_stand_in(what: &str) {
    if !is_stand_in() {
        eprintln!("needs the stand-in {what}");
        std::process::exit(NEEDS_STAND_IN);
    }
}

/// Why no GPU can be used, if so.
#[allow(dead_code, reason = "benchmarks ask")]
pub fn missing() -> Option<String> {
    let path = CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: opens a driver, which this process is to use.
    if unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }.is_null() {
        return Some(format!("the driver {path:?} cannot be opened"));
    }
    match init(0) {
        0 => (made(device_count) == 0).then(|| "the driver shows no GPU".into()),
        status => Some(format!("the driver fails: cuInit gives {status}")),
    }
}

/// The first GPU and the version of its driver.
#[allow(dead_code, reason = "benchmarks name it")]
pub fn description() -> String {
    let mut name = [0u8; 256];
    assert_eq!(device_name(name.as_mut_ptr(), 256, 0), 0);
    let version = made(driver_version);
    let name = CStr::from_bytes_until_nul(&name).unwrap().to_string_lossy().into_owned();
    format!("GPU 0: {name}; driver of CUDA {}.{}", version / 1000, version % 1000 / 10)
}

fn open() -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let address = LIBRARY.get_or_init(|| {
        let path = CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: the stand-in has no code that runs when it is opened.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} does not open");
        library.expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*address)
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: an open library and a text.
    let found = unsafe { libc::dlsym(open(), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Functions of the driver, by name; references are the pointers that they expect.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[allow(dead_code, reason = "tests and benchmarks use some each")]
        #[allow(clippy::too_many_arguments, reason = "the driver has them")]
        pub fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the function of this name has this type; memory that queued work uses lives
            // until it has run.
            unsafe {
                let function = symbol($symbol);
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(
                    function,
                )($($argument),*)
            }
        }
    )*};
}

functions! {
    init = c"cuInit" (flags: u32) -> u32;
    retain = c"cuDevicePrimaryCtxRetain" (context: &mut u64, device: i32) -> u32;
    push = c"cuCtxPushCurrent_v2" (context: u64) -> u32;
    pop = c"cuCtxPopCurrent_v2" (context: &mut u64) -> u32;
    allocate = c"cuMemAlloc_v2" (address: &mut u64, bytes: usize) -> u32;
    free = c"cuMemFree_v2" (address: u64) -> u32;
    to_device = c"cuMemcpyHtoDAsync_v2" (to: u64, from: u64, bytes: usize, stream: u64) -> u32;
    to_host = c"cuMemcpyDtoHAsync_v2" (to: u64, from: u64, bytes: usize, stream: u64) -> u32;
    copy = c"cuMemcpyDtoDAsync_v2" (to: u64, from: u64, bytes: usize, stream: u64) -> u32;
    stream_create = c"cuStreamCreate" (stream: &mut u64, flags: u32) -> u32;
    destroy = c"cuStreamDestroy_v2" (stream: u64) -> u32;
    stream_wait = c"cuStreamSynchronize" (stream: u64) -> u32;
    begin_capture = c"cuStreamBeginCapture_v2" (stream: u64, mode: u32) -> u32;
    end_capture = c"cuStreamEndCapture" (stream: u64, graph: &mut u64) -> u32;
    module_load = c"cuModuleLoadDataEx"
        (module: &mut u64, text: *const i8, options: u32, names: u64, values: u64) -> u32;
    module_function = c"cuModuleGetFunction"
        (function: &mut u64, module: u64, name: *const i8) -> u32;
    launch = c"cuLaunchKernel"
        (function: u64, x: u32, y: u32, z: u32, threads: u32, of_y: u32, of_z: u32, shared: u32,
         stream: u64, arguments: *const *const u64, extra: u64) -> u32;
    device_count = c"cuDeviceGetCount" (count: &mut i32) -> u32;
    device_name = c"cuDeviceGetName" (name: *mut u8, room: i32, device: i32) -> u32;
    driver_version = c"cuDriverGetVersion" (version: &mut i32) -> u32;
    fill = c"cuMemsetD8Async" (to: u64, byte: u8, bytes: usize, stream: u64) -> u32;
    allocate_pinned = c"cuMemHostAlloc" (address: &mut u64, bytes: usize, flags: u32) -> u32;
    count = c"kv_cuda_stand_in_calls" (name: *const i8) -> u64;
    forget_all_counts = c"kv_cuda_stand_in_forget_calls" () -> ();
    put_message = c"kv_cuda_stand_in_message" (text: *mut u8, room: usize) -> ();
    set_seed = c"kv_cuda_stand_in_seed" (seed: u64) -> ();
    all_pinned_bytes = c"kv_cuda_stand_in_pinned_bytes" () -> u64;
    plan_fault = c"kv_cuda_stand_in_fail" (plan: *const i8) -> ();
}

/// Calls of a function since the counts were forgotten.
pub fn calls(name: &CStr) -> u64 {
    need_stand_in("to count calls");
    count(name.as_ptr())
}

/// Bytes of pinned memory that the process has.
#[allow(dead_code, reason = "one test asks")]
pub fn pinned_bytes() -> u64 {
    need_stand_in("to count pinned memory");
    all_pinned_bytes()
}

pub fn forget_counts() {
    need_stand_in("to count calls");
    forget_all_counts();
}

/// Plans faults; an empty plan is none.
pub fn fail(plan: &CStr) {
    if !plan.is_empty() {
        need_stand_in("to plan a fault");
    }
    if is_stand_in() {
        plan_fault(plan.as_ptr());
    }
}

/// Seeds the order of streams, which another driver takes from the machine.
pub fn seed(number: u64) {
    if is_stand_in() {
        set_seed(number);
    }
}

/// A kernel of a text in PTX.
pub fn kernel(text: &CStr, name: &CStr) -> u64 {
    let module = made(|module| module_load(module, text.as_ptr(), 0, 0, 0));
    made(|function| module_function(function, module, name.as_ptr()))
}

/// Launches so many blocks of threads with numbers as arguments, and returns the status.
pub fn run(kernel: u64, blocks: u32, threads: u32, stream: u64, arguments: &[u64]) -> u32 {
    let list: Vec<_> = arguments.iter().map(std::ptr::from_ref).collect();
    launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, list.as_ptr(), 0)
}

fn made<T: Default>(call: impl FnOnce(&mut T) -> u32) -> T {
    let mut value = T::default();
    assert_eq!(call(&mut value), 0);
    value
}

/// Makes the primary context of a device current.
pub fn start(device: i32) {
    assert_eq!(init(0), 0);
    assert_eq!(push(made(|context| retain(context, device))), 0);
}

/// Does something with a device's context.
pub fn on<T>(device: i32, work: impl FnOnce() -> T) -> T {
    start(device);
    let result = work();
    assert_eq!(pop(&mut 0), 0);
    result
}

pub fn stream() -> u64 {
    made(|stream| stream_create(stream, 1))
}

/// Memory of the current device.
pub fn memory(bytes: usize) -> u64 {
    made(|address| allocate(address, bytes.max(1)))
}

/// Pinned host memory, set to 1.
pub fn pinned(bytes: usize) -> u64 {
    let address = made(|address| allocate_pinned(address, bytes, 0));
    let start = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: so many bytes were allocated.
    unsafe { start.write_bytes(1, bytes) };
    address
}

/// Copies bytes to the device, in stream order; the copy reads them at the call.
pub fn write(address: u64, bytes: &[u8], stream: u64) {
    if !bytes.is_empty() {
        assert_eq!(to_device(address, bytes.as_ptr().addr() as u64, bytes.len(), stream), 0);
    }
}

/// Copies bytes to the host, in stream order, and waits.
pub fn read(address: u64, bytes: usize, stream: u64) -> Vec<u8> {
    let mut text = vec![0; bytes];
    if bytes > 0 {
        let to = text.as_mut_ptr().expose_provenance() as u64;
        assert_eq!(to_host(to, address, bytes, stream), 0);
        assert_eq!(stream_wait(stream), 0);
    }
    text
}

/// What was wrong last, in words.
pub fn message() -> String {
    if !is_stand_in() {
        return String::new();
    }
    let mut text = [0; 400];
    put_message(text.as_mut_ptr(), text.len());
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
}

/// Runs a check in a forked child. Whether it holds.
pub fn in_fork(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses the library, which serves forked processes, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that hangs ends by a signal.
        unsafe { libc::alarm(20) };
        let status = i32::from(!holds());
        // SAFETY: ends the child without the handlers of the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a child of ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status == 0
}
