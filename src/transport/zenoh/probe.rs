//! Why a call was not taken: the engine only says that it was not.
//!
//! A second call, made by hand, goes as far as the first greeting and reads what comes back.

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

/// How long to wait for each answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after a handshake it may take until a certificate is refused.
const VERDICT: Duration = Duration::from_millis(300);
/// The first bytes of a message that says that a TLS connection ends.
const ALERT: [u8; 2] = [0x15, 0x03];
const INIT: u8 = 0x01;
const MESSAGE: u8 = 0x1f;

/// What came back to a greeting without a token.
#[derive(Debug, PartialEq, Eq)]
enum ProbeReply {
    /// It may go on.
    Welcome,
    /// It is told to go, or the connection ends.
    Ended,
    /// This is not what the other side speaks.
    Tls,
}

/// Why whoever is at an address does not take this process; None if it does, if nobody is there, or
/// if it says nothing.
pub(super) fn refusal(to: &str, credentials: Option<&Credentials>) -> Option<String> {
    let tls = credentials.and_then(|credentials| credentials.tls.as_ref());
    let answer = match tls {
        None => greet(&mut call(to)?),
        Some(tls) => match greet_secretly(to, tls) {
            Ok(answer) => answer,
            Err(Some(reason)) => return Some(reason),
            // It may not know what we speak.
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

/// The first message of a session of the engine, behind its length; a number of chance stands for us.
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

/// None if nothing comes back in time.
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

/// Why there is no TLS with whoever is at an address, if that is known. To be asked before the engine
/// calls: it may take very long to give up a connection that ends in its first moments.
pub(super) fn refusal_of_tls(to: &str, tls: &Tls) -> Option<String> {
    shake_hands(to, tls).err().flatten()
}

/// A greeting over TLS; an error is why there is no TLS, if that is known.
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
    // What the other side thinks of our certificate comes after the handshake, and could be lost with
    // the connection if we spoke first. If it takes it, it says something too, at once.
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
