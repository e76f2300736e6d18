//! Planned faults.

use crate::api::{
    Outcome, check, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuDevicePrimaryCtxRelease_v2,
    cuEventCreate, cuEventRecord, cuInit, cuMemAlloc_v2, cuMemsetD8Async, cuStreamQuery,
    cuStreamSynchronize, cuStreamWaitEvent, fail, function, kernels, launch, made, memory, seed,
    start, words_at,
};
use crate::is_child;

fn allocates() -> Outcome<u64> {
    made(|address| cuMemAlloc_v2(address, 4))
}

#[test]
fn calls_fail_as_planned_in_the_environment() {
    let test = "faults::calls_fail_as_planned_in_the_environment";
    if !is_child(test, &[("FAIL", "cuInit:1=3,cuMemAlloc_v2:2=2")]) {
        return;
    }
    assert_eq!(check(cuInit(0)), Err("CUDA_ERROR_NOT_INITIALIZED".into()));
    start(0);
    assert!(allocates().is_ok());
    assert_eq!(allocates(), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
    assert!(allocates().is_ok());
}

#[test]
fn a_lost_device_returns_its_error_until_its_context_is_reset() {
    let test = "faults::a_lost_device_returns_its_error_until_its_context_is_reset";
    if !is_child(test, &[("DEVICES", "2")]) {
        return;
    }
    let other = start(1);
    start(0);
    seed(3);
    fail(c"cuMemsetD8Async:2=999");
    let (address, event): (u64, u64) = (memory(1), made(|event| cuEventCreate(event, 0)).unwrap());
    check(cuMemsetD8Async(address, 1, 4, 0)).unwrap();
    check(cuEventRecord(event, 0)).unwrap();
    // A stream of the other device waits for it.
    check(cuCtxPushCurrent_v2(other)).unwrap();
    check(cuStreamWaitEvent(0, event, 0)).unwrap();
    made(|context: &mut u64| cuCtxPopCurrent_v2(context)).unwrap();
    let unknown = || "CUDA_ERROR_UNKNOWN".to_owned();
    assert_eq!(check(cuMemsetD8Async(address, 1, 4, 0)), Err(unknown()));
    assert_eq!(check(cuStreamSynchronize(0)), Err(unknown()));
    assert_eq!(allocates(), Err(unknown()));
    check(cuCtxPushCurrent_v2(other)).unwrap();
    assert!(allocates().is_ok(), "the other device goes on");
    check(cuStreamSynchronize(0)).unwrap();
    check(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    start(0);
    assert!(allocates().is_ok());
    assert_eq!(check(cuMemsetD8Async(address, 1, 4, 0)), Ok(()));
    let freed = Err("CUDA_ERROR_ILLEGAL_ADDRESS".into());
    assert_eq!(check(cuStreamSynchronize(0)), freed, "the reset has freed it");
}

#[test]
fn a_device_reports_a_fault_late_or_never_ends() {
    if !is_child("faults::a_device_reports_a_fault_late_or_never_ends", &[]) {
        return;
    }
    start(0);
    let (set, address) = (function(kernels(), c"set"), memory(32));
    fail(c"cuLaunchKernel:2=late719");
    launch(set, 1, 0, &[address, 1, 32]).unwrap();
    assert_eq!(words_at(address, 1, 0).unwrap(), [1]);
    launch(set, 1, 0, &[address, 2, 32]).unwrap();
    let failed = (0..1_000)
        .map(|_| check(cuStreamQuery(0)))
        .find(|it| *it != Err("CUDA_ERROR_NOT_READY".into()));
    assert_eq!(failed, Some(Err("CUDA_ERROR_LAUNCH_FAILED".into())));
    assert_eq!(allocates(), Err("CUDA_ERROR_LAUNCH_FAILED".into()));
    seed(3);
    fail(c"cuLaunchKernel:1=hang");
    launch(set, 1, 0, &[address, 3, 32]).unwrap();
    let waits = (0..1_000).all(|_| check(cuStreamQuery(0)) == Err("CUDA_ERROR_NOT_READY".into()));
    assert!(waits);
    assert_eq!(check(cuStreamSynchronize(0)), Err("CUDA_ERROR_LAUNCH_TIMEOUT".into()));
}

#[test]
fn a_driver_does_not_survive_fork() {
    if !is_child("faults::a_driver_does_not_survive_fork", &[]) {
        return;
    }
    start(0);
    let status = crate::api::in_fork(|| allocates() == Err("CUDA_ERROR_NOT_INITIALIZED".into()));
    assert!(status && allocates().is_ok());
}
