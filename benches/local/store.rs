//! The store through its C interface, as a C program uses it.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use kvstore as _; // Links the library.

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    dtype: u32,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

type Updater = unsafe extern "C" fn(*mut c_void, u64, *const Tensor, *const Tensor) -> i32;

unsafe extern "C" {
    fn kv_config_create(config: *mut *mut c_void) -> i32;
    fn kv_config_set(config: *mut c_void, name: *const i8, value: *const i8) -> i32;
    fn kv_config_free(config: *mut c_void);
    fn kv_create(kind: *const i8, config: *const c_void, store: *mut *mut c_void) -> i32;
    fn kv_free(store: *mut c_void);
    fn kv_init(store: *mut c_void, keys: *const u64, values: *const Tensor, count: usize) -> i32;
    fn kv_push(
        s: *mut c_void,
        k: *const u64,
        v: *const Tensor,
        n: usize,
        p: i32,
        t: *mut u64,
    ) -> i32;
    fn kv_pull(
        s: *mut c_void,
        k: *const u64,
        o: *const Tensor,
        n: usize,
        p: i32,
        t: *mut u64,
    ) -> i32;
    fn kv_pushpull(
        store: *mut c_void,
        keys: *const u64,
        values: *const Tensor,
        count: usize,
        out_keys: *const u64,
        outs: *const Tensor,
        out_count: usize,
        priority: i32,
        ticket: *mut u64,
    ) -> i32;
    fn kv_set_updater(
        store: *mut c_void,
        updater: Option<Updater>,
        context: *mut c_void,
        drop: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> i32;
}

/// `stored -= 0.1 * input`, what a user's C updater would be.
unsafe extern "C" fn sgd(
    _: *mut c_void,
    _: u64,
    input: *const Tensor,
    stored: *const Tensor,
) -> i32 {
    // SAFETY: the library lends two row-major float32 tensors of one shape.
    unsafe {
        let len = usize::try_from(*(*input).shape).unwrap_or(0);
        let input = std::slice::from_raw_parts((*input).data.cast::<f32>(), len);
        let stored = std::slice::from_raw_parts_mut((*stored).data.cast::<f32>(), len);
        for (stored, input) in stored.iter_mut().zip(input) {
            *stored -= 0.1 * input;
        }
    }
    0
}

pub struct Store(*mut c_void);

fn check(status: i32) {
    assert_eq!(status, 0, "a call of the benchmark failed");
}

impl Store {
    pub fn open(threads: usize) -> Self {
        let (mut config, mut store) = (null_mut(), null_mut());
        let threads = CString::new(threads.to_string()).unwrap_or_default();
        // SAFETY: places of our own and NUL-terminated strings.
        unsafe {
            check(kv_config_create(&raw mut config));
            check(kv_config_set(config, c"threads".as_ptr(), threads.as_ptr()));
            check(kv_create(c"local".as_ptr(), config, &raw mut store));
            kv_config_free(config);
        }
        Self(store)
    }

    pub fn use_sgd(&self) {
        // SAFETY: the updater needs no context.
        check(unsafe { kv_set_updater(self.0, Some(sgd), null_mut(), None) });
    }

    pub fn init(&self, list: &List) {
        // SAFETY: a list's tensors live as long as the list.
        check(unsafe {
            kv_init(self.0, list.keys.as_ptr(), list.tensors.as_ptr(), list.keys.len())
        });
    }

    pub fn push(&self, list: &List) {
        let (keys, tensors, count) = (list.keys.as_ptr(), list.tensors.as_ptr(), list.keys.len());
        // SAFETY: as above.
        check(unsafe { kv_push(self.0, keys, tensors, count, 0, null_mut()) });
    }

    pub fn pull(&self, list: &List) {
        let (keys, tensors, count) = (list.keys.as_ptr(), list.tensors.as_ptr(), list.keys.len());
        // SAFETY: as above, and nobody else uses the outs.
        check(unsafe { kv_pull(self.0, keys, tensors, count, 0, null_mut()) });
    }

    pub fn pushpull(&self, values: &List, outs: &List) {
        // SAFETY: as above.
        check(unsafe {
            kv_pushpull(
                self.0,
                values.keys.as_ptr(),
                values.tensors.as_ptr(),
                values.keys.len(),
                outs.keys.as_ptr(),
                outs.tensors.as_ptr(),
                outs.keys.len(),
                0,
                null_mut(),
            )
        });
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: made by kv_create, freed once.
        unsafe { kv_free(self.0) }
    }
}

/// (key, tensor) pairs, and the memory behind them: one float32 tensor of `len` elements for each
/// key in the list.
pub struct List {
    keys: Vec<u64>,
    tensors: Vec<Tensor>,
    _shape: Box<i64>,
    _memory: Vec<f32>,
}

impl List {
    pub fn new(keys: Vec<u64>, len: usize) -> Self {
        let mut shape = Box::new(i64::try_from(len).unwrap_or(0));
        let mut memory: Vec<f32> = (0..keys.len() * len).map(|i| (i % 251) as f32).collect();
        let start = memory.as_mut_ptr();
        let tensors = (0..keys.len())
            .map(|i| Tensor {
                data: start.wrapping_add(i * len).cast(),
                device: [1, 0],
                ndim: 1,
                dtype: 0x0001_2002,
                shape: &raw mut *shape,
                strides: null_mut(),
                byte_offset: 0,
            })
            .collect();
        Self { keys, tensors, _shape: shape, _memory: memory }
    }
}
