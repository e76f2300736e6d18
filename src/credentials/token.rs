//! Join tokens: a secret of the whole job, or one derived from it for one kind of process. Also
//! called: pre-shared keys.

use std::fmt::{self, Write};
use std::path::Path;

use ring::hmac;

use super::Identity;
use crate::error::{Result, fail};

/// Shorter ones can be guessed.
const LEAST: usize = 16;
const MOST: usize = 4_096;
/// The digits of a derived token.
const DIGITS: usize = 64;

/// HMAC-SHA-256 over some words, under a password.
pub(crate) type Proof = [u8; 32];

/// The secret of one identity.
#[derive(Clone)]
pub(crate) struct Password(hmac::Key);

/// A secret of the job. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum JoinToken {
    /// The job's own secret, from which all others are derived.
    Job(String),
    /// The derived secret of an identity.
    Of(Identity, String),
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }
}

impl JoinToken {
    /// `source` names the origin of the text.
    pub(crate) fn parse(text: &str, source: &str) -> Result<Self> {
        let text = text.trim();
        if let Some((name, digits)) = text.split_once(':')
            && let Some(identity) = Identity::parse(name)
        {
            let hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
            if digits.len() == DIGITS && digits.bytes().all(hex) {
                return Ok(Self::Of(identity, digits.into()));
            }
            return Err(fail!(Option, "{source}: the token for {identity} is cut off or altered"));
        }
        if text.len() < LEAST || text.len() > MOST || text.chars().any(char::is_control) {
            return Err(fail!(
                Option,
                "{source}: a token is one line of {LEAST} to {MOST} characters; `kvstore certs token` \
                 makes one"
            ));
        }
        Ok(Self::Job(text.into()))
    }

    pub(crate) fn load(path: &str) -> Result<Self> {
        let read = std::fs::read_to_string(Path::new(path));
        let text = read.map_err(|error| fail!(Io, "token_file: {path:?}: {error}"))?;
        Self::parse(&text, &format!("token_file: {path:?}"))
    }

    /// The digits of an identity's password; None if this token is another identity's.
    fn digits(&self, identity: Identity) -> Option<String> {
        match self {
            Self::Job(secret) => Some(derive(secret, identity)),
            Self::Of(own, secret) => (*own == identity).then(|| secret.clone()),
        }
    }

    /// The password of an identity; None if this token is another identity's.
    pub(crate) fn password(&self, identity: Identity) -> Option<Password> {
        self.digits(identity).map(|digits| Password(key(&digits)))
    }
}

/// HMAC-SHA-256 over the name, under the token of the job.
fn derive(secret: &str, identity: Identity) -> String {
    let tag = hmac::sign(&key(secret), format!("kvstore token {identity}").as_bytes());
    let mut text = String::with_capacity(DIGITS);
    for byte in tag.as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Password {
    /// Proves that the sender of these words has the password.
    pub(crate) fn proof(&self, words: &[&[u8]]) -> Proof {
        let mut context = hmac::Context::with_key(&self.0);
        words.iter().for_each(|words| context.update(words));
        let mut proof = Proof::default();
        proof.copy_from_slice(context.sign().as_ref());
        proof
    }

    pub(crate) fn is_proof(&self, words: &[&[u8]], proof: &[u8]) -> bool {
        hmac::verify(&self.0, &words.concat(), proof).is_ok()
    }
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

/// The token of an identity, as `kvstore certs token --for` writes it.
#[cfg(test)]
pub(crate) fn derived_token(secret: &str, identity: &str) -> String {
    let identity = Identity::parse(identity).expect("an identity");
    format!("{identity}:{}", derive(secret, identity))
}

#[cfg(test)]
mod tests {
    use super::JoinToken;
    use crate::credentials::{CredentialKind, Identity};

    #[test]
    fn a_derived_token_is_what_the_job_expects_of_that_identity_only() {
        let job = JoinToken::parse("  0123456789abcdef\n", "").unwrap();
        let worker = Identity::of_rank(CredentialKind::Worker, 1);
        let password = job.digits(worker).unwrap();
        let own = JoinToken::parse(&format!("worker.1:{password}"), "").unwrap();
        assert_eq!(own.digits(worker), Some(password.clone()));
        for other in
            [Identity::any(CredentialKind::Server), Identity::of_rank(CredentialKind::Worker, 2)]
        {
            assert_eq!(own.digits(other), None);
            assert_ne!(job.digits(other), Some(password.clone()));
        }
        // Computed by another program.
        assert_eq!(password, "ad0524f29080679a295bce584154b939a3ebbf446417013e6ac31dcd415076af");
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_shown() {
        for text in ["", "short", "worker:0123456789abcdef0123", "two\nlines of some length"] {
            let error = JoinToken::parse(text, "KV_TOKEN").unwrap_err();
            assert!(text.is_empty() || !error.message().contains(text), "{error}");
            assert!(error.message().starts_with("KV_TOKEN: "), "{error}");
        }
        let token = JoinToken::parse("0123456789abcdef", "").unwrap();
        assert!(!format!("{token:?}").contains("0123"));
    }
}
