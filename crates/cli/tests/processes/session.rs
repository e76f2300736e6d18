//! A connection to a process of a job, with the greeting of docs/internals/wire.md, over TCP or TLS. It
//! shares no code with the library.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::greeting::{Answer, CALLER, Call, GO_ON, LISTENER, proof};
use super::job::{LIMIT, soon};
use super::keys::Keys;

/// A connection over TLS.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// The kind of a message that carries frames.
pub const FRAMES: u16 = 0;

/// The credentials with which a process calls.
#[derive(Clone, Default)]
pub struct Login {
    pub identity: String,
    pub password: Option<String>,
    pub tls: Option<Arc<ClientConfig>>,
}

impl Login {
    /// With a token of a folder, under its identity, which is also the name of its file.
    pub fn token(keys: &Keys, identity: &str) -> Self {
        Self { identity: identity.into(), password: Some(keys.password(identity)), tls: None }
    }

    /// With a certificate of a folder, whose identity is also the name of its file.
    pub fn certificate(keys: &Keys, identity: &str) -> Self {
        let tls = Some(client(keys, Some((keys, identity))));
        Self { identity: identity.into(), password: None, tls }
    }

    pub fn call(&self, name: &str) -> Call {
        Call::new(&self.identity, name, self.password.is_some())
    }
}

/// Why there is no session.
#[derive(Debug)]
pub enum Refusal {
    /// The status of an Answer, and its reason.
    Answer(u8, #[allow(dead_code, reason = "shown when a test fails")] String),
    /// The status of a Verdict.
    Verdict(u8),
    /// The listener has not proved that it has the token.
    WrongProof,
    /// The connection ended without a word, or with bytes that are no greeting.
    Ended(#[allow(dead_code, reason = "shown when a test fails")] io::Error),
}

impl Refusal {
    /// The status that the listener sent; None if it ended the connection without one.
    pub fn status(&self) -> Option<u8> {
        match self {
            Self::Answer(status, _) | Self::Verdict(status) => Some(*status),
            Self::WrongProof | Self::Ended(_) => None,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Ended(error)
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    fn connect(to: &str, login: &Login) -> io::Result<Self> {
        Ok(match &login.tls {
            Some(config) => Self::Tls(Box::new(shake_hands(config, to)?)),
            None => Self::Plain(connect(to)?),
        })
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// Both directions: bytes to read from, and bytes to write to.
    fn both(&mut self) -> &mut dyn ReadWrite {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream,
        }
    }
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.both().read(out)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.both().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.both().flush()
    }
}

/// A connection whose greeting has succeeded.
pub struct Session {
    stream: Stream,
    /// Whether bytes of the peer are read, and thrown away, before each message.
    drains: bool,
}

impl Session {
    /// Calls a process under a name.
    pub fn open(to: &str, name: &str, login: &Login) -> Result<Self, Refusal> {
        Self::greet(to, &login.call(name), login)
    }

    /// Calls a process with this Call, whether it is that of the login or not.
    pub fn greet(to: &str, call: &Call, login: &Login) -> Result<Self, Refusal> {
        let mut stream = Stream::connect(to, login)?;
        let said = call.bytes();
        stream.write_all(&said)?;
        stream.flush()?;
        let (answer, heard) = Answer::receive(&mut stream)?;
        if answer.status != GO_ON {
            return Err(Refusal::Answer(answer.status, answer.reason));
        }
        if let Some(password) = login.password.as_deref().filter(|_| answer.wants_token) {
            stream.write_all(&proof(password, CALLER, &said, &heard))?;
            stream.flush()?;
            let mut verdict = [0; 33];
            stream.read_exact(&mut verdict)?;
            if verdict[0] != GO_ON {
                return Err(Refusal::Verdict(verdict[0]));
            }
            if verdict[1..] != proof(password, LISTENER, &said, &heard) {
                return Err(Refusal::WrongProof);
            }
        }
        Ok(Self { stream, drains: true })
    }

    /// From now on it reads nothing, and waits a second for a peer that reads nothing either.
    pub fn stop_reading(&mut self) {
        self.drains = false;
        self.stream.socket().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    }

    /// Sends frames in one message.
    pub fn put(&mut self, frames: &[u8]) -> io::Result<()> {
        self.send(FRAMES, frames)
    }

    /// Sends a message of any kind.
    pub fn send(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(payload.len()).unwrap();
        self.send_as(len, kind, payload)
    }

    /// Sends a message whose head has this length, true or not.
    pub fn send_as(&mut self, len: u32, kind: u16, payload: &[u8]) -> io::Result<()> {
        if self.drains {
            self.drain()?;
        }
        let head = [&len.to_le_bytes()[..], &kind.to_le_bytes(), &[0, 0]].concat();
        self.write(&[&head, payload].concat())
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Receives a message: its kind and its payload.
    pub fn receive(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, d, kind, high, ..] = head;
        let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]).try_into().unwrap()];
        self.stream.read_exact(&mut payload)?;
        Ok((u16::from_le_bytes([kind, high]), payload))
    }

    /// Reads what has arrived.
    fn drain(&mut self) -> io::Result<()> {
        self.stream.socket().set_nonblocking(true)?;
        let mut bytes = [0; 16 << 10];
        let end = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.stream.socket().set_nonblocking(false)?;
        end
    }

    /// Whether the peer ends the connection within the limit.
    pub fn ends(mut self, limit: Duration) -> bool {
        soon(limit, || self.drain().is_err())
    }

    /// Ends the connection, with all that was sent on its way.
    pub fn close(mut self) {
        let _ = self.drain();
        if let Stream::Tls(stream) = &mut self.stream {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.stream.socket().shutdown(Shutdown::Write);
        // With unread bytes the system would reset the connection, and drop what is on its way.
        let _ = self.stream.socket().set_read_timeout(Some(Duration::from_millis(200)));
        let _ = io::copy(&mut self.stream, &mut io::sink());
    }
}

fn connect(to: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// A TLS client that trusts one authority, and has a certificate of the same or another, or none.
pub fn client(trusts: &Keys, shows: Option<(&Keys, &str)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(trusts.authority()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shows {
        None => config.with_no_client_auth(),
        Some((keys, name)) => {
            let (chain, key) = keys.certificate(name);
            config.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

pub fn client_connection(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

/// A connection whose TLS handshake is over on this side.
pub fn shake_hands(config: &Arc<ClientConfig>, to: &str) -> io::Result<TlsStream> {
    let mut stream = connect(to)?;
    let mut connection = client_connection(config);
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}
