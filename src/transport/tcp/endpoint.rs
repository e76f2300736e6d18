//! What all parts of a process's transport share: its connections, their reader, and what their ends mean.

use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{Connection, RecordBuffers};
use super::dials::{Dials, Order};
use super::framing::MessageKind;
use super::greeting::Lane;
use super::layer::Layer;
use super::peers::Peers;
use super::readers::{Arrival, IoThreads, Receiver};
use crate::credentials::{CredentialKind, Credentials};
use crate::log::{Level, log};
use crate::sys;
use crate::sys::sync::Mutex;
use crate::transport::table::Transports;
use crate::transport::tls::RecordHalves;
use crate::transport::{DialPolicy, Inbox, Polling, ReceiveRoom, TransportConfig, who_and_address};

/// Maximum time for peers to take the last bytes, and to end their side.
const LAST_WORDS: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Connections of a worker with a server: one for each direction.
const FEW_CONNECTIONS: u8 = 2;
/// Round trip from which on there are more, and how many then: the system keeps some 3 MB of one in flight, which
/// is a rate of 5 Gbit/s at this distance.
const LONG_LINK: Duration = Duration::from_millis(5);
const CONNECTIONS_OF_LONG_LINK: u8 = 8;

pub(super) struct Endpoint {
    pub(super) place: Arc<TransportConfig>,
    /// The address, or the name, by which peers know this process.
    pub(super) address: Arc<str>,
    /// The same without the identity.
    pub(super) name: String,
    pub(super) incoming: Arc<Incoming>,
    threads: IoThreads,
    records: Arc<RecordBuffers>,
}

/// Where messages go, and the ends of connections.
pub(super) struct Incoming {
    place: Arc<TransportConfig>,
    /// As [`Endpoint::address`].
    own: Arc<str>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) peers: Peers,
    /// The connections that this process makes.
    pub(super) dials: Arc<Dials>,
    /// The peers whose connection has been lost, over which this process sent, and was not made again yet.
    lost: Mutex<HashSet<String>>,
    /// Processes that this one dials, and whose end it has reported since their last connection.
    reported: Mutex<HashSet<String>>,
    /// The transports beside the connections.
    pub(super) transports: Arc<Transports>,
}

/// A connection behind its greeting, with bytes that have arrived since.
pub(super) struct Greeted {
    pub(super) socket: TcpStream,
    /// The peer, as in [`Inbox::arrived`].
    pub(super) from: String,
    pub(super) lane: Lane,
    /// Whether this process sends over it, if it has another one with the peer.
    pub(super) is_preferred: bool,
    pub(super) layer: Layer,
    /// Records that were not opened yet, and plain bytes.
    pub(super) received: Vec<u8>,
    pub(super) plain: Vec<u8>,
}

impl Greeted {
    /// With records behind the greeting, if there are any: what is left of it was sealed.
    pub(super) fn with(self, records: Option<RecordHalves>) -> Self {
        let Some(records) = records else { return self };
        let layer = Layer::Records(Box::new(records));
        Self { layer, received: self.plain, plain: Vec::new(), ..self }
    }
}

impl Endpoint {
    pub(super) fn new(
        place: &TransportConfig,
        address: Arc<str>,
        name: String,
        inbox: &Arc<dyn Inbox>,
        dials: Arc<Dials>,
    ) -> Self {
        let transports = Arc::new(Transports::open(place, inbox));
        let (place, inbox, peers) = (Arc::new(place.clone()), Arc::clone(inbox), Peers::new());
        let (lost, reported) = (Mutex::default(), Mutex::default());
        let (place_of_incoming, own) = (Arc::clone(&place), Arc::clone(&address));
        let incoming = Incoming {
            place: place_of_incoming,
            own,
            inbox,
            peers,
            dials,
            lost,
            reported,
            transports,
        };
        let incoming = Arc::new(incoming);
        let patience = Duration::from_millis(place.lease_ms);
        let receiver = Arc::clone(&incoming) as Arc<dyn Receiver>;
        let threads = IoThreads::new(receiver, patience, place.most_threads);
        Self { place, address, name, incoming, threads, records: Arc::default() }
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.place.credentials.as_deref()
    }

    /// Whether this process asks for records behind the greetings of its calls.
    pub(super) fn seals(&self) -> bool {
        self.credentials().is_some_and(|credentials| {
            let needs_secrecy = self.incoming.transports.have_secrets();
            credentials.seals() || credentials.can_seal() && needs_secrecy
        })
    }

    /// Whether an address is that of the scheduler.
    pub(super) fn is_root(&self, address: &str) -> bool {
        *self.place.root == *address
    }

    /// Whether this process takes no caller any more. Half of the files that it may open are kept for the first
    /// connections of its peers.
    pub(super) fn is_full(&self, lane: Lane) -> bool {
        let count = self.incoming.peers.count() as u64;
        let is_further = lane.number > 0;
        count >= self.place.most_connections
            || is_further && sys::file_limit().is_some_and(|limit| count >= limit / 2)
    }

    /// The lanes beyond the first ones with a listener at this distance.
    pub(super) fn further_lanes(
        &self,
        to: &str,
        round_trip: Duration,
    ) -> impl Iterator<Item = Lane> + use<> {
        let all = self.place.connections.unwrap_or_else(|| {
            if round_trip < LONG_LINK { FEW_CONNECTIONS } else { CONNECTIONS_OF_LONG_LINK }
        });
        let count = if self.is_root(to) { 0 } else { all.saturating_sub(FEW_CONNECTIONS) };
        Lane::further(count)
    }

    /// The kind of process that listens at an address.
    pub(super) fn kind_at(&self, address: &str) -> CredentialKind {
        match self.place.calls {
            DialPolicy::Smaller => CredentialKind::Worker,
            _ if self.is_root(address) => CredentialKind::Scheduler,
            _ => CredentialKind::Server,
        }
    }

    /// Begins to read a connection, and to send over it; None after `close`.
    pub(super) fn adopt(&self, greeted: Greeted) -> Option<Arc<Connection>> {
        let Greeted { socket, from, lane, is_preferred, layer, received, plain } = greeted;
        let (sealer, opener) = layer.split().ok()?;
        let other = if lane.number == 0 {
            self.incoming.peers.first(who_and_address(&from).1)
        } else {
            None
        };
        let seat = match self.threads.seat(other.as_deref()) {
            Ok(seat) => seat,
            Err(error) => {
                log(Level::Warn, || format!("cannot read a connection: {error}"));
                return None;
            }
        };
        let call_backs = seat.call_backs();
        let lane = (lane, is_preferred);
        let connection = Connection::new(socket, from, lane, sealer, &self.records, call_backs);
        if !self.incoming.peers.add(&connection) {
            return None;
        }
        self.incoming.reported.lock().remove(connection.address());
        let reader = Arc::clone(&connection);
        seat.read(Arrival { connection: reader, opener, sealed: received, plain });
        self.incoming.made(&connection);
        Some(connection)
    }

    /// Has a thread of the program read what arrives, but large pieces only where it does that for the others.
    pub(super) fn add_to(&self, polling: &mut Polling) {
        self.incoming.transports.add_to(polling);
        let mut peers = self.incoming.transports.on_connections();
        if peers > 0 && polling.may_read_from(peers) {
            self.threads.each_source(|source| polling.add(source, std::mem::take(&mut peers)));
        }
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
        while self.threads.load() > 0 && !self.threads.is_delivering() && Instant::now() < end {
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
                let (len, mut pieces) = (payload.len(), std::iter::once(payload.into()));
                if connection.is_sealed() {
                    self.inbox.opened(from, len, &mut pieces);
                } else {
                    self.inbox.arrived(from, len, &mut pieces);
                }
            }
            MessageKind::Offer(kind) => {
                self.transports.accept(kind, from, payload, connection.is_sealed());
            }
            MessageKind::Goodbye => connection.take_goodbye(),
        }
    }

    fn room(&self, from: &Connection, len: usize, payload: &[u8]) -> Option<(ReceiveRoom, usize)> {
        self.inbox.room(from.from(), len, payload)
    }

    fn received_in_room(&self, from: &Connection, front: &[u8], room: ReceiveRoom) {
        self.inbox.received(from.from(), front, room);
    }

    fn ended(&self, connection: &Arc<Connection>) {
        let address = connection.address();
        let Some(is_last) = self.peers.remove(connection) else { return };
        if connection.has_said_goodbye() {
            if is_last {
                self.gone(address);
            }
            return;
        }
        if connection.is_preferred() {
            self.lost.lock().insert(address.into());
        }
        if let Some(other) = self.peers.lanes(address).first() {
            self.made(other);
        }
        if self.calls(address) {
            self.dials.order(Order::Redial(address.into()));
        } else if is_last {
            self.dials.order(Order::Await(address.into()));
        }
    }
}

impl Incoming {
    /// Whether this process dials an address.
    pub(super) fn calls(&self, address: &str) -> bool {
        self.place.calls(&self.own, address)
    }

    /// A connection can be used for sending: what was sent over a lost one is to be sent again.
    fn made(&self, connection: &Connection) {
        let is_used = connection.is_preferred() || !self.calls(connection.address());
        if is_used && self.lost.lock().remove(connection.address()) {
            self.inbox.reconnected(connection.address());
        }
    }

    /// The process at an address has ended.
    pub(super) fn gone(&self, address: &str) {
        self.lost.lock().remove(address);
        // Its Goodbye and its port, which refuses connections, both tell.
        if self.calls(address) && !self.reported.lock().insert(address.into()) {
            return;
        }
        if !self.transports.end(address) {
            self.inbox.down(address);
        }
    }
}
