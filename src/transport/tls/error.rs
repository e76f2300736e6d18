//! Why TLS with a peer fails: as an error, as an alert for the peer, and as a text for users.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Why TLS with a peer has ended, or cannot begin. All of them end the connection.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::transport) enum TlsError {
    /// The handshake fails.
    Handshake(Error),
    /// The peer sent this alert.
    Alert(AlertDescription),
    /// The peer violated the protocol; the alert is the reply.
    Violation(AlertDescription, &'static str),
    /// The peer closed the connection during the handshake.
    Closed,
    /// A call of this process that the state of the connection does not allow.
    Misuse(&'static str),
}

impl TlsError {
    /// The alert for this error that the peer must receive; None if the peer sent the error itself.
    pub(super) fn alert(&self) -> Option<AlertDescription> {
        match self {
            Self::Violation(alert, _) => Some(*alert),
            // rustls queues the alerts of the handshake.
            Self::Handshake(_) | Self::Alert(_) | Self::Closed | Self::Misuse(_) => None,
        }
    }

    /// Why TLS with the peer at an address fails, as a text for users; None if the error does not show it.
    pub(in crate::transport) fn reason(&self, to: &str) -> Option<String> {
        match self {
            Self::Handshake(Error::InvalidCertificate(reason)) => {
                Some(format!("the certificate of {to} is not good: {}", flaw(reason)))
            }
            Self::Handshake(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                Some(format!("{to} does not speak TLS"))
            }
            Self::Handshake(Error::AlertReceived(alert)) | Self::Alert(alert) => {
                rejection(to, *alert)
            }
            Self::Handshake(_) | Self::Violation(..) | Self::Closed | Self::Misuse(_) => None,
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handshake(error) => write!(f, "TLS: {error}"),
            Self::Alert(alert) => write!(f, "TLS: the peer sent the alert {alert:?}"),
            Self::Violation(_, text) => write!(f, "TLS: the peer sent {text}"),
            Self::Closed => f.write_str("TLS: the peer closed the connection during the handshake"),
            Self::Misuse(text) => write!(f, "TLS: {text}"),
        }
    }
}

impl std::error::Error for TlsError {}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        Self::Handshake(error)
    }
}

/// What is wrong with the certificate of a peer.
fn flaw(reason: &CertificateError) -> String {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, InvalidPurpose, InvalidPurposeContext,
        NotValidForName, NotValidForNameContext, UnknownIssuer,
    };
    let text = match reason {
        UnknownIssuer | BadSignature => "it is of an authority that is not in tls_ca_file",
        Expired | ExpiredContext { .. } => "it has expired",
        NotValidForName | NotValidForNameContext { .. } => {
            "it does not name this address; make one with --host, or set tls_verify_names=no"
        }
        InvalidPurpose | InvalidPurposeContext { .. } => "it is for callers only",
        other => return other.to_string(),
    };
    text.into()
}

/// The listener's reason for an alert; None for alerts that end a connection regularly.
fn rejection(to: &str, alert: AlertDescription) -> Option<String> {
    let text = match alert {
        AlertDescription::UnknownCA => "it is of an authority that is not in its tls_ca_file",
        AlertDescription::CertificateExpired => "it has expired",
        AlertDescription::CertificateRequired => "there is none",
        AlertDescription::BadCertificate | AlertDescription::DecryptError => {
            "it is of an authority that is not in its tls_ca_file, or altered"
        }
        AlertDescription::UnsupportedCertificate => "it is not for callers",
        AlertDescription::CloseNotify | AlertDescription::UserCanceled => return None,
        other => {
            return Some(format!("{to} does not take the certificate of this process: {other:?}"));
        }
    };
    Some(format!("{to} does not take the certificate of this process: {text}"))
}
