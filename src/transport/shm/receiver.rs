//! Receiver side of shared memory: the rings of all senders.

use std::collections::HashMap;
use std::sync::Arc;

use super::offer::{SegmentOffer, SegmentToken};
use super::ring::Ring;
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::polling::Polling;
use crate::transport::reader_end::EndMode;
use crate::transport::{Inbox, who_and_address};

/// Maximum number of rings, each of which has a thread; further senders of this machine use the network.
const MOST_RINGS: usize = 256;

/// All rings that this process reads.
pub(in crate::transport) struct ShmReceivers {
    inbox: Arc<dyn Inbox>,
    /// By the address of the sender; None after `close`.
    rings: Mutex<Option<RingsByPeer>>,
}

type RingsByPeer = HashMap<String, (SegmentToken, Arc<Ring>)>;

impl ShmReceivers {
    pub(in crate::transport) fn new(inbox: Arc<dyn Inbox>) -> Self {
        Self { inbox, rings: Mutex::new(Some(RingsByPeer::new())) }
    }

    /// Starts to read the segment of a sender. A segment that cannot be mapped leaves a ring whose thread has
    /// ended. `from` is as in [`Inbox::arrived`].
    pub(in crate::transport) fn take(&self, from: &str, offer: &SegmentOffer) {
        let address = who_and_address(from).1;
        let mut rings = self.rings.lock();
        let Some(rings) = &mut *rings else { return };
        match rings.get(address) {
            Some((known, _)) if *known == offer.token => return,
            None if rings.len() >= MOST_RINGS => return,
            _ => {}
        }
        match Ring::read(*offer, from, &self.inbox) {
            Ok(ring) => {
                if let Some((_, former)) = rings.insert(address.into(), (offer.token, ring)) {
                    former.end(EndMode::Drained);
                }
            }
            Err(error) => {
                log(Level::Debug, || format!("no memory is shared with {from}: {error}"));
            }
        }
    }

    /// Has a thread of the program read the rings.
    pub(in crate::transport) fn add_to(&self, polling: &mut Polling) {
        let rings = self.rings.lock();
        let rings = rings.iter().flat_map(RingsByPeer::values);
        rings.for_each(|(_, ring)| polling.add(Arc::clone(ring) as Arc<_>, 1));
    }

    /// A sender has ended: with `reports`, the ring's thread reports it as down, after all that was sent. False
    /// if no thread reads from it, so that none reports.
    pub(in crate::transport) fn forget(&self, address: &str, reports: bool) -> bool {
        let ring = self.rings.lock().as_mut().and_then(|rings| rings.remove(address));
        let how = if reports { EndMode::Gone } else { EndMode::Drained };
        ring.is_some_and(|(_, ring)| ring.end(how)) && reports
    }

    /// Stops all reading.
    pub(in crate::transport) fn close(&self) {
        for (_, (_, ring)) in self.rings.lock().take().into_iter().flatten() {
            ring.end(EndMode::Closed);
        }
    }
}

impl Drop for ShmReceivers {
    fn drop(&mut self) {
        self.close();
    }
}
