//! What all parts of a process's transport share: its connections, and their reader.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::framing::MessageKind;
use super::io_threads::{Arrival, IoThreads, Receiver};
use super::layer::Layer;
use super::peers::Peers;
use crate::credentials::{CredentialKind, Credentials};
use crate::log::{Level, log};
use crate::transport::table::Transports;
use crate::transport::{Inbox, TransportConfig};

/// Maximum time for peers to take the last bytes, and to end their side.
const LAST_WORDS: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

pub(super) struct Endpoint {
    pub(super) place: TransportConfig,
    /// The address, or the name, by which peers know this process.
    pub(super) address: Arc<str>,
    /// The same without the identity.
    pub(super) name: String,
    pub(super) incoming: Arc<Incoming>,
    threads: IoThreads,
}

/// Where messages go.
pub(super) struct Incoming {
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) peers: Peers,
    /// The transports beside the connections.
    pub(super) transports: Arc<Transports>,
}

/// A connection behind its greeting, with bytes that have arrived since.
pub(super) struct Greeted {
    pub(super) socket: TcpStream,
    /// The peer, as in [`Inbox::arrived`].
    pub(super) from: String,
    /// Whether this process sends over it, if it has another one with the peer.
    pub(super) is_preferred: bool,
    pub(super) layer: Layer,
    /// Records of TLS that were not opened yet, and plain bytes.
    pub(super) received: Vec<u8>,
    pub(super) plain: Vec<u8>,
}

impl Endpoint {
    pub(super) fn new(
        place: &TransportConfig,
        address: Arc<str>,
        name: String,
        inbox: &Arc<dyn Inbox>,
    ) -> Self {
        let transports = Arc::new(Transports::open(place, inbox));
        let (inbox, peers) = (Arc::clone(inbox), Peers::new());
        let incoming = Arc::new(Incoming { inbox, peers, transports });
        let threads = IoThreads::new(Arc::clone(&incoming) as Arc<dyn Receiver>);
        Self { place: place.clone(), address, name, incoming, threads }
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.place.credentials.as_deref()
    }

    /// Whether an address is that of the scheduler.
    pub(super) fn is_root(&self, address: &str) -> bool {
        *self.place.root == *address
    }

    /// The kind of process that listens at an address.
    pub(super) fn kind_at(&self, address: &str) -> CredentialKind {
        if self.is_root(address) { CredentialKind::Scheduler } else { CredentialKind::Server }
    }

    /// Begins to read a connection, and to send over it; None after `close`.
    pub(super) fn adopt(&self, greeted: Greeted) -> Option<Arc<Connection>> {
        let Greeted { socket, from, is_preferred, layer, received, plain } = greeted;
        let (sealer, opener) = layer.split().ok()?;
        let patience = Duration::from_millis(self.place.lease_ms);
        let connection = Connection::new(socket, from, is_preferred, patience, sealer).ok()?;
        if !self.incoming.peers.add(&connection) {
            return None;
        }
        let reader = Arc::clone(&connection);
        let arrival = Arrival { connection: reader, opener, sealed: received, plain };
        if let Err(error) = self.threads.read(arrival) {
            log(Level::Warn, || format!("cannot read a connection: {error}"));
            self.incoming.peers.remove(&connection);
            return None;
        }
        Some(connection)
    }

    /// Number of threads that read.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Ends all connections behind what was sent; nothing arrives after it returns.
    pub(super) fn close(&self) {
        self.incoming.transports.finish();
        let connections = self.incoming.peers.close();
        connections.iter().for_each(|connection| connection.finish());
        // A socket that is closed with unread bytes resets its connection, and the peer may lose what it
        // has not read. So the peers end first, unless they take too long.
        let end = Instant::now() + LAST_WORDS;
        while self.threads.load() > 0 && !self.threads.is_one() && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.threads.close();
        connections.iter().for_each(|connection| connection.end());
        self.incoming.transports.close();
    }
}

impl Receiver for Incoming {
    fn received(&self, connection: &Arc<Connection>, kind: MessageKind, payload: &[u8]) {
        let from = connection.from();
        match kind {
            MessageKind::Frames => {
                self.inbox.arrived(from, payload.len(), &mut std::iter::once(payload.into()));
            }
            MessageKind::Offer(kind) => self.transports.accept(kind, from, payload),
        }
    }

    fn ended(&self, connection: &Arc<Connection>) {
        let address = connection.address();
        if !self.peers.remove(connection) {
            return;
        }
        if !self.transports.end(address) {
            self.inbox.down(address);
        }
    }
}
