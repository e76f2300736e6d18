//! The functions of the driver that the stand-in has.

/// Names, and the version of the driver that introduced each, as `cuDriverGetVersion` counts: 11020 is
/// 11.2.
pub const FUNCTIONS: &[(&str, u32)] = &[
    ("cuCtxEnablePeerAccess", 4_000),
    ("cuCtxGetCurrent", 4_000),
    ("cuCtxGetDevice", 2_000),
    ("cuCtxGetStreamPriorityRange", 5_050),
    ("cuCtxPopCurrent_v2", 4_000),
    ("cuCtxPushCurrent_v2", 4_000),
    ("cuCtxSetCurrent", 4_000),
    ("cuCtxSynchronize", 2_000),
    ("cuDeviceCanAccessPeer", 4_000),
    ("cuDeviceGet", 2_000),
    ("cuDeviceGetAttribute", 2_000),
    ("cuDeviceGetCount", 2_000),
    ("cuDeviceGetName", 2_000),
    ("cuDeviceGetUuid", 9_020),
    ("cuDeviceGetUuid_v2", 11_040),
    ("cuDevicePrimaryCtxGetState", 7_000),
    ("cuDevicePrimaryCtxRelease_v2", 11_000),
    ("cuDevicePrimaryCtxRetain", 7_000),
    ("cuDeviceTotalMem_v2", 3_020),
    ("cuDriverGetVersion", 2_020),
    ("cuEventCreate", 2_000),
    ("cuEventDestroy_v2", 4_000),
    ("cuEventQuery", 2_000),
    ("cuEventRecord", 2_000),
    ("cuEventSynchronize", 2_000),
    ("cuFuncGetAttribute", 2_020),
    ("cuGetErrorName", 6_000),
    ("cuGetErrorString", 6_000),
    ("cuGraphDestroy", 10_000),
    ("cuInit", 2_000),
    ("cuLaunchKernel", 4_000),
    ("cuMemAllocAsync", 11_020),
    ("cuMemAllocFromPoolAsync", 11_020),
    ("cuMemAllocHost_v2", 3_020),
    ("cuMemAlloc_v2", 3_020),
    ("cuMemFreeAsync", 11_020),
    ("cuMemFreeHost", 2_000),
    ("cuMemFree_v2", 3_020),
    ("cuMemGetInfo_v2", 3_020),
    ("cuMemHostAlloc", 2_020),
    ("cuMemHostGetFlags", 2_030),
    ("cuMemPoolCreate", 11_020),
    ("cuMemPoolDestroy", 11_020),
    ("cuMemPoolSetAttribute", 11_020),
    ("cuMemPoolTrimTo", 11_020),
    ("cuMemcpyDtoDAsync_v2", 3_020),
    ("cuMemcpyDtoHAsync_v2", 3_020),
    ("cuMemcpyHtoDAsync_v2", 3_020),
    ("cuMemcpyPeerAsync", 4_000),
    ("cuMemsetD8Async", 3_020),
    ("cuModuleGetFunction", 2_000),
    ("cuModuleLoadDataEx", 2_010),
    ("cuModuleUnload", 2_000),
    ("cuPointerGetAttribute", 4_000),
    ("cuPointerGetAttributes", 7_000),
    ("cuStreamBeginCapture_v2", 10_010),
    ("cuStreamCreate", 2_000),
    ("cuStreamCreateWithPriority", 5_050),
    ("cuStreamDestroy_v2", 4_000),
    ("cuStreamEndCapture", 10_000),
    ("cuStreamGetCtx", 9_020),
    ("cuStreamGetId", 12_000),
    ("cuStreamGetPriority", 5_050),
    ("cuStreamIsCapturing", 10_000),
    ("cuStreamQuery", 2_000),
    ("cuStreamSynchronize", 2_000),
    ("cuStreamWaitEvent", 3_020),
    ("cuThreadExchangeStreamCaptureMode", 10_010),
];

/// The functions that a driver of a version does not have.
pub fn missing_in(version: u32) -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().filter(move |(_, since)| *since > version).map(|(name, _)| *name)
}

/// Hides a function in the bytes of the built library: its name in the symbol table is changed, so that
/// `dlsym` does not find it. Returns whether the name was there.
pub fn hide(library: &mut [u8], function: &str) -> bool {
    let text = [b"\0", function.as_bytes(), b"\0"].concat();
    let mut is_there = false;
    for at in 0..library.len().saturating_sub(text.len()) {
        if library[at..].starts_with(&text) {
            library[at + 1] = b'_';
            is_there = true;
        }
    }
    is_there
}
