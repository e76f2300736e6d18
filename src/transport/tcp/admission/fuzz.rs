//! Both sides of the greeting, with any bytes as those of the peer, for fuzzing.

use super::{
    AdmissionPolicy, CALLER, CallerGreeting, Certified, LISTENER, ListenerGreeting, verdict,
};
use crate::credentials::{CredentialKind, Credentials};
use crate::transport::tcp::greeting::{Direction, Lane, Status};

const SECRET: &str = "a secret of the job";

/// Bits of the first byte: which side receives, whether it has a token, and whether the peer has it too, and so
/// proves itself.
const IS_CALLER: u8 = 1;
const HAS_TOKEN: u8 = 2;
const IS_PROVEN: u8 = 4;
/// The side of the caller asks for records, or that of the listener wants them.
const SEALS: u8 = 8;

/// The bits above, the size of the pieces in which the bytes arrive, then these bytes.
pub(crate) fn greeting(data: &[u8]) {
    let Some(([bits, size], bytes)) = data.split_first_chunk() else { return };
    let has = |bit: u8| bits & bit != 0;
    let pieces = bytes.chunks(usize::from(*size) + 1);
    let own = |identity| credentials(identity, has(HAS_TOKEN), has(SEALS));
    let is_admitted = if has(IS_CALLER) {
        calls(own("worker.1").as_ref(), has(IS_PROVEN), has(SEALS), pieces)
    } else {
        listens(own("scheduler").as_ref(), has(IS_PROVEN), pieces)
    };
    // Without the token, the proof of the peer's bytes would be a forged one.
    assert!(!is_admitted || !has(HAS_TOKEN) || has(IS_PROVEN), "admitted without a token");
}

fn credentials(identity: &str, has_token: bool, seals: bool) -> Option<Credentials> {
    let credentials = has_token.then(|| Credentials::of_token(identity, SECRET))?;
    Some(if seals { credentials.sealing() } else { credentials })
}

fn listens<'a>(
    own: Option<&Credentials>,
    is_proven: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> bool {
    let (credentials, certified, is_full) = (own, Certified::Plain, &|_| false);
    let policy = AdmissionPolicy { credentials, certified, is_full };
    let mut greeting = ListenerGreeting::default();
    let (mut received, mut out) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        if is_proven
            && let (Some((call, words, answer)), Some(own)) = (&greeting.called, own)
            && let Some(who) = call.identity
            && let Some(password) = own.passwords(who).next()
        {
            let proof = password.proof(&[CALLER, words, answer]);
            drop(received.splice(..0, proof));
        }
        match greeting.receive(&policy, &mut received, &mut out) {
            Ok(None) => {}
            Ok(Some(caller)) => {
                assert!(!caller.from.is_empty() && !out.is_empty());
                let must_seal = own.is_some_and(Credentials::seals);
                assert!(!must_seal || greeting.records.is_some(), "admitted without records");
                return true;
            }
            Err(_) => return false,
        }
    }
    false
}

fn calls<'a>(
    own: Option<&Credentials>,
    is_proven: bool,
    seals: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> bool {
    let kind = CredentialKind::Server;
    let greeting = CallerGreeting::new(own, "h", kind, Lane::first(Direction::Both), seals);
    let Some(mut greeting) = greeting else { return false };
    let (mut received, mut out) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        if is_proven
            && let (Some((_, answer)), Some(password)) = (&greeting.answer, &greeting.password)
        {
            let proof = password.proof(&[LISTENER, &greeting.call, answer]);
            drop(received.splice(..0, verdict(Status::Welcome, proof)));
        }
        match greeting.receive(&mut received, &mut out) {
            Ok(false) => {}
            Ok(true) => {
                let asked = seals && own.is_some();
                assert_eq!(greeting.records.is_some(), asked, "records behind the greeting");
                return true;
            }
            Err(_) => return false,
        }
    }
    false
}
