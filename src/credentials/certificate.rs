//! The files of TLS: an authority, and a certificate with its key.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Identity;
use super::names::OptionalNameVerifier;
use crate::error::{Error, Result, fail};

/// The certificate of a process for TLS, and its trusted authority.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub(crate) ca_file: String,
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
    /// Whether the certificate of a dialled peer must name the dialled host or address.
    pub(crate) verify_names: bool,
}

impl Tls {
    /// A certificate of tests/certs.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn of_tests(name: &str) -> Self {
        let file = |name: &str| format!("{}/tests/certs/{name}", env!("CARGO_MANIFEST_DIR"));
        Self {
            ca_file: file("ca.pem"),
            cert_file: file(&format!("{name}.pem")),
            key_file: file(&format!("{name}.key")),
            verify_names: true,
        }
    }

    /// Reads all files, and identifies the subject of the certificate.
    pub(crate) fn check(&self) -> Result<Identity> {
        self.client()?;
        let chain = self.chain()?;
        let leaf = chain.first().ok_or_else(|| self.bad("there is no certificate in it"))?;
        let (_, leaf) = X509Certificate::from_der(leaf)
            .map_err(|error| self.bad(&format!("it cannot be read: {error}")))?;
        let (begin, end) =
            (leaf.validity().not_before.timestamp(), leaf.validity().not_after.timestamp());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        if now > end {
            let text = format!("it expired on {}; make a new one", leaf.validity().not_after);
            return Err(self.refused(&text));
        }
        if now < begin {
            let text = format!(
                "it is not valid before {}; check the clock of this machine",
                leaf.validity().not_before
            );
            return Err(self.refused(&text));
        }
        let name = common_name(&leaf);
        name.and_then(Identity::parse).ok_or_else(|| {
            let name = name.unwrap_or_default();
            self.bad(&format!(
                "its common name is {name:?}, which says not who its holder may be: scheduler, server, \
                 worker or reader, or one of a rank, such as worker.3"
            ))
        })
    }

    /// The configuration with which this process dials. It reads the files.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>> {
        let (roots, key, provider) = (self.roots()?, self.key()?, provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| fail!(Internal, "TLS: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(roots, provider)?)
            .with_client_auth_cert(self.chain()?, key)
            .map_err(|error| self.unfit(&error))?;
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = true;
        Ok(Arc::new(config))
    }

    /// The configuration with which this process listens. It reads the files.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>> {
        let (roots, key, provider) = (self.roots()?, self.key()?, provider());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| fail!(Internal, "TLS: {error}"))?
            .with_client_cert_verifier(self.client_verifier(roots, provider)?)
            .with_single_cert(self.chain()?, key)
            .map_err(|error| self.unfit(&error))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        Ok(Arc::new(config))
    }

    /// The authorities of `tls_ca_file`.
    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for root in certificates("tls_ca_file", &self.ca_file)? {
            roots.add(root).map_err(|error| {
                fail!(Option, "tls_ca_file: {:?}: no authority: {error}", self.ca_file)
            })?;
        }
        if roots.is_empty() {
            let file = &self.ca_file;
            return Err(fail!(Option, "tls_ca_file: {file:?}: there is no certificate in it"));
        }
        Ok(roots)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_file(&self.key_file)
            .map_err(|error| of_pem("tls_key_file", &self.key_file, &error))
    }

    /// Requires of callers a certificate of an authority of `tls_ca_file`, for client authentication.
    fn client_verifier(
        &self,
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>> {
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| fail!(Option, "tls_ca_file: {:?}: {error}", self.ca_file))
    }

    fn verifier(
        &self,
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>> {
        OptionalNameVerifier::verifier(roots, provider, self.verify_names)
            .map_err(|error| fail!(Option, "tls_ca_file: {:?}: {error}", self.ca_file))
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>> {
        certificates("tls_cert_file", &self.cert_file)
    }

    fn unfit(&self, error: &rustls::Error) -> Error {
        self.bad(&format!("with the key in {:?}: {error}", self.key_file))
    }

    fn bad(&self, reason: &str) -> Error {
        fail!(Option, "tls_cert_file: {:?}: {reason}", self.cert_file)
    }

    fn refused(&self, reason: &str) -> Error {
        fail!(Refused, "tls_cert_file: {:?}: {reason}", self.cert_file)
    }
}

impl Identity {
    /// The identity that a certificate (DER) gives its holder; None if its common name is none.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        common_name(&certificate).and_then(Self::parse)
    }
}

fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(option: &str, file: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| of_pem(option, file, &error))
}

fn of_pem(option: &str, file: &str, error: &rustls::pki_types::pem::Error) -> Error {
    match error {
        rustls::pki_types::pem::Error::Io(error) => fail!(Io, "{option}: {file:?}: {error}"),
        error => fail!(Option, "{option}: {file:?}: {error}"),
    }
}
