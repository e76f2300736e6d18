//! Finds out why a peer rejected a connection: Zenoh only reports that it failed.
//!
//! A second connection, made by hand, sends Zenoh's first handshake message and reads the reply.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Error as TlsError, StreamOwned,
};

use crate::credentials::{Credentials, Tls};

/// Timeout of each reply.
const PATIENCE: Duration = Duration::from_secs(1);
/// Timeout after a TLS handshake within which a peer rejects a certificate.
const VERDICT: Duration = Duration::from_millis(300);
/// The first bytes of a TLS alert, which ends a connection.
const ALERT: [u8; 2] = [0x15, 0x03];
const INIT: u8 = 0x01;
const MESSAGE: u8 = 0x1f;

/// Reply to a handshake message without a token.
#[derive(Debug, PartialEq, Eq)]
enum ProbeReply {
    /// The handshake may continue.
    Welcome,
    /// The peer closes the session, or the connection.
    Ended,
    /// The peer speaks TLS only.
    Tls,
}

/// Why the peer at an address rejects this process. None if it accepts, if no process listens there, or if it
/// sends no reply.
pub(super) fn refusal(to: &str, credentials: Option<&Credentials>) -> Option<String> {
    let tls = credentials.and_then(|credentials| credentials.tls.as_ref());
    let answer = match tls {
        None => greet(&mut call(to)?),
        Some(tls) => match greet_secretly(to, tls) {
            Ok(answer) => answer,
            Err(Some(reason)) => return Some(reason),
            // The peer may not speak TLS.
            Err(None) => {
                let plain = greet(&mut call(to)?)?;
                return (plain != ProbeReply::Tls).then(|| format!("{to} does not speak TLS"));
            }
        },
    };
    let has_token = credentials.is_some_and(Credentials::has_token);
    match answer? {
        ProbeReply::Tls => Some(format!(
            "{to} speaks TLS; set tls_ca_file, tls_cert_file and tls_key_file here too"
        )),
        ProbeReply::Ended if has_token => {
            Some(format!("{to} does not take the token of this process: it has another one"))
        }
        ProbeReply::Ended => {
            Some(format!("{to} wants a token; set token_file, or KV_TOKEN in the environment"))
        }
        ProbeReply::Welcome if has_token => {
            Some(format!("{to} asks for no token; give all processes of the job the same one"))
        }
        ProbeReply::Welcome => None,
    }
}

fn call(to: &str) -> Option<TcpStream> {
    let address = to.to_socket_addrs().ok()?.next()?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// The first message of a Zenoh session, behind its length; a random number is the sender's identifier.
fn greeting() -> Vec<u8> {
    const VERSION: u8 = 0x09;
    const CLIENT: u8 = 0b10;
    let chance = RandomState::new().build_hasher().finish().to_le_bytes();
    let number = u8::try_from(chance.len() - 1).unwrap_or(0);
    let mut message = vec![INIT, VERSION, number << 4 | CLIENT];
    message.extend_from_slice(&chance);
    let mut bytes = u16::try_from(message.len()).unwrap_or(0).to_le_bytes().to_vec();
    bytes.append(&mut message);
    bytes
}

fn greet(stream: &mut (impl Read + Write)) -> Option<ProbeReply> {
    answer(stream).ok().flatten()
}

/// None if no reply arrives in time.
fn answer(stream: &mut (impl Read + Write)) -> io::Result<Option<ProbeReply>> {
    stream.write_all(&greeting())?;
    let mut head = [0; 3];
    match stream.read_exact(&mut head) {
        Ok(()) if head[..2] == ALERT => Ok(Some(ProbeReply::Tls)),
        Ok(()) if head[2] & MESSAGE == INIT => Ok(Some(ProbeReply::Welcome)),
        Ok(()) => Ok(Some(ProbeReply::Ended)),
        Err(error) => match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Ok(Some(ProbeReply::Ended)),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(None),
            _ => Err(error),
        },
    }
}

/// Why TLS with the peer at an address fails, if that is known. Called before Zenoh dials: Zenoh may take
/// very long to give up a connection that ends in its first moments.
pub(super) fn refusal_of_tls(to: &str, tls: &Tls) -> Option<String> {
    shake_hands(to, tls).err().flatten()
}

/// Sends the handshake message over TLS; an error is why TLS fails, if that is known.
fn greet_secretly(to: &str, tls: &Tls) -> Result<Option<ProbeReply>, Option<String>> {
    let mut stream = shake_hands(to, tls)?;
    answer(&mut stream).map_err(|error| reason(to, &error))
}

type Secret = StreamOwned<ClientConnection, TcpStream>;

fn shake_hands(to: &str, tls: &Tls) -> Result<Secret, Option<String>> {
    let host = to.rsplit_once(':').map_or(to, |(host, _)| host).to_owned();
    let name = ServerName::try_from(host).map_err(|_| None)?;
    // The files were read before; they may have been changed since.
    let config = tls.client().map_err(|error| Some(error.message().to_owned()))?;
    let session = ClientConnection::new(config, name).map_err(|_| None)?;
    let mut stream = StreamOwned::new(session, call(to).ok_or(None)?);
    while stream.conn.is_handshaking() {
        if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
            return Err(reason(to, &error));
        }
    }
    // The peer's verdict on our certificate arrives after the handshake. It could be lost with the connection
    // if this process sent first. A peer that accepts the certificate also sends at once.
    let _ = stream.sock.set_read_timeout(Some(VERDICT));
    if let Err(error) = stream.conn.complete_io(&mut stream.sock)
        && let Some(reason) = reason(to, &error)
    {
        return Err(Some(reason));
    }
    let _ = stream.sock.set_read_timeout(Some(PATIENCE));
    Ok(stream)
}

fn reason(to: &str, error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    match error {
        TlsError::InvalidCertificate(reason) => {
            Some(format!("the certificate of {to} is not good: {}", flaw(reason)))
        }
        TlsError::AlertReceived(alert) => {
            Some(format!("{to} does not take the certificate of this process: {}", meaning(*alert)))
        }
        _ => None,
    }
}

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

fn meaning(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::UnknownCA => "it is of an authority that is not in its tls_ca_file",
        AlertDescription::CertificateExpired => "it has expired",
        AlertDescription::CertificateRequired => "there is none",
        AlertDescription::BadCertificate | AlertDescription::DecryptError => {
            "it is of an authority that is not in its tls_ca_file, or altered"
        }
        AlertDescription::UnsupportedCertificate => "it is not for callers",
        other => return format!("{other:?}"),
    };
    text.into()
}
