//! LightGBM's external network functions: its reduce-scatter and its allgather as collective calls.
//!
//! LightGBM calls them on the thread that trains, which has released the GIL, and keeps its network by
//! thread; so does this file. Blocks are reduced in the order of LightGBM's own sockets, so that sums
//! have the same bits.
#![allow(unsafe_code, reason = "functions that LightGBM calls, and calls of the C library")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::slice::from_raw_parts;

use pyo3::prelude::*;

use crate::calls::{Inside, take_raised};
use crate::library::{Dtype, OK, Store, Tensor, function};
use crate::python::{invalid, unsupported};
use crate::store::{Handle, Store as PyStore, open};

type AllGather = unsafe extern "C" fn(Store, *const Tensor, *const Tensor, usize, *mut u64) -> i32;
type AllToAll =
    unsafe extern "C" fn(Store, *const Tensor, usize, *const Tensor, usize, *mut u64) -> i32;
type LastError = unsafe extern "C" fn() -> *const c_char;
/// Adds, or otherwise combines, the elements of the first array into the second one.
type Combine = unsafe extern "C" fn(*const u8, *mut u8, i32, i32);
type InitWithFunctions = unsafe extern "C" fn(i32, i32, *mut c_void, *mut c_void) -> i32;
type ThrowRuntimeError = unsafe extern "C-unwind" fn(*const c_char) -> !;
type ReduceScatterCallback = unsafe extern "C-unwind" fn(
    *mut u8,
    i32,
    i32,
    *const i32,
    *const i32,
    i32,
    *mut u8,
    i32,
    *const Combine,
);
type AllGatherCallback =
    unsafe extern "C-unwind" fn(*mut u8, i32, *const i32, *const i32, i32, *mut u8, i32);

/// `Network::Init`, whose mangled name has the types of both callbacks: 2.3 to 4.7 have this one.
const INIT: &CStr =
    c"_ZN8LightGBM7Network4InitEiiPFvPciiPKiS3_iS1_iRKPFvPKcS1_iiEEPFvS1_iS3_S3_iS1_iE";
/// `std::__throw_runtime_error(const char *)` of libstdc++.
const THROW: &CStr = c"_ZSt21__throw_runtime_errorPKc";
/// From this size on, LightGBM reduces by a ring, unless the number of ranks is a power of two.
const RING_BYTES: usize = 10 << 20;
/// Alignment of received blocks.
const BLOCK_ALIGNMENT: usize = 64;

thread_local! {
    static NETWORK: RefCell<Option<ExternalNetwork>> = const { RefCell::new(None) };
}

/// What the callbacks of a thread use.
struct ExternalNetwork {
    /// Keeps the store.
    _handle: Py<Handle>,
    store: usize,
    rank: usize,
    /// Number of ranks.
    size: usize,
    all_gather: AllGather,
    all_to_all: AllToAll,
    last_error: LastError,
    throw: ThrowRuntimeError,
    extents: Vec<i64>,
    values: Vec<Tensor>,
    outs: Vec<Tensor>,
    received: Vec<u64>,
    failure: Option<(i32, CString)>,
}

/// The arguments that both callbacks have.
#[derive(Clone, Copy)]
struct Blocks {
    input: *mut u8,
    output: *mut u8,
    starts: *const i32,
    lengths: *const i32,
}

/// Opens the network of this thread with the store's workers. `library` is the handle of `lib_lightgbm`
/// and its version, `place` the rank and the number of ranks.
#[pyfunction]
pub fn open_lightgbm(
    store: &Bound<'_, PyStore>,
    library: (usize, String),
    place: (usize, usize),
) -> PyResult<()> {
    let ((library, version), (rank, size)) = (library, place);
    let py = store.py();
    let handle = open(store)?;
    if NETWORK.with_borrow(Option::is_some) {
        return Err(invalid(py, "network: this thread has one open; leave it first".to_owned()));
    }
    // SAFETY: the handle is that of a library which is never closed.
    let find = |name: &CStr| unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    let (init, throw) = (find(c"LGBM_NetworkInitWithFunctions"), find(THROW));
    if init.is_null() || throw.is_null() || find(INIT).is_null() {
        return Err(unsupported(
            py,
            &format!(
                "network: this build of LightGBM {version} does not show the callbacks of 2.3 to 4.7, or \
                 does not use libstdc++: install a wheel of one of these versions"
            ),
        ));
    }
    // Signals end the waits of this thread from here on.
    drop(Inside::enter(py)?);
    // SAFETY: the header of the C library declares these functions with these parameters, and so does
    // the header of libstdc++.
    let network = unsafe {
        ExternalNetwork {
            store: handle.get().address(),
            _handle: handle.unbind(),
            rank,
            size,
            all_gather: function("kv_allgather")?,
            all_to_all: function("kv_all_to_all")?,
            last_error: function("kv_last_error")?,
            throw: std::mem::transmute::<*mut c_void, ThrowRuntimeError>(throw),
            extents: Vec::new(),
            values: Vec::new(),
            outs: Vec::new(),
            received: Vec::new(),
            failure: None,
        }
    };
    NETWORK.set(Some(network));
    let reduce_scatter: ReduceScatterCallback = reduce_scatter;
    let all_gather: AllGatherCallback = all_gather;
    // SAFETY: LightGBM's header declares it so, and INIT has shown the types of the callbacks.
    let status = unsafe {
        let init = std::mem::transmute::<*mut c_void, InitWithFunctions>(init);
        let (size, rank) = (size.try_into()?, rank.try_into()?);
        init(size, rank, reduce_scatter as *mut c_void, all_gather as *mut c_void)
    };
    if status != 0 {
        NETWORK.set(None);
        return Err(unsupported(py, "network: LightGBM refuses the callbacks"));
    }
    Ok(())
}

/// Closes the network of this thread, and gives the status and the text of the call that has failed.
#[pyfunction]
pub fn close_lightgbm() -> PyResult<Option<(i32, String)>> {
    let network = NETWORK.take();
    if let Some(error) = take_raised() {
        return Err(error);
    }
    let failure = network.and_then(|network| network.failure);
    Ok(failure.map(|(status, text)| (status, text.to_string_lossy().into_owned())))
}

unsafe extern "C-unwind" fn reduce_scatter(
    input: *mut u8,
    input_size: i32,
    type_size: i32,
    starts: *const i32,
    lengths: *const i32,
    _ranks: i32,
    output: *mut u8,
    _output_size: i32,
    combine: *const Combine,
) {
    let blocks = Blocks { input, output, starts, lengths };
    let bytes = usize::try_from(input_size).unwrap_or(0);
    // SAFETY: LightGBM passes arrays of as many blocks as there are ranks.
    run(|network| unsafe { network.reduce_scatter(blocks, bytes, (*combine, type_size)) });
}

unsafe extern "C-unwind" fn all_gather(
    input: *mut u8,
    _input_size: i32,
    starts: *const i32,
    lengths: *const i32,
    _ranks: i32,
    output: *mut u8,
    _output_size: i32,
) {
    let blocks = Blocks { input, output, starts, lengths };
    // SAFETY: LightGBM passes arrays of as many blocks as there are ranks.
    run(|network| unsafe { network.all_gather(blocks) });
}

/// Runs a collective call. A failure leaves as a C++ exception, which LightGBM's functions catch: a
/// training has no other end, and goes on with garbage if a callback returns.
fn run(call: impl FnOnce(&mut ExternalNetwork) -> i32) {
    let raised = NETWORK.with_borrow_mut(|network| {
        let network = network.as_mut()?;
        if network.failure.is_none() {
            let inside = Inside::enter_without_gil();
            let status = call(network);
            if status != OK {
                // SAFETY: the text is valid until the next call of this thread.
                let text = unsafe { CStr::from_ptr((network.last_error)()) }.to_owned();
                network.failure = Some((status, text));
            }
            drop(inside);
        }
        let (_, text) = network.failure.as_ref()?;
        Some((network.throw, text.as_ptr()))
    });
    if let Some((throw, text)) = raised {
        // SAFETY: it copies the text, which the network keeps. No frame from here to LightGBM's has
        // anything to drop.
        unsafe { throw(text) };
    }
}

impl ExternalNetwork {
    /// # Safety
    ///
    /// The arrays have a block for each rank, with room for all of them in the output.
    unsafe fn all_gather(&mut self, blocks: Blocks) -> i32 {
        // SAFETY: the caller's promise.
        unsafe {
            let own = blocks.start(self.rank);
            // An allreduce passes one array as input and as output.
            blocks.input.copy_to(blocks.output.add(own), blocks.length(self.rank));
            self.set_extents(blocks);
            self.outs.clear();
            for rank in 0..self.size {
                let place = blocks.output.add(blocks.start(rank));
                self.outs.push(bytes_at(place, &raw const self.extents[rank]));
            }
            let (value, outs) = (&raw const self.outs[self.rank], self.outs.as_ptr());
            (self.all_gather)(self.store as Store, value, outs, self.size, null_mut())
        }
    }

    /// # Safety
    ///
    /// The input has a block for each rank, and the output room for that of this one.
    unsafe fn reduce_scatter(
        &mut self,
        blocks: Blocks,
        input_bytes: usize,
        combine: (Combine, i32),
    ) -> i32 {
        // SAFETY: the caller's promise.
        unsafe {
            let length = blocks.length(self.rank);
            let own = blocks.input.add(blocks.start(self.rank));
            self.set_extents(blocks);
            let step = length.next_multiple_of(BLOCK_ALIGNMENT);
            let needed = (step * self.size + BLOCK_ALIGNMENT) / size_of::<u64>();
            if self.received.len() < needed {
                self.received.resize(needed, 0);
            }
            let received = self.received.as_mut_ptr().cast::<u8>();
            let received = received.add(received.align_offset(BLOCK_ALIGNMENT));
            self.values.clear();
            self.outs.clear();
            for rank in 0..self.size {
                let value = blocks.input.add(blocks.start(rank));
                let out = if rank == self.rank { own } else { received.add(step * rank) };
                self.values.push(bytes_at(value, &raw const self.extents[rank]));
                self.outs.push(bytes_at(out, &raw const self.extents[self.rank]));
            }
            let (values, outs) = (self.values.as_ptr(), self.outs.as_ptr());
            let store = self.store as Store;
            let status = (self.all_to_all)(store, values, self.size, outs, self.size, null_mut());
            if status == OK {
                let result = self.combine(input_bytes, combine);
                result.copy_to_nonoverlapping(blocks.output, length);
            }
            status
        }
    }

    /// Combines the blocks in `outs` as LightGBM's recursive halving or its ring does; gives the place
    /// of the result.
    ///
    /// # Safety
    ///
    /// The blocks have been received.
    unsafe fn combine(&self, input_bytes: usize, (combine, type_size): (Combine, i32)) -> *mut u8 {
        let place = |rank: usize| self.outs[rank].data.cast::<u8>();
        let length = i32::try_from(self.extents[self.rank]).unwrap_or(0);
        let add = |from: usize, to: usize| {
            if length > 0 {
                // SAFETY: blocks of one length, which do not overlap.
                unsafe { combine(place(from), place(to), type_size, length) };
            }
        };
        let groups = 1 << self.size.ilog2();
        if groups != self.size && input_bytes >= RING_BYTES {
            // Each rank adds what it receives to its own block, beginning behind the receiver.
            for step in 1..self.size {
                let from = (self.rank + step) % self.size;
                add(from, (from + 1) % self.size);
            }
            return place(self.rank);
        }
        // The last ranks form groups of two, whose first one leads.
        let single = 2 * groups - self.size;
        let leader = |group: usize| group + group.saturating_sub(single);
        for group in single..groups {
            add(leader(group) + 1, leader(group));
        }
        let own = if self.rank < single { self.rank } else { usize::midpoint(self.rank, single) };
        let mut distance = groups / 2;
        while distance > 0 {
            for group in (0..groups).filter(|group| (group ^ own) < distance) {
                add(leader(group ^ distance), leader(group));
            }
            distance /= 2;
        }
        place(leader(own))
    }

    /// # Safety
    ///
    /// The lengths are as many as the ranks.
    unsafe fn set_extents(&mut self, blocks: Blocks) {
        // SAFETY: the caller's promise.
        let lengths = unsafe { from_raw_parts(blocks.lengths, self.size) };
        self.extents.clear();
        self.extents.extend(lengths.iter().map(|&length| i64::from(length)));
    }
}

impl Blocks {
    /// # Safety
    ///
    /// There is a block of this rank.
    unsafe fn start(self, rank: usize) -> usize {
        // SAFETY: the caller's promise.
        usize::try_from(unsafe { *self.starts.add(rank) }).unwrap_or(0)
    }

    /// # Safety
    ///
    /// As for `start`.
    unsafe fn length(self, rank: usize) -> usize {
        // SAFETY: the caller's promise.
        usize::try_from(unsafe { *self.lengths.add(rank) }).unwrap_or(0)
    }
}

/// A tensor of bytes in host memory.
fn bytes_at(place: *mut u8, extent: *const i64) -> Tensor {
    const CPU: i32 = 1;
    const UINT: u8 = 1;
    Tensor {
        data: place.cast(),
        device_type: CPU,
        device_id: 0,
        ndim: 1,
        dtype: Dtype { code: UINT, bits: 8, lanes: 1 },
        shape: extent,
        strides: std::ptr::null(),
        byte_offset: 0,
    }
}
