//! Shared memory as a row of the table of transports.

use std::sync::Arc;

use super::offer::SegmentOffer;
use super::receiver::ShmReceivers;
use super::sender::ShmSender;
use crate::transport::peer_transport::{
    Carrier, PathState, PeerPath, PeerTransport, TransportChoice, TransportRow,
};
use crate::transport::polling::Polling;
use crate::transport::send_buffer::SendMemory;
use crate::transport::{Inbox, SendBuffer, TransportConfig};

pub(in crate::transport) const ROW: TransportRow =
    TransportRow { name: "shm", carrier: Carrier::Offered { kind: 1, probe, open } };

fn probe(choice: &TransportChoice<'_>) -> Result<String, String> {
    if !choice.shm {
        return Err("shm=no".into());
    }
    Ok("memory of this machine, with processes that can open it".into())
}

#[allow(clippy::unnecessary_wraps, reason = "other transports may fail")]
fn open(_: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Arc<dyn PeerTransport>, String> {
    Ok(Arc::new(ShmReceivers::new(Arc::clone(inbox))))
}

impl PeerTransport for ShmReceivers {
    fn path(&self, _: &str) -> Result<Box<dyn PeerPath>, String> {
        match ShmSender::new() {
            Ok(sender) => Ok(Box::new(ShmPath { sender, was_offered: false })),
            Err(error) => Err(format!("no memory to share: {error}")),
        }
    }

    fn accept(&self, from: &str, offer: &[u8]) {
        if let Some(offer) = SegmentOffer::decode(offer) {
            self.take(from, &offer);
        }
    }

    fn add_to(&self, polling: &mut Polling) {
        ShmReceivers::add_to(self, polling);
    }

    fn end(&self, address: &str, reports: bool) -> bool {
        self.forget(address, reports)
    }

    fn close(&self) {
        ShmReceivers::close(self);
    }
}

struct ShmPath {
    sender: ShmSender,
    was_offered: bool,
}

impl PeerPath for ShmPath {
    fn offer(&mut self) -> Option<Vec<u8>> {
        let offer = if std::mem::replace(&mut self.was_offered, true) {
            self.sender.renewed()
        } else {
            Some(self.sender.offer())
        };
        offer.map(|offer| offer.encode())
    }

    fn state(&mut self) -> PathState {
        if self.sender.is_declined() {
            PathState::Broken("the peer does not read the memory of this process".into())
        } else if self.sender.is_taken() {
            PathState::Open
        } else {
            PathState::Pending
        }
    }

    fn has_room(&mut self, len: usize) -> bool {
        self.sender.has_room(len)
    }

    fn parcel(&mut self, room: usize, _: usize) -> Option<SendBuffer> {
        self.sender.claim(room).map(SendBuffer::shared)
    }

    fn send(&mut self, parcel: SendBuffer) {
        let len = parcel.len();
        if let SendMemory::Shared(claim) = parcel.memory {
            self.sender.publish(&claim, len);
        }
    }
}
