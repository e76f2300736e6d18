//! The C interface, as far as these tests use it.
#![allow(unsafe_code, reason = "functions of C are declared here")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;

// The library is linked in.
use kvstore as _;

use super::array::Array;
use super::gpu;

pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;

/// `kv_tensor`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawTensor {
    pub data: u64,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub dtype: u32,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

/// `kv_device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Device {
    pub kind: i32,
    pub id: i32,
}

macro_rules! declare {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        // SAFETY: references are the pointers that the functions expect; tensors live as long as the
        // arrays of the test, which outlive the operations that use them.
        unsafe extern "C" {
            $(safe fn $name($($argument: $kind),*) -> $result;)*
        }
    };
}

type Handle = *mut c_void;
type DoneCallback = extern "C" fn(Handle, u64, i32);
type Updater = extern "C" fn(Handle, u64, *const RawTensor, *const RawTensor) -> i32;

/// See [`Store::set_halving_updater`].
extern "C" fn halve(
    context: Handle,
    key: u64,
    input: *const RawTensor,
    stored: *const RawTensor,
) -> i32 {
    // SAFETY: tensors and their shapes are lent for the call.
    let (input, stored, count) = unsafe { (*input, *stored, *(*input).shape as usize) };
    let place = Device { kind: stored.device_type, id: stored.device_id };
    if (input.device_type, input.device_id) != (place.kind, place.id) || place != GPU {
        return 2;
    }
    let Ok(stream) = stream_of(place) else { return 3 };
    let wanted = context.addr() as u64;
    if wanted != 0 && stream != wanted {
        return 4;
    }
    if gpu::copy(stored.data, input.data, count / 2 * 4, stream) != 0 {
        return 5;
    }
    i32::from(key == 99)
}

/// `stored += input` of f32; fails behind the change if the first element is above 1000.
extern "C" fn add(_: Handle, _: u64, input: *const RawTensor, stored: *const RawTensor) -> i32 {
    // SAFETY: tensors and their shapes are lent for the call.
    let (input, stored, count) = unsafe {
        let (input, stored) = (*input, *stored);
        let extents = (0..input.ndim as usize).map(|at| *input.shape.add(at));
        (input, stored, extents.product::<i64>() as usize)
    };
    let at = |tensor: RawTensor| std::ptr::with_exposed_provenance_mut::<f32>(tensor.data as usize);
    let (input, stored) = (at(input), at(stored));
    for index in 0..count {
        // SAFETY: so many elements are there, in memory that the host may touch.
        unsafe { *stored.add(index) += *input.add(index) };
    }
    // SAFETY: an updater gets tensors with elements.
    i32::from(unsafe { *stored } > 1000.0)
}

declare! {
    fn kv_config_create(config: &mut Handle) -> i32;
    fn kv_config_set(config: Handle, name: *const c_char, value: *const c_char) -> i32;
    fn kv_config_free(config: Handle) -> ();
    fn kv_create(kind: *const c_char, config: Handle, store: &mut Handle) -> i32;
    fn kv_free(store: Handle) -> i32;
    fn kv_last_error() -> *const c_char;
    fn kv_init(store: Handle, keys: *const u64, values: *const RawTensor, count: usize) -> i32;
    fn kv_push(
        store: Handle, keys: *const u64, values: *const RawTensor, count: usize, priority: i32,
        ticket: *mut u64
    ) -> i32;
    fn kv_pull(
        store: Handle, keys: *const u64, outs: *const RawTensor, count: usize, priority: i32,
        ticket: *mut u64
    ) -> i32;
    fn kv_pushpull(
        store: Handle, keys: *const u64, values: *const RawTensor, count: usize,
        out_keys: *const u64, outs: *const RawTensor, out_count: usize, priority: i32,
        ticket: *mut u64
    ) -> i32;
    fn kv_broadcast(
        store: Handle, keys: *const u64, values: *const RawTensor, count: usize,
        out_keys: *const u64, outs: *const RawTensor, out_count: usize, priority: i32,
        ticket: *mut u64
    ) -> i32;
    fn kv_bind(
        store: Handle, keys: *const u64, values: *const RawTensor, count: usize,
        out_keys: *const u64, outs: *const RawTensor, out_count: usize, bound: &mut Handle
    ) -> i32;
    fn kv_bound_push(bound: Handle, priority: i32, ticket: *mut u64) -> i32;
    fn kv_bound_pull(bound: Handle, priority: i32, ticket: *mut u64) -> i32;
    fn kv_bound_pushpull(bound: Handle, priority: i32, ticket: *mut u64) -> i32;
    fn kv_bound_free(bound: Handle) -> ();
    fn kv_push_rows(
        store: Handle, keys: *const u64, ids: *const RawTensor, rows: *const RawTensor,
        count: usize, priority: i32, ticket: *mut u64
    ) -> i32;
    fn kv_remove(store: Handle, keys: *const u64, count: usize) -> i32;
    fn kv_set_optimizer(store: Handle, name: *const c_char, params: *const c_char) -> i32;
    fn kv_set_optimizer_for(
        store: Handle, keys: *const u64, count: usize, name: *const c_char, params: *const c_char
    ) -> i32;
    fn kv_set_updater(
        store: Handle, updater: Updater, context: Handle, drop: *const c_void
    ) -> i32;
    fn kv_set_compression(store: Handle, name: *const c_char, params: *const c_char) -> i32;
    fn kv_set_clipping(store: Handle, max_norm: f64, flags: u32) -> i32;
    fn kv_begin(store: Handle) -> i32;
    fn kv_rollback(store: Handle) -> i32;
    fn kv_save(store: Handle, path: *const c_char) -> i32;
    fn kv_load(store: Handle, path: *const c_char) -> i32;
    fn kv_stats(store: Handle, text: *mut u8, room: usize, length: *mut usize) -> i32;
    fn kv_wait(store: Handle, ticket: u64, timeout_ms: i64) -> i32;
    fn kv_cancel(store: Handle, ticket: u64) -> i32;
    fn kv_watch(store: Handle, ticket: u64) -> i32;
    fn kv_next_done(store: Handle, ticket: &mut u64, status: &mut i32) -> i32;
    fn kv_on_done(
        store: Handle, ticket: u64, callback: DoneCallback, context: Handle, drop: usize
    ) -> i32;
    fn kv_set_stream(device: Device, stream: u64) -> i32;
    fn kv_stream(device: Device, stream: &mut u64) -> i32;
    fn kv_key_device(store: Handle, key: u64, device: &mut Device) -> i32;
}

/// A status and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub status: i32,
    pub text: String,
}

pub type Outcome<T = ()> = Result<T, Failure>;

fn check(status: i32) -> Outcome {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: never NULL, and valid until the next call of this thread.
    let text = unsafe { CStr::from_ptr(kv_last_error()) }.to_str().unwrap().to_owned();
    Err(Failure { status, text })
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// Keys with their arrays.
pub type Pairs<'a> = [(u64, &'a Array)];

fn lists(pairs: &Pairs<'_>) -> (Vec<u64>, Vec<RawTensor>) {
    pairs.iter().map(|(key, array)| (*key, array.tensor())).unzip()
}

/// A data call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Push,
    Pull,
    PushPull,
    Broadcast,
}

/// Lists that a store has checked.
pub struct BoundList<'a>(Handle, PhantomData<&'a Array>);

impl BoundList<'_> {
    pub fn call(&self, call: Call) -> Outcome {
        let none = std::ptr::null_mut();
        check(match call {
            Call::Push => kv_bound_push(self.0, 0, none),
            Call::Pull => kv_bound_pull(self.0, 0, none),
            Call::PushPull | Call::Broadcast => kv_bound_pushpull(self.0, 0, none),
        })
    }
}

impl Drop for BoundList<'_> {
    fn drop(&mut self) {
        kv_bound_free(self.0);
    }
}

pub struct Store(Handle);

// SAFETY: a store may be used by any thread.
unsafe impl Sync for Store {}

impl Store {
    pub fn new(kind: &str) -> Self {
        Self::with(kind, &[]).unwrap()
    }

    pub fn with(kind: &str, options: &[(&str, &str)]) -> Outcome<Self> {
        let (mut config, mut store) = (std::ptr::null_mut(), std::ptr::null_mut());
        check(kv_config_create(&mut config))?;
        for (name, value) in options {
            check(kv_config_set(config, text(name).as_ptr(), text(value).as_ptr()))?;
        }
        let made = check(kv_create(text(kind).as_ptr(), config, &mut store));
        kv_config_free(config);
        made.map(|()| Self(store))
    }

    pub fn init(&self, values: &Pairs<'_>) -> Outcome {
        let (keys, tensors) = lists(values);
        self.init_raw(&keys, &tensors)
    }

    pub fn init_raw(&self, keys: &[u64], tensors: &[RawTensor]) -> Outcome {
        check(kv_init(self.0, keys.as_ptr(), tensors.as_ptr(), keys.len()))
    }

    pub fn push_raw(&self, keys: &[u64], tensors: &[RawTensor]) -> Outcome {
        let none = std::ptr::null_mut();
        check(kv_push(self.0, keys.as_ptr(), tensors.as_ptr(), keys.len(), 0, none))
    }

    pub fn pull_raw(&self, keys: &[u64], tensors: &[RawTensor]) -> Outcome {
        let none = std::ptr::null_mut();
        check(kv_pull(self.0, keys.as_ptr(), tensors.as_ptr(), keys.len(), 0, none))
    }

    /// A `pushpull` of keys with tensors.
    #[allow(dead_code, reason = "benchmarks make their lists once")]
    pub fn pushpull_raw(
        &self,
        (keys, values): (&[u64], &[RawTensor]),
        (out_keys, outs): (&[u64], &[RawTensor]),
    ) -> Outcome {
        let (keys, values, count) = (keys.as_ptr(), values.as_ptr(), keys.len());
        let (out_keys, outs, out_count) = (out_keys.as_ptr(), outs.as_ptr(), out_keys.len());
        let none = std::ptr::null_mut();
        check(kv_pushpull(self.0, keys, values, count, out_keys, outs, out_count, 0, none))
    }

    fn make(&self, call: Call, values: &Pairs<'_>, outs: &Pairs<'_>, ticket: *mut u64) -> Outcome {
        let ((keys, values), (out_keys, outs)) = (lists(values), lists(outs));
        let (keys, values, count) = (keys.as_ptr(), values.as_ptr(), keys.len());
        let (out_keys, outs, out_count) = (out_keys.as_ptr(), outs.as_ptr(), out_keys.len());
        check(match call {
            Call::Push => kv_push(self.0, keys, values, count, 0, ticket),
            Call::Pull => kv_pull(self.0, out_keys, outs, out_count, 0, ticket),
            Call::PushPull => {
                kv_pushpull(self.0, keys, values, count, out_keys, outs, out_count, 0, ticket)
            }
            Call::Broadcast => {
                kv_broadcast(self.0, keys, values, count, out_keys, outs, out_count, 0, ticket)
            }
        })
    }

    /// Makes a call without a ticket.
    pub fn call(&self, call: Call, values: &Pairs<'_>, outs: &Pairs<'_>) -> Outcome {
        self.make(call, values, outs, std::ptr::null_mut())
    }

    /// Binds values and outs.
    pub fn bind<'a>(&self, values: &Pairs<'a>, outs: &Pairs<'a>) -> Outcome<BoundList<'a>> {
        let ((keys, values), (out_keys, outs)) = (lists(values), lists(outs));
        let (keys, values, count) = (keys.as_ptr(), values.as_ptr(), keys.len());
        let (out_keys, outs, out_count) = (out_keys.as_ptr(), outs.as_ptr(), out_keys.len());
        let mut bound = std::ptr::null_mut();
        check(kv_bind(self.0, keys, values, count, out_keys, outs, out_count, &mut bound))?;
        Ok(BoundList(bound, PhantomData))
    }

    /// Makes a call with a ticket.
    pub fn submit(&self, call: Call, values: &Pairs<'_>, outs: &Pairs<'_>) -> Outcome<u64> {
        let mut ticket = 0;
        self.make(call, values, outs, &raw mut ticket).map(|()| ticket)
    }

    pub fn push(&self, values: &Pairs<'_>) -> Outcome {
        self.call(Call::Push, values, &[])
    }

    pub fn pull(&self, outs: &Pairs<'_>) -> Outcome {
        self.call(Call::Pull, &[], outs)
    }

    pub fn push_rows(&self, key: u64, ids: &Array, rows: &Array) -> Outcome {
        let (ids, rows, none) = (ids.tensor(), rows.tensor(), std::ptr::null_mut());
        check(kv_push_rows(self.0, &raw const key, &raw const ids, &raw const rows, 1, 0, none))
    }

    pub fn wait(&self, ticket: u64, timeout_ms: i64) -> Outcome {
        check(kv_wait(self.0, ticket, timeout_ms))
    }

    pub fn on_done(&self, ticket: u64, callback: DoneCallback) -> Outcome {
        check(kv_on_done(self.0, ticket, callback, std::ptr::null_mut(), 0))
    }

    pub fn watch(&self, ticket: u64) -> Outcome {
        check(kv_watch(self.0, ticket))
    }

    /// A watched ticket that has ended, or 0, and its status.
    pub fn next_done(&self) -> (u64, i32) {
        let (mut ticket, mut status) = (0, 0);
        check(kv_next_done(self.0, &mut ticket, &mut status)).unwrap();
        (ticket, status)
    }

    pub fn cancel(&self, ticket: u64) -> Outcome {
        check(kv_cancel(self.0, ticket))
    }

    pub fn remove(&self, keys: &[u64]) -> Outcome {
        check(kv_remove(self.0, keys.as_ptr(), keys.len()))
    }

    pub fn set_optimizer(&self, name: &str, params: &str) -> Outcome {
        check(kv_set_optimizer(self.0, text(name).as_ptr(), text(params).as_ptr()))
    }

    pub fn set_optimizer_for(&self, keys: &[u64], name: &str, params: &str) -> Outcome {
        let (name, params) = (text(name), text(params));
        let (keys, count) = (keys.as_ptr(), keys.len());
        check(kv_set_optimizer_for(self.0, keys, count, name.as_ptr(), params.as_ptr()))
    }

    /// Merges on the GPU: the first half of the sum becomes that of the value. Fails behind that for
    /// key 99, if the arrays are in host memory, and if the named stream is not `stream` (0: any).
    pub fn set_halving_updater(&self, stream: u64) -> Outcome {
        let context = std::ptr::without_provenance_mut(stream as usize);
        check(kv_set_updater(self.0, halve, context, std::ptr::null()))
    }

    /// Merges by `stored += input` from now on.
    pub fn set_adding_updater(&self) -> Outcome {
        check(kv_set_updater(self.0, add, std::ptr::null_mut(), std::ptr::null()))
    }

    pub fn set_compression(&self, name: &str) -> Outcome {
        check(kv_set_compression(self.0, text(name).as_ptr(), std::ptr::null()))
    }

    pub fn set_clipping(&self, max_norm: f64) -> Outcome {
        check(kv_set_clipping(self.0, max_norm, 0))
    }

    pub fn begin(&self) -> Outcome {
        check(kv_begin(self.0))
    }

    pub fn rollback(&self) -> Outcome {
        check(kv_rollback(self.0))
    }

    pub fn stats(&self) -> Outcome<String> {
        let (mut text, mut length) = (vec![0; 1 << 16], 0);
        check(kv_stats(self.0, text.as_mut_ptr(), text.len(), &raw mut length))?;
        text.truncate(length);
        Ok(String::from_utf8(text).unwrap())
    }

    pub fn save(&self, path: &str) -> Outcome {
        check(kv_save(self.0, text(path).as_ptr()))
    }

    pub fn load(&self, path: &str) -> Outcome {
        check(kv_load(self.0, text(path).as_ptr()))
    }

    pub fn key_device(&self, key: u64) -> Outcome<Device> {
        let mut device = Device { kind: 0, id: -1 };
        check(kv_key_device(self.0, key, &mut device)).map(|()| device)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        kv_free(self.0);
    }
}

/// Names the stream of this thread's calls.
pub fn set_stream(device: Device, stream: u64) -> Outcome {
    check(kv_set_stream(device, stream))
}

pub fn stream_of(device: Device) -> Outcome<u64> {
    let mut stream = 77;
    check(kv_stream(device, &mut stream)).map(|()| stream)
}

pub const GPU: Device = Device { kind: CUDA, id: 0 };
