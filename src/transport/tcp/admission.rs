//! Who may connect: both sides of the greeting as state machines, without input and output. Also called:
//! authentication handshake, challenge and response.
//!
//! With a token each side proves that it has the password of the caller's identity, by an HMAC over both
//! messages. So a recorded greeting is useless, and a listener that takes any token is recognized. If the caller
//! asks for it, the messages have key shares, and records follow, whose keys are made of both and of the password.

use super::greeting::{ANSWER, Answer, CALL, Call, Lane, Malformed, Random, Status, VERDICT, take};
use crate::config::address::has_port;
use crate::credentials::{CredentialKind, Credentials, Identity, Password, Proof};
use crate::transport::names::with_identity;
use crate::transport::random::random_bytes;
use crate::transport::tls::{KeyShare, RecordHalves};

/// What the two proofs begin with.
const CALLER: &[u8] = b"kvstore caller";
const LISTENER: &[u8] = b"kvstore listener";
/// What the HMAC begins with that is the pre-shared key of records.
const RECORDS: &[u8] = b"kvstore records";

/// The greeting on the side of the listener.
#[derive(Default)]
pub(super) struct ListenerGreeting {
    /// The call and its answer, while a proof is awaited.
    called: Option<(Call, Vec<u8>, Vec<u8>)>,
    share: Option<KeyShare>,
    /// What seals and opens all that follows the greeting, if its caller asks for that.
    pub(super) records: Option<RecordHalves>,
    /// The identity that the caller claims, for the log.
    pub(super) claimed: Option<Identity>,
}

/// What a listener needs to know for an answer.
pub(super) struct AdmissionPolicy<'a> {
    pub(super) credentials: Option<&'a Credentials>,
    pub(super) certified: Certified,
    /// Whether there is no room for a further connection on a lane.
    pub(super) is_full: &'a dyn Fn(Lane) -> bool,
}

/// What the caller's certificate says of it.
#[derive(Clone, Copy)]
pub(super) enum Certified {
    /// There is no TLS, and so no certificate.
    Plain,
    /// The identity on the certificate, if there is one on it.
    As(Option<Identity>),
}

impl Certified {
    fn is_of(self, who: Identity) -> bool {
        match self {
            Self::Plain => true,
            Self::As(certified) => certified == Some(who),
        }
    }
}

impl ListenerGreeting {
    /// Takes received bytes; appends what is to be sent to `out`. The caller, once it is admitted.
    pub(super) fn receive(
        &mut self,
        policy: &AdmissionPolicy<'_>,
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Caller>, Status> {
        let Some((call, words, answer)) = &self.called else {
            return self.answer(policy, received, out);
        };
        let peer = call.share;
        let Some(proof) = received.get(..size_of::<Proof>()) else { return Ok(None) };
        let words = [CALLER, words, answer];
        let credentials = policy.credentials.ok_or(Status::WantsNoToken)?;
        let who = call.identity.ok_or(Status::NotAllowed)?;
        let known = credentials.passwords(who).find(|known| known.is_proof(&words, proof));
        let Some(known) = known else {
            out.extend_from_slice(&verdict(Status::OtherToken, Proof::default()));
            return Err(Status::OtherToken);
        };
        if let (Some(share), Some(peer)) = (self.share.take(), peer) {
            let (key, text) = (known.proof(&[RECORDS, words[1], words[2]]), words[1..].concat());
            let records = share.agree(&peer, false, &key, &text);
            self.records = Some(records.map_err(|_| Status::Malformed)?);
        }
        out.extend_from_slice(&verdict(
            Status::Welcome,
            known.proof(&[LISTENER, words[1], words[2]]),
        ));
        received.drain(..size_of::<Proof>());
        Ok(Some(Caller::of(call)))
    }

    fn answer(
        &mut self,
        policy: &AdmissionPolicy<'_>,
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Caller>, Status> {
        let words = match take(CALL, received) {
            Ok(None) => return Ok(None),
            Ok(Some(words)) => words,
            // Noise gets no answer.
            Err(Malformed::Nonsense) => return Err(Status::Malformed),
            Err(Malformed::Version) => return Err(refuse(policy, Status::Version, out)),
        };
        let Ok(call) = Call::decode(&words) else {
            return Err(refuse(policy, Status::Malformed, out));
        };
        self.claimed = call.identity;
        let status = policy.judge(&call);
        if status != Status::Welcome {
            return Err(refuse(policy, status, out));
        }
        // TLS has records of its own.
        let is_plain = matches!(policy.certified, Certified::Plain);
        if call.share.is_some() && policy.wants_token() && is_plain {
            self.share = Some(KeyShare::new().ok_or(Status::Full)?);
        }
        let mut answer = policy.answer(status, random_bytes().ok_or(Status::Full)?);
        answer.share = self.share.as_ref().map(|share| *share.public());
        let answer = answer.encode();
        out.extend_from_slice(&answer);
        if policy.wants_token() {
            self.called = Some((call, words, answer));
            return Ok(None);
        }
        Ok(Some(Caller::of(&call)))
    }
}

/// An admitted caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The sender of all that follows, as in [`crate::transport::Inbox::arrived`].
    pub(super) from: String,
    pub(super) lane: Lane,
}

impl Caller {
    fn of(call: &Call) -> Self {
        let from = with_identity(call.identity, &call.name);
        Self { from, lane: call.lane }
    }
}

impl AdmissionPolicy<'_> {
    fn wants_token(&self) -> bool {
        self.credentials.is_some_and(Credentials::has_token)
    }

    fn answer(&self, status: Status, random: Random) -> Answer {
        let identity = self.credentials.map(|credentials| credentials.identity);
        Answer { status, wants_token: self.wants_token(), random, identity, share: None }
    }

    /// Whether a caller may prove, or be, what it claims.
    fn judge(&self, call: &Call) -> Status {
        if call.has_token != self.wants_token() {
            return if call.has_token { Status::WantsNoToken } else { Status::WantsToken };
        }
        let is_allowed = match (self.credentials, call.identity) {
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => false,
            (Some(credentials), Some(who)) => {
                credentials.may_be_called_by(who)
                    && self.certified.is_of(who)
                    && credentials.knows_as(who, has_port(&call.name))
            }
        };
        let seals = self.credentials.is_some_and(Credentials::seals);
        match is_allowed {
            false => Status::NotAllowed,
            true if seals && call.share.is_none() => Status::WantsRecords,
            true if (self.is_full)(call.lane) => Status::Full,
            true => Status::Welcome,
        }
    }
}

/// Answers that a caller is refused.
pub(super) fn refuse(policy: &AdmissionPolicy<'_>, status: Status, out: &mut Vec<u8>) -> Status {
    out.extend_from_slice(&policy.answer(status, Random::default()).encode());
    status
}

fn verdict(status: Status, proof: Proof) -> [u8; VERDICT] {
    let mut verdict = [status as u8; VERDICT];
    verdict[1..].copy_from_slice(&proof);
    verdict
}

/// The greeting on the side of the caller.
pub(super) struct CallerGreeting {
    call: Vec<u8>,
    password: Option<Password>,
    /// The kind of process that is called, which its credential must be of.
    wanted: Option<CredentialKind>,
    answer: Option<(Answer, Vec<u8>)>,
    share: Option<KeyShare>,
    /// What seals and opens all that follows the greeting, if this side asks for that.
    pub(super) records: Option<RecordHalves>,
}

/// Why a greeting has failed for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The listener refuses the caller.
    Refused(Status),
    /// The listener has no token of this job.
    NotProven,
    /// The listener is a process of another kind.
    OtherKind(Option<Identity>, CredentialKind),
    /// The listener does not seal what it sends, and this process asks for that.
    NotSealed,
}

impl CallerGreeting {
    /// `name` is the caller's own address or name, without its identity. With a token, `seals` asks for records
    /// behind the greeting. None if the system has no random bytes.
    pub(super) fn new(
        credentials: Option<&Credentials>,
        name: &str,
        wanted: CredentialKind,
        lane: Lane,
        seals: bool,
    ) -> Option<Self> {
        let password = credentials.and_then(Credentials::password);
        let share = if seals && password.is_some() { Some(KeyShare::new()?) } else { None };
        let call = Call {
            has_token: password.is_some(),
            lane,
            random: random_bytes()?,
            identity: credentials.map(|credentials| credentials.identity),
            name: name.into(),
            share: share.as_ref().map(|share| *share.public()),
        };
        let wanted = credentials.map(|_| wanted);
        let (call, answer, records) = (call.encode(), None, None);
        Some(Self { call, password, wanted, answer, share, records })
    }

    /// The message with which the connection begins.
    pub(super) fn call(&self) -> &[u8] {
        &self.call
    }

    /// Takes received bytes; appends what is to be sent to `out`. True once the caller is admitted; bytes
    /// behind the greeting stay.
    pub(super) fn receive(
        &mut self,
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        if self.answer.is_none() {
            let malformed = |malformed| match malformed {
                Malformed::Version => Failure::Refused(Status::Version),
                Malformed::Nonsense => Failure::Refused(Status::Malformed),
            };
            let Some(words) = take(ANSWER, received).map_err(malformed)? else { return Ok(false) };
            let answer = Answer::decode(&words).map_err(malformed)?;
            if answer.status != Status::Welcome {
                return Err(Failure::Refused(answer.status));
            }
            if let Some(wanted) = self.wanted
                && answer.identity.is_none_or(|who| who.kind != wanted)
            {
                return Err(Failure::OtherKind(answer.identity, wanted));
            }
            // A listener that asks for no proof gives none.
            if answer.wants_token != self.password.is_some() {
                return Err(Failure::Refused(Status::WantsNoToken));
            }
            if answer.share.is_some() != self.share.is_some() {
                return Err(Failure::NotSealed);
            }
            if let Some(password) = &self.password {
                out.extend_from_slice(&password.proof(&[CALLER, &self.call, &words]));
            }
            self.answer = Some((answer, words));
        }
        let (Some(password), Some((answer, words))) = (&self.password, &self.answer) else {
            return Ok(true);
        };
        let Some(([status, proof @ ..], _)) = received.split_first_chunk::<VERDICT>() else {
            return Ok(false);
        };
        match Status::of(*status) {
            Some(Status::Welcome) => {}
            status => return Err(Failure::Refused(status.unwrap_or(Status::Malformed))),
        }
        if !password.is_proof(&[LISTENER, &self.call, words], proof) {
            return Err(Failure::NotProven);
        }
        if let (Some(share), Some(peer)) = (self.share.take(), &answer.share) {
            let key = password.proof(&[RECORDS, &self.call, words]);
            let records = share.agree(peer, true, &key, &[&self.call[..], words].concat());
            self.records = Some(records.map_err(|_| Failure::Refused(Status::Malformed))?);
        }
        received.drain(..VERDICT);
        Ok(true)
    }

    /// The identity of the listener, which has proven it.
    pub(super) fn listener(&self) -> Option<Identity> {
        self.answer.as_ref().and_then(|(answer, _)| answer.identity)
    }
}

#[cfg(any(fuzzing, test))]
pub(in crate::transport) mod fuzz;
#[cfg(test)]
mod tests;
