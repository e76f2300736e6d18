//! Secrets of the key schedule of TLS 1.3 (RFC 8446, section 7), and the keys that are derived from them.

use ring::aead::AES_128_GCM;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

use super::error::TlsError;
use super::record::RecordKey;

/// Length of hashes, and so of secrets.
pub(super) const HASH: usize = 32;
/// Lengths of the key of AES-128-GCM, and of its nonce.
const KEY: usize = 16;
const NONCE: usize = 12;

/// A traffic secret; wiped when it is dropped.
pub(super) struct Secret(pub(super) [u8; HASH]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // The compiler must not leave the writes out.
        std::hint::black_box(&self.0);
    }
}

impl Secret {
    pub(super) fn of(bytes: [u8; HASH]) -> Self {
        Self(bytes)
    }

    fn prk(&self) -> Prk {
        Prk::new_less_safe(HKDF_SHA256, &self.0)
    }

    /// The key that belongs to the secret (section 7.3), for its first record.
    pub(super) fn record_key(&self) -> Result<RecordKey, TlsError> {
        let (mut key, mut iv) = ([0; KEY], [0; NONCE]);
        expand(&self.prk(), "key", &[], &mut key)?;
        expand(&self.prk(), "iv", &[], &mut iv)?;
        let made = RecordKey::of(&AES_128_GCM, &key, &iv, 0);
        key.fill(0);
        std::hint::black_box(&key);
        made
    }

    /// The secret after a key update (section 7.2).
    pub(super) fn next(&self) -> Result<Self, TlsError> {
        derive(&self.prk(), "traffic upd", &[])
    }
}

/// Derive-Secret (section 7.1), or a secret without a context.
pub(super) fn derive(secret: &Prk, label: &str, context: &[u8]) -> Result<Secret, TlsError> {
    let mut out = Secret([0; HASH]);
    expand(secret, label, context, &mut out.0)?;
    Ok(out)
}

/// Length of a derived secret.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label.
fn expand(secret: &Prk, label: &str, context: &[u8], out: &mut [u8]) -> Result<(), TlsError> {
    const PREFIX: &str = "tls13 ";
    let byte = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
    let lengths = [0, byte(out.len()), byte(PREFIX.len() + label.len())];
    let context_len = [byte(context.len())];
    let info = [&lengths[..], PREFIX.as_bytes(), label.as_bytes(), &context_len, context];
    secret
        .expand(&info, Length(out.len()))
        .and_then(|derived| derived.fill(out))
        .map_err(|_| TlsError::Misuse("a key cannot be derived"))
}
