//! Opaque handles, and the conversions between C's arguments and the crate's types.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::{ptr, slice};

use super::types::{kv_dtype_in, kv_key, kv_key_digest, kv_tensor, kv_ticket};
use crate::digest::KeyDigest;
use crate::error::{Result, fail};
use crate::key::{Key, KeyInfo};
use crate::local::call::DataCall;
use crate::store::{Pairs, RowPairs, Tensors};
use crate::tensor::{RawTensor, RawTensors};
use crate::{Config, Store};

/// A store; opaque.
pub struct kv_store {
    /// Only for bound lists, which see by it whether the store has been freed.
    store: Arc<Store>,
}

/// Options for kv_create(); opaque.
pub struct kv_config {
    config: Config,
}

pub(super) fn new_store(store: Store) -> *mut kv_store {
    Box::into_raw(Box::new(kv_store { store: Arc::new(store) }))
}

pub(super) fn new_config() -> *mut kv_config {
    Box::into_raw(Box::new(kv_config { config: Config::new() }))
}

/// # Safety
/// NULL, or a handle that has not been freed.
pub(super) unsafe fn store<'a>(handle: *mut kv_store) -> Result<&'a Store> {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() };
    handle.map(|handle| &*handle.store).ok_or_else(|| null("store"))
}

/// A store whose end a bound list has to see.
///
/// # Safety
/// As for [`store`].
pub(super) unsafe fn store_of_bound<'a>(handle: *mut kv_store) -> Result<&'a Arc<Store>> {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() };
    handle.map(|handle| &handle.store).ok_or_else(|| null("store"))
}

/// # Safety
/// NULL, or a handle that has not been freed and that no other thread uses now.
pub(super) unsafe fn config_mut<'a>(handle: *mut kv_config) -> Result<&'a mut Config> {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_mut() };
    handle.map(|handle| &mut handle.config).ok_or_else(|| null("config"))
}

/// # Safety
/// NULL, or a handle that has not been freed and that no thread changes now.
pub(super) unsafe fn config_ref<'a>(handle: *const kv_config) -> Option<&'a Config> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.map(|handle| &handle.config)
}

/// # Safety
/// NULL, or a handle that is freed only once and that no other thread uses.
pub(super) unsafe fn free_store(handle: *mut kv_store) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise; it came from `new_store`.
    let handle = unsafe { Box::from_raw(handle) };
    if handle.store.callback().is_some() {
        // The callback would continue in freed memory.
        std::mem::forget(handle);
        return Err(fail!(
            Reentrant,
            "free: called from inside an updater or another callback of the store; it is kept"
        ));
    }
    drop(handle);
    Ok(())
}

/// # Safety
/// NULL, or a handle that is freed only once and that no other thread uses.
pub(super) unsafe fn free_config(handle: *mut kv_config) {
    if !handle.is_null() {
        // SAFETY: the caller's promise; it came from `new_config`.
        drop(unsafe { Box::from_raw(handle) });
    }
}

pub(super) fn null(name: &str) -> crate::Error {
    fail!(InvalidArgument, "{name} is NULL")
}

/// An output place.
///
/// # Safety
/// NULL, or a valid place for a `T` that no other code uses.
pub(super) unsafe fn out<'a, T>(place: *mut T, name: &str) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { place.as_mut() }.ok_or_else(|| null(name))
}

/// A string argument.
///
/// # Safety
/// NULL, or NUL-terminated and unchanged for `'a`.
pub(super) unsafe fn text<'a>(start: *const c_char, name: &str) -> Result<&'a str> {
    if start.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map_err(|_| fail!(InvalidArgument, "{name} is not valid UTF-8"))
}

/// A rule or codec, and its options: NULL stands for no options.
///
/// # Safety
/// As for [`text`], of both.
pub(super) unsafe fn name_and_params<'a>(
    name: *const c_char,
    params: *const c_char,
) -> Result<(&'a str, &'a str)> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name, "name") }?;
    // SAFETY: the caller's promise.
    let params = if params.is_null() { "" } else { unsafe { text(params, "params") }? };
    Ok((name, params))
}

/// The path of a file, which the system takes as bytes.
///
/// # Safety
/// NULL, or NUL-terminated and unchanged for `'a`.
pub(super) unsafe fn path<'a>(start: *const c_char) -> Result<&'a Path> {
    if start.is_null() {
        return Err(null("path"));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(start) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// An array argument.
///
/// # Safety
/// NULL, or `count` valid elements that stay unchanged for `'a`.
pub(super) unsafe fn array<'a, T>(
    start: *const T,
    count: usize,
    call: &str,
    name: &str,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(fail!(InvalidArgument, "{call}: {name} is NULL and the count is {count}"));
    }
    if isize::try_from(count.saturating_mul(size_of::<T>())).is_err() {
        return Err(fail!(
            InvalidArgument,
            "{call}: the count {count} is beyond the address space"
        ));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// The keys of a call.
///
/// # Safety
/// NULL, or `count` keys that stay unchanged for `'a`.
#[inline]
pub(super) unsafe fn keys<'a>(call: &str, start: *const kv_key, count: usize) -> Result<&'a [Key]> {
    // SAFETY: the caller's promise; Key is a transparent u64.
    unsafe { array(start.cast::<Key>(), count, call, "keys") }
}

const _: () = {
    assert!(size_of::<kv_tensor>() == size_of::<RawTensor>());
    assert!(offset_of!(kv_tensor, data) == offset_of!(RawTensor, data));
    assert!(offset_of!(kv_tensor, device.r#type) == offset_of!(RawTensor, device_type));
    assert!(offset_of!(kv_tensor, device.id) == offset_of!(RawTensor, device_id));
    assert!(offset_of!(kv_tensor, ndim) == offset_of!(RawTensor, ndim));
    assert!(offset_of!(kv_tensor, dtype) == offset_of!(RawTensor, dtype));
    assert!(offset_of!(kv_tensor, shape) == offset_of!(RawTensor, shape));
    assert!(offset_of!(kv_tensor, strides) == offset_of!(RawTensor, strides));
    assert!(offset_of!(kv_tensor, byte_offset) == offset_of!(RawTensor, byte_offset));
};

/// The (key, tensor) pairs of a call.
///
/// # Safety
/// NULL, or `count` keys and tensors, unchanged for `'a`, whose memory is lent as the header says.
#[inline]
pub(super) unsafe fn pairs<'a>(
    call: &str,
    keys_start: *const kv_key,
    tensors: *const kv_tensor,
    count: usize,
) -> Result<Pairs<'a>> {
    // SAFETY: the caller's promise; a RawTensor has the layout of a kv_tensor, see above, and its
    // pointers are NULL or valid for what it says by header rules 2 and 4.
    unsafe {
        let keys = keys(call, keys_start, count)?;
        let tensors = array(tensors.cast::<RawTensor>(), count, call, "the array of tensors")?;
        Ok(Pairs { keys, tensors: Tensors::Raw(RawTensors::new(tensors)) })
    }
}

/// The tensors of a call without keys.
///
/// # Safety
/// As for [`pairs`], of the tensors.
pub(super) unsafe fn tensors<'a>(
    call: &str,
    start: *const kv_tensor,
    count: usize,
) -> Result<Tensors<'a>> {
    // SAFETY: the caller's promise; see `pairs`.
    unsafe {
        let tensors = array(start.cast::<RawTensor>(), count, call, "the array of tensors")?;
        Ok(Tensors::Raw(RawTensors::new(tensors)))
    }
}

/// The (key, row ids, rows) triples of a call.
///
/// # Safety
/// As for [`pairs`], of both arrays of tensors.
pub(super) unsafe fn row_pairs<'a>(
    call: &str,
    keys: *const kv_key,
    row_ids: *const kv_tensor,
    rows: *const kv_tensor,
    count: usize,
) -> Result<RowPairs<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        let ids = pairs(call, keys, row_ids, count)?;
        let rows = pairs(call, keys, rows, count)?;
        Ok(RowPairs { ids, rows })
    }
}

/// Runs a data call here, or queues it if there is a place for a ticket.
///
/// # Safety
/// `ticket` is NULL or a valid place; with a place, the tensors are lent until completion.
pub(super) unsafe fn submit(
    store: &Store,
    call: DataCall,
    values: &Pairs<'_>,
    outs: &Pairs<'_>,
    priority: i32,
    ticket: *mut kv_ticket,
) -> Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { ticket.as_mut() } {
        None => store.call(call, values, outs),
        Some(ticket) => {
            *ticket = store.submit(call, values, outs, priority)?;
            Ok(())
        }
    }
}

/// Like [`submit`], for a call on rows.
///
/// # Safety
/// As for [`submit`].
pub(super) unsafe fn submit_rows(
    store: &Store,
    call: DataCall,
    pairs: &RowPairs<'_>,
    priority: i32,
    ticket: *mut kv_ticket,
) -> Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { ticket.as_mut() } {
        None => store.call_rows(call, pairs),
        Some(ticket) => {
            *ticket = store.submit_rows(call, pairs, priority)?;
            Ok(())
        }
    }
}

/// Copies `items` to a caller's array, unless the caller only asks for their number.
///
/// # Safety
/// NULL, or room for `capacity` items.
unsafe fn write_array<T: Copy>(items: &[T], to: *mut T, capacity: usize, what: &str) -> Result<()> {
    if to.is_null() && capacity == 0 {
        return Ok(());
    }
    if to.is_null() {
        return Err(fail!(
            InvalidArgument,
            "{what}: the buffer is NULL and the capacity {capacity}"
        ));
    }
    if capacity < items.len() {
        let needed = items.len();
        return Err(fail!(BufferTooSmall, "{what}: needs room for {needed}, there is {capacity}"));
    }
    // SAFETY: room for `capacity` items, which is enough.
    unsafe { ptr::copy_nonoverlapping(items.as_ptr(), to, items.len()) };
    Ok(())
}

/// Refuses a NULL in the place of `count` results.
pub(super) fn check_room<T>(call: &str, place: *const T, count: usize, name: &str) -> Result<()> {
    if place.is_null() && count > 0 {
        return Err(fail!(InvalidArgument, "{call}: {name} is NULL and the count is {count}"));
    }
    Ok(())
}

/// # Safety
/// `place` is NULL or has room for `count`.
pub(super) unsafe fn write_digests(
    all: &[KeyDigest],
    place: *mut kv_key_digest,
    count: usize,
) -> Result<()> {
    let numbers = |it: &KeyDigest| {
        let KeyDigest { round, value, state } = *it;
        kv_key_digest { round, value, state }
    };
    let all: Vec<kv_key_digest> = all.iter().map(numbers).collect();
    // SAFETY: the caller's promise.
    unsafe { write_array(&all, place, count, "digest") }
}

/// # Safety
/// `buffer` is NULL or has `capacity` bytes; `length` is NULL or a place.
pub(super) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<()> {
    let with_nul = [text.as_bytes(), b"\0"].concat();
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(length) = length.as_mut() {
            *length = text.len();
        }
        if capacity == 0 {
            return Ok(());
        }
        write_array(&with_nul, buffer.cast(), capacity, "stats")
    }
}

/// # Safety
/// `keys` is NULL or has room for `capacity`; `count` is NULL or a place.
pub(super) unsafe fn write_keys(
    all: &[Key],
    keys: *mut kv_key,
    capacity: usize,
    count: *mut usize,
) -> Result<()> {
    // SAFETY: the caller's promise; Key is a transparent u64.
    unsafe {
        *out(count, "count")? = all.len();
        write_array(all, keys.cast::<Key>(), capacity, "keys")
    }
}

/// # Safety
/// Each place is NULL or valid; `shape` is NULL or has room for `capacity`.
pub(super) unsafe fn write_info(
    info: &KeyInfo,
    dtype: *mut kv_dtype_in,
    ndim: *mut i32,
    shape: *mut i64,
    capacity: i32,
) -> Result<()> {
    let Ok(capacity) = usize::try_from(capacity) else {
        return Err(fail!(InvalidArgument, "key_info: the capacity is {capacity}"));
    };
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(ndim) = ndim.as_mut() {
            *ndim = i32::try_from(info.shape.len()).unwrap_or(i32::MAX);
        }
        write_array(&info.shape, shape, capacity, "key_info")?;
        if let Some(dtype) = dtype.as_mut() {
            *dtype = info.dtype.code();
        }
    }
    Ok(())
}
