//! Handshake of a connection: the dialing side sends a token, the direction and a proof; one byte accepts
//! them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::offer::PortToken;
use crate::credentials::{Credentials, Proof};

/// Timeout of each read and write of the handshake.
pub(super) const GREETING: Duration = Duration::from_secs(2);

/// Idle time before the first TCP keepalive probe.
const QUIET: Duration = Duration::from_secs(60);

const TAKEN: u8 = 1;
const TOKEN: usize = size_of::<PortToken>();
/// Length of the bytes that a proof covers.
const WORDS: usize = TOKEN + 1;

/// The side that writes to a connection after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendSide {
    /// The side that dialed.
    Caller = 1,
    /// The side that accepted.
    Listener = 2,
}

/// The dialing side's part of the handshake.
pub(super) struct Handshake {
    pub(super) token: PortToken,
    pub(super) writer: SendSide,
    /// Proof that the dialing side has the identity to which the token was offered; zeros without
    /// credentials.
    pub(super) proof: Proof,
}

impl Handshake {
    pub(super) fn new(
        token: PortToken,
        writer: SendSide,
        credentials: Option<&Credentials>,
    ) -> Self {
        let mut this = Self { token, writer, proof: Proof::default() };
        this.proof = credentials.and_then(|it| it.proof(&this.words())).unwrap_or_default();
        this
    }

    pub(super) fn words(&self) -> [u8; WORDS] {
        let mut words = [self.writer as u8; WORDS];
        words[..TOKEN].copy_from_slice(&self.token);
        words
    }

    /// Sends the handshake, and waits until it is accepted.
    pub(super) fn show(&self, mut socket: &TcpStream) -> io::Result<()> {
        bound(socket)?;
        socket.write_all(&[&self.words()[..], &self.proof].concat())?;
        let mut answer = [0];
        socket.read_exact(&mut answer)?;
        if answer == [TAKEN] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Receives the dialing side's part of the handshake.
    pub(super) fn hear(mut socket: &TcpStream) -> io::Result<Self> {
        bound(socket)?;
        let (mut token, mut writer, mut proof) = (PortToken::default(), [0], Proof::default());
        for part in [&mut token[..], &mut writer, &mut proof] {
            socket.read_exact(part)?;
        }
        let writers = [SendSide::Caller, SendSide::Listener];
        let writer = writers.into_iter().find(|it| writer == [*it as u8]);
        Ok(Self { token, writer: writer.ok_or(io::ErrorKind::InvalidData)?, proof })
    }
}

/// Accepts a handshake.
pub(super) fn welcome(mut socket: &TcpStream) -> io::Result<()> {
    socket.write_all(&[TAKEN])
}

/// Sets the socket options for values, before the handshake.
pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // A connection may be idle for long between rounds; keepalive probes keep its state in firewalls and NAT.
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET))
}

fn bound(socket: &TcpStream) -> io::Result<()> {
    socket.set_read_timeout(Some(GREETING))?;
    socket.set_write_timeout(Some(GREETING))
}
