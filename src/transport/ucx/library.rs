//! The library of UCX, opened at run time: its functions that are used, and the structures that they take.
//!
//! Structures have the layout of release 1.12 and later, whose functions read only the fields that a mask names.
#![allow(unsafe_code, reason = "functions of a library of C, found by name")]

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// The library as the loader finds it.
const LIBRARY: &CStr = c"libucp.so.0";
/// The oldest release that has every function here.
pub(super) const OLDEST: (u32, u32) = (1, 12);

/// A handle of the library: a context, worker, endpoint, request or descriptor.
pub(super) type Handle = *mut c_void;

/// Declares the functions once: field, symbol, parameters, result.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($kind:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions of the library.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($kind),*) $(-> $result)?,)+
        }

        impl Functions {
            fn find(library: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the interface of UCX gives the function of this name this type.
                    $($field: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($kind),*) $(-> $result)?,
                        >(symbol(library, $symbol)?)
                    },)+
                })
            }
        }
    };
}

functions! {
    version = c"ucp_get_version" (*mut u32, *mut u32, *mut u32);
    config_read = c"ucp_config_read" (*const c_char, *const c_char, *mut Handle) -> i32;
    config_modify = c"ucp_config_modify" (Handle, *const c_char, *const c_char) -> i32;
    config_release = c"ucp_config_release" (Handle);
    init = c"ucp_init_version" (u32, u32, *const ContextParameters, Handle, *mut Handle) -> i32;
    cleanup = c"ucp_cleanup" (Handle);
    worker_create = c"ucp_worker_create" (Handle, *const WorkerParameters, *mut Handle) -> i32;
    worker_destroy = c"ucp_worker_destroy" (Handle);
    worker_query = c"ucp_worker_query" (Handle, *mut WorkerAttributes) -> i32;
    worker_address = c"ucp_worker_get_address" (Handle, *mut *mut u8, *mut usize) -> i32;
    worker_release_address = c"ucp_worker_release_address" (Handle, *mut u8);
    worker_progress = c"ucp_worker_progress" (Handle) -> u32;
    worker_efd = c"ucp_worker_get_efd" (Handle, *mut i32) -> i32;
    worker_arm = c"ucp_worker_arm" (Handle) -> i32;
    worker_signal = c"ucp_worker_signal" (Handle) -> i32;
    set_handler = c"ucp_worker_set_am_recv_handler" (Handle, *const HandlerParameters) -> i32;
    endpoint_create = c"ucp_ep_create" (Handle, *const EndpointParameters, *mut Handle) -> i32;
    endpoint_close = c"ucp_ep_close_nbx" (Handle, *const RequestParameters) -> Handle;
    send = c"ucp_am_send_nbx"
        (Handle, u32, *const u8, usize, *const c_void, usize, *const RequestParameters) -> Handle;
    receive = c"ucp_am_recv_data_nbx"
        (Handle, *mut c_void, *mut u8, usize, *const RequestParameters) -> Handle;
    release = c"ucp_am_data_release" (Handle, *mut c_void);
    request_status = c"ucp_request_check_status" (Handle) -> i32;
    request_free = c"ucp_request_free" (Handle);
}

/// Bits of masks and flags, as the interface of UCX numbers them.
pub(super) mod bits {
    pub(in crate::transport::ucx) const CONTEXT_FEATURES: u64 = 1;
    pub(in crate::transport::ucx) const WAKEUP: u64 = 1 << 4;
    pub(in crate::transport::ucx) const ACTIVE_MESSAGES: u64 = 1 << 6;
    pub(in crate::transport::ucx) const THREAD_MODE: u64 = 1;
    pub(in crate::transport::ucx) const WORKER_FLAGS: u64 = 1 << 5;
    pub(in crate::transport::ucx) const IGNORE_REQUEST_LEAK: u64 = 1;
    pub(in crate::transport::ucx) const MOST_HEADER: u64 = 1 << 3;
    pub(in crate::transport::ucx) const SERIALIZED: i32 = 1;
    pub(in crate::transport::ucx) const ENDPOINT_ADDRESS: u64 = 1;
    pub(in crate::transport::ucx) const ENDPOINT_ERROR_MODE: u64 = 1 << 1;
    pub(in crate::transport::ucx) const ENDPOINT_ERROR_HANDLER: u64 = 1 << 2;
    pub(in crate::transport::ucx) const ERRORS_OF_PEER: i32 = 1;
    pub(in crate::transport::ucx) const HANDLER_ALL: u64 = 0b1111;
    pub(in crate::transport::ucx) const PERSISTENT_DATA: u32 = 1 << 1;
    pub(in crate::transport::ucx) const IS_KEPT: u64 = 1 << 16;
    pub(in crate::transport::ucx) const IS_RENDEZVOUS: u64 = 1 << 17;
    pub(in crate::transport::ucx) const CALLBACK: u32 = 1 << 1;
    pub(in crate::transport::ucx) const USER_DATA: u32 = 1 << 2;
    pub(in crate::transport::ucx) const DATATYPE: u32 = 1 << 3;
    pub(in crate::transport::ucx) const MEMORY_TYPE: u32 = 1 << 6;
    /// Bytes in one place, and in several.
    pub(in crate::transport::ucx) const CONTIGUOUS: u64 = 1 << 3;
    pub(in crate::transport::ucx) const SLICES: u64 = 2;
}

/// Status codes of functions and callbacks.
pub(super) const OK: i32 = 0;
pub(super) const IN_PROGRESS: i32 = 1;
pub(super) const BUSY: i32 = -15;
const LAST_ERROR: isize = -100;

/// The error that a function has returned in place of a handle, if it has.
pub(super) fn error_of(handle: Handle) -> Option<i32> {
    let code = handle as isize;
    (LAST_ERROR..0).contains(&code).then(|| i32::try_from(code).unwrap_or(-1))
}

/// An error in words.
pub(super) fn words(status: i32) -> String {
    let words = match status {
        -2 => "no resources",
        -3 => "input/output error",
        -4 => "out of memory",
        -6 => "the peer cannot be reached",
        -7 => "not an address",
        -14 => "no device",
        -16 => "cancelled",
        -17 => "no shared memory",
        -20 | -80 => "timeout",
        -22 => "not supported",
        -23 => "rejected",
        -24 => "not connected",
        -25 => "connection reset by the peer",
        _ => return format!("error {status} of UCX"),
    };
    words.into()
}

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct ContextParameters {
    pub(super) mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) callbacks: [*const c_void; 2],
    pub(super) tag_mask: u64,
    pub(super) shares_workers: i32,
    pub(super) endpoints: usize,
    pub(super) processes: usize,
    pub(super) name: *const c_char,
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(super) struct WorkerParameters {
    pub(super) mask: u64,
    pub(super) thread_mode: i32,
    pub(super) processors: [u64; 16],
    pub(super) events: u32,
    pub(super) user_data: *mut c_void,
    pub(super) event_fd: i32,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) alignment: usize,
    pub(super) client: u64,
}

/// `ucp_worker_attr_t`.
#[repr(C)]
pub(super) struct WorkerAttributes {
    pub(super) mask: u64,
    pub(super) thread_mode: i32,
    pub(super) address_flags: u32,
    pub(super) address: *mut u8,
    pub(super) address_len: usize,
    pub(super) most_header: usize,
    pub(super) name: [u8; 32],
    pub(super) debug: usize,
}

/// `ucs_sock_addr_t`.
#[repr(C)]
pub(super) struct SocketAddress {
    pub(super) address: *const c_void,
    pub(super) len: u32,
}

/// `ucp_ep_params_t`.
#[repr(C)]
pub(super) struct EndpointParameters {
    pub(super) mask: u64,
    pub(super) address: *const u8,
    pub(super) error_mode: i32,
    pub(super) on_error: Option<unsafe extern "C" fn(*mut c_void, Handle, i32)>,
    pub(super) on_error_argument: *mut c_void,
    pub(super) user_data: *mut c_void,
    pub(super) flags: u32,
    pub(super) socket: SocketAddress,
    pub(super) request: Handle,
    pub(super) name: *const c_char,
    pub(super) local_socket: SocketAddress,
}

/// `ucp_request_param_t`; the callback is the one of its operation.
#[repr(C)]
pub(super) struct RequestParameters {
    pub(super) mask: u32,
    pub(super) flags: u32,
    pub(super) request: Handle,
    pub(super) callback: *const c_void,
    pub(super) datatype: u64,
    pub(super) user_data: *mut c_void,
    pub(super) reply: *mut c_void,
    pub(super) memory_type: i32,
    pub(super) received: *mut usize,
    pub(super) registered: Handle,
}

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(super) struct HandlerParameters {
    pub(super) mask: u64,
    pub(super) id: u32,
    pub(super) flags: u32,
    pub(super) callback: Option<ArrivalCallback>,
    pub(super) argument: *mut c_void,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(super) struct ArrivalParameters {
    pub(super) attributes: u64,
    pub(super) reply: Handle,
}

/// `ucp_am_recv_callback_t`.
pub(super) type ArrivalCallback = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    usize,
    *mut c_void,
    usize,
    *const ArrivalParameters,
) -> i32;

/// `ucp_dt_iov_t`.
#[repr(C)]
pub(super) struct Slice {
    pub(super) start: *const u8,
    pub(super) len: usize,
}

// The offsets and sizes of the header of release 1.13, on machines of 64 bits.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ContextParameters, shares_workers) == 48);
    assert!(offset_of!(ContextParameters, name) == 72 && size_of::<ContextParameters>() == 80);
    assert!(offset_of!(WorkerParameters, processors) == 16);
    assert!(offset_of!(WorkerParameters, events) == 144);
    assert!(offset_of!(WorkerParameters, flags) == 168);
    assert!(size_of::<WorkerParameters>() == 200);
    assert!(offset_of!(WorkerAttributes, most_header) == 32);
    assert!(size_of::<WorkerAttributes>() == 80);
    assert!(offset_of!(EndpointParameters, error_mode) == 16);
    assert!(offset_of!(EndpointParameters, on_error) == 24);
    assert!(offset_of!(EndpointParameters, user_data) == 40);
    assert!(offset_of!(EndpointParameters, socket) == 56);
    assert!(offset_of!(EndpointParameters, request) == 72);
    assert!(size_of::<EndpointParameters>() == 104);
    assert!(offset_of!(RequestParameters, callback) == 16);
    assert!(offset_of!(RequestParameters, datatype) == 24);
    assert!(offset_of!(RequestParameters, user_data) == 32);
    assert!(offset_of!(RequestParameters, memory_type) == 48);
    assert!(offset_of!(RequestParameters, received) == 56);
    assert!(size_of::<RequestParameters>() == 72);
    assert!(offset_of!(HandlerParameters, callback) == 16);
    assert!(size_of::<HandlerParameters>() == 32);
    assert!(offset_of!(ArrivalParameters, reply) == 8);
};

/// The open library, which is never closed: it has changed functions of the process.
pub(super) struct Library {
    pub(super) functions: Functions,
    pub(super) version: (u32, u32, u32),
}

static OPENED: OnceLock<Result<Library, String>> = OnceLock::new();

impl Library {
    /// The library of this process; opens it at the first call.
    pub(super) fn open() -> Result<&'static Self, String> {
        OPENED.get_or_init(|| keeping_signal_handlers(Self::load)).as_ref().map_err(String::clone)
    }

    fn load() -> Result<Self, String> {
        // SAFETY: a name that ends in 0. The initialisers of the library ask for nothing of this process.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(loader_error());
        }
        let functions = Functions::find(library)?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: places for three numbers.
        unsafe { (functions.version)(&raw mut major, &raw mut minor, &raw mut release) };
        if (major, minor) < OLDEST {
            let (oldest, minor_oldest) = OLDEST;
            return Err(format!(
                "UCX {major}.{minor} is too old; {oldest}.{minor_oldest} or later is needed"
            ));
        }
        Ok(Self { functions, version: (major, minor, release) })
    }
}

/// The loader's last error on this thread.
fn loader_error() -> String {
    // SAFETY: the text is valid until the next call of the loader on this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{} cannot be opened", LIBRARY.to_string_lossy());
    }
    // SAFETY: not null, and it ends in 0.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: an open library, and a name that ends in 0.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        let (library, name) = (LIBRARY.to_string_lossy(), name.to_string_lossy());
        return Err(format!("{library} has no function {name}"));
    }
    Ok(found)
}

/// Runs work, and restores all signal handlers: the library installs some when it is loaded, by default.
pub(super) fn keeping_signal_handlers<T>(work: impl FnOnce() -> T) -> T {
    const SIGNALS: std::ops::RangeInclusive<i32> = 1..=31;
    let query = |signal: i32| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: without a new action the call writes the current one, if it succeeds.
        let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: written by the call that has succeeded.
        (result == 0).then(|| unsafe { action.assume_init() })
    };
    let before = SIGNALS.map(|signal| (signal, query(signal))).collect::<Vec<_>>();
    let result = work();
    for (signal, action) in before {
        let now = query(signal);
        if let (Some(action), Some(now)) = (action, now)
            && action.sa_sigaction != now.sa_sigaction
        {
            // SAFETY: an action that the system has given.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
    result
}
