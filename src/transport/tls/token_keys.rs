//! Traffic keys of a connection whose greeting was proven by a token: the key schedule of TLS 1.3 (RFC 8446,
//! section 7.1) for a pre-shared key with a Diffie-Hellman agreement, over the messages of the greeting.

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::SystemRandom;

use super::error::TlsError;
use super::opener::Opener;
use super::sealer::Sealer;
use super::secret::{HASH, Secret, derive};
use super::traffic_keys::{KeySchedule, TrafficKeys};

/// Maximum number of records under one key: RFC 8446, section 5.5, for AES-GCM, rounded down as in rustls.
const MOST_RECORDS: u64 = 1 << 24;

/// Length of a public key of X25519.
pub(in crate::transport) const SHARE: usize = 32;
/// A public key of X25519 (RFC 7748).
pub(in crate::transport) type PublicShare = [u8; SHARE];
/// What seals, and what opens, the records of one side.
pub(in crate::transport) type RecordHalves = (Sealer, Opener);

/// The key pair of one side for one connection. Also called: key share, ephemeral key.
pub(in crate::transport) struct KeyShare {
    private: EphemeralPrivateKey,
    public: PublicShare,
}

impl KeyShare {
    /// None if the system has no random bytes.
    pub(in crate::transport) fn new() -> Option<Self> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).ok()?;
        let public = private.compute_public_key().ok()?.as_ref().try_into().ok()?;
        Some(Self { private, public })
    }

    pub(in crate::transport) fn public(&self) -> &PublicShare {
        &self.public
    }

    /// The halves of this side. `key` is the pre-shared key, `words` are the messages of the greeting, which
    /// both sides have proven. Fails if the peer's share is none.
    pub(in crate::transport) fn agree(
        self,
        peer: &PublicShare,
        is_caller: bool,
        key: &[u8],
        words: &[u8],
    ) -> Result<RecordHalves, TlsError> {
        const NONE: TlsError = TlsError::Misuse("the key share of the peer is none");
        let peer = UnparsedPublicKey::new(&X25519, peer);
        let [caller, listener] =
            agree_ephemeral(self.private, &peer, |shared| traffic_secrets(key, shared, words))
                .map_err(|_| NONE)??;
        let (sending, receiving) = if is_caller { (caller, listener) } else { (listener, caller) };
        halves(sending, receiving, is_caller)
    }
}

/// The halves of the side that sends under the first secret, and receives under the second.
fn halves(sending: Secret, receiving: Secret, is_caller: bool) -> Result<RecordHalves, TlsError> {
    let (to_send, to_receive) = (sending.record_key()?, receiving.record_key()?);
    let keys = TrafficKeys::new(KeySchedule::Token { sending, receiving }).into();
    let sealer = Sealer::new(to_send, std::sync::Arc::clone(&keys), MOST_RECORDS);
    Ok((sealer, Opener::new(to_receive, keys, is_caller)))
}

/// The first traffic secrets of the caller and of the listener.
fn traffic_secrets(key: &[u8], shared: &[u8], words: &[u8]) -> Result<[Secret; 2], TlsError> {
    let zeros = [0; HASH];
    let nothing = digest(&SHA256, b"");
    let words = digest(&SHA256, words);
    let early = Salt::new(HKDF_SHA256, &zeros).extract(key);
    let derived = derive(&early, "derived", nothing.as_ref())?;
    let handshake = Salt::new(HKDF_SHA256, &derived.0).extract(shared);
    let derived = derive(&handshake, "derived", nothing.as_ref())?;
    let master = Salt::new(HKDF_SHA256, &derived.0).extract(&zeros);
    Ok([
        derive(&master, "c ap traffic", words.as_ref())?,
        derive(&master, "s ap traffic", words.as_ref())?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        let digits: String = digits.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn secrets_are_those_of_rfc_8448() {
        // Section 3: no pre-shared key, the shared secret of X25519, and the hash of its transcript in place of
        // ours.
        let shared = bytes("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d");
        let transcript = bytes("9608102a0f1ccc6db6250b7b7e417b1a000eaada3daae4777a7686c9ff83df13");
        let zeros = [0; HASH];
        let nothing = digest(&SHA256, b"");
        let early = Salt::new(HKDF_SHA256, &zeros).extract(&zeros);
        let derived = derive(&early, "derived", nothing.as_ref()).unwrap();
        assert_eq!(
            derived.0[..],
            bytes("6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba")
        );
        let handshake = Salt::new(HKDF_SHA256, &derived.0).extract(&shared);
        let derived = derive(&handshake, "derived", nothing.as_ref()).unwrap();
        let master = Salt::new(HKDF_SHA256, &derived.0).extract(&zeros);
        for (label, secret) in [
            ("c ap traffic", "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5"),
            ("s ap traffic", "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643"),
        ] {
            assert_eq!(derive(&master, label, &transcript).unwrap().0[..], bytes(secret));
        }
    }

    #[test]
    fn secrets_are_those_of_another_program_and_change_with_all_that_they_are_made_of() {
        // Computed by the modules hmac and hashlib of Python.
        let of = |key: &[u8], shared: &[u8], words: &[u8]| {
            traffic_secrets(key, shared, words).unwrap().map(|secret| secret.0.to_vec())
        };
        let [caller, listener] = of(&[1; 32], &[2; 32], b"call and answer");
        assert_eq!(
            caller,
            bytes("d34257837cbf93fed38c66944cf750ce2aedf161455254f97a8652fa996b8305")
        );
        assert_eq!(
            listener,
            bytes("8426812a78fe8fe6be22412b3684c0edf77ee1d70b334fa7903327086d220c33")
        );
        for other in [
            of(&[3; 32], &[2; 32], b"call and answer"),
            of(&[1; 32], &[3; 32], b"call and answer"),
            of(&[1; 32], &[2; 32], b"call and answers"),
        ] {
            assert!(other[0] != caller && other[1] != listener);
        }
        let secret = Secret(caller.try_into().unwrap());
        assert_eq!(
            secret.next().unwrap().0[..],
            bytes("dd5c9e3ac7805e63c59776f0e71c3f5dacbaddff4a9b2fb739ea41c6beda25ea")
        );
    }

    /// Both sides of a connection: caller, listener.
    fn sides(key: &[u8], other_key: &[u8]) -> (RecordHalves, RecordHalves) {
        let (calls, listens) = (KeyShare::new().unwrap(), KeyShare::new().unwrap());
        let (to_listener, to_caller) = (*calls.public(), *listens.public());
        (
            calls.agree(&to_caller, true, key, b"words").unwrap(),
            listens.agree(&to_listener, false, other_key, b"words").unwrap(),
        )
    }

    #[test]
    fn both_sides_seal_for_one_another_update_their_keys_and_share_nothing_with_others() {
        let (mut caller, mut listener) = sides(&[1; 32], &[1; 32]);
        caller.0.limit_records(3);
        let exchange = |from: &mut RecordHalves, to: &mut RecordHalves, byte: u8| {
            let mut sealed = Vec::new();
            from.0.seal(&[std::io::IoSlice::new(&vec![byte; 50_000])], &mut sealed).unwrap();
            let mut plain = Vec::new();
            to.1.open(&mut sealed, &mut plain).map(|_| plain == vec![byte; 50_000])
        };
        for byte in 0..20 {
            assert_eq!(exchange(&mut caller, &mut listener, byte), Ok(true));
            assert_eq!(exchange(&mut listener, &mut caller, byte), Ok(true));
        }
        let (mut other, mut stranger) = sides(&[1; 32], &[2; 32]);
        assert!(exchange(&mut other, &mut stranger, 1).is_err(), "another token");
        let (mut again, _) = sides(&[1; 32], &[1; 32]);
        assert!(exchange(&mut again, &mut listener, 1).is_err(), "another connection");
    }

    #[test]
    fn a_share_without_a_secret_is_refused() {
        let share = KeyShare::new().unwrap();
        assert!(share.agree(&[0; SHARE], true, &[1; 32], b"words").is_err());
    }
}
