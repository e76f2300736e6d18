//! Devices, contexts and modules.

use crate::api::{
    Outcome, calls, check, cuCtxGetCurrent, cuCtxGetDevice, cuCtxPopCurrent_v2,
    cuCtxPushCurrent_v2, cuDeviceCanAccessPeer, cuDeviceGetAttribute, cuDeviceGetCount,
    cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain,
    cuDriverGetVersion, cuFuncGetAttribute, cuInit, cuMemAlloc_v2, cuModuleGetFunction,
    cuModuleLoadDataEx, cuModuleUnload, function, kernels, launch, load, made, message, start,
};
use crate::is_child;

#[test]
fn nothing_works_before_the_start() {
    if !is_child("devices::nothing_works_before_the_start", &[("VERSION", "11020")]) {
        return;
    }
    assert_eq!(made(|version| cuDriverGetVersion(version)), Ok(11_020));
    let count: Outcome<i32> = made(|count| cuDeviceGetCount(count));
    assert_eq!(count, Err("CUDA_ERROR_NOT_INITIALIZED".into()));
    assert_eq!(check(cuInit(1)), Err("CUDA_ERROR_INVALID_VALUE".into()));
    check(cuInit(0)).unwrap();
    assert_eq!(made(|count| cuDeviceGetCount(count)), Ok(1));
    let memory: Outcome<u64> = made(|address| cuMemAlloc_v2(address, 4));
    assert_eq!(memory, Err("CUDA_ERROR_INVALID_CONTEXT".into()));
}

#[test]
fn a_machine_may_have_no_device() {
    if is_child("devices::a_machine_may_have_no_device", &[("DEVICES", "0")]) {
        assert_eq!(check(cuInit(0)), Err("CUDA_ERROR_NO_DEVICE".into()));
    }
}

#[test]
fn contexts_are_pushed_and_popped() {
    if !is_child("devices::contexts_are_pushed_and_popped", &[("DEVICES", "3")]) {
        return;
    }
    check(cuInit(0)).unwrap();
    let state = |device| {
        let mut flags = 0;
        made(|active: &mut i32| cuDevicePrimaryCtxGetState(device, &mut flags, active)).unwrap()
    };
    assert_eq!(state(2), 0);
    let contexts: [u64; 2] =
        [0, 2].map(|device| made(|context| cuDevicePrimaryCtxRetain(context, device)).unwrap());
    assert_eq!((state(1), state(2)), (0, 1));
    assert_eq!(made(|context| cuCtxGetCurrent(context)), Ok(0_u64));
    check(cuCtxPushCurrent_v2(contexts[0])).unwrap();
    check(cuCtxPushCurrent_v2(contexts[1])).unwrap();
    assert_eq!(made(|device| cuCtxGetDevice(device)), Ok(2));
    assert_eq!(made(|context| cuCtxPopCurrent_v2(context)), Ok(contexts[1]));
    assert_eq!(made(|device| cuCtxGetDevice(device)), Ok(0));
    let other = std::thread::spawn(|| made(|context| cuCtxGetCurrent(context)));
    assert_eq!(other.join().unwrap(), Ok(0_u64), "a context is current for one thread");
    check(cuDevicePrimaryCtxRelease_v2(2)).unwrap();
    assert_eq!(check(cuDevicePrimaryCtxRelease_v2(2)), Err("CUDA_ERROR_INVALID_CONTEXT".into()));
    let peer: i32 = made(|can| cuDeviceCanAccessPeer(can, 0, 1)).unwrap();
    let none: Outcome<i32> = made(|can| cuDeviceCanAccessPeer(can, 0, 3));
    assert_eq!((peer, none), (1, Err("CUDA_ERROR_INVALID_DEVICE".into())));
    let attribute = |number| made(|value| cuDeviceGetAttribute(value, number, 1)).unwrap();
    assert_eq!((attribute(75), attribute(76), attribute(115)), (8, 0, 1));
    let unknown: Outcome<i32> = made(|value| cuDeviceGetAttribute(value, 9_999, 1));
    assert_eq!(unknown, Err("CUDA_ERROR_INVALID_VALUE".into()));
}

#[test]
fn modules_are_compiled_or_the_log_says_why_not() {
    let test = "devices::modules_are_compiled_or_the_log_says_why_not";
    if !is_child(test, &[("VERSION", "11000"), ("DEVICES", "2")]) {
        return;
    }
    start(0);
    let module = kernels();
    let add = function(module, c"add");
    assert_eq!(function(module, c"add"), add);
    assert_eq!(made(|value| cuFuncGetAttribute(value, 0, add)), Ok(256));
    assert_eq!(made(|value| cuFuncGetAttribute(value, 5, add)), Ok(70));
    let none: Outcome<u64> = made(|it| cuModuleGetFunction(it, module, c"none".as_ptr().cast()));
    assert_eq!(none, Err("CUDA_ERROR_NOT_FOUND".into()));
    let newer = ".version 7.1\n.target sm_70\n\0";
    assert_eq!(load(newer), Err("CUDA_ERROR_UNSUPPORTED_PTX_VERSION".into()));
    assert_eq!(load(".version 7.0\n.target sm_90\n\0"), Err("CUDA_ERROR_NO_BINARY_FOR_GPU".into()));
    let mut log = [0_u8; 64];
    let (options, values) = ([5_u32, 6], [log.as_mut_ptr() as u64, 20]);
    let wrong = c".version 7.0\n.target sm_70\n.func f()\n";
    let status =
        cuModuleLoadDataEx(&mut 0, wrong.as_ptr().cast(), 2, options.as_ptr(), values.as_ptr());
    assert_eq!(check(status), Err("CUDA_ERROR_INVALID_PTX".into()));
    assert_eq!(&log[..21], b"ptxas: line 3: unkn\0\0");
    assert!(message().ends_with("line 3: unknown directive .func f()"), "{}", message());
    // Kernels of one device do not run on another one.
    start(1);
    assert_eq!(launch(add, 1, 0, &[0]), Err("CUDA_ERROR_INVALID_HANDLE".into()));
    assert_eq!(calls(c"cuLaunchKernel"), 1);
    check(cuModuleUnload(module)).unwrap();
    assert_eq!(launch(add, 1, 0, &[0]), Err("CUDA_ERROR_INVALID_HANDLE".into()));
}
