//! The types of the C interface. Numbers given here are never changed.

use std::ffi::{c_char, c_void};

/// Major version of the library.
pub const KV_VERSION_MAJOR: u32 = 0;
/// Minor version of the library.
pub const KV_VERSION_MINOR: u32 = 1;
/// Patch version of the library.
pub const KV_VERSION_PATCH: u32 = 0;
/// Version of the binary interface, the number in the soname. Raised by any incompatible change.
pub const KV_ABI_VERSION: u32 = 0;

/// The result of a call. 1-19 are the caller's mistake, 20-39 mean "not now", 40-59 a peer is gone,
/// 60-79 come from the environment (memory, files, network), 90-99 are a bug of this library.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kv_status {
    /// Success.
    KV_OK = 0,
    /// An argument is NULL, out of range, misaligned, or not valid UTF-8.
    KV_ERR_INVALID_ARGUMENT = 1,
    /// Known, but not served by this build or this call: a store type, rows in CUDA memory.
    KV_ERR_UNSUPPORTED = 2,
    /// An option has an unknown name or a value that does not fit.
    KV_ERR_OPTION = 3,
    /// The key has not been initialised, or was removed.
    KV_ERR_KEY_NOT_FOUND = 4,
    /// The key has been initialised before.
    KV_ERR_KEY_EXISTS = 5,
    /// Two names have the same 63-bit hash, in this store or in its job; rename one of them.
    KV_ERR_NAME_COLLISION = 6,
    /// A tensor's shape differs from the key's.
    KV_ERR_SHAPE_MISMATCH = 7,
    /// A tensor's dtype differs from the key's and cannot be converted.
    KV_ERR_DTYPE_MISMATCH = 8,
    /// An out overlaps another tensor of the call, or itself.
    KV_ERR_OVERLAP = 9,
    /// The ticket is stale, or was never issued by this store.
    KV_ERR_TICKET = 10,
    /// The updater returned an error, threw an exception or panicked.
    KV_ERR_CALLBACK = 11,
    /// The store was called from inside one of its own updaters, or from another callback where the
    /// call could wait.
    KV_ERR_REENTRANT = 12,
    /// The buffer is too small; the required size has been written.
    KV_ERR_BUFFER_TOO_SMALL = 13,
    /// The store has been closed or aborted.
    KV_ERR_CLOSED = 14,
    /// The store belongs to the parent process: it was created before a fork().
    KV_ERR_FORKED = 15,
    /// The call is not for processes of this role, see kv_role().
    KV_ERR_ROLE = 16,
    /// The processes of a job do not agree: another optimizer, another first value's shape.
    KV_ERR_DIFFERS = 17,
    /// The deadline passed; the message says what is missing.
    KV_ERR_TIMEOUT = 20,
    /// The operation was cancelled before it took effect in full.
    KV_ERR_CANCELLED = 21,
    /// An operation with a ticket did not end within the option `timeout_ms`, and has failed; the message says
    /// what was missing. Its buffers are the caller's again.
    KV_ERR_EXPIRED = 22,
    /// A process of the job that the call needs is gone; the message has its role, rank, address.
    KV_ERR_PEER_LOST = 40,
    /// This process was not heard for too long, and the job went on without it.
    KV_ERR_EVICTED = 41,
    /// The job does not take this process: its rank is taken, or it expects another job.
    KV_ERR_REFUSED = 42,
    /// Not enough memory.
    KV_ERR_OUT_OF_MEMORY = 60,
    /// A file cannot be read or written; the message has the system's reason.
    KV_ERR_IO = 61,
    /// A file is cut off or altered.
    KV_ERR_CORRUPT = 62,
    /// An address cannot be used or reached: a port in use, a name that no resolver knows.
    KV_ERR_NETWORK = 63,
    /// A GPU failed, or cannot be used; the message has CUDA's name of the error.
    KV_ERR_DEVICE = 64,
    /// A bug of this library; the store is poisoned from now on.
    KV_ERR_INTERNAL = 90,
    /// The store met a bug of this library before and refuses to go on.
    KV_ERR_POISONED = 91,
}

/// A `kv_status` that comes in from a callback: any number is possible.
pub type kv_status_in = i32;

/// Element type, a DLPack `DLDataType` as one number: code | bits << 8 | lanes << 16.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kv_dtype {
    /// Signed 8-bit integer.
    KV_I8 = 0x0001_0800,
    /// Signed 16-bit integer.
    KV_I16 = 0x0001_1000,
    /// Signed 32-bit integer.
    KV_I32 = 0x0001_2000,
    /// Signed 64-bit integer.
    KV_I64 = 0x0001_4000,
    /// Unsigned 8-bit integer.
    KV_U8 = 0x0001_0801,
    /// Unsigned 16-bit integer.
    KV_U16 = 0x0001_1001,
    /// Unsigned 32-bit integer.
    KV_U32 = 0x0001_2001,
    /// Unsigned 64-bit integer.
    KV_U64 = 0x0001_4001,
    /// IEEE 754 binary16.
    KV_F16 = 0x0001_1002,
    /// IEEE 754 binary32.
    KV_F32 = 0x0001_2002,
    /// IEEE 754 binary64.
    KV_F64 = 0x0001_4002,
    /// bfloat16: the upper half of an IEEE 754 binary32.
    KV_BF16 = 0x0001_1004,
    /// Two binary32, the real part first. Opaque, as all below: stored and copied, never added.
    KV_C64 = 0x0001_4005,
    /// Two binary64, the real part first; aligned to 8 bytes.
    KV_C128 = 0x0001_8005,
    /// A truth value: a byte, 0 or 1.
    KV_BOOL = 0x0001_0806,
    /// Float of 8 bits: 4 of exponent, 3 of mantissa, no infinities.
    KV_F8_E4M3FN = 0x0001_080A,
    /// The same with one zero and another bias.
    KV_F8_E4M3FNUZ = 0x0001_080B,
    /// Float of 8 bits: 5 of exponent, 2 of mantissa.
    KV_F8_E5M2 = 0x0001_080C,
    /// The same with one zero, another bias and no infinities.
    KV_F8_E5M2FNUZ = 0x0001_080D,
    /// A power of two in 8 bits, a scale.
    KV_F8_E8M0FNU = 0x0001_080E,
}

/// A `kv_dtype` that comes in from a caller: any number is possible.
pub type kv_dtype_in = u32;

/// Kinds of device memory, numbered as in DLPack.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kv_device_type {
    /// Ordinary memory. Any device id is accepted; it has no effect.
    KV_CPU = 1,
    /// CUDA device memory, for the data calls of `local` and `device` stores on whole values.
    KV_CUDA = 2,
    /// CUDA pinned host memory, used like `KV_CPU`.
    KV_CUDA_HOST = 3,
    /// CUDA managed memory. Answered with `KV_ERR_UNSUPPORTED` by this version.
    KV_CUDA_MANAGED = 13,
}

/// What a process is in a job.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kv_node_role {
    /// Pushes and pulls. A local store's process is always one.
    KV_ROLE_WORKER = 0,
    /// Holds keys and merges pushes, in kv_serve().
    KV_ROLE_SERVER = 1,
    /// Brings the others together, in kv_serve().
    KV_ROLE_SCHEDULER = 2,
}

/// How the values of a collective call become one; see kv_allreduce().
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kv_reduction {
    /// The sum.
    KV_SUM = 0,
    /// The sum of floats, divided by the number of values.
    KV_MEAN = 1,
    /// The largest: of equal ones the first, and the first NaN.
    KV_MAX = 2,
    /// The smallest: of equal ones the first, and the first NaN.
    KV_MIN = 3,
}

/// How much the logger hears; each level includes those before it.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kv_log_level {
    /// Nothing.
    KV_LOG_OFF = 0,
    /// Bugs of this library.
    KV_LOG_ERROR = 1,
    /// Things that lose work: failures that no call has reported, a free with operations pending.
    KV_LOG_WARN = 2,
    /// Stores opened and closed.
    KV_LOG_INFO = 3,
    /// Keys made and removed, updaters set, threads started.
    KV_LOG_DEBUG = 4,
}

/// A flag of kv_set_clipping(): a push whose norm is not finite fails, instead of being skipped.
pub const KV_CLIP_FAIL: u32 = 1;

/// How kv_commit() has ended a transaction: its pushes are kept.
pub const KV_COMMIT_KEPT: i32 = 0;
/// The norm of its gradients is above that of kv_set_clipping(), and its pushes are taken back: push the gradients
/// again, by one call, which scales them.
pub const KV_COMMIT_EXCEEDED: i32 = 1;
/// The norm of its gradients is not finite, and its pushes are taken back: it counts as a skipped push.
pub const KV_COMMIT_SKIPPED: i32 = 2;

/// A key. 0 to 2^63-1 are yours; numbers with the top bit set stand for names, see `kv_intern`.
pub type kv_key = u64;

/// A pending operation: a plain number, nothing to free. 0 is never a ticket.
pub type kv_ticket = u64;

/// What a key holds, see kv_digest().
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kv_key_digest {
    /// Number of the key's round; in a local store of its pushes since its init.
    pub round: u64,
    /// Digest of the value.
    pub value: u64,
    /// Digest of the optimizer's state; 0 without one.
    pub state: u64,
}

/// Who took part in a round, see kv_last_round().
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kv_round {
    /// Set it to `sizeof(kv_round)`; later releases have more fields behind the last one.
    pub struct_size: usize,
    /// Number of the key's last closed round; in a local store of its pushes since its init. 0 before the
    /// first.
    pub round: u64,
    /// Number of workers whose pushes the round has.
    pub contributors: u64,
    /// Sum of the weights of these pushes; 0 if they had none.
    pub total_weight: f64,
}

/// Where a tensor lives; the layout of DLPack's `DLDevice`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kv_device {
    /// One of `kv_device_type`. Use the enumerator's number.
    pub r#type: i32,
    /// Which one of its kind.
    pub id: i32,
}

/// A view of memory that somebody else owns.
///
/// Exactly the layout of DLPack's `DLTensor` (major version 1): a `DLTensor *` can be passed as it
/// is. `data + byte_offset` must be aligned to the element. For an out the memory is written.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kv_tensor {
    /// The first byte of the allocation. May be NULL when the tensor has no elements.
    pub data: *mut c_void,
    /// Where `data` lives.
    pub device: kv_device,
    /// Number of dimensions, 0 for a single number.
    pub ndim: i32,
    /// Element type.
    pub dtype: kv_dtype_in,
    /// `ndim` extents, each 0 or more. May be NULL when `ndim` is 0.
    pub shape: *mut i64,
    /// `ndim` strides in elements, possibly negative; NULL means row-major without gaps.
    pub strides: *mut i64,
    /// Offset of the first element from `data`, in bytes.
    pub byte_offset: u64,
}

/// Names the key of a tensor in a file of another program; see kv_load_values().
///
/// `*key` is `tensor` at the call: leave it for the same name, or set it to another one in UTF-8, which stays
/// valid until the next call or until kv_load_values() returns; NULL leaves the tensor out. Return `KV_OK`,
/// or any other number to end the load with `KV_ERR_CALLBACK`. Must not unwind, `longjmp`, or call into
/// the same store (`KV_ERR_REENTRANT`).
pub type kv_key_namer = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        tensor: *const c_char,
        key: *mut *const c_char,
    ) -> kv_status_in,
>;

/// Merges a sum into the stored value.
///
/// Of a key on a GPU the tensors are copies in host memory, or with the option
/// `updater_memory=device` arrays on the GPU, as `device` says. Queue work on those on the stream that
/// kv_stream() gives, whose context is current, and return.
///
/// `input` is the sum of the values of one push; read it only, it may be the caller's own buffer.
/// `stored` is the stored value; change it in place. Both have the key's dtype and shape, are
/// row-major with `strides` NULL and `byte_offset` 0, and are lent for the call. Return `KV_OK`, or
/// any other number to make the push fail with `KV_ERR_CALLBACK`. Must not unwind, `longjmp`, or
/// call into the same store (`KV_ERR_REENTRANT`).
pub type kv_updater = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: kv_key,
        input: *const kv_tensor,
        stored: *const kv_tensor,
    ) -> kv_status_in,
>;

/// Ends the life of a callback's context. Called exactly once, on any thread; may be NULL.
pub type kv_drop = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Is told that an operation has ended, with what kv_wait() gives for its ticket; see kv_on_done().
///
/// Calls on the same store that could wait give `KV_ERR_REENTRANT`. Those that queue an operation
/// work, but for kv_broadcast(); so do kv_on_done(), kv_watch(), kv_next_done(), kv_wait() for an
/// operation that has ended, and what works inside an updater. Must not unwind or `longjmp`.
pub type kv_done_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, ticket: kv_ticket, status: kv_status)>;

/// Says whether a call that waits is to end: any number but 0 ends it. Called on the thread that waits.
pub type kv_interrupt_check = Option<unsafe extern "C" fn(context: *mut c_void) -> i32>;

/// Receives one log line, UTF-8 without a newline, lent for the call. Must not call the library.
pub type kv_logger =
    Option<unsafe extern "C" fn(context: *mut c_void, level: i32, message: *const c_char)>;
