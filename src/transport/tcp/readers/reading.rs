//! The connections of one thread, and what arrives over them. Readiness is edge-triggered: the system reports a socket
//! as writable only after it has refused bytes.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use smallvec::SmallVec;

use super::receive_buffer::{ReceiveBuffer, SOME};
use super::{Arrival, Receiver, SharedReader};
use crate::log::{Level, log};
use crate::transport::send_queue::go_on;
use crate::transport::tcp::connection::Connection;
use crate::transport::tcp::framing::{Delivery, HEAD, MessageKind, first};
use crate::transport::tls::{Opener, records_len};
use crate::transport::{ReceiveRoom, SendQueue};

const WAKE: Token = Token(usize::MAX);
/// Maximum number of events of one look.
const EVENTS: usize = 256;
/// Missing bytes of a message from which on its payload is received to its destination.
const LARGE: usize = 64 << 10;
/// Number and size of the small reads behind such a message: what follows may be the front of one more, or an
/// acknowledgement and then that.
const FRONTS: u8 = 3;
const NEXT: usize = 1 << 10;
/// Bytes of the front of a frame for which no memory is allocated.
const FRONT: usize = 192;
/// A connection whose peer takes no bytes is looked at this often in the time that it has.
pub(super) const LOOKS: u32 = 4;

thread_local! {
    /// The reader with which this thread reads now, by its address, or null.
    static CURRENT: Cell<*const SharedReader> = const { Cell::new(std::ptr::null()) };
}

/// The reader with which the calling thread reads, until it is dropped: then the one before.
struct CurrentReader(*const SharedReader);

impl CurrentReader {
    fn enter(reader: &SharedReader) -> Self {
        Self(CURRENT.replace(reader))
    }
}

impl Drop for CurrentReader {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Whether the calling thread reads with this reader now, and delivers.
pub(super) fn is_current(reader: &SharedReader) -> bool {
    std::ptr::eq(CURRENT.get(), reader)
}

/// What one thread at a time uses: that of the transport, or one of the program in its place.
pub(super) struct Reading {
    poll: Poll,
    events: Events,
    /// Whether there are events that were not taken, and whether the system may have more.
    has_events: bool,
    has_more_events: bool,
    /// When connections were last looked at whose peers take no bytes.
    looked: Instant,
    readers: HashMap<usize, Reader>,
    /// Connections from which more can be read now.
    ready: Vec<usize>,
    /// Memory of the list of those that are read now.
    served: Vec<usize>,
    /// Memory of the list of queues to call.
    queues: Vec<Weak<dyn SendQueue>>,
    /// Spare memory of connections of which no part of a message is held.
    buffers: Vec<Vec<u8>>,
    next: usize,
}

/// Sends what a connection owes, and calls the queues that wait for it.
fn pay(connection: &Connection) {
    match connection.pay() {
        Ok(queues) => queues.iter().for_each(go_on),
        Err(error) => {
            log(Level::Debug, || format!("a connection with {} ended: {error}", connection.from()));
            connection.end();
        }
    }
}

/// One connection.
struct Reader {
    connection: Arc<Connection>,
    opener: Option<Opener>,
    buffer: ReceiveBuffer,
    /// A frame whose payload is received to its destination.
    large: Option<LargeFrame>,
    /// Number of reads in which such a frame is expected to begin: they are small, so that less of it is copied.
    fronts: u8,
    is_ready: bool,
    /// The peer sends no more.
    is_closing: bool,
}

/// A frame whose front has arrived, and the memory for its payload.
struct LargeFrame {
    front: SmallVec<[u8; FRONT]>,
    room: ReceiveRoom,
}

/// What a read has led to.
#[derive(PartialEq, Eq)]
enum Progress {
    /// There may be more.
    More,
    Drained,
    Ended,
}

impl Reading {
    /// Without connections, and what wakes who waits for their readiness.
    pub(super) fn new() -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let reading = Self {
            poll,
            events: Events::with_capacity(EVENTS),
            has_events: false,
            has_more_events: false,
            looked: Instant::now(),
            readers: HashMap::new(),
            ready: Vec::new(),
            served: Vec::new(),
            queues: Vec::new(),
            buffers: Vec::new(),
            next: 0,
        };
        Ok((reading, waker))
    }

    /// The descriptor of the readiness of all connections.
    pub(super) fn descriptor(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// Whether there is something to do, as far as the system tells now.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        if !self.has_events {
            match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => self.has_events = !self.events.is_empty(),
            }
        }
        Ok(self.has_work())
    }

    /// Whether there is something to do, of which the system tells no more.
    pub(super) fn has_work(&self) -> bool {
        self.has_events || self.has_more_events || !self.ready.is_empty()
    }

    /// Does what there is to do, if there is something: reads from each connection once, and sends what sockets have
    /// refused before. False if there was nothing.
    pub(super) fn turn(&mut self, shared: &SharedReader) -> io::Result<bool> {
        if !self.look()? {
            return Ok(false);
        }
        let _current = CurrentReader::enter(shared);
        self.take_events();
        // Behind the events: who leaves something wakes afterwards.
        self.take_arrivals(shared);
        let mut queues = std::mem::take(&mut self.queues);
        shared.call_backs.take(&mut queues);
        queues.drain(..).for_each(|queue| go_on(&queue));
        self.queues = queues;
        let mut served = std::mem::replace(&mut self.ready, std::mem::take(&mut self.served));
        served.drain(..).for_each(|token| self.serve(token, shared));
        self.served = served;
        Ok(true)
    }

    fn take_events(&mut self) {
        self.has_more_events = false;
        if !std::mem::take(&mut self.has_events) {
            return;
        }
        let mut count = 0;
        for event in &self.events {
            count += 1;
            let Token(token) = event.token();
            let Some(reader) = self.readers.get_mut(&token) else { continue };
            reader.is_closing |= event.is_read_closed() || event.is_error();
            let is_readable = event.is_readable() || reader.is_closing;
            if is_readable && !std::mem::replace(&mut reader.is_ready, true) {
                self.ready.push(token);
            }
            if event.is_writable() {
                pay(&reader.connection);
            }
        }
        self.has_more_events = count == EVENTS;
    }

    /// Ends connections whose peers have taken no bytes for too long.
    pub(super) fn end_stuck(&mut self, patience: Duration) {
        if self.looked.elapsed() < patience / LOOKS {
            return;
        }
        self.looked = Instant::now();
        let connections = self.readers.values().map(|reader| &reader.connection);
        for stuck in connections.filter(|connection| connection.is_stuck(patience)) {
            log(Level::Debug, || format!("{} takes no bytes: its connection ends", stuck.from()));
            stuck.end();
        }
    }

    fn take_arrivals(&mut self, shared: &SharedReader) {
        let arrivals = std::mem::take(&mut *shared.arrivals.lock());
        for arrival in arrivals {
            let Arrival { connection, opener, sealed, plain } = arrival;
            let token = self.next;
            self.next += 1;
            let registered = self.poll.registry().register(
                &mut SourceFd(&connection.fd()),
                Token(token),
                Interest::READABLE | Interest::WRITABLE,
            );
            let buffer = ReceiveBuffer::of(plain, &sealed);
            let reader = Reader {
                connection,
                opener,
                buffer,
                large: None,
                fronts: 0,
                is_ready: true,
                is_closing: true,
            };
            self.readers.insert(token, reader);
            if let Err(error) = registered {
                log(Level::Warn, || format!("a connection cannot be read: {error}"));
                self.drop_reader(token, shared);
            } else {
                self.ready.push(token);
            }
        }
    }

    /// Reads from a connection once.
    fn serve(&mut self, token: usize, shared: &SharedReader) {
        let Some(reader) = self.readers.get_mut(&token) else { return };
        reader.is_ready = false;
        let progress = match reader.advance(&mut self.buffers, &*shared.receiver) {
            Ok(progress) => progress,
            Err(error) => {
                let from = reader.connection.from();
                log(Level::Debug, || format!("a connection with {from} ended: {error}"));
                Progress::Ended
            }
        };
        match progress {
            Progress::More => {
                reader.is_ready = true;
                self.ready.push(token);
            }
            Progress::Drained => {}
            Progress::Ended => self.drop_reader(token, shared),
        }
    }

    fn drop_reader(&mut self, token: usize, shared: &SharedReader) {
        let Some(reader) = self.readers.remove(&token) else { return };
        // It was not registered if that has failed.
        let fd = reader.connection.fd();
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        // Relaxed: only a count.
        shared.load.fetch_sub(1, Ordering::Relaxed);
        reader.connection.end();
        shared.receiver.ended(&reader.connection);
    }
}

impl Reader {
    /// Hands on what has arrived, then reads once.
    fn advance(
        &mut self,
        buffers: &mut Vec<Vec<u8>>,
        receiver: &dyn Receiver,
    ) -> io::Result<Progress> {
        let mut is_over = self.open()?;
        let missing = self.hand_on(receiver)?;
        if self.large.is_some() {
            return self.receive_large(receiver);
        }
        let missing = if self.opener.is_some() { records_len(missing) } else { missing };
        let least = if self.fronts > 0 { NEXT } else { SOME };
        self.fronts = self.fronts.saturating_sub(1);
        let room = self.buffer.room(missing.max(least), buffers);
        let all = room.len();
        let progress = match self.connection.receive(room) {
            Ok(0) => return Ok(Progress::Ended),
            received => {
                if let Ok(count) = received {
                    self.buffer.receive(count);
                }
                self.progress(received, all)?
            }
        };
        is_over |= self.open()?;
        self.hand_on(receiver)?;
        self.buffer.give_back(buffers);
        Ok(if is_over { Progress::Ended } else { progress })
    }

    /// Receives more of the payload of a large frame, and hands it on if it is whole.
    fn receive_large(&mut self, receiver: &dyn Receiver) -> io::Result<Progress> {
        let Some(LargeFrame { room, .. }) = &mut self.large else { return Ok(Progress::More) };
        let (mut asked, connection) = (0, &self.connection);
        let received = room.receive(|memory| {
            asked = memory.len();
            connection.receive_into(memory)
        });
        let is_whole = room.missing() == 0;
        if let Ok(0) = received {
            return Ok(Progress::Ended);
        }
        let progress = self.progress(received, asked)?;
        if is_whole && let Some(LargeFrame { front, room }) = self.large.take() {
            receiver.received_in_room(&self.connection, &front, room);
            self.fronts = FRONTS;
        }
        Ok(progress)
    }

    /// What follows from a read of at most `asked` bytes, which was not the last one.
    fn progress(&mut self, received: io::Result<usize>, asked: usize) -> io::Result<Progress> {
        match received {
            // What comes later, an end too, is an event of its own.
            Ok(count) if count < asked && !self.is_closing => Ok(Progress::Drained),
            Ok(_) => Ok(Progress::More),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Progress::More),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_closing = false;
                Ok(Progress::Drained)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the records that have arrived; true behind the last one.
    fn open(&mut self) -> io::Result<bool> {
        self.buffer
            .open(self.opener.as_mut())
            .inspect_err(|error| self.connection.alert(error))
            .map_err(io::Error::other)
    }

    /// Hands whole messages on; at least how many bytes are missing for the next one. The payload of a large one may
    /// have its place from now on.
    fn hand_on(&mut self, receiver: &dyn Receiver) -> io::Result<usize> {
        loop {
            match first(self.buffer.data())? {
                Delivery::Missing(begun, count) => {
                    let frames = begun.filter(|it| it.kind == Some(MessageKind::Frames));
                    if let Some(frames) = frames
                        && count >= LARGE
                        && self.opener.is_none()
                        && let Some(large) = self.begin(frames.payload, count, receiver)
                    {
                        let len = HEAD + frames.payload.len();
                        self.large = Some(large);
                        self.buffer.consume(len);
                    }
                    return Ok(count);
                }
                Delivery::Whole(kind, payload) => {
                    if let Some(kind) = kind {
                        receiver.received(&self.connection, kind, payload);
                    }
                    let len = HEAD + payload.len();
                    self.buffer.consume(len);
                }
            }
        }
    }

    /// A large frame of which `payload` is there, and so many bytes are missing, if its destination is known.
    fn begin(&self, payload: &[u8], missing: usize, receiver: &dyn Receiver) -> Option<LargeFrame> {
        let len = payload.len() + missing;
        let (mut room, front) = receiver.room(&self.connection, len, payload)?;
        let (front, begun) = payload.split_at(front);
        room.begin(begun);
        Some(LargeFrame { front: front.into(), room })
    }
}
