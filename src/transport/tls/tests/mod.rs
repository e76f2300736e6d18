//! Tests of TLS: published vectors, both of our sides against each other, against the buffered connections
//! of rustls, and against OpenSSL.

mod handshakes;
mod images;
mod openssl;
mod peers;
mod records;
mod updates;
mod vectors;

use std::io::IoSlice;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite};

use super::{Opener, Sealer, TlsConnection, TlsError};
use crate::credentials::Tls;

/// Certificates for tests; `make.sh` there makes them.
const CERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certs");
const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn tls(name: &str) -> Tls {
    Tls::of_tests(name)
}

fn client(name: &str) -> Arc<ClientConfig> {
    tls(name).client().expect("good files")
}

fn server(name: &str) -> Arc<ServerConfig> {
    tls(name).server().expect("good files")
}

/// A listener's configuration that takes one cipher only, made without our code.
fn server_of(name: &str, suite: SupportedCipherSuite) -> Arc<ServerConfig> {
    let provider = CryptoProvider { cipher_suites: vec![suite], ..default_provider() };
    let provider = Arc::new(provider);
    let certificates = |file: &str| -> Vec<_> {
        let file = CertificateDer::pem_file_iter(format!("{CERTS}/{file}.pem")).expect("a file");
        file.map(|it| it.expect("a certificate")).collect()
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates("ca"));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let key = PrivateKeyDer::from_pem_file(format!("{CERTS}/{name}.key")).expect("a key");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("a version")
        .with_client_cert_verifier(verifier.build().expect("an authority"))
        .with_single_cert(certificates(name), key)
        .expect("a certificate");
    config.enable_secret_extraction = true;
    config.into()
}

/// A connection with the buffers around it.
struct End {
    tls: TlsConnection,
    received: Vec<u8>,
    plain: Vec<u8>,
    out: Vec<u8>,
}

impl End {
    fn new(tls: TlsConnection) -> Self {
        Self { tls, received: Vec::new(), plain: Vec::new(), out: Vec::new() }
    }

    fn caller(name: &str) -> Self {
        Self::new(TlsConnection::caller(client(name), "127.0.0.1").expect("a caller"))
    }

    fn listener(name: &str) -> Self {
        Self::new(TlsConnection::listener(server(name)).expect("a listener"))
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        self.received.extend_from_slice(bytes);
        self.tls.receive(&mut self.received, &mut self.plain, &mut self.out)
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

/// Carries bytes between both ends in pieces of this many bytes, until neither has more to send.
fn exchange(one: &mut End, other: &mut End, piece: usize) -> Result<(), TlsError> {
    one.receive(&[])?;
    other.receive(&[])?;
    for _ in 0..20 {
        for bytes in one.take().chunks(piece) {
            other.receive(bytes)?;
        }
        for bytes in other.take().chunks(piece) {
            one.receive(bytes)?;
        }
        if one.out.is_empty() {
            return Ok(());
        }
    }
    panic!("the handshake does not end");
}

/// Both ends of a connection after the handshake, with one cipher.
fn open_of(suite: SupportedCipherSuite) -> (End, End) {
    let mut caller = End::caller("worker");
    let config = server_of("scheduler", suite);
    let mut listener = End::new(TlsConnection::listener(config).expect("a listener"));
    exchange(&mut caller, &mut listener, usize::MAX).expect("a handshake");
    (caller, listener)
}

fn open() -> (End, End) {
    open_of(SUITES[0])
}

/// What one end sends with, and the other receives with.
fn one_way() -> (Sealer, Opener) {
    let (caller, listener) = open();
    (caller.tls.split().expect("open").0, listener.tls.split().expect("open").1)
}

/// Bytes of which no two neighbourhoods are alike.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(next).collect()
}

fn seal(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal(&[IoSlice::new(bytes)], &mut out).expect("an open connection");
    out
}

/// The application data of sealed bytes that are all consumed, and whether the peer has closed.
fn unseal(opener: &mut Opener, sealed: &[u8]) -> Result<(Vec<u8>, bool), TlsError> {
    let (mut sealed, mut plain) = (sealed.to_vec(), Vec::new());
    let opened = opener.open(&mut sealed, &mut plain)?;
    assert_eq!(opened.consumed, sealed.len(), "a record is not whole");
    Ok((plain, opened.is_closed))
}
