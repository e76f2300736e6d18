//! A connection inside TLS, from its first byte until it is split into halves for reading and sending.

use std::io::IoSlice;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, CommonState, ExtractedSecrets, ServerConfig, SupportedCipherSuite};

use super::error::TlsError;
use super::handshake::{HandshakeSide, TlsHandshake};
use super::opener::Opener;
use super::record::RecordKey;
use super::sealer::Sealer;
use super::traffic_keys::{KeySchedule, TrafficKeys};
use crate::credentials::Identity;

const NOT_OVER: TlsError = TlsError::Misuse("the handshake is not over");

/// A connection inside TLS until it is split: the handshake, and the first application data.
pub(in crate::transport) struct TlsConnection(TlsPhase);

enum TlsPhase {
    Caller(Box<TlsHandshake<UnbufferedClientConnection>>),
    Listener(Box<TlsHandshake<UnbufferedServerConnection>>),
    Open(Box<Halves>),
    Failed(TlsError),
}

/// A connection after its handshake.
struct Halves {
    sealer: Sealer,
    opener: Opener,
    peer: Option<Identity>,
    is_closed: bool,
}

impl TlsConnection {
    /// The side that dials `host`: a name or an IP address, one of IPv6 also in brackets. A first call of
    /// [`Self::receive`] without bytes appends the first bytes to send. The configuration must have
    /// `enable_secret_extraction`.
    pub(in crate::transport) fn caller(
        config: Arc<ClientConfig>,
        host: &str,
    ) -> Result<Self, TlsError> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let name = ServerName::try_from(bare.unwrap_or(host).to_owned())
            .map_err(|_| TlsError::Misuse("the dialled host is neither a name nor an address"))?;
        let side = UnbufferedClientConnection::new(config, name)?;
        Ok(Self(TlsPhase::Caller(Box::new(TlsHandshake::new(side)))))
    }

    /// The side that accepted the connection.
    pub(in crate::transport) fn listener(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        let side = UnbufferedServerConnection::new(config)?;
        Ok(Self(TlsPhase::Listener(Box::new(TlsHandshake::new(side)))))
    }

    /// Consumes the whole records at the front of `received`, and appends their application data to
    /// `plain` and records to send to `out`. After an error, `plain` has the data before it, and `out`
    /// may have an alert to send. Each later call returns the same error.
    pub(in crate::transport) fn receive(
        &mut self,
        received: &mut Vec<u8>,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        let result = self.advance(received, plain, out);
        if let Err(error) = &result {
            self.0 = TlsPhase::Failed(error.clone());
        }
        result
    }

    fn advance(
        &mut self,
        received: &mut Vec<u8>,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        let is_over = match &mut self.0 {
            TlsPhase::Caller(handshake) => handshake.receive(received, out)?,
            TlsPhase::Listener(handshake) => handshake.receive(received, out)?,
            TlsPhase::Open(_) | TlsPhase::Failed(_) => false,
        };
        if is_over {
            self.0 = match std::mem::replace(&mut self.0, TlsPhase::Failed(NOT_OVER)) {
                TlsPhase::Caller(handshake) => open(handshake.side, true, KeySchedule::Caller)?,
                TlsPhase::Listener(handshake) => {
                    open(handshake.side, false, KeySchedule::Listener)?
                }
                phase => phase,
            };
        }
        match &mut self.0 {
            TlsPhase::Open(halves) => halves.receive(received, plain, out),
            TlsPhase::Failed(error) => Err(error.clone()),
            TlsPhase::Caller(_) | TlsPhase::Listener(_) => Ok(()),
        }
    }

    /// Whether the handshake is in progress. For a caller it is over before the listener has checked the
    /// caller's certificate: an alert that rejects it arrives in place of the first data.
    pub(in crate::transport) fn is_handshaking(&self) -> bool {
        matches!(self.0, TlsPhase::Caller(_) | TlsPhase::Listener(_))
    }

    /// Whether the peer has sent `close_notify`.
    pub(in crate::transport) fn is_closed(&self) -> bool {
        matches!(&self.0, TlsPhase::Open(halves) if halves.is_closed)
    }

    /// The identity on the peer's certificate, its common name. None before the end of the handshake, and
    /// if the name is no identity.
    pub(in crate::transport) fn peer(&self) -> Option<Identity> {
        match &self.0 {
            TlsPhase::Open(halves) => halves.peer,
            _ => None,
        }
    }

    /// Appends the records of application data to `out`. Only after the handshake.
    pub(in crate::transport) fn send(
        &mut self,
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        match &mut self.0 {
            TlsPhase::Open(halves) => halves.sealer.seal(&[IoSlice::new(plain)], out),
            TlsPhase::Failed(error) => Err(error.clone()),
            TlsPhase::Caller(_) | TlsPhase::Listener(_) => Err(NOT_OVER),
        }
    }

    /// Splits the connection into halves for sending and for reading. Only after the handshake. Received
    /// bytes that are not consumed belong to the opener.
    pub(in crate::transport) fn split(self) -> Result<(Sealer, Opener), TlsError> {
        match self.0 {
            TlsPhase::Open(halves) => Ok((halves.sealer, halves.opener)),
            TlsPhase::Failed(error) => Err(error),
            TlsPhase::Caller(_) | TlsPhase::Listener(_) => Err(NOT_OVER),
        }
    }
}

impl Halves {
    fn receive(
        &mut self,
        received: &mut Vec<u8>,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        match self.opener.open(received, plain) {
            Ok(opened) => {
                received.drain(..opened.consumed);
                self.is_closed = opened.is_closed;
                Ok(())
            }
            Err(error) => {
                self.sealer.alert(&error, out);
                Err(error)
            }
        }
    }
}

/// Extracts the keys from rustls at the end of the handshake.
fn open<S: HandshakeSide>(
    side: S,
    is_caller: bool,
    schedule: impl FnOnce(rustls::kernel::KernelConnection<S::Data>) -> KeySchedule,
) -> Result<TlsPhase, TlsError> {
    let peer = identity(side.common());
    let (ExtractedSecrets { tx, rx }, kernel) = side.into_kernel()?;
    let limit = limit(kernel.negotiated_cipher_suite());
    let keys = Arc::new(TrafficKeys::new(schedule(kernel)));
    let (sending, receiving) = (RecordKey::new(&tx.1, tx.0)?, RecordKey::new(&rx.1, rx.0)?);
    let sealer = Sealer::new(sending, Arc::clone(&keys), limit);
    let opener = Opener::new(receiving, keys, is_caller);
    Ok(TlsPhase::Open(Box::new(Halves { sealer, opener, peer, is_closed: false })))
}

fn identity(common: &CommonState) -> Option<Identity> {
    Identity::of_certificate(common.peer_certificates()?.first()?)
}

/// Maximum number of records under one key (section 5.5).
fn limit(suite: SupportedCipherSuite) -> u64 {
    suite.tls13().map_or(1, |suite| suite.common.confidentiality_limit)
}
