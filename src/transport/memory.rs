//! For tests: messages pass between threads of one process. One implementation of `Transport`, and one transport
//! of the table, which stands beside connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use super::peer_transport::{
    Carrier, PathState, PeerPath, PeerTransport, TransportChoice, TransportRow,
};
use super::send_buffer::SendMemory;
use super::{
    Inbox, Piece, SendBuffer, SendBuffers, SendQueue, Sender, Transport, TransportConfig,
    who_and_address,
};
use crate::sys::sync::Mutex;

/// Used by its name only.
pub(super) const ROW: TransportRow =
    TransportRow { name: "memory", carrier: Carrier::Offered { kind: 0xff00, probe, open } };

/// Inboxes of all processes of a test, by address.
#[derive(Default)]
pub(crate) struct Exchange {
    inboxes: Mutex<HashMap<String, Weak<dyn Inbox>>>,
}

struct Member {
    exchange: Arc<Exchange>,
    address: String,
    /// The exchange holds only a weak reference, so that the inbox lives as long as the transport.
    _inbox: Arc<dyn Inbox>,
}

struct Wire {
    exchange: Arc<Exchange>,
    from: String,
    to: String,
    parcels: Arc<SendBuffers>,
    queue: Weak<dyn SendQueue>,
}

impl Exchange {
    /// Registers an inbox at an address, and returns its transport.
    pub(crate) fn join(
        self: &Arc<Self>,
        address: &str,
        inbox: &Arc<dyn Inbox>,
    ) -> Arc<dyn Transport> {
        self.inboxes.lock().insert(address.into(), Arc::downgrade(inbox));
        let (exchange, inbox) = (Arc::clone(self), Arc::clone(inbox));
        Arc::new(Member { exchange, address: address.into(), _inbox: inbox })
    }
}

impl Transport for Member {
    fn address(&self) -> &str {
        &self.address
    }

    fn line(&self, to: &str, queue: Weak<dyn SendQueue>) -> Box<dyn Sender> {
        let (exchange, from) = (Arc::clone(&self.exchange), self.address.clone());
        Box::new(Wire { exchange, from, to: to.into(), parcels: Arc::default(), queue })
    }

    fn close(&self) {
        self.exchange.inboxes.lock().remove(&self.address);
    }
}

impl Sender for Wire {
    fn is_ready(&mut self) -> bool {
        true
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        self.parcels.take(room - lent)
    }

    fn send(&mut self, parcel: SendBuffer) {
        let inbox = self.exchange.inboxes.lock().get(&self.to).and_then(Weak::upgrade);
        if let Some(inbox) = inbox {
            deliver(&*inbox, &self.from, parcel);
        }
    }

    fn call_back(&mut self) {
        let queue = Weak::clone(&self.queue);
        std::thread::spawn(move || super::send_queue::go_on(&queue));
    }
}

/// Gives the bytes of a buffer to an inbox, in pieces of uneven size, as a network delivers them.
fn deliver(inbox: &dyn Inbox, from: &str, parcel: SendBuffer) {
    let len = parcel.len();
    let SendMemory::Own(own) = parcel.memory else { return };
    let own = own.cut(len);
    let (mut bytes, mut taken) = (Vec::new(), 0);
    for (at, lent) in parcel.lent {
        bytes.extend_from_slice(&own.as_ref()[taken..at]);
        bytes.extend_from_slice(&lent);
        taken = at;
    }
    bytes.extend_from_slice(&own.as_ref()[taken..]);
    inbox.arrived(from, bytes.len(), &mut bytes.chunks(bytes.len() / 3 + 1).map(Piece::from));
}

type AcceptedOffers = HashMap<u64, (Arc<dyn Inbox>, String)>;

/// The receivers of this process that have accepted offers, by the number in the offer, with the sender.
static ACCEPTED: LazyLock<Mutex<AcceptedOffers>> = LazyLock::new(Mutex::default);
static OFFERS: AtomicU64 = AtomicU64::new(0);

/// A transport of the table.
struct MemoryTransport {
    inbox: Arc<dyn Inbox>,
}

struct MemoryPath {
    number: u64,
    was_offered: bool,
    was_open: bool,
    parcels: Arc<SendBuffers>,
}

fn probe(choice: &TransportChoice<'_>) -> Result<String, String> {
    if choice.transport == ROW.name { Ok(String::new()) } else { Err("it is for tests".into()) }
}

#[allow(clippy::unnecessary_wraps, reason = "other transports may fail")]
fn open(_: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Arc<dyn PeerTransport>, String> {
    Ok(Arc::new(MemoryTransport { inbox: Arc::clone(inbox) }))
}

impl PeerTransport for MemoryTransport {
    fn path(&self, _: &str) -> Result<Box<dyn PeerPath>, String> {
        let number = OFFERS.fetch_add(1, Ordering::Relaxed);
        let (was_offered, was_open, parcels) = (false, false, Arc::default());
        Ok(Box::new(MemoryPath { number, was_offered, was_open, parcels }))
    }

    fn accept(&self, from: &str, offer: &[u8]) {
        let Ok(number) = offer.try_into().map(u64::from_le_bytes) else { return };
        ACCEPTED.lock().insert(number, (Arc::clone(&self.inbox), from.into()));
    }

    fn end(&self, address: &str, _: bool) -> bool {
        ACCEPTED.lock().retain(|_, (inbox, from)| {
            !Arc::ptr_eq(inbox, &self.inbox) || who_and_address(from).1 != address
        });
        false
    }

    fn close(&self) {
        ACCEPTED.lock().retain(|_, (inbox, _)| !Arc::ptr_eq(inbox, &self.inbox));
    }
}

impl PeerPath for MemoryPath {
    fn offer(&mut self) -> Option<Vec<u8>> {
        let is_first = !std::mem::replace(&mut self.was_offered, true);
        is_first.then(|| self.number.to_le_bytes().into())
    }

    fn state(&mut self) -> PathState {
        if ACCEPTED.lock().contains_key(&self.number) {
            self.was_open = true;
            PathState::Open
        } else if self.was_open {
            PathState::Broken("the receiver has ended".into())
        } else {
            PathState::Pending
        }
    }

    fn has_room(&mut self, len: usize) -> bool {
        len <= 1 << 20
    }

    fn parcel(&mut self, room: usize, lent: usize) -> Option<SendBuffer> {
        self.has_room(room).then(|| self.parcels.take(room - lent))
    }

    fn send(&mut self, parcel: SendBuffer) {
        let accepted = ACCEPTED.lock().get(&self.number).cloned();
        if let Some((inbox, from)) = accepted {
            deliver(&*inbox, &from, parcel);
        }
    }
}
