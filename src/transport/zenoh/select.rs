//! Sender to one address: connects when it is first used, and selects shared memory, TCP or Zenoh.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use zenoh::Wait;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;

use super::connection::{CONNECT, SessionOwner, ZenohConnection, ZenohSession, call};
use super::names::{ProcessNames, is_of_this_host};
use super::probe;
use crate::config::TLS_VARIABLE;
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::shm::ShmSender;
use crate::transport::{SendBuffer, SendBuffers, SendMemory, SendMode, Sender, tcp};

/// Interval between two attempts to connect.
const CONNECT_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Sender to one address.
pub(super) struct SelectingSender {
    to: Arc<str>,
    party: Arc<SessionOwner>,
    name: String,
    way: SendPath,
    publisher: Option<Publisher<'static>>,
    parcels: Arc<SendBuffers>,
    shm: bool,
    /// Whether Zenoh's threads may not use this sender: one of them may be the thread that sends.
    apart: bool,
    /// The peer may be on this machine.
    is_near: bool,
    /// Ring that such a peer reads.
    outlet: Option<ShmSender>,
    /// Direct TCP connection.
    stream: Option<tcp::TcpSender>,
}

pub(super) enum SendPath {
    /// Accepted: the peer dials our listening socket, if we listen.
    Hall(Option<Arc<ZenohConnection>>),
    /// Dialed: this process connects to the peer.
    Call {
        made: Arc<Mutex<ZenohSession>>,
        last: Option<Instant>,
        /// The last attempt failed because the peer rejects this process.
        refused: bool,
    },
}

impl SendPath {
    pub(super) fn call(made: &Arc<Mutex<ZenohSession>>) -> Self {
        Self::Call { made: Arc::clone(made), last: None, refused: false }
    }
}

impl SelectingSender {
    /// A sender that is not connected yet.
    pub(super) fn new(
        to: &str,
        party: &Arc<SessionOwner>,
        way: SendPath,
        parcels: &Arc<SendBuffers>,
    ) -> Self {
        let place = &party.place;
        let names = ProcessNames::new(&party.address, place);
        Self {
            to: to.into(),
            party: Arc::clone(party),
            name: format!("kvstore/{}/{}", names.place(to), names.speaker()),
            way,
            publisher: None,
            parcels: Arc::clone(parcels),
            // Links with the scheduler carry few bytes, and every process has one.
            shm: place.shm && !place.is_scheduler && !names.is_root(to),
            apart: threads_are_set(),
            is_near: is_of_this_host(to),
            outlet: None,
            stream: None,
        }
    }

    fn connect(&mut self) -> Option<()> {
        let connections = match &mut self.way {
            SendPath::Hall(hall) => vec![hall.clone()?],
            SendPath::Call { made, last, .. } => {
                let place = &self.party.place;
                if last.is_some_and(|last| last.elapsed() < CONNECT_AGAIN) || made.lock().closed {
                    return None;
                }
                let tls = place.credentials.as_ref().and_then(|known| known.tls.as_ref());
                if let Some(why) = tls.and_then(|tls| probe::refusal_of_tls(&self.to, tls)) {
                    *last = Some(Instant::now());
                    self.blame(Some(why));
                    return None;
                }
                let connections = call(&self.to, &self.party);
                *last = Some(Instant::now());
                let connections = match connections {
                    Ok(connections) => connections,
                    Err(error) => {
                        log(Level::Debug, || format!("no way to {}: {error}", self.to));
                        let why = probe::refusal(&self.to, place.credentials.as_deref());
                        self.blame(why);
                        return None;
                    }
                };
                let mut made = made.lock();
                if made.closed {
                    connections.iter().for_each(|connection| connection.close());
                    return None;
                }
                made.connections.extend(connections.iter().cloned());
                connections
            }
        };
        let Some(publisher) = self.publisher(connections.first()?) else {
            self.give_up(&connections);
            return None;
        };
        self.publisher = Some(publisher);
        if let SendPath::Call { refused, .. } = &mut self.way {
            *refused = false;
        }
        if self.shm {
            self.offer();
        }
        Some(())
    }

    /// Zenoh drops a put before the peer's subscription is known.
    fn publisher(&self, connection: &ZenohConnection) -> Option<Publisher<'static>> {
        let publisher = connection.session.declare_publisher(self.name.clone());
        let publisher = publisher.congestion_control(CongestionControl::Block).express(true).wait();
        let publisher = publisher.ok()?;
        let end = Instant::now() + CONNECT;
        while !publisher.matching_status().wait().is_ok_and(|status| status.matching()) {
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Some(publisher)
    }

    /// Closes sessions over which the peer does not subscribe to messages of this process.
    fn give_up(&mut self, connections: &[Arc<ZenohConnection>]) {
        let SendPath::Call { made, .. } = &self.way else { return };
        let ours =
            |made: &Arc<_>| connections.iter().any(|connection| Arc::ptr_eq(made, connection));
        made.lock().connections.retain(|made| !ours(made));
        connections.iter().for_each(|connection| connection.close());
        let why =
            self.party.place.credentials.as_ref().map(|credentials| {
                format!("{} takes nothing from {}", self.to, credentials.identity)
            });
        self.blame(why);
    }

    /// Reports why a peer rejects this process, once that is certain: a failure may be the end, or the start,
    /// of a process.
    fn blame(&mut self, reason: Option<String>) {
        let SendPath::Call { refused, .. } = &mut self.way else { return };
        let Some(reason) = reason else { return };
        if std::mem::replace(refused, true) {
            self.party.inbox.refused(&self.to, &reason);
        }
    }

    /// Offers the peer a ring of this process.
    fn offer(&mut self) {
        match ShmSender::new() {
            Ok(outlet) => {
                self.put(ZBytes::new(), Some(outlet.offer().encode()));
                self.outlet = Some(outlet);
            }
            Err(error) => log(Level::Debug, || format!("no memory to share: {error}")),
        }
    }

    /// Sends bytes over the direct TCP connection; false if Zenoh is to carry them.
    fn stream(&mut self, own: &[u8], lent: &[(usize, Bytes)], may_wait: bool) -> bool {
        let Some(streams) = &self.party.streams else { return false };
        if self.stream.is_none() {
            self.stream = streams.outlet(&self.to);
        }
        // A peer on this machine that can read our memory needs no connection.
        let may_share = self.outlet.is_some() && self.is_near;
        if matches!(self.way, SendPath::Hall(_))
            && !may_share
            && let Some(offer) = streams.offer_to(&self.to)
        {
            self.put(ZBytes::new(), Some(offer.encode()));
        }
        let len = own.len() + lent.iter().map(|(_, lent)| lent.len()).sum::<usize>();
        let stream = self.stream.as_mut().filter(|_| tcp::TcpSender::takes(len));
        let sent = stream.map(|stream| stream.send(own, lent, may_wait));
        self.keep_stream_if(sent)
    }

    /// Whether the direct TCP connection was used; after an error Zenoh carries all bytes.
    fn keep_stream_if(&mut self, done: Option<std::io::Result<()>>) -> bool {
        let Some(Err(error)) = done else { return done.is_some() };
        log(Level::Debug, || format!("a connection to {} ended: {error}", self.to));
        if let (Some(streams), Some(stream)) = (&self.party.streams, self.stream.take()) {
            streams.give_up(&self.to, &stream);
        }
        false
    }

    fn put(&self, payload: ZBytes, offer: Option<Vec<u8>>) {
        let Some(publisher) = &self.publisher else { return };
        let put = publisher.put(payload).attachment(offer);
        if let Err(error) = put.wait() {
            log(Level::Debug, || format!("nothing was sent to {}: {error}", self.to));
        }
    }
}

impl Sender for SelectingSender {
    fn is_ready(&self) -> bool {
        self.publisher.is_some() && !self.apart && !self.owes()
    }

    fn room_for(&mut self, len: usize) -> SendMode {
        if self.outlet.as_mut().is_some_and(|outlet| outlet.has_room(len)) {
            SendMode::Memory
        } else if self.stream.is_some() && tcp::TcpSender::takes(len) {
            SendMode::System
        } else {
            SendMode::Unknown
        }
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        if self.outlet.as_ref().is_some_and(ShmSender::is_declined) {
            self.outlet = None;
        }
        let claim = self.outlet.as_mut().and_then(|outlet| outlet.claim(room));
        claim.map_or_else(|| self.parcels.take(room - lent), SendBuffer::shared)
    }

    fn send(&mut self, parcel: SendBuffer, may_wait: bool) {
        if self.publisher.is_none() && self.connect().is_none() {
            return;
        }
        let len = parcel.len();
        match parcel.memory {
            SendMemory::Own(own) => {
                if let Some(offer) = self.outlet.as_mut().and_then(ShmSender::renewed) {
                    self.put(ZBytes::new(), Some(offer.encode()));
                }
                let own = own.cut(len);
                if !self.stream(own.as_ref(), &parcel.lent, may_wait) {
                    self.put(joined(&Bytes::from_owner(own), parcel.lent), None);
                }
            }
            SendMemory::Shared(claim) => {
                if let Some(outlet) = &mut self.outlet {
                    outlet.publish(&claim, len);
                }
            }
        }
    }

    fn owes(&self) -> bool {
        self.stream.as_ref().is_some_and(tcp::TcpSender::owes)
    }

    fn settle(&mut self) {
        let settled = self.stream.as_mut().map(|stream| stream.settle(true));
        self.keep_stream_if(settled);
    }
}

/// Joins the bytes of a buffer with its borrowed slices, each behind its number of own bytes.
fn joined(own: &Bytes, lent: Vec<(usize, Bytes)>) -> ZBytes {
    if lent.is_empty() {
        return ZBytes::from(own.clone());
    }
    let (mut all, mut taken) = (ZBytes::writer(), 0);
    for (at, lent) in lent {
        all.append(ZBytes::from(own.slice(taken..at)));
        all.append(ZBytes::from(lent));
        taken = at;
    }
    all.append(ZBytes::from(own.slice(taken..)));
    all.finish()
}

/// Whether the environment sets the threads of Zenoh, as TLS needs it. One thread may then both receive and
/// send, and must never wait for itself.
fn threads_are_set() -> bool {
    std::env::var_os(TLS_VARIABLE.0).is_some()
}
