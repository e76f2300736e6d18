//! The port of a process that listens, and the greetings of its callers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::super::admission::{AdmissionPolicy, Caller, Certified, refuse};
use super::super::connection::{prepare, socket_for};
use super::super::endpoint::{Endpoint, Greeted};
use super::super::greeting::Status;
use super::super::layer::Layer;
use super::pending::{PendingConnection, PendingConnections};
use crate::credentials::ListenerTls;
use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::transport::tls::{MAX_RECORD, TlsConnection};

/// Connections that the system accepts before this process does.
const BACKLOG: i32 = 1_024;
/// Pause after a failed accept, for example when the system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// Size of a read.
const SOME: usize = 4 << 10;
/// Maximum number of bytes of one greeting that were received and not understood.
const MOST_RECEIVED: usize = 2 * MAX_RECORD;
/// Content type of a handshake of TLS, with which it begins.
const TLS_HANDSHAKE: u8 = 22;

/// A bound port.
pub(in super::super) struct Port {
    pub(in super::super) socket: TcpListener,
    pub(in super::super) at: SocketAddr,
}

impl Port {
    /// Binds the first address of `listen` that is free.
    pub(in super::super) fn bind(listen: &str, addresses: &[SocketAddr]) -> Result<Self> {
        let mut last = io::Error::other("the host is unknown");
        for address in addresses {
            match Self::bind_to(address) {
                Ok(port) => return Ok(port),
                Err(error) => last = error,
            }
        }
        Err(fail!(Network, "cannot listen at {listen}: {last}"))
    }

    fn bind_to(address: &SocketAddr) -> io::Result<Self> {
        let socket = socket_for(address)?;
        // A restarted process gets the port of the former one, whose connections are not forgotten yet.
        socket.set_reuse_address(true)?;
        socket.bind(&(*address).into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = TcpListener::from(socket);
        let at = socket.local_addr()?;
        Ok(Self { socket, at })
    }
}

/// The port, and the connections whose greeting is not over.
pub(super) struct Accepting {
    port: TcpListener,
    tls: Option<ListenerTls>,
    pending: PendingConnections,
    /// When to accept again, after a failure.
    accept_at: Option<Instant>,
}

impl Accepting {
    pub(super) fn new(port: TcpListener, endpoint: &Endpoint) -> Result<Self> {
        let credentials = endpoint.credentials();
        let tls = credentials.and_then(|credentials| credentials.tls.clone());
        let tls = tls.map(ListenerTls::new).transpose()?;
        let pending = PendingConnections::of_this_process();
        Ok(Self { port, tls, pending, accept_at: None })
    }

    pub(super) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.port.as_raw_fd()), token, Interest::READABLE)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.pending.next_deadline(), self.accept_at].into_iter().flatten().min()
    }

    /// Ends greetings whose time is over, and accepts again after a failure.
    pub(super) fn tick(&mut self, endpoint: &Endpoint, registry: &Registry, now: Instant) {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept(endpoint, registry);
        }
        for pending in self.pending.overdue(now) {
            reject(endpoint, &pending, "it has not ended its greeting in time");
        }
    }

    /// Accepts the connections that have arrived.
    pub(super) fn accept(&mut self, endpoint: &Endpoint, registry: &Registry) {
        self.accept_at = None;
        loop {
            match self.port.accept() {
                Ok((socket, from)) => self.begin(endpoint, registry, socket, from),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        log(Level::Warn, || format!("no process can connect now: {error}"));
                        self.accept_at = Some(Instant::now() + PAUSE);
                        return;
                    }
                },
            }
        }
    }

    fn begin(
        &mut self,
        endpoint: &Endpoint,
        registry: &Registry,
        socket: TcpStream,
        from: SocketAddr,
    ) {
        let ready = prepare(&socket).and_then(|()| socket.set_nonblocking(true));
        if ready.is_err() {
            return;
        }
        let layer = match self.tls.as_ref().map(|tls| TlsConnection::listener(tls.config())) {
            None => Layer::Plain,
            Some(Ok(tls)) => Layer::Tls(Box::new(tls)),
            Some(Err(error)) => return log(Level::Warn, || format!("no TLS now: {error}")),
        };
        if let Some(oldest) = self.pending.make_room(from.ip()) {
            reject(endpoint, &oldest, "there are too many greetings from its address");
        }
        let fd = socket.as_raw_fd();
        let token =
            self.pending.add(PendingConnection::new(socket, from.ip(), layer), Instant::now());
        if registry.register(&mut SourceFd(&fd), Token(token), Interest::READABLE).is_err() {
            self.pending.remove(token);
        }
    }

    /// Reads what a caller has sent, and answers it.
    pub(super) fn serve(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, token: usize) {
        loop {
            let Some(pending) = self.pending.get(token) else { return };
            let mut some = [0; SOME];
            let count = match (&pending.socket).read(&mut some) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) | Ok(0) => {
                    // A process that tries whether the port is open says nothing.
                    return drop(self.remove(registry, token));
                }
                Ok(count) => count,
            };
            pending.received.extend_from_slice(&some[..count]);
            self.pending.extend(token);
            let Some(pending) = self.pending.get(token) else { return };
            match greet(endpoint, pending) {
                Ok(None) => {}
                Ok(Some(caller)) => {
                    let Some(pending) = self.remove(registry, token) else { return };
                    return admit(endpoint, pending, caller);
                }
                Err(reason) => {
                    let Some(pending) = self.remove(registry, token) else { return };
                    return reject(endpoint, &pending, &reason);
                }
            }
        }
    }

    fn remove(&mut self, registry: &Registry, token: usize) -> Option<PendingConnection> {
        let pending = self.pending.remove(token)?;
        // It was not registered if that has failed.
        let _ = registry.deregister(&mut SourceFd(&pending.socket.as_raw_fd()));
        Some(pending)
    }
}

/// Logs that a caller was not admitted.
fn reject(endpoint: &Endpoint, pending: &PendingConnection, reason: &str) {
    let who = pending.greeting.claimed.map_or("a process".into(), |who| who.to_string());
    endpoint.incoming.inbox.rejected(&pending.ip.to_string(), &who, reason);
}

/// Continues a greeting with what has arrived: the name of the caller once it is admitted, or why it is not.
fn greet(
    endpoint: &Endpoint,
    pending: &mut PendingConnection,
) -> std::result::Result<Option<Caller>, String> {
    let PendingConnection { socket, layer, greeting, received, plain, is_called, .. } = pending;
    let mut policy = AdmissionPolicy {
        credentials: endpoint.credentials(),
        certified: Certified::Plain,
        is_full: &|lane| endpoint.is_full(lane),
    };
    let mut out = Vec::new();
    if !std::mem::replace(is_called, true) {
        let is_tls = received[0] == TLS_HANDSHAKE;
        let mismatch = match layer {
            Layer::Plain if is_tls => Some(Status::Malformed),
            Layer::Tls(_) if !is_tls => Some(Status::WantsTls),
            _ => None,
        };
        if let Some(status) = mismatch {
            refuse(&policy, status, &mut out);
            send(socket, &out)?;
            return Err(match status {
                Status::Malformed => "it speaks TLS, and this job does not".into(),
                status => status.to_string(),
            });
        }
    }
    let opened = layer.receive(received, plain, &mut out);
    if let Err(error) = opened {
        let _ = send(socket, &out);
        return Err(error.to_string());
    }
    if matches!(layer, Layer::Tls(_)) {
        policy.certified = Certified::As(layer.peer());
    }
    let mut reply = Vec::new();
    let known = if layer.is_ready() && !plain.is_empty() {
        greeting.receive(&policy, plain, &mut reply)
    } else {
        Ok(None)
    };
    layer.send(&reply, &mut out).map_err(|error| error.to_string())?;
    send(socket, &out)?;
    let known = known.map_err(|status| status.to_string())?;
    if known.as_ref().is_some_and(|caller| endpoint.incoming.peers.has_other_than(&caller.from)) {
        return Err("another process is connected from the address that it gives".into());
    }
    if known.is_none() && (received.len() + plain.len() > MOST_RECEIVED || layer.is_closed()) {
        return Err(Status::Malformed.to_string());
    }
    Ok(known)
}

/// Sends a few bytes, for which a new connection has room.
fn send(mut socket: &TcpStream, bytes: &[u8]) -> std::result::Result<(), String> {
    socket.write_all(bytes).map_err(|error| format!("it takes no answer: {error}"))
}

fn admit(endpoint: &Endpoint, pending: PendingConnection, Caller { from, lane }: Caller) {
    let PendingConnection { socket, layer, received, plain, greeting, .. } = pending;
    let is_preferred = lane.listener_sends();
    let greeted = Greeted { socket, from, lane, is_preferred, layer, received, plain };
    endpoint.adopt(greeted.with(greeting.records));
}
