//! What callbacks of UCX note, and the memory of sends and receives until they are complete.
//!
//! Callbacks run inside of functions of the library, on the thread that calls them.
#![allow(unsafe_code, reason = "callbacks of a library of C, and memory that it reads")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{ArrivalParameters, Handle, IN_PROGRESS, Library, OK, Slice, bits};
use super::link::Link;
use crate::transport::send_buffer::{LentParts, PooledBuffer};

/// Bytes of the header of an active message.
pub(super) const HEADER: usize = 24;
/// Maximum bytes of an active message: more than the frames of a sender of this library.
const MOST_BYTES: usize = 1 << 30;

/// Argument of an endpoint's error callback.
pub(super) struct Mark {
    pub(super) events: NonNull<UnsafeCell<Events>>,
    pub(super) number: u64,
}

/// What callbacks have noted.
#[derive(Default)]
pub(super) struct Events {
    pub(super) sent: Vec<NonNull<SendOperation>>,
    pub(super) received: Vec<(NonNull<ReceiveOperation>, i32)>,
    pub(super) arrived: Vec<Noted>,
    pub(super) failed: Vec<(u64, i32)>,
}

/// An active message, as the callback saw it.
pub(super) struct Noted {
    pub(super) header: [u8; HEADER],
    pub(super) data: NotedData,
}

pub(super) enum NotedData {
    Bytes(Vec<u8>),
    /// Memory of the library, until it is released.
    Kept(*mut c_void, usize),
    /// A descriptor by which so many bytes are received.
    Rendezvous(*mut c_void, usize),
    /// No message of this library.
    Foreign,
}

/// Memory of a send, until it is complete.
pub(super) struct SendOperation {
    pub(super) events: NonNull<UnsafeCell<Events>>,
    pub(super) header: [u8; HEADER],
    pub(super) slices: Vec<Slice>,
    pub(super) own: Option<PooledBuffer>,
    pub(super) lent: LentParts,
    pub(super) link: Option<Arc<Link>>,
    pub(super) bytes: usize,
}

/// Memory of a rendezvous, until it is complete.
pub(super) struct ReceiveOperation {
    pub(super) events: NonNull<UnsafeCell<Events>>,
    pub(super) header: [u8; HEADER],
    pub(super) buffer: Vec<u8>,
    pub(super) len: usize,
}

impl SendOperation {
    pub(super) fn fill(
        &mut self,
        header: [u8; HEADER],
        own: Option<PooledBuffer>,
        lent: LentParts,
        link: Option<Arc<Link>>,
    ) {
        (self.header, self.own, self.lent, self.link) = (header, own, lent, link);
        let own: &[u8] = self.own.as_ref().map_or(&[], AsRef::as_ref);
        let (slices, mut taken) = (&mut self.slices, 0);
        let mut push = |bytes: &[u8]| {
            if !bytes.is_empty() {
                slices.push(Slice { start: bytes.as_ptr(), len: bytes.len() });
            }
        };
        for (at, bytes) in &self.lent {
            push(&own[taken..*at]);
            push(bytes);
            taken = *at;
        }
        push(&own[taken..]);
        self.bytes = self.slices.iter().map(|slice| slice.len).sum();
        if let Some(link) = &self.link {
            link.begin(self.bytes);
        }
    }

    pub(super) fn clear(&mut self) {
        self.slices.clear();
        (self.own, self.lent) = (None, LentParts::new());
        if let Some(link) = self.link.take() {
            link.finish(self.bytes);
        }
    }
}

impl ReceiveOperation {
    pub(super) fn prepare(&mut self, header: [u8; HEADER], len: usize) {
        (self.header, self.len) = (header, len);
        if self.buffer.len() < len {
            self.buffer = vec![0; len];
        }
    }
}

/// Notes an active message.
pub(super) unsafe extern "C" fn on_arrival(
    argument: *mut c_void,
    header: *const u8,
    header_len: usize,
    data: *mut c_void,
    len: usize,
    parameters: *const ArrivalParameters,
) -> i32 {
    // SAFETY: the argument of the handler; no reference to it is in use while the library runs.
    let events = unsafe { &mut *(*argument.cast::<UnsafeCell<Events>>()).get() };
    // SAFETY: the library gives parameters with each message.
    let attributes = unsafe { (*parameters).attributes };
    if header_len != HEADER || len > MOST_BYTES {
        events.arrived.push(Noted { header: [0; HEADER], data: NotedData::Foreign });
        // The library drops the message.
        return OK;
    }
    let mut own = [0; HEADER];
    // SAFETY: this many bytes, as was just compared.
    unsafe { std::ptr::copy_nonoverlapping(header, own.as_mut_ptr(), HEADER) };
    let (data, status) = if attributes & bits::IS_RENDEZVOUS != 0 {
        (NotedData::Rendezvous(data, len), IN_PROGRESS)
    } else if len == 0 || data.is_null() {
        (NotedData::Bytes(Vec::new()), OK)
    } else if attributes & bits::IS_KEPT != 0 {
        (NotedData::Kept(data, len), IN_PROGRESS)
    } else {
        // SAFETY: the library gives this many bytes for the length of the call.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        (NotedData::Bytes(bytes.to_vec()), OK)
    };
    events.arrived.push(Noted { header: own, data });
    status
}

/// Notes that an endpoint has failed.
pub(super) unsafe extern "C" fn on_error(argument: *mut c_void, _: Handle, status: i32) {
    // SAFETY: the argument of the endpoint, which lives as long as the worker.
    let mark = unsafe { &*argument.cast::<Mark>() };
    // SAFETY: no reference to it is in use while the library runs.
    unsafe { &mut *mark.events.as_ref().get() }.failed.push((mark.number, status));
}

/// Notes that a send is complete, or has failed: its bytes are not read any more.
pub(super) unsafe extern "C" fn on_sent(request: Handle, _: i32, argument: *mut c_void) {
    if let Some(place) = NonNull::new(argument.cast::<SendOperation>()) {
        // SAFETY: the operation of the send; no reference to what it refers to is in use while the library runs.
        unsafe { &mut *place.as_ref().events.as_ref().get() }.sent.push(place);
    }
    free(request);
}

/// Notes that a rendezvous is complete, or has failed.
pub(super) unsafe extern "C" fn on_received(
    request: Handle,
    status: i32,
    _: usize,
    argument: *mut c_void,
) {
    if let Some(place) = NonNull::new(argument.cast::<ReceiveOperation>()) {
        // SAFETY: the operation of the receive; no reference to what it refers to is in use while the library runs.
        unsafe { &mut *place.as_ref().events.as_ref().get() }.received.push((place, status));
    }
    free(request);
}

/// Frees the request of a callback.
fn free(request: Handle) {
    if let Ok(library) = Library::open() {
        // SAFETY: the request of an operation that is complete.
        unsafe { (library.functions.request_free)(request) };
    }
}
