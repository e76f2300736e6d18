//! One attempt to connect to a process that listens, and to greet it, without waiting.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::admission::{CallerGreeting, Failure};
use super::super::connection::{prepare, socket_for};
use super::super::endpoint::{Endpoint, Greeted};
use super::super::greeting::{Lane, Status};
use super::super::layer::Layer;
use crate::credentials::{CredentialKind, Identity};
use crate::sys;
use crate::transport::names::with_identity;
use crate::transport::tls::{TlsConnection, TlsError};

/// Size of a read; a greeting is shorter.
const SOME: usize = 4 << 10;

/// Why there is no connection.
pub(super) enum DialError {
    /// The process at the address and this one do not accept each other, for this reason.
    Refused(String),
    /// There was no answer, or an end without one.
    Failed(io::Error),
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// An attempt in progress.
pub(super) struct DialAttempt {
    pub(super) to: Arc<str>,
    pub(super) lane: Lane,
    began: Instant,
    /// Round trip of the connection, or more; known once it is made.
    round_trip: Duration,
    /// Addresses of the host that were not tried yet.
    addresses: VecDeque<SocketAddr>,
    socket: TcpStream,
    /// None until the system has made the connection.
    greeting: Option<CallGreeting>,
    /// Maximum time without progress, and its end.
    limit: Duration,
    deadline: Instant,
}

/// The greeting on a connection.
struct CallGreeting {
    layer: Layer,
    greeting: CallerGreeting,
    received: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes that the socket has not taken yet.
    out: Vec<u8>,
    is_called: bool,
    is_over: bool,
}

/// Begins to connect to an address.
pub(super) fn connect(address: &SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_for(address)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&(*address).into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Begins to connect to the first of these addresses that can be tried.
fn connect_first(addresses: &mut VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    while let Some(address) = addresses.pop_front() {
        match connect(&address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether the system has made a connection that was begun. One with itself is refused: while no process
/// listens at a port, the system may choose just this port as the source (simultaneous open of RFC 9293).
pub(super) fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(peer) if peer == socket.local_addr()? => Err(io::ErrorKind::ConnectionRefused.into()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

impl DialAttempt {
    pub(super) fn begin(
        to: &Arc<str>,
        lane: Lane,
        addresses: Vec<SocketAddr>,
        limit: Duration,
    ) -> Result<Self, DialError> {
        let mut addresses = VecDeque::from(addresses);
        let socket = connect_first(&mut addresses)?;
        let (to, began, round_trip) = (Arc::clone(to), Instant::now(), Duration::MAX);
        let (greeting, deadline) = (None, began + limit);
        Ok(Self { to, lane, began, round_trip, addresses, socket, greeting, limit, deadline })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Goes on with what has happened on the socket.
    pub(super) fn advance(&mut self, endpoint: &Endpoint) -> Result<CallProgress, DialError> {
        if self.greeting.is_none() {
            match is_connected(&self.socket) {
                Ok(false) => return Ok(CallProgress::Waits),
                Ok(true) => self.greet(endpoint)?,
                Err(error) if self.addresses.is_empty() => return Err(error.into()),
                Err(_) => {
                    self.socket = connect_first(&mut self.addresses)?;
                    self.began = Instant::now();
                    self.deadline = self.began + self.limit;
                    return Ok(CallProgress::Moved);
                }
            }
        }
        self.converse(endpoint)
    }

    fn greet(&mut self, endpoint: &Endpoint) -> Result<(), DialError> {
        prepare(&self.socket)?;
        let now = Instant::now();
        (self.round_trip, self.deadline) = (now - self.began, now + self.limit);
        let (credentials, wanted) = (endpoint.credentials(), endpoint.kind_at(&self.to));
        let no_random = || io::Error::other("the system has no random bytes");
        let (name, seals) = (&endpoint.name, endpoint.seals());
        let greeting = CallerGreeting::new(credentials, name, wanted, self.lane, seals)
            .ok_or_else(no_random)?;
        let mut greeting = CallGreeting {
            layer: layer(endpoint, &self.to)?,
            greeting,
            received: Vec::new(),
            plain: Vec::new(),
            out: Vec::new(),
            is_called: false,
            is_over: false,
        };
        greeting.open().map_err(|error| of_tls(&error, &self.to))?;
        self.greeting = Some(greeting);
        Ok(())
    }

    /// Sends and receives as far as that does not wait.
    fn converse(&mut self, endpoint: &Endpoint) -> Result<CallProgress, DialError> {
        let Self { to, socket, greeting, limit, deadline, .. } = self;
        let Some(greeting) = greeting else { return Ok(CallProgress::Waits) };
        loop {
            if greeting.speak(endpoint, to, socket)? {
                return Ok(CallProgress::Over(with_identity(greeting.greeting.listener(), to)));
            }
            if !read(socket, &mut greeting.received)? {
                return Ok(CallProgress::Waits);
            }
            *deadline = Instant::now() + *limit;
            if let Err(error) = greeting.open() {
                // The alert, as far as the peer takes it.
                let _ = write(socket, &mut greeting.out);
                return Err(of_tls(&error, to));
            }
        }
    }

    /// Round trip of the connection: that of the system, or the time that it took to make it if that is less.
    pub(super) fn round_trip(&self) -> Duration {
        sys::round_trip(self.socket.as_raw_fd())
            .map_or(self.round_trip, |it| it.min(self.round_trip))
    }

    /// The connection, behind its greeting.
    pub(super) fn greeted(self, from: String) -> Option<Greeted> {
        let CallGreeting { layer, received, plain, greeting, .. } = self.greeting?;
        let (socket, lane, is_preferred) = (self.socket, self.lane, self.lane.caller_sends());
        let greeted = Greeted { socket, from, lane, is_preferred, layer, received, plain };
        Some(greeted.with(greeting.records))
    }
}

/// What has become of a call.
pub(super) enum CallProgress {
    /// It waits for an event on its socket.
    Waits,
    /// It has another socket.
    Moved,
    /// It is admitted: the sender of what arrives, as in [`crate::transport::Inbox::arrived`].
    Over(String),
}

impl CallGreeting {
    fn open(&mut self) -> Result<(), TlsError> {
        self.layer.receive(&mut self.received, &mut self.plain, &mut self.out)
    }

    /// Answers what was received; whether the greeting is over.
    fn speak(
        &mut self,
        endpoint: &Endpoint,
        to: &str,
        socket: &TcpStream,
    ) -> Result<bool, DialError> {
        if self.layer.is_ready() && !self.is_over {
            let mut reply = Vec::new();
            if self.is_called {
                let greeted = self.greeting.receive(&mut self.plain, &mut reply);
                self.is_over = greeted.map_err(|failure| refusal(to, endpoint, failure))?;
            } else {
                if matches!(self.layer, Layer::Tls(_)) {
                    check_kind(to, self.layer.peer(), endpoint.kind_at(to))?;
                }
                reply.extend_from_slice(self.greeting.call());
                self.is_called = true;
            }
            self.layer.send(&reply, &mut self.out).map_err(|error| of_tls(&error, to))?;
        }
        write(socket, &mut self.out)?;
        Ok(self.is_over && self.out.is_empty())
    }
}

fn of_tls(error: &TlsError, to: &str) -> DialError {
    match error.reason(to) {
        Some(reason) => DialError::Refused(reason),
        None => DialError::Failed(io::Error::other(error.to_string())),
    }
}

/// The layer of a new connection to `to`; certificates are read anew.
fn layer(endpoint: &Endpoint, to: &str) -> Result<Layer, DialError> {
    let Some(tls) = endpoint.credentials().and_then(|credentials| credentials.tls.as_ref()) else {
        return Ok(Layer::Plain);
    };
    let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
    let config = tls.client().map_err(|error| DialError::Refused(error.message().to_owned()))?;
    let tls = TlsConnection::caller(config, host)
        .map_err(|error| DialError::Failed(io::Error::other(error.to_string())))?;
    Ok(Layer::Tls(Box::new(tls)))
}

/// A certificate must be that of the kind of process that is called.
fn check_kind(to: &str, who: Option<Identity>, wanted: CredentialKind) -> Result<(), DialError> {
    if who.is_some_and(|who| who.kind == wanted) {
        return Ok(());
    }
    Err(DialError::Refused(other_kind(to, who, wanted)))
}

fn other_kind(to: &str, who: Option<Identity>, wanted: CredentialKind) -> String {
    let wanted = Identity::any(wanted);
    match who {
        Some(who) => format!("{to} is {who} by its credential, and a {wanted} is wanted there"),
        None => format!("{to} has no credential of a {wanted}, which is wanted there"),
    }
}

/// Writes what the socket takes.
fn write(mut socket: &TcpStream, out: &mut Vec<u8>) -> io::Result<()> {
    while !out.is_empty() {
        match socket.write(out) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => drop(out.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads once; false if nothing has arrived.
fn read(mut socket: &TcpStream, received: &mut Vec<u8>) -> io::Result<bool> {
    let mut some = [0; SOME];
    loop {
        match socket.read(&mut some) {
            Ok(0) => {
                let text = "it ended the connection without an answer";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            Ok(count) => {
                received.extend_from_slice(&some[..count]);
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Why a listener refuses this process, or this process the listener.
fn refusal(to: &str, endpoint: &Endpoint, failure: Failure) -> DialError {
    let status = match failure {
        Failure::Refused(status) => status,
        Failure::NotProven => {
            return DialError::Refused(format!(
                "{to} has not proven that it has the token of this job: it is a process of another one"
            ));
        }
        Failure::NotSealed => {
            return DialError::Refused(format!(
                "{to} does not seal what it sends; use the same release everywhere"
            ));
        }
        Failure::OtherKind(who, wanted) => {
            return DialError::Refused(other_kind(to, who, wanted));
        }
    };
    DialError::Refused(match status {
        Status::Version => format!("{to} speaks another version; use the same release everywhere"),
        Status::WantsTls => {
            format!("{to} speaks TLS; set tls_ca_file, tls_cert_file and tls_key_file here too")
        }
        Status::WantsToken => {
            format!("{to} wants a token; set token_file, or KV_TOKEN in the environment")
        }
        Status::WantsNoToken => {
            format!("{to} asks for no token; give all processes of the job the same one")
        }
        Status::WantsRecords => {
            format!("{to} takes only what is sealed; set integrity=yes here too")
        }
        Status::OtherToken => {
            format!("{to} does not take the token of this process: it has another one")
        }
        Status::NotAllowed => match endpoint.credentials() {
            Some(credentials) => format!("{to} takes nothing from {}", credentials.identity),
            None => format!("{to} takes nothing from a process without a credential"),
        },
        // It may have room later, or it is no process of a job.
        Status::Full | Status::Malformed | Status::Welcome => {
            return DialError::Failed(io::Error::other(format!("{to} says: {status}")));
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test")]
mod tests {
    use std::net::SocketAddr;

    use socket2::{Domain, SockRef, Socket, Type};

    use super::super::accept::Port;
    use super::{connect, is_connected};

    #[test]
    #[cfg(target_os = "linux")]
    fn connections_over_the_loopback_are_not_paced() {
        let port = Port::bind("", &[SocketAddr::from(([127, 0, 0, 1], 0))]).unwrap();
        port.socket.set_nonblocking(false).unwrap();
        let caller = connect(&port.at).unwrap();
        let (accepted, _) = port.socket.accept().unwrap();
        for end in [caller, accepted] {
            let name = SockRef::from(&end).tcp_congestion().unwrap();
            assert_eq!(name.split(|byte| *byte == 0).next(), Some(&b"reno"[..]));
        }
    }

    #[test]
    fn a_connection_with_itself_counts_as_refused() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let own = socket.local_addr().unwrap();
        socket.connect(&own).unwrap();
        let error = is_connected(&socket.into()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
