//! The part of the C interface that is measured, as the header declares it.

use std::ffi::{c_char, c_void};

use kvstore as _; // Links the library.

/// `kv_tensor` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: [i32; 2],
    pub ndim: i32,
    pub dtype: u32,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

pub type Updater = unsafe extern "C" fn(*mut c_void, u64, *const Tensor, *const Tensor) -> i32;

unsafe extern "C" {
    pub fn kv_config_create(config: *mut *mut c_void) -> i32;
    pub fn kv_config_set(config: *mut c_void, name: *const c_char, value: *const c_char) -> i32;
    pub fn kv_config_free(config: *mut c_void);
    pub fn kv_create(kind: *const c_char, config: *const c_void, store: *mut *mut c_void) -> i32;
    pub fn kv_free(store: *mut c_void);
    pub fn kv_last_error() -> *const c_char;
    pub fn kv_init(
        store: *mut c_void,
        keys: *const u64,
        values: *const Tensor,
        count: usize,
    ) -> i32;
    pub fn kv_push(
        store: *mut c_void,
        keys: *const u64,
        values: *const Tensor,
        count: usize,
        priority: i32,
        ticket: *mut u64,
    ) -> i32;
    pub fn kv_pull(
        store: *mut c_void,
        keys: *const u64,
        outs: *const Tensor,
        count: usize,
        priority: i32,
        ticket: *mut u64,
    ) -> i32;
    pub fn kv_pushpull(
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
    pub fn kv_bind(
        store: *mut c_void,
        keys: *const u64,
        values: *const Tensor,
        count: usize,
        out_keys: *const u64,
        outs: *const Tensor,
        out_count: usize,
        bound: *mut *mut c_void,
    ) -> i32;
    pub fn kv_bound_push(bound: *mut c_void, priority: i32, ticket: *mut u64) -> i32;
    pub fn kv_bound_pull(bound: *mut c_void, priority: i32, ticket: *mut u64) -> i32;
    pub fn kv_bound_pushpull(bound: *mut c_void, priority: i32, ticket: *mut u64) -> i32;
    pub fn kv_bound_free(bound: *mut c_void);
    pub fn kv_push_rows(
        store: *mut c_void,
        keys: *const u64,
        row_ids: *const Tensor,
        rows: *const Tensor,
        count: usize,
        priority: i32,
        ticket: *mut u64,
    ) -> i32;
    pub fn kv_pull_rows(
        store: *mut c_void,
        keys: *const u64,
        row_ids: *const Tensor,
        outs: *const Tensor,
        count: usize,
        priority: i32,
        ticket: *mut u64,
    ) -> i32;
    pub fn kv_set_updater(
        store: *mut c_void,
        updater: Option<Updater>,
        context: *mut c_void,
        drop: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> i32;
    pub fn kv_set_optimizer(
        store: *mut c_void,
        name: *const c_char,
        parameters: *const c_char,
    ) -> i32;
    pub fn kv_set_compression(
        store: *mut c_void,
        name: *const c_char,
        parameters: *const c_char,
    ) -> i32;
}
