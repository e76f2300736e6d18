//! Sender to one address: connects when it is first used, and selects shared memory or the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::dial::{DialError, dial};
use super::endpoint::Endpoint;
use super::framing::MessageKind;
use super::greeting::Direction;
use crate::log::{Level, log};
use crate::transport::shm::ShmSender;
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
    /// Whether the peer may share memory with this process.
    shares: bool,
    /// Ring that such a peer reads.
    outlet: Option<ShmSender>,
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
        Self {
            to: to.into(),
            endpoint: Arc::clone(endpoint),
            attempts: place.calls(to).then(Attempts::new),
            connection: None,
            buffers: Arc::clone(buffers),
            // Connections with the scheduler carry few bytes, and every process has one.
            shares: place.shm && !place.is_scheduler && !endpoint.is_root(to),
            outlet: None,
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
            None => self.outlet = None,
            Some(connection) if self.shares && !was_open => self.offer(connection),
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

    /// Offers the peer a ring of this process.
    fn offer(&mut self, connection: &Connection) {
        match ShmSender::new() {
            Ok(outlet) => {
                let offer = outlet.offer().encode();
                let sent = connection.send(MessageKind::Segment, &offer, &[], false);
                self.outlet = sent.is_ok().then_some(outlet);
            }
            Err(error) => log(Level::Debug, || format!("no memory to share: {error}")),
        }
    }

    /// Ends a connection after an error.
    fn check(&mut self, connection: &Connection, sent: std::io::Result<()>) {
        if let Err(error) = sent {
            log(Level::Debug, || format!("a connection to {} ended: {error}", self.to));
            connection.end();
            (self.connection, self.outlet) = (None, None);
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
        if self.outlet.as_mut().is_some_and(|outlet| outlet.has_room(len)) {
            SendMode::Memory
        } else {
            SendMode::System
        }
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        let is_open = self.open_connection().is_some();
        if !is_open || self.outlet.as_ref().is_some_and(ShmSender::is_declined) {
            self.outlet = None;
        }
        let claim = self.outlet.as_mut().and_then(|outlet| outlet.claim(room));
        claim.map_or_else(|| self.buffers.take(room - lent), SendBuffer::shared)
    }

    fn send(&mut self, parcel: SendBuffer, may_wait: bool) {
        let len = parcel.len();
        match parcel.memory {
            SendMemory::Shared(claim) => {
                if let Some(outlet) = &mut self.outlet {
                    outlet.publish(&claim, len);
                }
            }
            SendMemory::Own(own) => {
                let Some(connection) = self.connected() else { return };
                let mut sent = Ok(());
                if let Some(offer) = self.outlet.as_mut().and_then(ShmSender::renewed) {
                    sent = connection.send(MessageKind::Segment, &offer.encode(), &[], may_wait);
                }
                let own = own.cut(len);
                let sent = sent.and_then(|()| {
                    connection.send(MessageKind::Frames, own.as_ref(), &parcel.lent, may_wait)
                });
                self.check(&connection, sent);
            }
        }
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
