//! Sessions, with the subscriptions and liveliness tokens of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::sample::{Sample, SampleKind};
use zenoh::{Session, Wait};

use super::settings::{open, settings};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use crate::transport::shm::{self, ShmReceivers};
use crate::transport::tcp::{self, TcpTransport};
use crate::transport::zenoh::access::{self, AccessSettings};
use crate::transport::zenoh::names::ProcessNames;
use crate::transport::{Inbox, TransportConfig};

/// Timeout of one attempt to connect.
pub(super) const CONNECT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct ZenohSession {
    pub(super) connections: Vec<Arc<ZenohConnection>>,
    pub(super) closed: bool,
}

/// A session, with subscriptions and a liveliness token unless it only sends.
pub(super) struct ZenohConnection {
    pub(super) session: Session,
    ears: Mutex<Option<Subscriptions>>,
    closed: AtomicBool,
}

type Subscriptions = (Subscriber<()>, Subscriber<()>, LivelinessToken, Option<Arc<ShmReceivers>>);

/// A process, with the receivers of the events of all its sessions.
pub(super) struct SessionOwner {
    pub(super) address: Arc<str>,
    pub(super) place: TransportConfig,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) streams: Option<Arc<TcpTransport>>,
}

impl ZenohConnection {
    pub(super) fn to_speak(session: Session) -> Self {
        Self { session, ears: Mutex::new(None), closed: AtomicBool::new(false) }
    }

    pub(super) fn to_hear(session: Session, party: &SessionOwner) -> zenoh::Result<Self> {
        let SessionOwner { address, place, inbox, streams } = party;
        let names = ProcessNames::new(address, place);
        let (own, token) = (names.place_of_own(), names.speaker());
        let (receiver, speakers) = (Arc::clone(inbox), names.clone());
        let inlets = place.shm.then(|| Arc::new(ShmReceivers::new(Arc::clone(inbox))));
        let (rings, sockets) = (inlets.clone(), streams.clone());
        let arrived = move |sample: Sample| {
            let from = speakers.from(sample.key_expr().as_str());
            let Some(attachment) = sample.attachment() else {
                let mut pieces = sample.payload().slices();
                return receiver.arrived(&from, sample.payload().len(), &mut pieces);
            };
            let offer = attachment.to_bytes();
            if let (Some(rings), Some(offer)) = (&rings, shm::SegmentOffer::decode(&offer)) {
                rings.take(&from, &offer);
            }
            if let (Some(sockets), Some(offer)) = (&sockets, tcp::PortOffer::decode(&offer)) {
                sockets.take(&from, offer);
            }
        };
        let messages =
            session.declare_subscriber(format!("kvstore/{own}/*/*")).callback(arrived).wait()?;
        let (receiver, rings, sockets) = (Arc::clone(inbox), inlets.clone(), streams.clone());
        let lives = move |sample: Sample| {
            let gone = names.gone(sample.key_expr().as_str());
            if let (SampleKind::Delete, Some(gone)) = (sample.kind(), gone) {
                let by_ring = rings.as_ref().is_some_and(|rings| rings.forget(&gone));
                let by_socket = sockets.as_ref().is_some_and(|sockets| sockets.forget(&gone));
                if !by_ring && !by_socket {
                    receiver.down(&gone);
                }
            }
        };
        let liveliness = session.liveliness();
        let lives = liveliness.declare_subscriber("kvstore-alive/*/*").callback(lives).wait()?;
        let token = liveliness.declare_token(format!("kvstore-alive/{token}")).wait()?;
        let ears = Mutex::new(Some((messages, lives, token, inlets)));
        Ok(Self { session, ears, closed: AtomicBool::new(false) })
    }

    /// Closes the session on a thread of its own, which signals `done` at its end; false if it was closed
    /// before.
    pub(super) fn close_apart(self: Arc<Self>, done: Sender<()>) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        let connection = Arc::clone(&self);
        let close = move || {
            connection.close();
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("kvstore-close".into());
        if let Err(error) = crate::pool::without_signals(|| thread.spawn(close)) {
            log(Level::Warn, || format!("cannot start a thread to close a session: {error}"));
            self.close();
            return false;
        }
        true
    }

    pub(super) fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let ears = self.ears.lock().take();
        if let Some((.., Some(inlets))) = &ears {
            inlets.close();
        }
        drop(ears);
        if let Err(error) = self.session.close().wait() {
            log(Level::Debug, || format!("closing a session: {error}"));
        }
    }
}

/// Dials an address: over the first session this process sends, over the last it receives.
pub(super) fn call(to: &str, party: &SessionOwner) -> zenoh::Result<Vec<Arc<ZenohConnection>>> {
    let place = &party.place;
    let names = ProcessNames::new(&party.address, place);
    let access = match &place.credentials {
        Some(credentials) => access::of_caller(credentials, &names, to),
        None => AccessSettings::default(),
    };
    let mut config = settings(place, &access)?;
    config.insert_json5("mode", "\"client\"")?;
    config.insert_json5("connect/endpoints", &format!("[\"{}/{to}\"]", place.protocol()))?;
    config.insert_json5("connect/timeout_ms", &CONNECT.as_millis().to_string())?;
    config.insert_json5("connect/exit_on_failure", "true")?;
    let again = "{ period_init_ms: 20, period_max_ms: 200, period_increase_factor: 2 }";
    config.insert_json5("connect/retry", again)?;
    let mut connections = Vec::new();
    if !names.is_root(to) {
        connections.push(Arc::new(ZenohConnection::to_speak(open(config.clone())?)));
    }
    let hears = ZenohConnection::to_hear(open(config)?, party)?;
    connections.push(Arc::new(hears));
    Ok(connections)
}
