//! Sender to one address: connects when it is first used, and sends over a path of the table of transports, or
//! over the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::dial::{DialError, dial};
use super::endpoint::Endpoint;
use super::framing::MessageKind;
use super::greeting::Direction;
use crate::log::{Level, log};
use crate::transport::table::PeerPaths;
use crate::transport::{SendBuffer, SendBuffers, SendMemory, SendMode, Sender};

/// Pause between two attempts to connect: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Maximum time of an attempt: of the first, and of any.
const ATTEMPT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));

pub(super) struct PeerSender {
    to: Arc<str>,
    endpoint: Arc<Endpoint>,
    /// None if the peer connects to this process.
    attempts: Option<Attempts>,
    connection: Option<Arc<Connection>>,
    buffers: Arc<SendBuffers>,
    /// Paths beside the connection, and why there are none.
    paths: PeerPaths,
    few_bytes: Option<&'static str>,
}

/// Attempts to connect.
struct Attempts {
    /// When the next one is due.
    next: Instant,
    pause: Duration,
    limit: Duration,
    /// The last attempt failed because one process refuses the other.
    was_refused: bool,
}

impl Attempts {
    fn new() -> Self {
        let (pause, limit) = (AGAIN.0, ATTEMPT.0);
        Self { next: Instant::now(), pause, limit, was_refused: false }
    }

    /// Counts a failure. A reason to report: refused twice, as a single failure may be the start, or the end,
    /// of a process.
    fn fail(&mut self, error: DialError, began: Instant) -> Option<String> {
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(AGAIN.1);
        if began.elapsed() >= self.limit {
            self.limit = (self.limit * 2).min(ATTEMPT.1);
        }
        match error {
            DialError::Refused(reason) => {
                std::mem::replace(&mut self.was_refused, true).then_some(reason)
            }
            DialError::Failed(_) => None,
        }
    }
}

impl PeerSender {
    /// A sender that is not connected yet.
    pub(super) fn new(to: &str, endpoint: &Arc<Endpoint>, buffers: &Arc<SendBuffers>) -> Self {
        let place = &endpoint.place;
        let to: Arc<str> = to.into();
        // Every process has a connection with the scheduler.
        let is_with_scheduler = place.is_scheduler || endpoint.is_root(&to);
        Self {
            endpoint: Arc::clone(endpoint),
            attempts: place.calls(&to).then(Attempts::new),
            connection: None,
            buffers: Arc::clone(buffers),
            paths: PeerPaths::new(&endpoint.incoming.transports, &to),
            few_bytes: is_with_scheduler.then_some("few bytes go to and from the scheduler"),
            to,
        }
    }

    /// The connection, made now if need be and possible. One over which the peer sends is used only until
    /// this process has its own.
    fn connected(&mut self) -> Option<Arc<Connection>> {
        let former = self.open_connection().cloned();
        if former.as_ref().is_some_and(|former| former.is_preferred()) {
            return former;
        }
        let was_open = former.is_some();
        let connection = match self.endpoint.incoming.peers.find(&self.to) {
            Some(found) if found.is_preferred() => Some(found),
            found => self.dial().or(former).or(found),
        };
        self.connection.clone_from(&connection);
        match &connection {
            None => self.paths.clear(),
            Some(_) if !was_open => self.paths.open(self.few_bytes),
            Some(_) => {}
        }
        connection
    }

    fn open_connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|connection| connection.is_open())
    }

    /// Dials the peer, unless it dials this process.
    fn dial(&mut self) -> Option<Arc<Connection>> {
        let attempts = self.attempts.as_mut().filter(|it| it.next <= Instant::now())?;
        let began = Instant::now();
        let made = dial_both(&self.endpoint, &self.to, attempts.limit);
        let error = match made {
            Ok(connection) => {
                *attempts = Attempts::new();
                return connection;
            }
            Err(error) => error,
        };
        if let DialError::Failed(error) = &error {
            log(Level::Debug, || format!("no connection to {}: {error}", self.to));
        }
        if let Some(reason) = attempts.fail(error, began) {
            self.endpoint.incoming.inbox.refused(&self.to, &reason);
        }
        None
    }

    /// Ends a connection after an error.
    fn check(&mut self, connection: &Connection, sent: std::io::Result<()>) {
        if let Err(error) = sent {
            log(Level::Debug, || format!("a connection to {} ended: {error}", self.to));
            connection.end();
            self.connection = None;
            self.paths.clear();
        }
    }
}

/// Dials a peer for each direction; gives the connection over which this process sends.
fn dial_both(
    endpoint: &Endpoint,
    to: &str,
    limit: Duration,
) -> Result<Option<Arc<Connection>>, DialError> {
    if endpoint.is_root(to) {
        return dial(endpoint, to, Direction::Both, limit);
    }
    let connection = dial(endpoint, to, Direction::CallerSends, limit)?;
    // Without this one, the listener sends over the first.
    if let Err(DialError::Failed(error)) = dial(endpoint, to, Direction::ListenerSends, limit) {
        log(Level::Debug, || format!("one connection only to {to}: {error}"));
    }
    Ok(connection)
}

impl Sender for PeerSender {
    fn is_ready(&self) -> bool {
        // Without a connection, nothing is sent to a peer that connects to this process.
        match self.open_connection() {
            // To dial takes time.
            Some(connection) if !connection.is_preferred() && self.attempts.is_some() => false,
            Some(connection) => !connection.owes(),
            None => self.attempts.is_none(),
        }
    }

    fn room_for(&mut self, len: usize) -> SendMode {
        if self.paths.has_room(len) { SendMode::Memory } else { SendMode::System }
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        if self.open_connection().is_none() {
            self.paths.clear();
        }
        let parcel = self.paths.parcel(room, lent);
        parcel.unwrap_or_else(|| self.buffers.take(room - lent))
    }

    fn send(&mut self, parcel: SendBuffer, may_wait: bool) {
        if let Some(row) = parcel.row {
            return self.paths.send(row, parcel);
        }
        let len = parcel.len();
        let SendMemory::Own(own) = parcel.memory else { return };
        let Some(connection) = self.connected() else { return };
        let offered = self
            .paths
            .offer(|kind, offer| connection.send(MessageKind::Offer(kind), offer, &[], may_wait));
        let own = own.cut(len);
        let sent = offered.and_then(|()| {
            connection.send(MessageKind::Frames, own.as_ref(), &parcel.lent, may_wait)
        });
        self.check(&connection, sent);
    }

    fn owes(&self) -> bool {
        self.open_connection().is_some_and(|connection| connection.owes())
    }

    fn settle(&mut self) {
        if let Some(connection) = self.open_connection().cloned() {
            let settled = connection.settle(true);
            self.check(&connection, settled);
        }
    }
}
