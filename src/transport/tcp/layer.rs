//! What a connection speaks during its greeting: plain bytes, or TLS.

use crate::credentials::Identity;
use crate::transport::tls::{Opener, Sealer, TlsConnection, TlsError};

pub(super) enum Layer {
    Plain,
    Tls(Box<TlsConnection>),
}

impl Layer {
    /// Takes received bytes; appends those of the greeting to `plain`, and what is to be sent to `out`.
    pub(super) fn receive(
        &mut self,
        received: &mut Vec<u8>,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        match self {
            Self::Plain => {
                plain.append(received);
                Ok(())
            }
            Self::Tls(tls) => tls.receive(received, plain, out),
        }
    }

    /// Appends the bytes to send for these of the greeting to `out`.
    pub(super) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        match self {
            _ if plain.is_empty() => Ok(()),
            Self::Plain => {
                out.extend_from_slice(plain);
                Ok(())
            }
            Self::Tls(tls) => tls.send(plain, out),
        }
    }

    /// Whether the handshake of TLS has ended, if there is one.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Tls(tls) => !tls.is_handshaking(),
        }
    }

    /// Whether the peer sends no more.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::Tls(tls) => tls.is_closed(),
        }
    }

    /// The identity on the peer's certificate.
    pub(super) fn peer(&self) -> Option<Identity> {
        match self {
            Self::Plain => None,
            Self::Tls(tls) => tls.peer(),
        }
    }

    /// Both directions, behind the greeting.
    pub(super) fn split(self) -> Result<(Option<Sealer>, Option<Opener>), TlsError> {
        match self {
            Self::Plain => Ok((None, None)),
            Self::Tls(tls) => tls.split().map(|(sealer, opener)| (Some(sealer), Some(opener))),
        }
    }
}
