//! UCX as a transport: frames as active messages between workers of `libucp.so.0`, which is opened at run time and
//! never needed. Also called: fabric, RDMA, InfiniBand, RoCE.
//!
//! A process has one worker, and one thread that lets it work. Each offers its worker's address to its peers over
//! their admitted connections, with a tag for the pair; a message without a tag of this process is dropped. In jobs
//! with credentials the connections are sealed, the offer has a secret too, and messages are records whose keys are
//! made of it.
//! A sender contacts the peer first, and uses UCX once the peer has answered. The end of the connection ends the
//! endpoint: UCX does not notice every end of a process.

mod arrival;
mod devices;
mod events;
#[cfg(any(fuzzing, test))]
mod fuzz;
mod library;
mod link;
mod offer;
mod peers;
#[cfg(test)]
mod tests;
mod worker;

use std::cell::OnceCell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use super::peer_transport::{
    Carrier, PathState, PeerPath, PeerTransport, TransportChoice, TransportRow,
};
use super::polling::AdaptiveWait;
use super::{Inbox, Piece, SendBuffer, SendBuffers, TransportConfig};
use crate::sys::sync::Mutex;
use devices::fabric_devices;
#[cfg(any(fuzzing, test))]
pub(crate) use fuzz::fabric;
use library::Library;
use link::Link;
use offer::{FRONT, UcxMessage, UcxOffer};
use peers::{Deliveries, UcxFrames, UcxPeers};
use worker::UcxWorker;

pub(super) const ROW: TransportRow =
    TransportRow { name: "ucx", carrier: Carrier::Offered { kind: 16, probe, open } };

/// Timeout of one sleep of the thread, and while processes end.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_millis(1);
/// Timeout for the last bytes to be sent.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Whether this process could use UCX.
fn probe(choice: &TransportChoice<'_>) -> Result<String, String> {
    let devices = fabric_devices(crate::config::counted_fabrics().as_deref());
    let devices = match devices {
        Ok(devices) => devices.join(", "),
        Err(reason) if choice.is_auto() => return Err(reason),
        Err(reason) => reason,
    };
    let (major, minor, release) = Library::open()?.version;
    let sealed = if choice.has_credentials { ", sealed" } else { "" };
    Ok(format!("UCX {major}.{minor}.{release}{sealed}: {devices}"))
}

fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Arc<dyn PeerTransport>, String> {
    Ok(Arc::new(UcxTransport::start(inbox, &[], place.credentials.is_some())?))
}

struct UcxTransport {
    shared: Arc<Shared>,
    /// The thread, which may close the transport itself, behind a panic.
    id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and the senders share.
struct Shared {
    inbox: Arc<dyn Inbox>,
    peers: Mutex<UcxPeers>,
    /// Readable when the worker has something to do.
    efd: RawFd,
    closed: AtomicBool,
    buffers: Arc<SendBuffers>,
    /// Whether messages are sealed.
    is_sealed: bool,
}

impl UcxTransport {
    /// Opens a worker, with these settings of UCX beside those of its environment variables.
    fn start(
        inbox: &Arc<dyn Inbox>,
        settings: &[(&str, &str)],
        is_sealed: bool,
    ) -> Result<Self, String> {
        let (worker, buffers) = (UcxWorker::open(Library::open()?, settings)?, Arc::default());
        let shared = Arc::new(Shared {
            inbox: Arc::clone(inbox),
            efd: worker.efd(),
            peers: Mutex::new(UcxPeers::new(worker, is_sealed, &buffers)),
            closed: AtomicBool::new(false),
            buffers,
            is_sealed,
        });
        let working = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("kvstore-ucx".into());
        let thread = crate::pool::without_signals(|| thread.spawn(move || working.run()));
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { shared, id: thread.thread().id(), thread: Mutex::new(Some(thread)) })
    }

    fn is_thread(&self) -> bool {
        std::thread::current().id() == self.id
    }
}

impl PeerTransport for UcxTransport {
    fn path(&self, to: &str) -> Result<Box<dyn PeerPath>, String> {
        let offer = self.shared.peers.lock().offer(to);
        let (link, offer) = offer.ok_or("the system has no random bytes")?;
        let (shared, to) = (Arc::clone(&self.shared), to.into());
        Ok(Box::new(UcxPath { shared, to, link, offer: Some(offer) }))
    }

    fn accept(&self, from: &str, offer: &[u8]) {
        if let Some(offer) = UcxOffer::decode(offer) {
            self.shared.peers.lock().accept(from, offer);
        }
    }

    fn has_secrets(&self) -> bool {
        self.shared.is_sealed
    }

    fn end(&self, address: &str, reports: bool) -> bool {
        self.shared.peers.lock().end(address, reports)
    }

    fn finish(&self) {
        let end = Instant::now() + LAST_WORDS;
        while !self.is_thread() && !self.shared.peers.lock().is_idle() && Instant::now() < end {
            std::thread::sleep(LOOK_SOON);
        }
    }

    fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.peers.lock().signal();
        if self.is_thread() {
            return;
        }
        // Unlocked while it is joined.
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}

impl Drop for UcxTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The thread.
    fn run(&self) {
        let (mut lookout, mut deliveries) = (AdaptiveWait::new(), Deliveries::default());
        while !self.is_closed() {
            if !self.turn(&mut deliveries) {
                lookout.wait(|| self.turn(&mut deliveries).then_some(()), || self.sleep());
            }
        }
        self.peers.lock().close();
    }

    /// Lets the worker work, and hands on what has arrived; whether something has happened.
    fn turn(&self, deliveries: &mut Deliveries) -> bool {
        // Dropped without the lock: the last owner of the blocks closes the transport.
        let blocks = OnceCell::new();
        let block = |len, front: &[u8]| {
            blocks.get_or_init(|| self.inbox.blocks()).as_ref()?.block(len, front)
        };
        let is_busy = self.peers.lock().turn(deliveries, &block);
        for frames in deliveries.frames.drain(..) {
            self.hand_on(frames);
        }
        deliveries.down.drain(..).for_each(|address| self.inbox.down(&address));
        is_busy
    }

    /// Hands frames on, and gives their memory back.
    fn hand_on(&self, UcxFrames { from, mut arrival, at }: UcxFrames) {
        if !self.is_closed() {
            let room = arrival.take_room();
            let (front, bytes) = (&arrival.front[..], &arrival.bytes()[at..]);
            let len = front.len() + bytes.len();
            let mut pieces = [front, bytes].into_iter().map(Piece::from);
            match room {
                Some(payload) => self.inbox.received(&from, front, payload),
                None if self.is_sealed => self.inbox.opened(&from, len, &mut pieces),
                None => self.inbox.arrived(&from, len, &mut pieces),
            }
        }
        self.peers.lock().release(arrival);
    }

    fn sleep(&self) {
        let mut peers = self.peers.lock();
        if self.is_closed() || !peers.arm() {
            return;
        }
        let most = if peers.is_ending() { LOOK_SOON } else { LOOK_AGAIN };
        drop(peers);
        worker::wait(self.efd, most);
        self.peers.lock().is_asleep = false;
    }
}

/// The path to one peer.
struct UcxPath {
    shared: Arc<Shared>,
    to: Box<str>,
    link: Arc<Link>,
    /// Until it was sent.
    offer: Option<Vec<u8>>,
}

impl PeerPath for UcxPath {
    fn offer(&mut self) -> Option<Vec<u8>> {
        self.offer.take()
    }

    fn state(&mut self) -> PathState {
        self.link.state()
    }

    fn has_room(&mut self, len: usize) -> bool {
        self.link.has_room(len)
    }

    fn parcel(&mut self, room: usize, lent: usize) -> Option<SendBuffer> {
        let Shared { buffers, is_sealed, .. } = &*self.shared;
        self.link.has_room(room).then(|| {
            if *is_sealed { buffers.take_records(room, FRONT) } else { buffers.take(room - lent) }
        })
    }

    fn send(&mut self, mut parcel: SendBuffer) {
        let mut number = 0;
        if self.shared.is_sealed {
            let Some(sealer) = self.shared.peers.lock().sealer(&self.to) else { return };
            match peers::seal(&sealer, UcxMessage::Frames, parcel) {
                Ok(sealed) => (number, parcel) = sealed,
                Err(error) => return self.link.fail(&error),
            }
        }
        self.shared.peers.lock().send(&self.to, parcel, number);
    }
}
