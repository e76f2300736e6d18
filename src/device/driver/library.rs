//! The driver's library, opened at run time, and its functions that are used.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::error::{Result, fail};

/// The driver as the loader finds it.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver that has every function here: that of CUDA 11.2, release 460.
pub(super) const OLDEST: i32 = 11_020;

/// Declares the functions once: field, symbol, parameters. Handles and addresses are 64-bit numbers.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($kind:ty),*);)+) => {
        /// The functions of the driver.
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($kind),*) -> u32,)+
            /// From CUDA 12.0 on.
            pub(super) stream_id: Option<unsafe extern "C" fn(u64, *mut u64) -> u32>,
        }

        impl Table {
            /// Looks the functions up.
            fn find(library: &Library) -> Result<Self> {
                Ok(Self {
                    // SAFETY: the driver's interface gives the function of this name this type.
                    $($field: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> u32>(
                            library.require($symbol)?,
                        )
                    },)+
                    // SAFETY: the driver gives this function this type.
                    stream_id: library.symbol(c"cuStreamGetId").map(|it| unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, *mut u64) -> u32>(it)
                    }),
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (u32);
    version = c"cuDriverGetVersion" (*mut i32);
    device_count = c"cuDeviceGetCount" (*mut i32);
    device_attribute = c"cuDeviceGetAttribute" (*mut i32, u32, i32);
    device_name = c"cuDeviceGetName" (*mut u8, i32, i32);
    can_access_peer = c"cuDeviceCanAccessPeer" (*mut i32, i32, i32);
    retain = c"cuDevicePrimaryCtxRetain" (*mut u64, i32);
    push = c"cuCtxPushCurrent_v2" (u64);
    pop = c"cuCtxPopCurrent_v2" (*mut u64);
    priorities = c"cuCtxGetStreamPriorityRange" (*mut i32, *mut i32);
    memory_info = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    host_allocate = c"cuMemHostAlloc" (*mut *mut u8, usize, u32);
    host_free = c"cuMemFreeHost" (*mut u8);
    allocate_now = c"cuMemAlloc_v2" (*mut u64, usize);
    free_now = c"cuMemFree_v2" (u64);
    pool_create = c"cuMemPoolCreate" (*mut u64, *const PoolProperties);
    pool_set = c"cuMemPoolSetAttribute" (u64, u32, *mut u64);
    pool_trim = c"cuMemPoolTrimTo" (u64, usize);
    allocate = c"cuMemAllocFromPoolAsync" (*mut u64, usize, u64, u64);
    free = c"cuMemFreeAsync" (u64, u64);
    fill = c"cuMemsetD8Async" (u64, u8, usize, u64);
    from_host = c"cuMemcpyHtoDAsync_v2" (u64, *const u8, usize, u64);
    to_host = c"cuMemcpyDtoHAsync_v2" (*mut u8, u64, usize, u64);
    copy_peer = c"cuMemcpyPeerAsync" (u64, u64, u64, u64, usize, u64);
    stream_create = c"cuStreamCreateWithPriority" (*mut u64, u32, i32);
    stream_context = c"cuStreamGetCtx" (u64, *mut u64);
    stream_capture = c"cuStreamIsCapturing" (u64, *mut u32);
    stream_wait = c"cuStreamWaitEvent" (u64, u64, u32);
    capture_mode = c"cuThreadExchangeStreamCaptureMode" (*mut u32);
    event_create = c"cuEventCreate" (*mut u64, u32);
    event_record = c"cuEventRecord" (u64, u64);
    event_query = c"cuEventQuery" (u64);
    module_load = c"cuModuleLoadDataEx" (*mut u64, *const c_char, u32, *const u32, *const u64);
    module_function = c"cuModuleGetFunction" (*mut u64, u64, *const c_char);
    launch = c"cuLaunchKernel" (u64, u32, u32, u32, u32, u32, u32, u32, u64, *const *const u64, *const c_void);
    pointer = c"cuPointerGetAttributes" (u32, *const u32, *const *mut c_void, u64);
    error_name = c"cuGetErrorName" (u32, *mut *const c_char);
}

/// `CUmemPoolProps`.
#[repr(C)]
pub(super) struct PoolProperties {
    allocation: i32,
    handles: i32,
    place: i32,
    ordinal: i32,
    security: u64,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}

impl PoolProperties {
    /// Memory of a device, for this process.
    pub(super) fn of(ordinal: i32) -> Self {
        const PINNED: i32 = 1;
        const DEVICE: i32 = 1;
        Self {
            allocation: PINNED,
            handles: 0,
            place: DEVICE,
            ordinal,
            security: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// An open library, which is never closed: its threads may run until the process ends.
struct Library {
    handle: *mut c_void,
    path: String,
}

impl Library {
    fn open(path: &str) -> Result<Self> {
        let text = CString::new(path)
            .map_err(|_| fail!(Device, "the option cuda has a zero inside: {path:?}"))?;
        // SAFETY: a text; the library is the one that the user names, or the system's driver.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let reason = last_error();
            return Err(fail!(
                Device,
                "the CUDA driver cannot be opened: {reason}; install the driver of NVIDIA, name it by \
                 the option cuda, or use tensors in host memory"
            ));
        }
        Ok(Self { handle, path: path.into() })
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: an open library and a text.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    fn require(&self, name: &CStr) -> Result<*mut c_void> {
        self.symbol(name).ok_or_else(|| {
            let (path, name) = (&self.path, name.to_string_lossy());
            fail!(Device, "{path} has no function {name}; {}", too_old())
        })
    }
}

/// What to do about an old driver.
pub(super) fn too_old() -> &'static str {
    "install a driver of CUDA 11.2 (release 460) or newer"
}

fn last_error() -> String {
    // SAFETY: gives NULL or a text that lives until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown reason".into();
    }
    // SAFETY: not NULL, so dlerror() has given a text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Opens the driver: the library of a path, or the system's.
pub(super) fn open(path: Option<&str>) -> Result<Table> {
    Table::find(&Library::open(path.unwrap_or(LIBRARY))?)
}
