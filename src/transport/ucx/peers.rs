//! The peers of a worker: who may send, by which secret, and how each is reached. Used under one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::Link;
use super::offer::{Secret, UcxMessage, UcxOffer};
use super::worker::{Arrival, Endpoint, UcxWorker};
use crate::log::{Level, log};
use crate::transport::random::random_bytes;
use crate::transport::send_buffer::SendMemory;
use crate::transport::{SendBuffer, who_and_address};

/// Time in which messages of a process that has ended may still arrive.
const LAST_WORDS: Duration = Duration::from_millis(5);

pub(super) struct UcxPeers {
    /// None after the end.
    worker: Option<UcxWorker>,
    /// By address.
    peers: HashMap<String, UcxPeer>,
    /// Whose messages have a secret: the sender, as in [`crate::transport::Inbox::arrived`].
    senders: HashMap<Secret, Option<Arc<str>>>,
    ending: Vec<EndingPeer>,
    /// Whether the thread sleeps until the worker is signalled.
    pub(super) is_asleep: bool,
    /// Messages with a secret of no peer, and of an unknown kind.
    dropped: u64,
}

struct UcxPeer {
    link: Arc<Link>,
    /// What the peer puts into its messages.
    secret: Secret,
    remote: Option<UcxOffer>,
    endpoint: Option<Endpoint>,
    /// The peer has contacted this process, which cannot reach it yet.
    owes_answer: bool,
}

/// A peer whose connection has ended.
struct EndingPeer {
    address: String,
    secret: Secret,
    endpoint: Option<Endpoint>,
    reports: bool,
    quiet_since: Instant,
}

/// What the thread hands on, without the lock.
#[derive(Default)]
pub(super) struct Deliveries {
    pub(super) frames: Vec<(Arc<str>, Arrival)>,
    /// Addresses of processes that have ended.
    pub(super) down: Vec<String>,
}

impl UcxPeers {
    pub(super) fn new(worker: UcxWorker) -> Self {
        Self {
            worker: Some(worker),
            peers: HashMap::new(),
            senders: HashMap::new(),
            ending: Vec::new(),
            is_asleep: false,
            dropped: 0,
        }
    }

    /// The link to a peer, and the offer for it. None without random bytes, and after the end.
    pub(super) fn offer(&mut self, to: &str) -> Option<(Arc<Link>, Vec<u8>)> {
        let secret = self.peer(to)?.secret;
        let address = self.worker.as_ref()?.address();
        Some((Arc::clone(&self.peers[to].link), UcxOffer::encode(&secret, address)))
    }

    fn peer(&mut self, address: &str) -> Option<&mut UcxPeer> {
        if !self.peers.contains_key(address) {
            let (secret, link) = (random_bytes()?, Arc::default());
            let (remote, endpoint) = (None, None);
            let peer = UcxPeer { link, secret, remote, endpoint, owes_answer: false };
            self.senders.insert(secret, None);
            self.peers.insert(address.into(), peer);
        }
        self.peers.get_mut(address)
    }

    /// Connects to a peer by its offer, and contacts it. `from` is as in [`crate::transport::Inbox::arrived`].
    pub(super) fn accept(&mut self, from: &str, offer: UcxOffer) {
        let address = who_and_address(from).1;
        let Some(peer) = self.peer(address) else { return };
        if peer.remote.as_ref() == Some(&offer) && !peer.link.is_broken() {
            return;
        }
        let (secret, former) = (peer.secret, peer.endpoint.take());
        self.senders.insert(secret, Some(from.into()));
        let Some(worker) = &mut self.worker else { return };
        former.into_iter().for_each(|former| worker.disconnect(former));
        let Some(peer) = self.peers.get_mut(address) else { return };
        peer.link.contact();
        let connected = worker.connect(&offer.address).and_then(|endpoint| {
            peer.endpoint = Some(endpoint);
            worker.send_header(endpoint, UcxMessage::Contact.header(&offer.secret))?;
            if std::mem::take(&mut peer.owes_answer) {
                worker.send_header(endpoint, UcxMessage::Answer.header(&offer.secret))?;
            }
            Ok(())
        });
        peer.remote = Some(offer);
        if let Err(error) = connected {
            peer.link.fail(&error);
        }
        self.wake();
    }

    /// The thread has something to do.
    fn wake(&mut self) {
        if let Some(worker) = self.worker.as_ref().filter(|_| self.is_asleep) {
            worker.signal();
            self.is_asleep = false;
        }
    }

    /// Ends the sleep of the thread.
    pub(super) fn signal(&self) {
        self.worker.iter().for_each(UcxWorker::signal);
    }

    /// Sends a buffer to a peer.
    pub(super) fn send(&mut self, to: &str, parcel: SendBuffer) {
        let len = parcel.len();
        let (Some(peer), SendMemory::Own(own)) = (self.peers.get(to), parcel.memory) else {
            return;
        };
        let (Some(worker), Some(endpoint), Some(remote)) =
            (&mut self.worker, peer.endpoint, &peer.remote)
        else {
            return;
        };
        let header = UcxMessage::Frames.header(&remote.secret);
        match worker.send(endpoint, header, own.cut(len), parcel.lent, &peer.link) {
            Ok(true) => self.wake(),
            Ok(false) => {}
            Err(error) => peer.link.fail(&error),
        }
    }

    /// The last connection with a process has ended; whether the thread reports that.
    pub(super) fn end(&mut self, address: &str, reports: bool) -> bool {
        let Some(peer) = self.peers.remove(address) else { return false };
        peer.link.fail("the connection has ended");
        self.ending.push(EndingPeer {
            address: address.into(),
            secret: peer.secret,
            endpoint: peer.endpoint,
            reports,
            quiet_since: Instant::now(),
        });
        self.wake();
        reports
    }

    /// Whether the thread must look again soon.
    pub(super) fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.peers.values().all(|peer| peer.link.is_idle() || peer.link.is_broken())
    }

    /// Lets the worker work, and takes what has arrived; whether something has happened.
    pub(super) fn turn(&mut self, deliveries: &mut Deliveries) -> bool {
        let Some(worker) = &mut self.worker else { return false };
        let mut is_busy = worker.progress();
        while let Some((number, reason)) = worker.take_failure() {
            let is_it = |peer: &&UcxPeer| peer.endpoint.is_some_and(|it| it.number == number);
            if let Some(peer) = self.peers.values().find(is_it) {
                peer.link.fail(&reason);
            }
            is_busy = true;
        }
        while let Some(arrival) = self.worker.as_mut().and_then(UcxWorker::take_arrival) {
            self.take(arrival, deliveries);
            is_busy = true;
        }
        if is_busy {
            let now = Instant::now();
            self.ending.iter_mut().for_each(|ending| ending.quiet_since = now);
        } else {
            is_busy = self.finish_ending(deliveries);
        }
        is_busy
    }

    /// Checks a message: it comes from the peer whose secret it has.
    fn take(&mut self, arrival: Arrival, deliveries: &mut Deliveries) {
        let (secret, kind) = UcxMessage::decode(&arrival.header);
        let from = self.senders.get(&secret).cloned();
        match (from, kind) {
            (Some(Some(from)), Some(UcxMessage::Frames)) => {
                return deliveries.frames.push((from, arrival));
            }
            (Some(_), Some(UcxMessage::Contact)) => self.contacted(&secret),
            (Some(_), Some(UcxMessage::Answer)) => self.answered(&secret),
            _ => {
                self.dropped += 1;
                log(Level::Debug, || "dropped a message over UCX without a secret".into());
            }
        }
        self.release(arrival);
    }

    /// Takes the memory of a message back.
    pub(super) fn release(&mut self, arrival: Arrival) {
        if let Some(worker) = &mut self.worker {
            worker.release(arrival);
        }
    }

    fn contacted(&mut self, secret: &Secret) {
        let Some(peer) = self.peers.values_mut().find(|peer| peer.secret == *secret) else {
            return;
        };
        let (Some(worker), Some(endpoint), Some(remote)) =
            (&mut self.worker, peer.endpoint, &peer.remote)
        else {
            peer.owes_answer = true;
            return;
        };
        if let Err(error) = worker.send_header(endpoint, UcxMessage::Answer.header(&remote.secret))
        {
            peer.link.fail(&error);
        }
    }

    fn answered(&mut self, secret: &Secret) {
        let peer = self.peers.values().find(|peer| peer.secret == *secret);
        peer.iter().for_each(|peer| peer.link.answer());
    }

    /// Reports peers that have ended, once nothing arrives any more; whether there was one.
    fn finish_ending(&mut self, deliveries: &mut Deliveries) -> bool {
        let is_over = |ending: &mut EndingPeer| ending.quiet_since.elapsed() >= LAST_WORDS;
        let over: Vec<_> = self.ending.extract_if(.., is_over).collect();
        let is_one = !over.is_empty();
        for EndingPeer { address, secret, endpoint, reports, .. } in over {
            self.senders.remove(&secret);
            if let (Some(worker), Some(endpoint)) = (&mut self.worker, endpoint) {
                worker.disconnect(endpoint);
            }
            if reports {
                deliveries.down.push(address);
            }
        }
        is_one
    }

    /// Prepares the sleep of the thread; false if there is something to do.
    pub(super) fn arm(&mut self) -> bool {
        self.is_asleep = self.worker.as_mut().is_some_and(UcxWorker::arm);
        self.is_asleep
    }

    /// Ends the worker. What was not sent is lost.
    pub(super) fn close(&mut self) {
        self.peers.values().for_each(|peer| peer.link.fail("this process has ended"));
        (self.peers, self.senders) = (HashMap::new(), HashMap::new());
        self.worker = None;
    }

    /// Messages that no admitted peer has sent.
    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.dropped + self.worker.as_ref().map_or(0, UcxWorker::foreign)
    }

    #[cfg(test)]
    pub(super) fn worker(&mut self) -> &mut UcxWorker {
        self.worker.as_mut().unwrap()
    }
}
