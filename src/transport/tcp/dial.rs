//! Connects to a process that listens, and greets it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::{CallerGreeting, Failure};
use super::connection::{Connection, prepare};
use super::endpoint::{Endpoint, Greeted};
use super::greeting::{Direction, Status};
use super::layer::Layer;
use crate::credentials::{CredentialKind, Identity};
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

/// Connects to `to` within this time. None if this process is closing.
pub(super) fn dial(
    endpoint: &Endpoint,
    to: &str,
    direction: Direction,
    limit: Duration,
) -> Result<Option<Arc<Connection>>, DialError> {
    let end = Instant::now() + limit;
    let mut last = io::ErrorKind::NotFound.into();
    for address in to.to_socket_addrs()? {
        match connect(&address, end) {
            Ok(socket) => {
                let greeted = greet(endpoint, to, direction, socket, end)?;
                return Ok(endpoint.adopt(greeted));
            }
            Err(error) => last = error,
        }
    }
    Err(DialError::Failed(last))
}

fn connect(address: &SocketAddr, end: Instant) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(address, left(end)?)?;
    prepare(&socket)?;
    Ok(socket)
}

/// The time that is left.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn greet(
    endpoint: &Endpoint,
    to: &str,
    direction: Direction,
    socket: TcpStream,
    end: Instant,
) -> Result<Greeted, DialError> {
    let (credentials, wanted) = (endpoint.credentials(), endpoint.kind_at(to));
    let no_random = || io::Error::other("the system has no random bytes");
    let mut greeting = CallerGreeting::new(credentials, &endpoint.name, wanted, direction)
        .ok_or_else(no_random)?;
    let mut layer = layer(endpoint, to)?;
    let (mut received, mut plain, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let of_tls = |error: &TlsError| match error.reason(to) {
        Some(reason) => DialError::Refused(reason),
        None => DialError::Failed(io::Error::other(error.to_string())),
    };
    layer.receive(&mut received, &mut plain, &mut out).map_err(|error| of_tls(&error))?;
    let mut is_called = false;
    loop {
        if layer.is_ready() {
            let (mut reply, mut is_over) = (Vec::new(), false);
            if is_called {
                let greeted = greeting.receive(&mut plain, &mut reply);
                is_over = greeted.map_err(|failure| refusal(to, endpoint, failure))?;
            } else {
                if matches!(layer, Layer::Tls(_)) {
                    check_kind(to, layer.peer(), wanted)?;
                }
                reply.extend_from_slice(greeting.call());
                is_called = true;
            }
            layer.send(&reply, &mut out).map_err(|error| of_tls(&error))?;
            write(&socket, &mut out, end)?;
            if is_over {
                break;
            }
        }
        write(&socket, &mut out, end)?;
        read(&socket, &mut received, end)?;
        let opened = layer.receive(&mut received, &mut plain, &mut out);
        if let Err(error) = opened {
            // The alert, as far as the peer takes it.
            let _ = write(&socket, &mut out, end);
            return Err(of_tls(&error));
        }
    }
    let from = with_identity(greeting.listener(), to);
    let is_preferred = direction != Direction::ListenerSends;
    Ok(Greeted { socket, from, is_preferred, layer, received, plain })
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

fn write(mut socket: &TcpStream, out: &mut Vec<u8>, end: Instant) -> io::Result<()> {
    if !out.is_empty() {
        socket.set_write_timeout(Some(left(end)?))?;
        socket.write_all(out)?;
        out.clear();
    }
    Ok(())
}

fn read(mut socket: &TcpStream, received: &mut Vec<u8>, end: Instant) -> io::Result<()> {
    socket.set_read_timeout(Some(left(end)?))?;
    let mut some = [0; SOME];
    match socket.read(&mut some)? {
        0 => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended the connection without an answer",
        )),
        count => {
            received.extend_from_slice(&some[..count]);
            Ok(())
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
