//! All connections of a process, by peer.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::handshake::{GREETING, Handshake, SendSide, prepare, welcome};
use super::listener::{HandshakeGuard, Listener};
use super::offer::PortOffer;
use super::receiver::TcpReceiver;
use super::{MOST_PEERS, TcpSender, spawn};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::reader_end::EndMode;
use crate::transport::{Inbox, TransportConfig, who_and_address};

/// Interval after which an offer that was not taken is repeated: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Grace period to drain a disconnected peer's socket.
const LAST_WORDS: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Direct connections of a process, which bypass Zenoh.
pub(in crate::transport) struct TcpTransport {
    place: TransportConfig,
    inbox: Arc<dyn Inbox>,
    /// IP address at which peers can connect, if they can.
    listens: Option<IpAddr>,
    listener: OnceLock<Option<Listener>>,
    /// By address; None after `close`.
    peers: Mutex<Option<HashMap<String, TcpPeer>>>,
}

/// Connections with one peer.
#[derive(Default)]
struct TcpPeer {
    /// The last offer that was made to the peer.
    offer: Option<TcpConnection>,
    /// An offer of the peer is being taken.
    is_called: bool,
    /// The socket to write to, and whether a sender uses it.
    outlet: Option<(Arc<TcpStream>, bool)>,
    inlet: Option<Arc<TcpReceiver>>,
}

struct TcpConnection {
    offer: PortOffer,
    at: Instant,
    /// Interval after which the next offer is due.
    wait: Duration,
    /// The connections that were made with the offer, by the side that writes.
    shown: SmallVec<[SendSide; 2]>,
}

impl TcpPeer {
    fn reads(&self) -> bool {
        self.inlet.as_ref().is_some_and(|inlet| !inlet.ending.is_over())
    }
}

impl TcpTransport {
    /// For a process that listens at `listens`, or that only dials. None for the scheduler, and if the job
    /// encrypts its traffic (TLS).
    pub(in crate::transport) fn open(
        place: &TransportConfig,
        listens: Option<IpAddr>,
        inbox: &Arc<dyn Inbox>,
    ) -> Option<Arc<Self>> {
        let is_of_use = !place.is_scheduler && place.protocol() != "tls";
        is_of_use.then(|| {
            Arc::new(Self {
                place: place.clone(),
                inbox: Arc::clone(inbox),
                listens,
                listener: OnceLock::new(),
                peers: Mutex::new(Some(HashMap::new())),
            })
        })
    }

    /// The listening port, opened when a peer may first need it.
    fn port(self: &Arc<Self>) -> Option<u16> {
        let ip = self.listens?;
        let listener = self.listener.get_or_init(|| match Listener::open(ip) {
            Ok(listener) => {
                let streams = Arc::downgrade(self);
                let serves = listener.serve(move |it, stranger| meet(&streams, it, stranger));
                serves.then_some(listener)
            }
            Err(error) => {
                log(Level::Debug, || format!("no port for connections past the engine: {error}"));
                None
            }
        });
        listener.as_ref().map(Listener::port)
    }

    /// The offer to send to an address over Zenoh, if one is due. It needs a port here, and is not sent while
    /// the peer is connected in both directions.
    pub(in crate::transport) fn offer_to(self: &Arc<Self>, address: &str) -> Option<PortOffer> {
        let mut peers = self.peers.lock();
        let peers = peers.as_mut()?;
        let peer = entry(peers, address)?;
        let wait = match &peer.offer {
            Some(_) if peer.reads() && peer.outlet.is_some() => return None,
            Some(made) if made.at.elapsed() < made.wait => return None,
            Some(made) => (made.wait * 2).min(AGAIN.1),
            None => AGAIN.0,
        };
        let offer = PortOffer::new(self.port()?)?;
        peer.offer =
            Some(TcpConnection { offer, at: Instant::now(), wait, shown: SmallVec::new() });
        Some(offer)
    }

    /// A sender on the connection to an address, if no other sender uses it.
    pub(in crate::transport) fn outlet(&self, address: &str) -> Option<TcpSender> {
        let mut peers = self.peers.lock();
        let (socket, is_used) = peers.as_mut()?.get_mut(address)?.outlet.as_mut()?;
        let is_free = !std::mem::replace(is_used, true);
        is_free.then(|| TcpSender::new(Arc::clone(socket)))
    }

    /// Drops a failed connection to an address.
    pub(in crate::transport) fn give_up(&self, address: &str, outlet: &TcpSender) {
        let mut peers = self.peers.lock();
        let peer = peers.as_mut().and_then(|peers| peers.get_mut(address));
        if let Some(peer) = peer
            && peer.outlet.as_ref().is_some_and(|(socket, _)| outlet.is_on(socket))
        {
            peer.outlet = None;
        }
    }

    /// Dials the offered port, on a thread of its own. `from` is as in [`Inbox::arrived`].
    pub(in crate::transport) fn take(self: &Arc<Self>, from: &str, offer: PortOffer) {
        {
            let address = who_and_address(from).1;
            let mut peers = self.peers.lock();
            let Some(peers) = peers.as_mut().filter(|_| self.place.calls(address)) else { return };
            let Some(peer) = entry(peers, address) else { return };
            if std::mem::replace(&mut peer.is_called, true) {
                return;
            }
        }
        let (this, name) = (Arc::clone(self), String::from(from));
        let started = spawn(move || {
            let (made, inbox) = (this.call(&name, &offer), Arc::clone(&this.inbox));
            let address = who_and_address(&name).1;
            this.has_called(address);
            drop(this);
            match made {
                Ok(Some(inlet)) => inlet.serve(&*inbox, address),
                Ok(None) => {}
                Err(error) => log(Level::Debug, || {
                    format!("no connection to port {} of {name}: {error}", offer.port)
                }),
            }
        });
        if !started {
            self.has_called(who_and_address(from).1);
        }
    }

    /// Allows another offer of this peer to be taken.
    fn has_called(&self, address: &str) {
        if let Some(peer) = self.peers.lock().as_mut().and_then(|peers| peers.get_mut(address)) {
            peer.is_called = false;
        }
    }

    fn call(&self, from: &str, offer: &PortOffer) -> io::Result<Option<Arc<TcpReceiver>>> {
        let address = who_and_address(from).1;
        let mut at = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        at.set_port(offer.port);
        self.write_to(address, self.connect(&at, offer, SendSide::Caller)?)?;
        Ok(self.read_from(from, self.connect(&at, offer, SendSide::Listener)?))
    }

    fn connect(
        &self,
        at: &SocketAddr,
        offer: &PortOffer,
        writer: SendSide,
    ) -> io::Result<TcpStream> {
        let socket = TcpStream::connect_timeout(at, GREETING)?;
        prepare(&socket)?;
        Handshake::new(offer.token, writer, self.place.credentials.as_deref()).show(&socket)?;
        Ok(socket)
    }

    /// The peer to which this token was offered, if any. Each direction is accepted once.
    fn admit(&self, greeting: &Handshake) -> Option<String> {
        let mut peers = self.peers.lock();
        let has_it =
            |peer: &TcpPeer| peer.offer.as_ref().is_some_and(|it| it.offer.token == greeting.token);
        let (from, peer) = peers.as_mut()?.iter_mut().find(|(_, peer)| has_it(peer))?;
        let who = who_and_address(from).0;
        let is_theirs = self.place.credentials.as_ref().is_none_or(|credentials| {
            who.is_some_and(|who| credentials.is_proof(who, &greeting.words(), &greeting.proof))
        });
        let made = peer.offer.as_mut()?;
        if !is_theirs || made.shown.contains(&greeting.writer) {
            return None;
        }
        made.shown.push(greeting.writer);
        made.wait = AGAIN.0;
        Some(from.clone())
    }

    /// Adds a connection on which this process writes to a peer.
    fn write_to(&self, address: &str, socket: TcpStream) -> io::Result<()> {
        // A peer that takes no bytes for this long is down for Zenoh as well.
        socket.set_write_timeout(Some(Duration::from_millis(self.place.lease_ms)))?;
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.as_mut().and_then(|peers| peers.get_mut(address)) {
            end(peer.outlet.replace((Arc::new(socket), false)));
        }
        Ok(())
    }

    /// Adds a connection that the calling thread then reads; None if the peer was removed meanwhile.
    fn read_from(&self, from: &str, socket: TcpStream) -> Option<Arc<TcpReceiver>> {
        let inlet = Arc::new(TcpReceiver::new(socket, from));
        let mut peers = self.peers.lock();
        let peer = peers.as_mut()?.get_mut(who_and_address(from).1)?;
        if let Some(former) = peer.inlet.replace(Arc::clone(&inlet)) {
            former.ending.tell(EndMode::Drained);
            former.shut();
        }
        Some(inlet)
    }

    /// A peer has ended: its reader reports it as down, after all that was sent. False if no thread reads
    /// from it, so that none reports.
    pub(in crate::transport) fn forget(&self, address: &str) -> bool {
        let peer = self.peers.lock().as_mut().and_then(|peers| peers.remove(address));
        let Some(peer) = peer else { return false };
        end(peer.outlet);
        let Some(inlet) = peer.inlet else { return false };
        if !inlet.ending.tell(EndMode::Gone) {
            return false;
        }
        let last = Arc::clone(&inlet);
        let waits = spawn(move || {
            let limit = Instant::now() + LAST_WORDS;
            while !last.ending.is_over() && Instant::now() < limit {
                std::thread::sleep(LOOK_AGAIN);
            }
            last.shut();
        });
        if !waits {
            inlet.shut();
        }
        true
    }

    /// Stops all sending and reading.
    pub(in crate::transport) fn close(&self) {
        let peers = self.peers.lock().take();
        if let Some(Some(listener)) = self.listener.get() {
            listener.close();
        }
        for (_, peer) in peers.into_iter().flatten() {
            end(peer.outlet);
            if let Some(inlet) = peer.inlet {
                inlet.ending.tell(EndMode::Closed);
                inlet.shut();
            }
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connections of a peer, unless there are too many; peers that took no offer are removed first.
fn entry<'a>(peers: &'a mut HashMap<String, TcpPeer>, address: &str) -> Option<&'a mut TcpPeer> {
    if peers.len() >= MOST_PEERS && !peers.contains_key(address) {
        peers.retain(|_, peer| peer.is_called || peer.outlet.is_some() || peer.inlet.is_some());
        if peers.len() >= MOST_PEERS {
            return None;
        }
    }
    Some(peers.entry(address.into()).or_default())
}

/// Ends a connection behind the bytes written to it; a blocked writer gets an error.
fn end(outlet: Option<(Arc<TcpStream>, bool)>) {
    if let Some((socket, _)) = outlet {
        // The socket may be closed already.
        let _ = socket.shutdown(Shutdown::Write);
    }
}

/// Receives the handshake, and reads the connection if the peer writes to it.
fn meet(streams: &Weak<TcpTransport>, socket: TcpStream, stranger: HandshakeGuard) {
    let known = let_in(streams, socket);
    drop(stranger);
    match known {
        Ok(Some((inbox, inlet, address))) => inlet.serve(&*inbox, &address),
        Ok(None) => {}
        Err(error) => log(Level::Debug, || format!("a stranger was sent away: {error}")),
    }
}

/// Inbox and reader of a connection, and the address of its peer.
type ReaderContext = (Arc<dyn Inbox>, Arc<TcpReceiver>, String);

/// None if the peer does not write to this connection.
fn let_in(streams: &Weak<TcpTransport>, socket: TcpStream) -> io::Result<Option<ReaderContext>> {
    prepare(&socket)?;
    let greeting = Handshake::hear(&socket)?;
    let streams = streams.upgrade().ok_or(io::ErrorKind::NotConnected)?;
    let from = streams.admit(&greeting).ok_or(io::ErrorKind::PermissionDenied)?;
    welcome(&socket)?;
    let address = who_and_address(&from).1;
    if greeting.writer == SendSide::Listener {
        streams.write_to(address, socket)?;
        return Ok(None);
    }
    let inlet = streams.read_from(&from, socket);
    Ok(inlet.map(|inlet| (Arc::clone(&streams.inbox), inlet, address.into())))
}
