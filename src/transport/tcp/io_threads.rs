//! The threads that read from all connections, and send what their sockets have not taken at once. Also
//! called: event loop, reactor.
//!
//! There are at most as many as processors, whatever the number of connections. Each waits for readiness (`mio`) of
//! its connections, hands on what has arrived, and calls the queues that wait for a connection. Readiness is
//! edge-triggered: the system reports a socket as writable only after it has refused bytes.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};

use super::call_backs::CallBacks;
use super::connection::Connection;
use super::framing::{Delivery, HEAD, MessageKind, first};
use super::receive_buffer::{ReceiveBuffer, SOME};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::adaptive_wait::AdaptiveWait;
use crate::transport::send_queue::go_on;
use crate::transport::tls::{Opener, records_len};

const WAKE: Token = Token(usize::MAX);
/// A connection whose peer takes no bytes is looked at this often in the time that it has.
const LOOKS: u32 = 4;

/// What the threads do with the messages, and with the end, of a connection.
pub(super) trait Receiver: Send + Sync {
    fn received(&self, connection: &Arc<Connection>, kind: MessageKind, payload: &[u8]);

    fn ended(&self, connection: &Arc<Connection>);
}

/// A connection that is to be read, with bytes that have arrived during its greeting.
pub(super) struct Arrival {
    pub(super) connection: Arc<Connection>,
    pub(super) opener: Option<Opener>,
    /// Records of TLS.
    pub(super) sealed: Vec<u8>,
    pub(super) plain: Vec<u8>,
}

pub(super) struct IoThreads {
    receiver: Arc<dyn Receiver>,
    /// Maximum time for which a peer takes no bytes.
    patience: Duration,
    most: usize,
    /// None after `close`.
    threads: Mutex<Option<Vec<IoThread>>>,
}

struct IoThread {
    shared: Arc<Shared>,
    handle: JoinHandle<()>,
}

/// What a thread shares with those that give it connections.
struct Shared {
    arrivals: Mutex<Vec<Arrival>>,
    /// Number of connections, with those that the thread has not seen yet.
    load: AtomicUsize,
    call_backs: Arc<CallBacks>,
}

/// A place for one connection on a thread.
pub(super) struct Seat(Arc<Shared>);

impl Seat {
    pub(super) fn call_backs(&self) -> &Arc<CallBacks> {
        &self.0.call_backs
    }

    /// Begins to read a connection.
    pub(super) fn read(self, arrival: Arrival) {
        self.0.load.fetch_add(1, Ordering::Relaxed);
        self.0.arrivals.lock().push(arrival);
        self.0.call_backs.wake();
    }
}

impl IoThreads {
    pub(super) fn new(receiver: Arc<dyn Receiver>, patience: Duration, most: usize) -> Self {
        Self { receiver, patience, most, threads: Mutex::new(Some(Vec::new())) }
    }

    /// A place on the thread with the fewest connections.
    pub(super) fn seat(&self) -> io::Result<Seat> {
        let mut threads = self.threads.lock();
        let threads = threads.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let load = |thread: &IoThread| thread.shared.load.load(Ordering::Relaxed);
        let is_busy = threads.iter().all(|thread| load(thread) > 0);
        if is_busy && threads.len() < self.most {
            threads.push(self.start()?);
        }
        let thread = threads.iter().min_by_key(|thread| load(thread));
        Ok(Seat(Arc::clone(&thread.ok_or(io::ErrorKind::NotConnected)?.shared)))
    }

    fn start(&self) -> io::Result<IoThread> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let shared = Arc::new(Shared {
            arrivals: Mutex::default(),
            load: AtomicUsize::new(0),
            call_backs: Arc::new(CallBacks::new(waker)),
        });
        let mut reading = Reading {
            poll: RefCell::new(poll),
            shared: Arc::clone(&shared),
            receiver: Arc::clone(&self.receiver),
            patience: self.patience,
            looked: Instant::now(),
            readers: HashMap::new(),
            ready: Vec::new(),
            buffers: Vec::new(),
            next: 0,
        };
        let thread = std::thread::Builder::new().name("kvstore-io".into());
        let handle = crate::pool::without_signals(|| thread.spawn(move || reading.run()))?;
        Ok(IoThread { shared, handle })
    }

    /// Ends all threads, and waits for them; the calling thread may be one of them.
    pub(super) fn close(&self) {
        let threads = self.threads.lock().take().unwrap_or_default();
        for thread in &threads {
            thread.shared.call_backs.close();
        }
        for IoThread { handle, .. } in threads {
            if handle.thread().id() != std::thread::current().id() {
                // A panic was reported by the thread.
                let _ = handle.join();
            }
        }
    }

    /// Number of connections that are read.
    pub(super) fn load(&self) -> usize {
        let threads = self.threads.lock();
        let threads = threads.iter().flatten();
        threads.map(|thread| thread.shared.load.load(Ordering::Relaxed)).sum()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.threads.lock().as_ref().map_or(0, Vec::len)
    }

    /// Whether the calling thread is one of them.
    pub(super) fn is_one(&self) -> bool {
        let current: ThreadId = std::thread::current().id();
        let threads = self.threads.lock();
        threads.iter().flatten().any(|thread| thread.handle.thread().id() == current)
    }
}

/// One thread.
struct Reading {
    poll: RefCell<Poll>,
    shared: Arc<Shared>,
    receiver: Arc<dyn Receiver>,
    patience: Duration,
    /// When connections were last looked at whose peers take no bytes.
    looked: Instant,
    readers: HashMap<usize, Reader>,
    /// Connections from which more can be read now.
    ready: Vec<usize>,
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
    is_ready: bool,
    /// The peer sends no more.
    is_closing: bool,
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
    fn run(&mut self) {
        let (mut events, mut lookout) = (Events::with_capacity(256), AdaptiveWait::new());
        let (mut queues, mut served) = (Vec::new(), Vec::new());
        while !self.shared.call_backs.is_closed() {
            self.take_arrivals();
            self.shared.call_backs.take(&mut queues);
            queues.drain(..).for_each(|queue| go_on(&queue));
            let result = if self.ready.is_empty() {
                self.wait(&mut events, &mut lookout)
            } else {
                self.poll.borrow_mut().poll(&mut events, Some(Duration::ZERO))
            };
            if let Err(error) = result
                && error.kind() != io::ErrorKind::Interrupted
            {
                log(Level::Error, || format!("cannot wait for connections: {error}"));
                return;
            }
            for event in &events {
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
            std::mem::swap(&mut self.ready, &mut served);
            served.drain(..).for_each(|token| self.serve(token));
            self.look();
        }
    }

    /// Waits for an event, at first by polling. A peer that must take bytes first needs the processor itself.
    fn wait(&self, events: &mut Events, lookout: &mut AdaptiveWait) -> io::Result<()> {
        if self.shared.call_backs.has_debts() {
            return self.poll.borrow_mut().poll(events, Some(self.patience / LOOKS));
        }
        let events = RefCell::new(events);
        let poll = |limit| self.poll.borrow_mut().poll(&mut events.borrow_mut(), Some(limit));
        let look = || match poll(Duration::ZERO) {
            Ok(()) if events.borrow().is_empty() => None,
            result => Some(result),
        };
        lookout.wait(look, || poll(self.patience / LOOKS))
    }

    /// Ends connections whose peers have taken no bytes for too long.
    fn look(&mut self) {
        if self.looked.elapsed() < self.patience / LOOKS {
            return;
        }
        self.looked = Instant::now();
        let connections = self.readers.values().map(|reader| &reader.connection);
        for stuck in connections.filter(|connection| connection.is_stuck(self.patience)) {
            log(Level::Debug, || format!("{} takes no bytes: its connection ends", stuck.from()));
            stuck.end();
        }
    }

    fn take_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.shared.arrivals.lock());
        for arrival in arrivals {
            let Arrival { connection, opener, sealed, plain } = arrival;
            let token = self.next;
            self.next += 1;
            let registered = self.registry(|registry| {
                registry.register(
                    &mut SourceFd(&connection.fd()),
                    Token(token),
                    Interest::READABLE | Interest::WRITABLE,
                )
            });
            let buffer = ReceiveBuffer::of(plain, &sealed);
            let reader = Reader { connection, opener, buffer, is_ready: true, is_closing: true };
            self.readers.insert(token, reader);
            if let Err(error) = registered {
                log(Level::Warn, || format!("a connection cannot be read: {error}"));
                self.drop_reader(token);
            } else {
                self.ready.push(token);
            }
        }
    }

    fn registry<T>(&self, work: impl FnOnce(&Registry) -> T) -> T {
        work(self.poll.borrow().registry())
    }

    /// Reads from a connection once.
    fn serve(&mut self, token: usize) {
        let Some(reader) = self.readers.get_mut(&token) else { return };
        reader.is_ready = false;
        let progress = match reader.advance(&mut self.buffers, &*self.receiver) {
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
            Progress::Ended => self.drop_reader(token),
        }
    }

    fn drop_reader(&mut self, token: usize) {
        let Some(reader) = self.readers.remove(&token) else { return };
        let fd = reader.connection.fd();
        // It was not registered if that has failed.
        let _ = self.registry(|registry| registry.deregister(&mut SourceFd(&fd)));
        self.shared.load.fetch_sub(1, Ordering::Relaxed);
        reader.connection.end();
        self.receiver.ended(&reader.connection);
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
        let missing = if self.opener.is_some() { records_len(missing) } else { missing };
        let room = self.buffer.room(missing.max(SOME), buffers);
        let all = room.len();
        let progress = match self.connection.receive(room) {
            Ok(0) => return Ok(Progress::Ended),
            Ok(count) => {
                self.buffer.receive(count);
                // What comes later, an end too, is an event of its own.
                if count < all && !self.is_closing { Progress::Drained } else { Progress::More }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Progress::More,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_closing = false;
                Progress::Drained
            }
            Err(error) => return Err(error),
        };
        is_over |= self.open()?;
        self.hand_on(receiver)?;
        self.buffer.give_back(buffers);
        Ok(if is_over { Progress::Ended } else { progress })
    }

    /// Opens the records that have arrived; true behind the last one.
    fn open(&mut self) -> io::Result<bool> {
        self.buffer
            .open(self.opener.as_mut())
            .inspect_err(|error| self.connection.alert(error))
            .map_err(io::Error::other)
    }

    /// Hands whole messages on; at least how many bytes are missing for the next one.
    fn hand_on(&mut self, receiver: &dyn Receiver) -> io::Result<usize> {
        loop {
            match first(self.buffer.data())? {
                Delivery::Missing(count) => return Ok(count),
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
}
