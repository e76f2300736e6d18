//! What a connection speaks during its greeting: plain bytes, or TLS; and behind it: records too.

use crate::credentials::Identity;
use crate::transport::tls::{Opener, RecordHalves, Sealer, TlsConnection, TlsError};

pub(super) enum Layer {
    Plain,
    Tls(Box<TlsConnection>),
    /// Behind a plain greeting.
    Records(Box<RecordHalves>),
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
            Self::Plain | Self::Records(_) => {
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
            Self::Plain | Self::Records(_) => {
                out.extend_from_slice(plain);
                Ok(())
            }
            Self::Tls(tls) => tls.send(plain, out),
        }
    }

    /// Whether the handshake of TLS has ended, if there is one.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Plain | Self::Records(_) => true,
            Self::Tls(tls) => !tls.is_handshaking(),
        }
    }

    /// Whether the peer sends no more.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Plain | Self::Records(_) => false,
            Self::Tls(tls) => tls.is_closed(),
        }
    }

    /// The identity on the peer's certificate.
    pub(super) fn peer(&self) -> Option<Identity> {
        match self {
            Self::Plain | Self::Records(_) => None,
            Self::Tls(tls) => tls.peer(),
        }
    }

    /// Both directions, behind the greeting.
    pub(super) fn split(self) -> Result<(Option<Sealer>, Option<Opener>), TlsError> {
        match self {
            Self::Plain => Ok((None, None)),
            Self::Tls(tls) => tls.split().map(|(sealer, opener)| (Some(sealer), Some(opener))),
            Self::Records(halves) => Ok((Some(halves.0), Some(halves.1))),
        }
    }
}
