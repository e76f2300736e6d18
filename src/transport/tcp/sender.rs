//! Sender to one address: connects when it is first used, and sends over a path of the table of transports, or
//! over the connection.

use std::io;
use std::sync::{Arc, Weak};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::framing::{HEAD, MessageKind};
use crate::log::{Level, log};
use crate::transport::table::{FEW_BYTES, PeerPaths};
use crate::transport::{SendBuffer, SendBuffers, SendMemory, SendMode, SendQueue, Sender};

pub(super) struct PeerSender {
    to: Arc<str>,
    endpoint: Arc<Endpoint>,
    /// Whether this process connects to the peer, or the peer to this process.
    dials: bool,
    connection: Option<Arc<Connection>>,
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
            dials: place.calls(&to),
            connection: None,
            buffers: Arc::clone(buffers),
            paths: PeerPaths::new(&endpoint.incoming.transports, &to),
            few_bytes: is_with_scheduler.then_some(FEW_BYTES),
            to,
            queue,
        }
    }

    /// The connection, if there is one. One over which the peer sends is used only until this process has its
    /// own.
    fn connected(&mut self) -> Option<&Arc<Connection>> {
        let is_open = self.open_connection().is_some();
        if !self.open_connection().is_some_and(|it| it.is_preferred())
            && let Some(found) = self.endpoint.incoming.peers.find(&self.to)
        {
            self.connection = Some(found);
        }
        let is_sealed = self.open_connection().map(|it| it.is_sealed());
        match (is_open, is_sealed) {
            (false, Some(is_sealed)) => self.paths.open(self.few_bytes, is_sealed),
            (_, None) => {
                self.connection = None;
                self.paths.clear();
            }
            _ => {}
        }
        self.open_connection()
    }

    fn open_connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|connection| connection.is_open())
    }

    /// Ends a connection after an error.
    fn check(&mut self, connection: &Connection, sent: io::Result<()>) {
        if let Err(error) = sent {
            log(Level::Debug, || format!("a connection to {} ended: {error}", self.to));
            connection.end();
            self.connection = None;
            self.paths.clear();
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
        let Some(connection) = self.connected().cloned() else { return };
        let offered = self
            .paths
            .offer(|kind, offer| connection.send(MessageKind::Offer(kind), offer.to_vec(), &[]));
        let sent = offered.and_then(|()| match parcel.memory {
            SendMemory::Own(own) => {
                connection.send(MessageKind::Frames, own.cut(len), &parcel.lent)
            }
            SendMemory::Records(records, _) => connection.send_records(records, len),
            SendMemory::Shared(_) => Ok(()),
        });
        self.check(&connection, sent);
    }

    fn call_back(&mut self) {
        let (dials, queue) = (self.dials, Weak::clone(&self.queue));
        match self.connected() {
            Some(connection) if connection.is_preferred() || !dials || connection.owes() => {
                connection.call_back(queue);
            }
            _ => self.endpoint.incoming.dials.call_back(&self.to, queue),
        }
    }

    fn owes(&self) -> bool {
        self.open_connection().is_some_and(|connection| connection.owes())
    }
}
