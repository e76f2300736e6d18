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
use super::offer::{HEADER, HeaderFront, MOST_FRONT, split_header};
use crate::transport::ReceiveRoom;
use crate::transport::send_buffer::{LentParts, PooledBuffer};

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
    pub(super) front: HeaderFront,
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
    /// The header, and the front of a frame behind it; so many bytes.
    pub(super) header: [u8; HEADER + MOST_FRONT],
    pub(super) header_len: usize,
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
    pub(super) front: HeaderFront,
    /// Where the bytes are received, if that is not the buffer.
    pub(super) room: Option<ReceiveRoom>,
    pub(super) buffer: Vec<u8>,
    pub(super) len: usize,
}

impl SendOperation {
    /// The first `front` own bytes, at most [`MOST_FRONT`] and none of them behind lent ones, follow the header.
    pub(super) fn fill(
        &mut self,
        header: [u8; HEADER],
        front: usize,
        own: Option<PooledBuffer>,
        lent: LentParts,
        link: Option<Arc<Link>>,
    ) {
        (self.own, self.lent, self.link) = (own, lent, link);
        let own: &[u8] = self.own.as_ref().map_or(&[], AsRef::as_ref);
        self.header_len = HEADER + front;
        self.header[..HEADER].copy_from_slice(&header);
        self.header[HEADER..self.header_len].copy_from_slice(&own[..front]);
        let (slices, mut taken) = (&mut self.slices, front);
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
    /// Memory for `len` bytes: a room for as many, or else the buffer.
    pub(super) fn prepare(
        &mut self,
        header: [u8; HEADER],
        front: HeaderFront,
        len: usize,
        room: Option<ReceiveRoom>,
    ) -> *mut u8 {
        (self.header, self.front, self.len) = (header, front, len);
        self.room = room;
        if let Some(start) = self.room.as_mut().and_then(ReceiveRoom::own_memory) {
            return start;
        }
        self.room = None;
        if self.buffer.len() < len {
            self.buffer = vec![0; len];
        }
        self.buffer.as_mut_ptr()
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
    let header = if header.is_null() {
        &[]
    } else {
        // SAFETY: the library gives this many bytes for the length of the call.
        unsafe { std::slice::from_raw_parts(header, header_len) }
    };
    let Some((header, front)) = split_header(header).filter(|_| len <= MOST_BYTES) else {
        let (front, data) = (HeaderFront::new(), NotedData::Foreign);
        events.arrived.push(Noted { header: [0; HEADER], front, data });
        // The library drops the message.
        return OK;
    };
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
    events.arrived.push(Noted { header: *header, front: front.into(), data });
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
