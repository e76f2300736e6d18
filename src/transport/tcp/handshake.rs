//! The first bytes of a connection: a token, who writes, and a proof; then one byte that says it is taken.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::offer::PortToken;
use crate::credentials::{Credentials, Proof};

/// How long the other side may take for its part.
pub(super) const GREETING: Duration = Duration::from_secs(2);

/// The system asks whether the other side is there after this long without a word.
const QUIET: Duration = Duration::from_secs(60);

const TAKEN: u8 = 1;
const TOKEN: usize = size_of::<PortToken>();
/// What a proof is about.
const WORDS: usize = TOKEN + 1;

/// Who writes to a connection, after it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendSide {
    /// Whoever has made it.
    Caller = 1,
    /// Whoever has accepted it.
    Listener = 2,
}

/// What whoever calls shows.
pub(super) struct Greeting {
    pub(super) token: PortToken,
    pub(super) writer: SendSide,
    /// That whoever shows the token is who it was for; zeros without credentials.
    pub(super) proof: Proof,
}

impl Greeting {
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

    /// Shows it, and waits until it is taken.
    pub(super) fn show(&self, mut socket: &TcpStream) -> io::Result<()> {
        bound(socket)?;
        socket.write_all(&[&self.words()[..], &self.proof].concat())?;
        let mut answer = [0];
        socket.read_exact(&mut answer)?;
        if answer == [TAKEN] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Hears what the other side shows.
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

/// Says that a greeting is taken.
pub(super) fn welcome(mut socket: &TcpStream) -> io::Result<()> {
    socket.write_all(&[TAKEN])
}

/// Sets a connection up for values, before it greets.
pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // Between rounds nothing may come for long, and what is on the way is to remember the connection.
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET))
}

fn bound(socket: &TcpStream) -> io::Result<()> {
    socket.set_read_timeout(Some(GREETING))?;
    socket.set_write_timeout(Some(GREETING))
}
