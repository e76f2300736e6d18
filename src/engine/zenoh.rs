//! The engine: Eclipse Zenoh, over TCP or TLS.
//!
//! A process that listens has one session for all who come to it; whoever calls has sessions of its own
//! for each address: one for each direction, if values go there, because a socket that sends does not
//! receive meanwhile. A message is one put to `kvstore/<to>/<who>/<from>` (see `names`); while a
//! process lives, each of its sessions has the token `kvstore-alive/<who>/<name>`. A message may instead
//! be an attachment that says where its bytes are in the memory of this machine.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use bytes::Bytes;
use zenoh::bytes::ZBytes;
use zenoh::config::Config;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::{Sample, SampleKind};
use zenoh::{Session, Wait};

use super::access::{self, Access};
use super::names::Names;
use super::shared::{Inlets, Outlet, Reference};
use super::{
    Engine, Inbox, Line, Memory, Parcel, Parcels, Place, SOCKET_BYTES, has_port,
    name_of_this_process, probe, who_and_address,
};
use crate::config::TLS_VARIABLE;
use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::sync::Mutex;

const RECEIVE_BYTES: usize = 2 << 20;
/// Batches that wait for the socket.
const BATCHES: usize = 16;
/// How long one attempt to connect may take, and how soon the next one follows.
const CONNECT: Duration = Duration::from_secs(1);
const CONNECT_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long whoever calls may take to say who it is, and how many may be about it at a time.
const HANDSHAKE: Duration = Duration::from_secs(2);
const STRANGERS: usize = 1_000;
/// A put that waits for longer ends its session; the protocol has given up by then.
const BLOCKED: Duration = Duration::from_secs(60);
/// How long the end of all sessions may take. What waits for a process that takes nothing any more
/// ends later, on a thread of its own.
const CLOSE: Duration = Duration::from_secs(1);
/// Fewer bytes are sent as fast as word of them would be.
const SHARED: usize = 4 << 10;

pub(crate) struct Zenoh {
    address: Arc<str>,
    place: Place,
    inbox: Arc<dyn Inbox>,
    /// For those who come to us.
    hall: Option<Arc<Connection>>,
    /// Those that we made, to be closed.
    made: Arc<Mutex<Made>>,
    parcels: Arc<Parcels>,
}

#[derive(Default)]
struct Made {
    connections: Vec<Arc<Connection>>,
    closed: bool,
}

/// A session, and what lets this process hear and be seen over it, unless it only speaks.
struct Connection {
    session: Session,
    ears: Mutex<Option<Ears>>,
    closed: AtomicBool,
}

type Ears = (Subscriber<()>, Subscriber<()>, LivelinessToken);

impl Zenoh {
    pub(super) fn open(place: &Place, inbox: Arc<dyn Inbox>) -> Result<Self> {
        let made = Arc::default();
        let Some(listen) = &place.listen else {
            let name = name_of_this_process();
            let address = match &place.credentials {
                Some(credentials) => format!("{}@{name}", credentials.identity).into(),
                None => name.into(),
            };
            let parcels = Arc::default();
            return Ok(Self { address, place: place.clone(), inbox, hall: None, made, parcels });
        };
        let (address, session) = listen_at(listen, place)?;
        let hall = Connection::to_hear(session, &address, place, &inbox)
            .map_err(|error| fail!(Network, "cannot listen at {address}: {error}"))?;
        let (hall, parcels) = (Some(Arc::new(hall)), Arc::default());
        Ok(Self { address, place: place.clone(), inbox, hall, made, parcels })
    }
}

impl Engine for Zenoh {
    fn address(&self) -> &str {
        &self.address
    }

    fn line(&self, to: &str) -> Box<dyn Line> {
        let names = Names::new(&self.address, &self.place);
        let name = format!("kvstore/{}/{}", names.place(to), names.speaker());
        let way = if self.place.calls(to) {
            let (place, inbox) = (self.place.clone(), Arc::clone(&self.inbox));
            Way::Call { place, inbox, made: Arc::clone(&self.made), last: None, refused: false }
        } else {
            Way::Hall(self.hall.clone())
        };
        let (from, parcels) = (Arc::clone(&self.address), Arc::clone(&self.parcels));
        let (shm, apart) = (self.place.shm, threads_are_set());
        Box::new(ToOne {
            to: to.into(),
            from,
            name,
            way,
            publisher: None,
            parcels,
            shm,
            apart,
            outlet: None,
        })
    }

    fn close(&self) {
        let made = {
            let mut made = self.made.lock();
            made.closed = true;
            std::mem::take(&mut made.connections)
        };
        let (done, all) = mpsc::channel();
        let mut open = 0;
        for connection in made.into_iter().chain(self.hall.clone()) {
            open += usize::from(connection.close_apart(done.clone()));
        }
        let end = Instant::now() + CLOSE;
        for _ in 0..open {
            if all.recv_timeout(end.saturating_duration_since(Instant::now())).is_err() {
                log(Level::Debug, || "a session takes long to close".into());
                return;
            }
        }
    }
}

impl Drop for Zenoh {
    fn drop(&mut self) {
        self.close();
    }
}

impl Connection {
    fn to_speak(session: Session) -> Self {
        Self { session, ears: Mutex::new(None), closed: AtomicBool::new(false) }
    }

    fn to_hear(
        session: Session,
        me: &Arc<str>,
        place: &Place,
        inbox: &Arc<dyn Inbox>,
    ) -> zenoh::Result<Self> {
        let names = Names::new(me, place);
        let (own, token) = (names.place_of_own(), names.speaker());
        let (receiver, speakers) = (Arc::clone(inbox), names.clone());
        let inlets = Arc::new(place.shm.then(Inlets::default));
        let known = Arc::clone(&inlets);
        let arrived = move |sample: Sample| {
            let from = speakers.from(sample.key_expr().as_str());
            let Some(attachment) = sample.attachment() else {
                let mut pieces = sample.payload().slices();
                return receiver.arrived(&from, sample.payload().len(), &mut pieces);
            };
            if let Some(inlets) = &*known
                && let Some(reference) = Reference::decode(&attachment.to_bytes())
                && let Some(piece) = inlets.take(who_and_address(&from).1, &reference)
            {
                let bytes = std::iter::once(piece.bytes());
                let mut pieces = bytes.chain(std::iter::from_fn(|| {
                    piece.give_back();
                    None
                }));
                receiver.arrived(&from, piece.bytes().len(), &mut pieces);
            }
        };
        let messages =
            session.declare_subscriber(format!("kvstore/{own}/*/*")).callback(arrived).wait()?;
        let receiver = Arc::clone(inbox);
        let lives = move |sample: Sample| {
            let gone = names.gone(sample.key_expr().as_str());
            if let (SampleKind::Delete, Some(gone)) = (sample.kind(), gone) {
                if let Some(inlets) = &*inlets {
                    inlets.forget(&gone);
                }
                receiver.down(&gone);
            }
        };
        let liveliness = session.liveliness();
        let lives = liveliness.declare_subscriber("kvstore-alive/*/*").callback(lives).wait()?;
        let token = liveliness.declare_token(format!("kvstore-alive/{token}")).wait()?;
        let ears = Mutex::new(Some((messages, lives, token)));
        Ok(Self { session, ears, closed: AtomicBool::new(false) })
    }

    /// Closes it on a thread of its own, which says when it has; false if it was closed before.
    fn close_apart(self: Arc<Self>, done: Sender<()>) -> bool {
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

    fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        drop(self.ears.lock().take());
        if let Err(error) = self.session.close().wait() {
            log(Level::Debug, || format!("closing a session: {error}"));
        }
    }
}

/// A line to one address.
struct ToOne {
    to: Arc<str>,
    from: Arc<str>,
    name: String,
    way: Way,
    publisher: Option<Publisher<'static>>,
    parcels: Arc<Parcels>,
    shm: bool,
    /// Never used by a thread of the engine: it may be the one that sends.
    apart: bool,
    /// Memory that the other side reads, if it is on this machine.
    outlet: Option<Outlet>,
}

enum Way {
    /// They come to us, if we listen.
    Hall(Option<Arc<Connection>>),
    /// We call them.
    Call {
        place: Place,
        inbox: Arc<dyn Inbox>,
        made: Arc<Mutex<Made>>,
        last: Option<Instant>,
        /// The last attempt failed because the other side does not take this process.
        refused: bool,
    },
}

impl ToOne {
    fn connect(&mut self) -> Option<()> {
        let connections = match &mut self.way {
            Way::Hall(hall) => vec![hall.clone()?],
            Way::Call { place, inbox, made, last, .. } => {
                if last.is_some_and(|last| last.elapsed() < CONNECT_AGAIN) || made.lock().closed {
                    return None;
                }
                let tls = place.credentials.as_ref().and_then(|known| known.tls.as_ref());
                if let Some(why) = tls.and_then(|tls| probe::refusal_of_tls(&self.to, tls)) {
                    *last = Some(Instant::now());
                    self.blame(Some(why));
                    return None;
                }
                let connections = call(&self.to, &self.from, place, inbox);
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
        if let Way::Call { refused, .. } = &mut self.way {
            *refused = false;
        }
        if self.shm {
            self.offer();
        }
        Some(())
    }

    /// What is put before the other side is known to listen goes nowhere.
    fn publisher(&self, connection: &Connection) -> Option<Publisher<'static>> {
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

    /// The session is there, and the other side does not listen to this process.
    fn give_up(&mut self, connections: &[Arc<Connection>]) {
        let Way::Call { place, made, .. } = &self.way else { return };
        let ours =
            |made: &Arc<_>| connections.iter().any(|connection| Arc::ptr_eq(made, connection));
        made.lock().connections.retain(|made| !ours(made));
        connections.iter().for_each(|connection| connection.close());
        let why = place
            .credentials
            .as_ref()
            .map(|credentials| format!("{} takes nothing from {}", self.to, credentials.identity));
        self.blame(why);
    }

    /// Says why there is no way, once that is certain: it may be the end, or the start, of a process.
    fn blame(&mut self, reason: Option<String>) {
        let Way::Call { inbox, refused, .. } = &mut self.way else { return };
        let Some(reason) = reason else { return };
        if std::mem::replace(refused, true) {
            inbox.refused(&self.to, &reason);
        }
    }

    /// Asks the other side to read the memory that this one writes.
    fn offer(&mut self) {
        match Outlet::new() {
            Ok(outlet) => {
                self.put(ZBytes::new(), Some(outlet.offer()));
                self.outlet = Some(outlet);
            }
            Err(error) => log(Level::Debug, || format!("no memory to share: {error}")),
        }
    }

    fn put(&self, payload: ZBytes, reference: Option<Reference>) {
        let Some(publisher) = &self.publisher else { return };
        let put = publisher.put(payload).attachment(reference.map(|it| it.encode()));
        if let Err(error) = put.wait() {
            log(Level::Debug, || format!("nothing was sent to {}: {error}", self.to));
        }
    }
}

impl Line for ToOne {
    fn is_ready(&self) -> bool {
        self.publisher.is_some() && !self.apart
    }

    fn parcel(&mut self, room: usize, lent: usize) -> Parcel {
        if self.outlet.as_ref().is_some_and(Outlet::is_declined) {
            self.outlet = None;
        }
        let outlet = self.outlet.as_mut().filter(|_| room >= SHARED);
        let claim = outlet.and_then(|outlet| outlet.claim(room));
        claim.map_or_else(|| self.parcels.take(room - lent), Parcel::shared)
    }

    fn send(&mut self, parcel: Parcel) {
        if self.publisher.is_none() && self.connect().is_none() {
            return;
        }
        let len = parcel.len();
        match parcel.memory {
            Memory::Own(own) => {
                let own = Bytes::from_owner(own.cut(len));
                self.put(joined(&own, parcel.lent), None);
            }
            Memory::Shared(claim) => {
                let reference = self.outlet.as_mut().map(|outlet| outlet.publish(&claim, len));
                self.put(ZBytes::new(), reference);
            }
        }
    }
}

/// The bytes of a parcel with those that it has borrowed, each behind so many of its own.
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

/// Whether somebody has chosen the threads of the engine, as TLS needs it: one may then both receive
/// and send, and must never wait for itself.
fn threads_are_set() -> bool {
    std::env::var_os(TLS_VARIABLE.0).is_some()
}

/// Makes the connections to an address; over the first one this process speaks, over the last it hears.
fn call(
    to: &str,
    from: &Arc<str>,
    place: &Place,
    inbox: &Arc<dyn Inbox>,
) -> zenoh::Result<Vec<Arc<Connection>>> {
    let names = Names::new(from, place);
    let access = match &place.credentials {
        Some(credentials) => access::of_caller(credentials, &names, to),
        None => Access::default(),
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
        connections.push(Arc::new(Connection::to_speak(open(config.clone())?)));
    }
    let hears = Connection::to_hear(open(config)?, from, place, inbox)?;
    connections.push(Arc::new(hears));
    Ok(connections)
}

/// Opens a session. What it is told is not for the logs of the engine.
fn open(config: Config) -> zenoh::Result<Session> {
    use tracing::dispatcher::{Dispatch, with_default};
    // Not a subscriber that wants nothing: with one known, nobody is sure any more that none listens.
    with_default(&Dispatch::none(), || zenoh::open(config).wait())
}

/// Opens the session of a process that listens; gives the address that others know it by.
fn listen_at(listen: &str, place: &Place) -> Result<(Arc<str>, Session)> {
    const TRIES: usize = 20;
    let name = |error: &dyn std::fmt::Display| fail!(Network, "cannot listen at {listen}: {error}");
    if !has_port(listen) {
        return Err(name(&"an address is a host and a port, such as 127.0.0.1:9091"));
    }
    let mut tries = 0;
    loop {
        // The system chooses a port, which is free again at once; somebody else may be faster.
        let at = listen.to_socket_addrs().map_err(|error| name(&error))?.next();
        let at = at.ok_or_else(|| name(&"nobody knows this host"))?;
        let found = TcpListener::bind(at).and_then(|listener| listener.local_addr());
        let found = found.map_err(|error| name(&error))?;
        let known: Arc<str> = match place.advertised {
            _ if place.is_scheduler => Arc::clone(&place.root),
            Some(ip) => SocketAddr::new(ip, found.port()).to_string().into(),
            None => found.to_string().into(),
        };
        let access = match &place.credentials {
            Some(credentials) => access::of_listener(credentials, &Names::new(&known, place)),
            None => Ok(Access::default()),
        };
        let access = access.map_err(|error| name(&error))?;
        let opened = settings(place, &access).and_then(|mut config| {
            config.insert_json5("mode", "\"peer\"")?;
            let endpoints = format!("[\"{}/{found}\"]", place.protocol());
            config.insert_json5("listen/endpoints", &endpoints)?;
            open(config)
        });
        match opened {
            Ok(session) => return Ok((known, session)),
            Err(_) if at.port() == 0 && tries < TRIES => tries += 1,
            Err(error) => return Err(name(&error)),
        }
    }
}

/// What all sessions have in common: nobody is looked for, large messages flow, and strangers cannot
/// keep others out for long.
fn settings(place: &Place, access: &Access) -> zenoh::Result<Config> {
    let mut config = Config::default();
    let lease = place.lease_ms.to_string();
    let blocked = BLOCKED.as_micros().to_string();
    let (socket, receive) = (SOCKET_BYTES.to_string(), RECEIVE_BYTES.to_string());
    let (batches, sessions) = (BATCHES.to_string(), place.most_sessions.to_string());
    let (handshake, strangers) = (HANDSHAKE.as_millis().to_string(), STRANGERS.to_string());
    for (name, value) in [
        ("scouting/multicast/enabled", "false"),
        ("scouting/gossip/enabled", "false"),
        ("transport/unicast/qos/enabled", "false"),
        ("transport/unicast/accept_timeout", &handshake),
        ("transport/unicast/accept_pending", &strangers),
        ("transport/unicast/max_sessions", &sessions),
        ("transport/shared_memory/enabled", "false"),
        ("transport/link/tx/lease", &lease),
        ("transport/link/tx/queue/size/data", &batches),
        ("transport/link/tx/queue/congestion_control/block/wait_before_close", &blocked),
        ("transport/link/rx/buffer_size", &receive),
        ("transport/link/tcp/so_sndbuf", &socket),
        ("transport/link/tcp/so_rcvbuf", &socket),
    ] {
        config.insert_json5(name, value)?;
    }
    for (name, value) in &access.settings {
        config.insert_json5(name, &value.to_string())?;
    }
    Ok(config)
}
