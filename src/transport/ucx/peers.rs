//! The peers of a worker: who may send, by which tag, by which keys, and how each is reached. Used under one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arrival::Arrival;
use super::link::Link;
use super::offer::{FRONT, HEADER, PairSecret, PairTag, UcxHeader, UcxMessage, UcxOffer};
use super::worker::{Endpoint, UcxWorker};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::random::random_bytes;
use crate::transport::send_buffer::{LentParts, SendMemory};
use crate::transport::tls::{MessageOpener, MessageSealer, records_len, write_content};
use crate::transport::{ReceiveRoom, SendBuffer, SendBuffers, who_and_address};

/// Time in which messages of a process that has ended may still arrive.
const LAST_WORDS: Duration = Duration::from_millis(5);

/// Size of a frame in bytes from which on its front travels in the header; UCX copies smaller ones.
const LARGE: usize = 32 << 10;

/// Seals messages to one process; shared, so that no thread seals under the lock of all peers.
type SharedSealer = Arc<Mutex<MessageSealer>>;

pub(super) struct UcxPeers {
    /// None after the end.
    worker: Option<UcxWorker>,
    /// Whether messages are sealed.
    is_sealed: bool,
    buffers: Arc<SendBuffers>,
    /// By address.
    peers: HashMap<String, UcxPeer>,
    /// Whose messages have a tag.
    senders: HashMap<PairTag, UcxSender>,
    /// What seals, by the tag of the offer. Never removed: no number may seal twice under one key, whatever
    /// offers come again.
    sealers: HashMap<PairTag, SharedSealer>,
    ending: Vec<EndingPeer>,
    /// Whether the thread sleeps until the worker is signalled.
    pub(super) is_asleep: bool,
    /// Messages with a tag of no peer, of an unknown kind, or that cannot be opened.
    dropped: u64,
}

struct UcxPeer {
    link: Arc<Link>,
    /// What the peer puts into its messages, and of what their keys are made.
    tag: PairTag,
    secret: Option<PairSecret>,
    remote: Option<UcxOffer>,
    endpoint: Option<Endpoint>,
    /// The peer has contacted this process, which cannot reach it yet.
    owes_answer: bool,
}

/// A process whose messages have a tag.
struct UcxSender {
    /// The sender, as in [`crate::transport::Inbox::arrived`]. None before its offer.
    from: Option<Arc<str>>,
    opener: Option<MessageOpener>,
}

impl UcxSender {
    /// Whether the front of a frame may follow a header: that of frames which are not sealed.
    fn may_send_front(&self, header: Option<UcxHeader>) -> bool {
        let is_plain = self.from.is_some() && self.opener.is_none();
        is_plain && header == Some(UcxHeader::Plain(UcxMessage::Frames))
    }
}

/// A peer whose connection has ended.
struct EndingPeer {
    address: String,
    tag: PairTag,
    endpoint: Option<Endpoint>,
    reports: bool,
    quiet_since: Instant,
}

/// Frames of a peer: bytes of a message from a place on.
pub(super) struct UcxFrames {
    pub(super) from: Arc<str>,
    pub(super) arrival: Arrival,
    pub(super) at: usize,
}

/// What the thread hands on, without the lock.
#[derive(Default)]
pub(super) struct Deliveries {
    pub(super) frames: Vec<UcxFrames>,
    /// Addresses of processes that have ended.
    pub(super) down: Vec<String>,
}

impl UcxPeers {
    pub(super) fn new(worker: UcxWorker, is_sealed: bool, buffers: &Arc<SendBuffers>) -> Self {
        Self {
            worker: Some(worker),
            is_sealed,
            buffers: Arc::clone(buffers),
            peers: HashMap::new(),
            senders: HashMap::new(),
            sealers: HashMap::new(),
            ending: Vec::new(),
            is_asleep: false,
            dropped: 0,
        }
    }

    /// The link to a peer, and the offer for it. None without random bytes, and after the end.
    pub(super) fn offer(&mut self, to: &str) -> Option<(Arc<Link>, Vec<u8>)> {
        let peer = self.peer(to)?;
        let (tag, secret, link) = (peer.tag, peer.secret, Arc::clone(&peer.link));
        let address = self.worker.as_ref()?.address();
        Some((link, UcxOffer::encode(&tag, secret.as_ref(), address)))
    }

    fn peer(&mut self, address: &str) -> Option<&mut UcxPeer> {
        if !self.peers.contains_key(address) {
            let (tag, link) = (random_bytes()?, Arc::default());
            let secret: Option<PairSecret> =
                if self.is_sealed { Some(random_bytes()?) } else { None };
            let opener = secret.map(MessageOpener::new).transpose().ok()?;
            let (remote, endpoint) = (None, None);
            let peer = UcxPeer { link, tag, secret, remote, endpoint, owes_answer: false };
            self.senders.insert(tag, UcxSender { from: None, opener });
            self.peers.insert(address.into(), peer);
        }
        self.peers.get_mut(address)
    }

    /// Connects to a peer by its offer, and contacts it. `from` is as in [`crate::transport::Inbox::arrived`].
    pub(super) fn accept(&mut self, from: &str, offer: UcxOffer) {
        let address = who_and_address(from).1;
        // Both sides have credentials, or neither has.
        if offer.secret.is_some() != self.is_sealed {
            return log(Level::Debug, || format!("dropped an offer of UCX of {from}: other keys"));
        }
        let Some(peer) = self.peer(address) else { return };
        if peer.remote.as_ref() == Some(&offer) && !peer.link.is_broken() {
            return;
        }
        let (tag, former) = (peer.tag, peer.endpoint.take());
        if let Some(sender) = self.senders.get_mut(&tag) {
            sender.from = Some(from.into());
        }
        let Some(worker) = &mut self.worker else { return };
        former.into_iter().for_each(|former| worker.disconnect(former));
        let connected = worker.connect(&offer.address);
        if let Some(secret) = offer.secret
            && !self.sealers.contains_key(&offer.tag)
            && let Ok(sealer) = MessageSealer::new(secret)
        {
            self.sealers.insert(offer.tag, Arc::new(Mutex::new(sealer)));
        }
        let Some(peer) = self.peers.get_mut(address) else { return };
        peer.link.contact();
        peer.remote = Some(offer);
        let owes_answer = std::mem::take(&mut peer.owes_answer);
        let link = Arc::clone(&peer.link);
        let sent = connected.and_then(|endpoint| {
            self.peers.get_mut(address).into_iter().for_each(|it| it.endpoint = Some(endpoint));
            self.say(address, UcxMessage::Contact)?;
            if owes_answer { self.say(address, UcxMessage::Answer) } else { Ok(()) }
        });
        if let Err(error) = sent {
            link.fail(&error);
        }
        self.wake();
    }

    /// Sends a message without frames.
    fn say(&mut self, to: &str, message: UcxMessage) -> Result<(), String> {
        let Some(peer) = self.peers.get(to) else { return Ok(()) };
        let (Some(worker), Some(endpoint), Some(remote)) =
            (&mut self.worker, peer.endpoint, &peer.remote)
        else {
            return Ok(());
        };
        if !self.is_sealed {
            return worker.send_header(endpoint, message.header(&remote.tag));
        }
        let parcel = self.buffers.take_records(0, FRONT);
        let sealer = self.sealers.get(&remote.tag).ok_or("there are no keys")?;
        let (number, parcel) = seal(sealer, message, parcel)?;
        let SendMemory::Records(own, _) = parcel.memory else { return Ok(()) };
        let header = UcxHeader::sealed(&remote.tag, number);
        worker
            .send(endpoint, header, 0, own.cut(records_len(FRONT)), LentParts::new(), &peer.link)
            .map(drop)
    }

    /// What seals messages to a peer.
    pub(super) fn sealer(&self, to: &str) -> Option<SharedSealer> {
        let remote = self.peers.get(to)?.remote.as_ref()?;
        self.sealers.get(&remote.tag).map(Arc::clone)
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

    /// Sends a buffer to a peer; one of records was sealed as the message of this number, by its sealer.
    pub(super) fn send(&mut self, to: &str, parcel: SendBuffer, number: u64) {
        let (len, peer) = (parcel.len(), self.peers.get(to));
        let lent: usize = parcel.lent.iter().map(|(_, part)| part.len()).sum();
        let is_large = len + lent >= LARGE;
        let Some(peer) = peer else { return };
        let (Some(worker), Some(endpoint), Some(remote)) =
            (&mut self.worker, peer.endpoint, &peer.remote)
        else {
            return;
        };
        let (header, front, own) = match parcel.memory {
            SendMemory::Own(own) if !self.is_sealed => {
                let front = if is_large { parcel.front } else { 0 };
                (UcxMessage::Frames.header(&remote.tag), front, own.cut(len))
            }
            SendMemory::Records(own, _) => {
                (UcxHeader::sealed(&remote.tag, number), 0, own.cut(records_len(FRONT + len)))
            }
            SendMemory::Own(_) | SendMemory::Shared(_) => return,
        };
        match worker.send(endpoint, header, front, own, parcel.lent, &peer.link) {
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
            tag: peer.tag,
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

    /// Lets the worker work, and takes what has arrived; whether something has happened. Payloads of peers are received
    /// to what `block` gives, as [`crate::transport::PayloadBlocks`] does.
    pub(super) fn turn(
        &mut self,
        deliveries: &mut Deliveries,
        block: &dyn Fn(usize, &[u8]) -> Option<ReceiveRoom>,
    ) -> bool {
        let Some(worker) = &mut self.worker else { return false };
        let senders = &self.senders;
        let place = |header: &[u8; HEADER], front: &[u8], payload| -> Option<ReceiveRoom> {
            let (tag, header) = UcxHeader::decode(header);
            let is_of_peer = senders.get(&tag)?.may_send_front(header);
            is_of_peer.then(|| block(front.len() + payload, front)).flatten()
        };
        let mut is_busy = worker.progress(&place);
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

    /// Checks a message: it comes from the peer whose tag it has, and if messages are sealed, whose key it has.
    fn take(&mut self, mut arrival: Arrival, deliveries: &mut Deliveries) {
        let (tag, header) = UcxHeader::decode(&arrival.header);
        let opened = self.opened(&tag, header, &mut arrival);
        match opened {
            Some((UcxMessage::Frames, Some(from), at)) => {
                return deliveries.frames.push(UcxFrames { from, arrival, at });
            }
            Some((UcxMessage::Contact, ..)) => self.contacted(&tag),
            Some((UcxMessage::Answer, ..)) => self.answered(&tag),
            Some((UcxMessage::Frames, None, _)) | None => {
                self.dropped += 1;
                log(Level::Debug, || "dropped a message over UCX of no peer".into());
            }
        }
        self.release(arrival);
    }

    /// The kind of a message, its sender, and where its frames begin.
    fn opened(
        &mut self,
        tag: &PairTag,
        header: Option<UcxHeader>,
        arrival: &mut Arrival,
    ) -> Option<(UcxMessage, Option<Arc<str>>, usize)> {
        let sender = self.senders.get_mut(tag)?;
        let from = sender.from.clone();
        if !arrival.front.is_empty() && !sender.may_send_front(header) {
            return None;
        }
        match (header?, &mut sender.opener) {
            (UcxHeader::Plain(message), None) => Some((message, from, 0)),
            (UcxHeader::Sealed(number), Some(opener)) => {
                let worker = self.worker.as_mut()?;
                let is_open = worker.open_message(arrival, |bytes| opener.open(number, bytes));
                let message = UcxMessage::of_content(arrival.bytes()).filter(|_| is_open)?;
                Some((message, from, FRONT))
            }
            _ => None,
        }
    }

    /// Takes the memory of a message back.
    pub(super) fn release(&mut self, arrival: Arrival) {
        if let Some(worker) = &mut self.worker {
            worker.release(arrival);
        }
    }

    fn contacted(&mut self, tag: &PairTag) {
        let Some((address, peer)) = self.peers.iter_mut().find(|(_, peer)| peer.tag == *tag) else {
            return;
        };
        if peer.endpoint.is_none() || peer.remote.is_none() {
            peer.owes_answer = true;
            return;
        }
        let (address, link) = (address.clone(), Arc::clone(&peer.link));
        if let Err(error) = self.say(&address, UcxMessage::Answer) {
            link.fail(&error);
        }
    }

    fn answered(&mut self, tag: &PairTag) {
        let peer = self.peers.values().find(|peer| peer.tag == *tag);
        peer.iter().for_each(|peer| peer.link.answer());
    }

    /// Reports peers that have ended, once nothing arrives any more; whether there was one.
    fn finish_ending(&mut self, deliveries: &mut Deliveries) -> bool {
        let is_over = |ending: &mut EndingPeer| ending.quiet_since.elapsed() >= LAST_WORDS;
        let over: Vec<_> = self.ending.extract_if(.., is_over).collect();
        let is_one = !over.is_empty();
        for EndingPeer { address, tag, endpoint, reports, .. } in over {
            self.senders.remove(&tag);
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

    /// What messages to a peer have in their headers.
    #[cfg(test)]
    pub(super) fn tag_of(&self, to: &str) -> PairTag {
        self.peers[to].remote.as_ref().unwrap().tag
    }

    #[cfg(test)]
    pub(super) fn worker(&mut self) -> &mut UcxWorker {
        self.worker.as_mut().unwrap()
    }
}

/// Seals a buffer of records as the next message of a sealer; its number.
pub(super) fn seal(
    sealer: &SharedSealer,
    message: UcxMessage,
    mut parcel: SendBuffer,
) -> Result<(u64, SendBuffer), String> {
    let len = parcel.len();
    let SendMemory::Records(own, _) = &mut parcel.memory else {
        return Err("the buffer is not one of records".into());
    };
    let image = own.bytes_mut();
    write_content(image, 0, &message.front(len));
    let number = sealer.lock().seal(image, FRONT + len).map_err(|error| error.to_string())?;
    Ok((number, parcel))
}
