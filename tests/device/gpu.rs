//! The stand-in driver as a program uses a driver: memory of a GPU, streams, counts, faults.
#![allow(unsafe_code, reason = "functions of a library of C, found by name")]

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Cargo builds the stand-in beside the tests.
pub fn library() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().join("libcuda_stand_in.so")
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
    count = c"kv_cuda_stand_in_calls" (name: *const i8) -> u64;
    forget_counts = c"kv_cuda_stand_in_forget_calls" () -> ();
    put_message = c"kv_cuda_stand_in_message" (text: *mut u8, room: usize) -> ();
    seed = c"kv_cuda_stand_in_seed" (seed: u64) -> ();
    plan_fault = c"kv_cuda_stand_in_fail" (plan: *const i8) -> ();
}

/// Calls of a function since the counts were forgotten.
pub fn calls(name: &CStr) -> u64 {
    count(name.as_ptr())
}

pub fn fail(plan: &CStr) {
    plan_fault(plan.as_ptr());
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
    let mut text = [0; 400];
    put_message(text.as_mut_ptr(), text.len());
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
}

/// Runs a check in a forked child. Whether it holds.
pub fn in_fork(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses the library, which serves forked processes, and ends.
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
