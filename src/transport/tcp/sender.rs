//! Sender to one address: connects when it is first used, and sends over a path of the table of transports, or
//! over the connection.

use std::io;
use std::sync::{Arc, Weak};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::framing::{HEAD, MessageKind};
use super::peers::Lanes;
use crate::log::{Level, log};
use crate::transport::table::{FEW_BYTES, PeerPaths};
use crate::transport::{SendBuffer, SendBuffers, SendMemory, SendMode, SendQueue, Sender};

/// Size of a message in bytes from which on the next one takes another connection, where there are several.
const LARGE: usize = 64 << 10;

pub(super) struct PeerSender {
    to: Arc<str>,
    endpoint: Arc<Endpoint>,
    /// Whether this process connects to the peer, or the peer to this process.
    dials: bool,
    /// The open connections over which it sends, as of a version of all connections, and the place of the next one.
    lanes: Lanes,
    version: u64,
    next: usize,
    buffers: Arc<SendBuffers>,
    /// Paths beside the connection, and why there are none.
    paths: PeerPaths,
    few_bytes: Option<&'static str>,
    /// The messages that wait for this sender.
    queue: Weak<dyn SendQueue>,
}

impl PeerSender {
    /// A sender that is not connected yet.
    pub(super) fn new(
        to: &str,
        endpoint: &Arc<Endpoint>,
        buffers: &Arc<SendBuffers>,
        queue: Weak<dyn SendQueue>,
    ) -> Self {
        let place = &endpoint.place;
        let to: Arc<str> = to.into();
        // Every process has a connection with the scheduler.
        let is_with_scheduler = place.is_scheduler || endpoint.is_root(&to);
        Self {
            endpoint: Arc::clone(endpoint),
            dials: endpoint.incoming.calls(&to),
            lanes: Lanes::new(),
            version: 0,
            next: 0,
            buffers: Arc::clone(buffers),
            paths: PeerPaths::new(&endpoint.incoming.transports, &to),
            few_bytes: is_with_scheduler.then_some(FEW_BYTES),
            to,
            queue,
        }
    }

    /// The connection that takes the next bytes first, if there is one. One over which the peer sends is used only
    /// until this process has its own.
    fn connected(&mut self) -> Option<&Arc<Connection>> {
        let was_open = self.open_connection().is_some();
        let version = self.endpoint.incoming.peers.version();
        if version != self.version {
            (self.version, self.lanes) = (version, self.endpoint.incoming.peers.lanes(&self.to));
        }
        self.lanes.retain(|connection| connection.is_open());
        let is_sealed = self.lanes.first().map(|it| it.is_sealed());
        match (was_open, is_sealed) {
            (false, Some(is_sealed)) => self.paths.open(self.few_bytes, is_sealed),
            (_, None) => self.paths.clear(),
            _ => {}
        }
        let count = self.lanes.len();
        if count > 1 {
            let mut turns = (self.next..self.next + count).map(|at| at % count);
            self.next = turns.find(|at| !self.lanes[*at].owes()).unwrap_or(0);
        }
        self.open_connection()
    }

    fn open_connection(&self) -> Option<&Arc<Connection>> {
        let current = self.lanes.get(self.next);
        current.into_iter().chain(&self.lanes).find(|connection| connection.is_open())
    }

    /// Sends offers of paths, then `len` bytes.
    fn send_over_connection(
        &mut self,
        len: usize,
        send: impl FnOnce(&Connection) -> io::Result<()>,
    ) {
        let Some(connection) = self.connected().cloned() else { return };
        let offered = self
            .paths
            .offer(|kind, offer| connection.send(MessageKind::Offer(kind), offer.to_vec(), &[]));
        let sent = offered.and_then(|()| send(&connection));
        self.check(&connection, sent, len);
    }

    /// Ends a connection after an error. Large messages take turns on the connections.
    fn check(&mut self, connection: &Connection, sent: io::Result<()>, len: usize) {
        if let Err(error) = sent {
            log(Level::Debug, || format!("a connection to {} ended: {error}", self.to));
            connection.end();
            self.lanes.retain(|connection| connection.is_open());
            if self.lanes.is_empty() {
                self.paths.clear();
            }
        }
        if len >= LARGE && self.lanes.len() > 1 {
            self.next = (self.next + 1) % self.lanes.len();
        }
    }
}

impl Sender for PeerSender {
    fn is_ready(&mut self) -> bool {
        let found = self.connected().map(|it| (it.is_preferred(), it.owes()));
        match found {
            Some((is_preferred, owes)) if is_preferred || !self.dials => !owes,
            // Without a connection, nothing is sent to a peer that connects to this process.
            None if !self.dials => true,
            _ if self.endpoint.incoming.dials.ask(&self.to) => false,
            found => found.is_none_or(|(_, owes)| !owes),
        }
    }

    fn is_connected(&self) -> bool {
        self.open_connection().is_some()
    }

    fn room_for(&mut self, len: usize) -> SendMode {
        if self.paths.has_room(len) { SendMode::Memory } else { SendMode::System }
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        if self.open_connection().is_none() {
            self.paths.clear();
        }
        let parcel = self.paths.parcel(room, lent);
        parcel.unwrap_or_else(|| match self.open_connection() {
            Some(connection) if connection.is_sealed() => self.buffers.take_records(room, HEAD),
            _ => self.buffers.take(room - lent),
        })
    }

    fn send(&mut self, parcel: SendBuffer) {
        if let Some(row) = parcel.row {
            return self.paths.send(row, parcel);
        }
        let len = parcel.len();
        self.send_over_connection(len, |connection| match parcel.memory {
            SendMemory::Own(own) => {
                connection.send(MessageKind::Frames, own.cut(len), &parcel.lent)
            }
            SendMemory::Records(records, _) => connection.send_records(records, len),
            SendMemory::Shared(_) => Ok(()),
        });
    }

    fn sends_from_place(&mut self, len: usize) -> bool {
        !self.paths.has_room(len) && self.open_connection().is_some_and(|it| !it.is_sealed())
    }

    fn send_from_place(&mut self, front: &[u8], payload: &[u8]) {
        let buffers = Arc::clone(&self.buffers);
        self.send_over_connection(front.len() + payload.len(), |connection| {
            connection.send_from_place([front, payload], &buffers)
        });
    }

    fn call_back(&mut self) {
        let (dials, queue) = (self.dials, Weak::clone(&self.queue));
        match self.connected() {
            // All of them owe.
            Some(connection) if connection.owes() => {
                self.lanes.iter().for_each(|lane| lane.call_back(Weak::clone(&queue)));
            }
            Some(connection) if connection.is_preferred() || !dials => connection.call_back(queue),
            _ => self.endpoint.incoming.dials.call_back(&self.to, queue),
        }
    }

    fn owes(&self) -> bool {
        self.lanes.iter().any(|connection| connection.is_open() && connection.owes())
    }
}
