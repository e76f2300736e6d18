//! In-process implementation of `Transport`, for tests: messages pass between threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::send_buffer::SendMemory;
use super::{Inbox, SendBuffer, SendBuffers, Sender, Transport};
use crate::sys::sync::Mutex;

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

    fn line(&self, to: &str) -> Box<dyn Sender> {
        let (exchange, from) = (Arc::clone(&self.exchange), self.address.clone());
        Box::new(Wire { exchange, from, to: to.into(), parcels: Arc::default() })
    }

    fn close(&self) {
        self.exchange.inboxes.lock().remove(&self.address);
    }
}

impl Sender for Wire {
    fn is_ready(&self) -> bool {
        true
    }

    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer {
        self.parcels.take(room - lent)
    }

    fn send(&mut self, parcel: SendBuffer, _may_wait: bool) {
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
        let inbox = self.exchange.inboxes.lock().get(&self.to).and_then(Weak::upgrade);
        if let Some(inbox) = inbox {
            // In pieces of uneven size, as a network delivers them.
            inbox.arrived(&self.from, bytes.len(), &mut bytes.chunks(bytes.len() / 3 + 1));
        }
    }
}
