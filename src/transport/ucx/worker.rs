//! A worker of UCX: its endpoints, active messages to them, and what arrives. Its owner lets one thread at a time
//! use it.
//!
//! Callbacks only note what has happened (`events`), and a function of this file looks at it afterwards.
#![allow(unsafe_code, reason = "calls of a library of C, and the memory that it reads and writes")]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_void};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arrival::{Arrival, ArrivalData};
use super::events::{
    Events, Mark, Noted, NotedData, ReceiveOperation, SendOperation, on_arrival, on_error,
    on_received, on_sent,
};
use super::library::{
    BUSY, ContextParameters, EndpointParameters, Handle, HandlerParameters, IN_PROGRESS, Library,
    OK, OLDEST, RequestParameters, SocketAddress, WorkerAttributes, WorkerParameters, bits,
    error_of, keeping_signal_handlers, words,
};
use super::link::Link;
use super::offer::{HEADER, HeaderFront, MOST_FRONT};
use crate::log::{Level, log};
use crate::transport::ReceiveRoom;
use crate::transport::send_buffer::{LentParts, PooledBuffer};

/// The number of this library's active messages.
const MESSAGE: u32 = 1;
/// Calls of progress in sequence, while each does something.
const MOST_ROUNDS: usize = 8;
/// Timeout for all endpoints of a worker to be closed.
const CLOSE: Duration = Duration::from_millis(300);
/// Spare receive buffers, and their maximum size in bytes.
const MOST_SPARE: usize = 16;
const MOST_KEPT: usize = 4 << 20;

/// An endpoint: the way to one peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoint {
    handle: Handle,
    /// Different from that of all other endpoints of the worker.
    pub(super) number: u64,
}

// SAFETY: a handle of a worker whose owner lets one thread at a time use it.
unsafe impl Send for Endpoint {}

/// Gives memory for the payload of a message: its header, the front of its frame, and the bytes of the payload.
pub(super) type PayloadPlace<'a> = &'a dyn Fn(&[u8; HEADER], &[u8], usize) -> Option<ReceiveRoom>;

pub(super) struct UcxWorker {
    library: &'static Library,
    context: Handle,
    worker: Handle,
    efd: RawFd,
    address: Vec<u8>,
    /// Maximum bytes of a header.
    most_header: usize,
    events: NonNull<UnsafeCell<Events>>,
    endpoints: Vec<Endpoint>,
    marks: Vec<NonNull<Mark>>,
    /// Requests of endpoints that are being closed.
    closing: Vec<Handle>,
    arrivals: VecDeque<Arrival>,
    /// Memory of a list of what callbacks have noted.
    arrived: Vec<Noted>,
    /// All operations, and those that are not in use.
    sends: Vec<NonNull<SendOperation>>,
    spare_sends: Vec<NonNull<SendOperation>>,
    receives: Vec<NonNull<ReceiveOperation>>,
    spare_receives: Vec<NonNull<ReceiveOperation>>,
    foreign: u64,
}

// SAFETY: its handles may be used by any thread, one at a time, as it was created in the mode for that.
unsafe impl Send for UcxWorker {}

/// Fails with the name of a function.
fn check(status: i32, function: &str) -> Result<(), String> {
    if status == OK { Ok(()) } else { Err(format!("{function}: {}", words(status))) }
}

impl UcxWorker {
    /// A worker, with these settings of the library beside those of its environment variables.
    pub(super) fn open(
        library: &'static Library,
        settings: &[(&str, &str)],
    ) -> Result<Self, String> {
        let context = keeping_signal_handlers(|| context(library, settings))?;
        let functions = &library.functions;
        let parameters = WorkerParameters {
            mask: bits::THREAD_MODE | bits::WORKER_FLAGS,
            thread_mode: bits::SERIALIZED,
            processors: [0; 16],
            events: 0,
            user_data: null_mut(),
            event_fd: -1,
            flags: bits::IGNORE_REQUEST_LEAK,
            name: null(),
            alignment: 0,
            client: 0,
        };
        let mut worker = null_mut();
        // SAFETY: an open context, parameters that outlive the call, and a place for the result.
        let status =
            unsafe { (functions.worker_create)(context, &raw const parameters, &raw mut worker) };
        if let Err(error) = check(status, "ucp_worker_create") {
            // SAFETY: a context without workers, which is not used any more.
            unsafe { (functions.cleanup)(context) };
            return Err(error);
        }
        let events = NonNull::from(Box::leak(Box::default()));
        let mut this = Self {
            library,
            context,
            worker,
            efd: -1,
            address: Vec::new(),
            most_header: HEADER,
            events,
            endpoints: Vec::new(),
            marks: Vec::new(),
            closing: Vec::new(),
            arrivals: VecDeque::new(),
            arrived: Vec::new(),
            sends: Vec::new(),
            spare_sends: Vec::new(),
            receives: Vec::new(),
            spare_receives: Vec::new(),
            foreign: 0,
        };
        this.prepare()?;
        Ok(this)
    }

    fn prepare(&mut self) -> Result<(), String> {
        let functions = &self.library.functions;
        // SAFETY: an open worker, and a place for the result.
        let status = unsafe { (functions.worker_efd)(self.worker, &raw mut self.efd) };
        check(status, "ucp_worker_get_efd")?;
        let (mut start, mut len) = (null_mut(), 0);
        // SAFETY: an open worker, and places for the results.
        let status =
            unsafe { (functions.worker_address)(self.worker, &raw mut start, &raw mut len) };
        check(status, "ucp_worker_get_address")?;
        // SAFETY: the library has given this many bytes.
        self.address = unsafe { std::slice::from_raw_parts(start, len) }.to_vec();
        // SAFETY: the address that it has given, which is not used any more.
        unsafe { (functions.worker_release_address)(self.worker, start) };
        let mut attributes = WorkerAttributes { mask: bits::MOST_HEADER, ..NO_ATTRIBUTES };
        // SAFETY: an open worker, and a place for the attribute.
        let status = unsafe { (functions.worker_query)(self.worker, &raw mut attributes) };
        check(status, "ucp_worker_query")?;
        self.most_header = attributes.most_header;
        let parameters = HandlerParameters {
            mask: bits::HANDLER_ALL,
            id: MESSAGE,
            flags: bits::PERSISTENT_DATA,
            callback: Some(on_arrival),
            argument: self.events.as_ptr().cast(),
        };
        // SAFETY: an open worker; the argument lives longer than the worker.
        let status = unsafe { (functions.set_handler)(self.worker, &raw const parameters) };
        check(status, "ucp_worker_set_am_recv_handler")
    }

    /// The address to which peers connect.
    pub(super) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Readable when `progress` has something to do, after `arm`.
    pub(super) fn efd(&self) -> RawFd {
        self.efd
    }

    /// Messages that no process of this library has sent.
    #[cfg(test)]
    pub(super) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Looks at what callbacks have noted.
    fn noted<T>(&self, look: impl FnOnce(&mut Events) -> T) -> T {
        // SAFETY: callbacks run inside of functions of the library, and `look` calls none.
        look(unsafe { &mut *self.events.as_ref().get() })
    }

    /// Connects to a worker. An error arrives later by `take_failure`.
    pub(super) fn connect(&mut self, address: &[u8]) -> Result<Endpoint, String> {
        let number = self.marks.len() as u64;
        let mark = NonNull::from(Box::leak(Box::new(Mark { events: self.events, number })));
        self.marks.push(mark);
        let nowhere = || SocketAddress { address: null(), len: 0 };
        let mut parameters = EndpointParameters {
            mask: bits::ENDPOINT_ADDRESS | bits::ENDPOINT_ERROR_MODE | bits::ENDPOINT_ERROR_HANDLER,
            address: address.as_ptr(),
            error_mode: bits::ERRORS_OF_PEER,
            on_error: Some(on_error),
            on_error_argument: mark.as_ptr().cast(),
            user_data: null_mut(),
            flags: 0,
            socket: nowhere(),
            request: null_mut(),
            name: null(),
            local_socket: nowhere(),
        };
        let create = |parameters: &EndpointParameters| {
            let mut handle = null_mut();
            // SAFETY: an open worker, an address of another one, and an argument that lives longer.
            let status = unsafe {
                (self.library.functions.endpoint_create)(self.worker, parameters, &raw mut handle)
            };
            (status, handle)
        };
        let (mut status, mut handle) = create(&parameters);
        if status != OK {
            // Some transports of UCX, such as its shared memory, report no errors.
            parameters.error_mode = 0;
            (status, handle) = create(&parameters);
        }
        check(status, "ucp_ep_create")?;
        let endpoint = Endpoint { handle, number };
        self.endpoints.push(endpoint);
        Ok(endpoint)
    }

    /// Closes an endpoint behind what was sent to it; `progress` completes that.
    ///
    /// Never by force: a forced close while the peer still connects ends the process by an assertion in UCX 1.13.
    pub(super) fn disconnect(&mut self, endpoint: Endpoint) {
        let Some(at) = self.endpoints.iter().position(|it| it.number == endpoint.number) else {
            return;
        };
        self.endpoints.swap_remove(at);
        let parameters = EMPTY;
        // SAFETY: an open endpoint, which is not used any more.
        let closing = unsafe {
            (self.library.functions.endpoint_close)(endpoint.handle, &raw const parameters)
        };
        if !closing.is_null() && error_of(closing).is_none() {
            self.closing.push(closing);
        }
    }

    /// Frees the requests of endpoints that are closed now.
    fn finish_closing(&mut self) {
        let functions = &self.library.functions;
        self.closing.retain(|request| {
            // SAFETY: a request that was not freed.
            let is_open = unsafe { (functions.request_status)(*request) } == IN_PROGRESS;
            if !is_open {
                // SAFETY: it is complete, and not used any more.
                unsafe { (functions.request_free)(*request) };
            }
            is_open
        });
    }

    /// Sends the header alone.
    pub(super) fn send_header(
        &mut self,
        endpoint: Endpoint,
        header: [u8; HEADER],
    ) -> Result<(), String> {
        self.start_send(endpoint, header, 0, None, LentParts::new(), None).map(drop)
    }

    /// Sends own bytes, and lent ones between them as in [`crate::transport::SendBuffer`]. The link counts the
    /// bytes until they are sent. The first `front` bytes travel in the header, if it has room for them. True if
    /// the bytes were not sent at once.
    pub(super) fn send(
        &mut self,
        endpoint: Endpoint,
        header: [u8; HEADER],
        front: usize,
        own: PooledBuffer,
        lent: LentParts,
        link: &Arc<Link>,
    ) -> Result<bool, String> {
        let is_first = lent.iter().all(|(at, _)| *at >= front) && front <= own.as_ref().len();
        let fits = front <= MOST_FRONT && HEADER + front <= self.most_header;
        let front = if is_first && fits { front } else { 0 };
        self.start_send(endpoint, header, front, Some(own), lent, Some(Arc::clone(link)))
    }

    /// Sends a header of any length.
    #[cfg(test)]
    pub(super) fn send_raw(&mut self, endpoint: Endpoint, header: &[u8]) -> Result<(), String> {
        let parameters = EMPTY;
        // SAFETY: an open endpoint; the header is never freed.
        let sent = unsafe {
            (self.library.functions.send)(
                endpoint.handle,
                MESSAGE,
                header.to_vec().leak().as_ptr(),
                header.len(),
                null(),
                0,
                &raw const parameters,
            )
        };
        error_of(sent).map_or(Ok(()), |error| Err(words(error)))
    }

    fn start_send(
        &mut self,
        endpoint: Endpoint,
        header: [u8; HEADER],
        front: usize,
        own: Option<PooledBuffer>,
        lent: LentParts,
        link: Option<Arc<Link>>,
    ) -> Result<bool, String> {
        let mut place = self.spare_send();
        // SAFETY: no send uses it now.
        let operation = unsafe { place.as_mut() };
        operation.fill(header, front, own, lent, link);
        let header_len = operation.header_len;
        let (slices, count) = (operation.slices.as_ptr(), operation.slices.len());
        let (start, count, datatype) = match &operation.slices[..] {
            [] => (null(), 0, bits::CONTIGUOUS),
            [one] => (one.start.cast(), one.len, bits::CONTIGUOUS),
            _ => (slices.cast(), count, bits::SLICES),
        };
        let parameters = RequestParameters {
            mask: bits::CALLBACK | bits::USER_DATA | bits::DATATYPE | bits::MEMORY_TYPE,
            callback: on_sent as *const c_void,
            user_data: place.as_ptr().cast(),
            datatype,
            ..EMPTY
        };
        // SAFETY: an open endpoint; header, slices and bytes stay in place until the operation is complete.
        let sent = unsafe {
            (self.library.functions.send)(
                endpoint.handle,
                MESSAGE,
                (&raw const (*place.as_ptr()).header).cast(),
                header_len,
                start,
                count,
                &raw const parameters,
            )
        };
        if let Some(error) = error_of(sent) {
            self.finish_send(place);
            return Err(words(error));
        }
        if sent.is_null() {
            self.finish_send(place);
        }
        Ok(!sent.is_null())
    }

    fn spare_send(&mut self) -> NonNull<SendOperation> {
        let events = self.events;
        self.spare_sends.pop().unwrap_or_else(|| {
            let operation = SendOperation {
                events,
                header: [0; HEADER + MOST_FRONT],
                header_len: 0,
                slices: Vec::new(),
                own: None,
                lent: LentParts::new(),
                link: None,
                bytes: 0,
            };
            let place = NonNull::from(Box::leak(Box::new(operation)));
            self.sends.push(place);
            place
        })
    }

    fn finish_send(&mut self, mut place: NonNull<SendOperation>) {
        // SAFETY: its send is complete, or was not begun.
        unsafe { place.as_mut() }.clear();
        self.spare_sends.push(place);
    }

    /// Lets the library work; whether something has happened. A payload whose frame has its front in the header is
    /// received to where `place` says. It is asked at once: the library may close the endpoint of a message that waits.
    pub(super) fn progress(&mut self, place: PayloadPlace<'_>) -> bool {
        let mut is_busy = false;
        for _ in 0..MOST_ROUNDS {
            // SAFETY: an open worker.
            let count = unsafe { (self.library.functions.worker_progress)(self.worker) };
            let is_noted = self.settle(place);
            is_busy |= count > 0 || is_noted;
            if count == 0 && !is_noted {
                break;
            }
        }
        self.finish_closing();
        is_busy
    }

    /// Continues what callbacks have noted; whether there was something.
    fn settle(&mut self, place: PayloadPlace<'_>) -> bool {
        let mut is_noted = false;
        while let Some(sent) = self.noted(|events| events.sent.pop()) {
            self.finish_send(sent);
            is_noted = true;
        }
        // A receive may be complete at once, so callbacks note more while these lists are read.
        let mut arrived = std::mem::take(&mut self.arrived);
        self.noted(|events| std::mem::swap(&mut events.arrived, &mut arrived));
        is_noted |= !arrived.is_empty();
        arrived.drain(..).for_each(|noted| self.take_noted(noted, place));
        self.arrived = arrived;
        while let Some((received, status)) = self.noted(|events| events.received.pop()) {
            self.take_received(received, status);
            is_noted = true;
        }
        is_noted
    }

    fn take_noted(&mut self, Noted { header, front, data }: Noted, place: PayloadPlace<'_>) {
        let data = match data {
            NotedData::Bytes(bytes) => ArrivalData::Bytes(bytes),
            NotedData::Kept(start, len) => ArrivalData::Kept(start, len),
            NotedData::Rendezvous(descriptor, len) => {
                let room = if front.is_empty() { None } else { place(&header, &front, len) };
                let room = room.filter(|room| room.missing() == len);
                return self.receive((header, front), descriptor, len, room);
            }
            NotedData::Foreign => {
                self.foreign += 1;
                return;
            }
        };
        self.arrivals.push_back(Arrival { header, front, data });
    }

    /// Begins to receive the bytes of a rendezvous, to a room if there is one. The library cannot be stopped then: the
    /// memory is that of the operation until it is complete, whatever becomes of the peer.
    fn receive(
        &mut self,
        (header, front): ([u8; HEADER], HeaderFront),
        descriptor: *mut c_void,
        len: usize,
        room: Option<ReceiveRoom>,
    ) {
        let mut place = self.spare_receive();
        // SAFETY: no receive uses it now.
        let operation = unsafe { place.as_mut() };
        let buffer = operation.prepare(header, front, len, room);
        let parameters = RequestParameters {
            mask: bits::CALLBACK | bits::USER_DATA | bits::DATATYPE | bits::MEMORY_TYPE,
            callback: on_received as *const c_void,
            user_data: place.as_ptr().cast(),
            datatype: bits::CONTIGUOUS,
            ..EMPTY
        };
        // SAFETY: a descriptor that was kept for this call, and memory that stays until the operation is complete.
        let received = unsafe {
            (self.library.functions.receive)(
                self.worker,
                descriptor,
                buffer,
                len,
                &raw const parameters,
            )
        };
        if received.is_null() {
            self.take_received(place, OK);
        } else if let Some(error) = error_of(received) {
            self.take_received(place, error);
        }
    }

    fn spare_receive(&mut self) -> NonNull<ReceiveOperation> {
        let events = self.events;
        self.spare_receives.pop().unwrap_or_else(|| {
            let (header, front, buffer) = ([0; HEADER], HeaderFront::new(), Vec::new());
            let operation = ReceiveOperation { events, header, front, room: None, buffer, len: 0 };
            let place = NonNull::from(Box::leak(Box::new(operation)));
            self.receives.push(place);
            place
        })
    }

    /// Hands on what was received as a whole. A payload that was not is no value: its room is dropped, and the next
    /// transmission gets one of its own.
    fn take_received(&mut self, mut place: NonNull<ReceiveOperation>, status: i32) {
        // SAFETY: its receive is complete.
        let operation = unsafe { place.as_mut() };
        let (header, front) = (operation.header, std::mem::take(&mut operation.front));
        let data = match operation.room.take() {
            Some(room) => {
                self.spare_receives.push(place);
                ArrivalData::InRoom(room)
            }
            None => ArrivalData::Received(place),
        };
        let arrival = Arrival { header, front, data };
        if status == OK {
            self.arrivals.push_back(arrival);
        } else {
            self.release(arrival);
        }
    }

    /// The next message that has arrived.
    pub(super) fn take_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    /// Changes a message that has arrived in its memory: `open` gives the new length of its bytes, which begin where
    /// they began. False if it gives none.
    pub(super) fn open_message(
        &mut self,
        arrival: &mut Arrival,
        open: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        if let ArrivalData::Kept(..) = arrival.data {
            // Memory of the library may be shared with the sender, which could change it meanwhile.
            let data = ArrivalData::Bytes(arrival.bytes().to_vec());
            let (header, front) = (arrival.header, HeaderFront::new());
            let data = std::mem::replace(&mut arrival.data, data);
            self.release(Arrival { header, front, data });
        }
        let len = match &mut arrival.data {
            ArrivalData::Bytes(bytes) => {
                let len = open(bytes);
                bytes.truncate(len.unwrap_or(0));
                len
            }
            ArrivalData::Received(place) => {
                // SAFETY: the operation is complete, and is used again only after the release.
                let operation = unsafe { place.as_mut() };
                let len = open(&mut operation.buffer[..operation.len]);
                operation.len = len.unwrap_or(0);
                len
            }
            ArrivalData::Kept(..) | ArrivalData::InRoom(_) => None,
        };
        len.is_some()
    }

    /// The number of an endpoint that has failed, and why.
    pub(super) fn take_failure(&mut self) -> Option<(u64, String)> {
        let (number, status) = self.noted(|events| events.failed.pop())?;
        Some((number, words(status)))
    }

    /// Takes the memory of a message back.
    #[allow(clippy::needless_pass_by_value, reason = "its memory is not used any more")]
    pub(super) fn release(&mut self, arrival: Arrival) {
        match arrival.data {
            ArrivalData::Bytes(_) | ArrivalData::InRoom(_) => {}
            // SAFETY: kept since its callback, and not used any more.
            ArrivalData::Kept(start, _) => unsafe {
                (self.library.functions.release)(self.worker, start);
            },
            ArrivalData::Received(mut place) => {
                // SAFETY: its receive is complete, and its bytes are not used any more.
                let operation = unsafe { place.as_mut() };
                let is_kept = self.spare_receives.len() < MOST_SPARE;
                if !is_kept || operation.buffer.len() > MOST_KEPT {
                    operation.buffer = Vec::new();
                }
                self.spare_receives.push(place);
            }
        }
    }

    /// Prepares `efd` for what comes next; false if there is something to do now.
    pub(super) fn arm(&mut self) -> bool {
        // SAFETY: an open worker.
        unsafe { (self.library.functions.worker_arm)(self.worker) != BUSY }
    }

    /// Makes `efd` readable.
    pub(super) fn signal(&self) {
        // SAFETY: an open worker. A failure means that the thread looks again after its timeout.
        let _ = unsafe { (self.library.functions.worker_signal)(self.worker) };
    }
}

impl Drop for UcxWorker {
    fn drop(&mut self) {
        while let Some(endpoint) = self.endpoints.last().copied() {
            self.disconnect(endpoint);
        }
        let end = Instant::now() + CLOSE;
        while !self.closing.is_empty() && Instant::now() < end {
            self.progress(&|_, _, _| None);
            std::thread::yield_now();
        }
        while let Some(arrival) = self.arrivals.pop_front() {
            self.release(arrival);
        }
        if !self.closing.is_empty() {
            // A peer takes nothing, as when it is stopped. The library may still use all of this.
            return log(Level::Debug, || "a worker of UCX was not closed in time".into());
        }
        let functions = &self.library.functions;
        // SAFETY: an open worker without endpoints, and its context; neither is used any more. What is left of
        // operations is freed afterwards, when the library reads and writes their memory no more.
        unsafe {
            (functions.worker_destroy)(self.worker);
            (functions.cleanup)(self.context);
            self.sends.iter().for_each(|place| drop(Box::from_raw(place.as_ptr())));
            self.receives.iter().for_each(|place| drop(Box::from_raw(place.as_ptr())));
            self.marks.iter().for_each(|place| drop(Box::from_raw(place.as_ptr())));
            drop(Box::from_raw(self.events.as_ptr()));
        }
    }
}

/// Parameters of a request without any.
const EMPTY: RequestParameters = RequestParameters {
    mask: 0,
    flags: 0,
    request: null_mut(),
    callback: null(),
    datatype: 0,
    user_data: null_mut(),
    reply: null_mut(),
    memory_type: 0,
    received: null_mut(),
    registered: null_mut(),
};

/// Attributes of a worker before a query.
const NO_ATTRIBUTES: WorkerAttributes = WorkerAttributes {
    mask: 0,
    thread_mode: 0,
    address_flags: 0,
    address: null_mut(),
    address_len: 0,
    most_header: 0,
    name: [0; 32],
    debug: 0,
};

fn context(library: &Library, settings: &[(&str, &str)]) -> Result<Handle, String> {
    let functions = &library.functions;
    let mut config = null_mut();
    // SAFETY: no prefix and no file, and a place for the result.
    let status = unsafe { (functions.config_read)(null(), null(), &raw mut config) };
    check(status, "ucp_config_read")?;
    // It neither handles signals of this process nor prints.
    let quiet = [("ERROR_SIGNALS", ""), ("HANDLE_ERRORS", "none"), ("LOG_LEVEL", "fatal")];
    for (name, value) in quiet.iter().chain(settings) {
        let (Ok(name), Ok(value)) = (CString::new(*name), CString::new(*value)) else { continue };
        modify(library, config, &name, &value);
    }
    let parameters = ContextParameters {
        mask: bits::CONTEXT_FEATURES,
        features: bits::ACTIVE_MESSAGES | bits::WAKEUP,
        request_size: 0,
        callbacks: [null(); 2],
        tag_mask: 0,
        shares_workers: 0,
        endpoints: 0,
        processes: 0,
        name: null(),
    };
    let (mut context, (major, minor)) = (null_mut(), OLDEST);
    // SAFETY: parameters that outlive the call, and a place for the result.
    let status =
        unsafe { (functions.init)(major, minor, &raw const parameters, config, &raw mut context) };
    // SAFETY: the configuration that was read, which is not used any more.
    unsafe { (functions.config_release)(config) };
    check(status, "ucp_init").map(|()| context)
}

/// Changes a setting. A release that does not know it has nothing to change.
fn modify(library: &Library, config: Handle, name: &CStr, value: &CStr) {
    // SAFETY: an open configuration, and texts that end in 0.
    let _ = unsafe { (library.functions.config_modify)(config, name.as_ptr(), value.as_ptr()) };
}

/// Waits until a descriptor is readable, for `most` at most.
pub(super) fn wait(fd: RawFd, most: Duration) {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let most = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one descriptor, in a structure that outlives the call. An early return does no harm.
    unsafe { libc::poll(&raw mut polled, 1, most) };
}
