//! The threads that read from all connections, and send what their sockets have not taken at once. Also
//! called: event loop, reactor.
//!
//! There are at most as many as processors, whatever the number of connections. Each waits for readiness (`mio`) of
//! its connections, hands on what has arrived, and calls the queues that wait for a connection ([`reading`]). A
//! thread of the program that waits for a result does the same in its place, so that no thread is woken ([`gate`]).

mod gate;
mod reading;
mod receive_buffer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::call_backs::CallBacks;
use super::connection::Connection;
use super::framing::MessageKind;
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::ReceiveRoom;
use crate::transport::polling::{AdaptiveWait, PolledSource};
use crate::transport::tls::Opener;
use gate::{Gate, GateSleeper};
use reading::{LOOKS, Reading, is_current};

/// What the threads do with the messages, and with the end, of a connection.
pub(super) trait Receiver: Send + Sync {
    fn received(&self, connection: &Arc<Connection>, kind: MessageKind, payload: &[u8]);

    /// Memory for what follows the front of frames of `len` bytes, of which `payload` is there, and the length of the
    /// front; None if they are to be received as others.
    fn room(&self, from: &Connection, len: usize, payload: &[u8]) -> Option<(ReceiveRoom, usize)>;

    /// Frames have arrived that are in such memory.
    fn received_in_room(&self, from: &Connection, front: &[u8], room: ReceiveRoom);

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
    shared: Arc<SharedReader>,
    handle: JoinHandle<()>,
}

/// What a thread shares with those that give it connections, and with those that read in its place.
struct SharedReader {
    arrivals: Mutex<Vec<Arrival>>,
    /// Number of connections, with those that the thread has not seen yet.
    load: AtomicUsize,
    call_backs: Arc<CallBacks>,
    reading: Mutex<Reading>,
    gate: Gate,
    receiver: Arc<dyn Receiver>,
    patience: Duration,
}

/// A place for one connection on a thread.
pub(super) struct Seat(Arc<SharedReader>);

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

    /// A place on the thread that reads from another connection with the same peer, or on that with the fewest: one
    /// answers the other, and few threads poll at a time.
    pub(super) fn seat(&self, other: Option<&Connection>) -> io::Result<Seat> {
        let mut threads = self.threads.lock();
        let threads = threads.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        if let Some(other) = other {
            let reads = |it: &&IoThread| Arc::ptr_eq(&it.shared.call_backs, other.call_backs());
            if let Some(thread) = threads.iter().find(reads) {
                return Ok(Seat(Arc::clone(&thread.shared)));
            }
        }
        let load = |thread: &IoThread| thread.shared.load.load(Ordering::Relaxed);
        let is_busy = threads.iter().all(|thread| load(thread) > 0);
        if is_busy && threads.len() < self.most {
            threads.push(self.start()?);
        }
        let thread = threads.iter().min_by_key(|thread| load(thread));
        Ok(Seat(Arc::clone(&thread.ok_or(io::ErrorKind::NotConnected)?.shared)))
    }

    fn start(&self) -> io::Result<IoThread> {
        let (reading, waker) = Reading::new()?;
        let (gate, sleeper) = Gate::new(reading.descriptor())?;
        let shared = Arc::new(SharedReader {
            arrivals: Mutex::default(),
            load: AtomicUsize::new(0),
            call_backs: Arc::new(CallBacks::new(waker)),
            reading: Mutex::new(reading),
            gate,
            receiver: Arc::clone(&self.receiver),
            patience: self.patience,
        });
        let reader = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("kvstore-io".into());
        let handle = crate::pool::without_signals(|| thread.spawn(move || reader.run(sleeper)))?;
        Ok(IoThread { shared, handle })
    }

    /// Ends all threads, and waits for them and for those that read in their place; the calling thread may be one of
    /// them.
    pub(super) fn close(&self) {
        let threads = self.threads.lock().take().unwrap_or_default();
        threads.iter().for_each(|thread| thread.shared.close());
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

    /// Whether the calling thread delivers something that has arrived.
    pub(super) fn is_delivering(&self) -> bool {
        let threads = self.threads.lock();
        threads.iter().flatten().any(|thread| is_current(&thread.shared))
    }

    /// Calls `add` with each reader, for a thread of the program that reads in its place.
    pub(super) fn each_source(&self, mut add: impl FnMut(Arc<dyn PolledSource>)) {
        let threads = self.threads.lock();
        let threads = threads.iter().flatten();
        threads.for_each(|thread| add(Arc::clone(&thread.shared) as Arc<dyn PolledSource>));
    }
}

impl SharedReader {
    /// Nothing is delivered any more, but by the calling thread if it delivers; the thread ends.
    fn close(&self) {
        self.call_backs.close();
        // A thread of the program that reads takes the wake-up, too; behind its turn it finds the end.
        if !is_current(self) {
            drop(self.reading.lock());
        }
        self.gate.open();
        self.call_backs.wake();
    }

    /// The thread.
    fn run(&self, mut sleeper: GateSleeper) {
        let mut lookout = AdaptiveWait::new();
        while !self.call_backs.is_closed() {
            let result = self.wait(&mut sleeper, &mut lookout);
            let result = result.and_then(|reads| if reads { self.read_all() } else { Ok(()) });
            if let Err(error) = result
                && error.kind() != io::ErrorKind::Interrupted
            {
                log(Level::Error, || format!("cannot wait for connections: {error}"));
                return;
            }
        }
    }

    /// Waits for an event, at first by polling; false where a thread of the program begins to read instead. A peer that
    /// must take bytes first needs the processor itself.
    fn wait(&self, sleeper: &mut GateSleeper, lookout: &mut AdaptiveWait) -> io::Result<bool> {
        let mut sleep = || sleeper.sleep(self.patience / LOOKS).map(|()| true);
        if self.call_backs.has_debts() || self.gate.is_polled() {
            return sleep();
        }
        let look = || {
            if self.gate.is_polled() {
                return Some(Ok(false));
            }
            let mut reading = self.reading.try_lock()?;
            reading.look().map(|is_there| is_there.then_some(true)).transpose()
        };
        lookout.wait(look, sleep)
    }

    /// Reads what is there. What a thread of the program leaves that reads now opens the gate again.
    fn read_all(&self) -> io::Result<()> {
        let Some(mut reading) = self.reading.try_lock() else { return Ok(()) };
        let mut goes_on = true;
        while goes_on && !self.call_backs.is_closed() {
            goes_on = reading.turn(self)? && reading.has_work();
        }
        reading.end_stuck(self.patience);
        Ok(())
    }
}

/// Threads of the program read whatever has arrived: its length is not known before.
impl PolledSource for SharedReader {
    fn begin(&self, _: bool) {
        self.gate.begin_polling();
    }

    fn look(&self, _: bool) {
        // The thread of the transport may read at this moment.
        let Some(mut reading) = self.reading.try_lock() else { return };
        if self.call_backs.is_closed() {
            return;
        }
        // The thread meets the same error, and reports it.
        let _ = reading.turn(self);
    }

    fn end(&self, _: bool) {
        self.gate.end_polling();
        // The system tells the thread of all others.
        if self.reading.try_lock().is_some_and(|reading| reading.has_work()) {
            self.call_backs.wake();
        }
    }
}
