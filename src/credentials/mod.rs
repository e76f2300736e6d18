//! Credentials of a process of a job: a certificate, a token, or both. Also called: authentication.
//!
//! docs/operate/security.md lists the protection that each gives.

mod certificate;
mod identity;
mod kept;
mod listener;
mod names;
mod token;

use std::sync::Arc;

pub(crate) use certificate::Tls;
pub(crate) use identity::{CredentialKind, Identity};
pub use kept::JobFile;
pub(crate) use kept::take_kept;
pub(crate) use listener::ListenerTls;
use token::JoinToken;
#[cfg(test)]
pub(crate) use token::derived_token;
pub(crate) use token::{Password, Proof};

use crate::config::{AcceptedTokens, Integrity, JobConfig, Secrets};
use crate::error::{Error, Result, fail};
use crate::role::Role;

/// The credentials of this process.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The identity of this process for its peers.
    pub(crate) identity: Identity,
    pub(crate) tls: Option<Tls>,
    token: Option<JoinToken>,
    accepted: AcceptedTokens,
    integrity: Integrity,
    workers: u32,
    servers: u32,
}

impl Credentials {
    /// None if this process has none.
    pub(crate) fn load(job: &JobConfig) -> Result<Option<Arc<Self>>> {
        Self::read(job).map_err(|error: Error| error.at("create"))
    }

    fn read(job: &JobConfig) -> Result<Option<Arc<Self>>> {
        let (tls, token) = (tls(&job.secrets)?, token(&job.secrets)?);
        let certified = tls.as_ref().map(Tls::check).transpose()?;
        let integrity = job.secrets.integrity;
        let Some(identity) = identity(job, certified, token.as_ref())? else {
            if integrity == Integrity::Records {
                return Err(fail!(
                    Option,
                    "integrity=yes needs a token, from which the keys are made: set token_file, or KV_TOKEN \
                     in the environment; with certificates TLS does it"
                ));
            }
            return Ok(None);
        };
        let rank = job.rank.or(identity.rank);
        if !identity.allows(job.role, rank) || (job.secrets.reads_only && !identity.is_reader()) {
            let rank = job.rank.map_or(String::new(), |rank| format!(" {rank}"));
            let role = if job.secrets.reads_only { "reader" } else { job.role.name() };
            return Err(fail!(
                Refused,
                "the credential of this process is for {identity}, and it is to be {role}{rank}; give \
                 every process a certificate or a token of its own role and rank"
            ));
        }
        if job.role != Role::Worker && matches!(token, Some(JoinToken::Of(..))) {
            return Err(fail!(
                Option,
                "the token is one of {identity}, and servers and the scheduler check those of all others: \
                 give them the token of the job"
            ));
        }
        let (workers, servers) = (job.workers, job.servers);
        let accepted = job.secrets.accepted;
        Ok(Some(Arc::new(Self { identity, tls, token, accepted, integrity, workers, servers })))
    }

    /// A process with the token of a job.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn of_token(identity: &str, secret: &str) -> Self {
        let identity = Identity::parse(identity).expect("an identity");
        let token = JoinToken::parse(secret, "a test").ok();
        let (accepted, integrity) = (AcceptedTokens::All, Integrity::Plain);
        Self { identity, tls: None, token, accepted, integrity, workers: 2, servers: 1 }
    }

    /// The same, with records behind greetings.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn sealing(self) -> Self {
        Self { integrity: Integrity::Records, ..self }
    }

    /// The same, where workers and readers need a token of their rank.
    #[cfg(test)]
    pub(crate) fn by_rank(self) -> Self {
        Self { accepted: AcceptedTokens::OfRanks, ..self }
    }

    /// A process with a certificate of tests/certs, and the token of a job if there is one.
    #[cfg(test)]
    pub(crate) fn of_certificate(name: &str, secret: Option<&str>) -> Self {
        let tls = Tls::of_tests(name);
        let identity = tls.check().expect("an identity");
        let token = secret.and_then(|secret| JoinToken::parse(secret, "a test").ok());
        Self {
            identity,
            tls: Some(tls),
            token,
            accepted: AcceptedTokens::All,
            integrity: Integrity::Plain,
            workers: 4,
            servers: 2,
        }
    }

    /// The password by which this process proves itself to listeners; None without a token.
    pub(crate) fn password(&self) -> Option<Password> {
        self.token.as_ref()?.password(self.user())
    }

    /// The passwords by which a process may prove that it is `who`: that of its rank, and that of its kind.
    pub(crate) fn passwords(&self, who: Identity) -> impl Iterator<Item = Password> {
        let of = |who| self.token.as_ref()?.password(who);
        let of_kind = if self.needs_rank(who) { None } else { of(Identity::any(who.kind)) };
        [of(who), of_kind].into_iter().flatten()
    }

    /// Whether a process must have a token of its rank. Servers check the tokens of all others, and so have
    /// that of the job.
    fn needs_rank(&self, who: Identity) -> bool {
        let of_ranks = self.accepted == AcceptedTokens::OfRanks;
        of_ranks && self.token.is_some() && !who.listens()
    }

    fn user(&self) -> Identity {
        match self.token {
            Some(JoinToken::Of(identity, _)) => identity,
            _ => self.identity,
        }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether records follow each greeting of this process, whose keys are made of its token. TLS has its own.
    pub(crate) fn seals(&self) -> bool {
        self.integrity == Integrity::Records && self.can_seal()
    }

    /// Whether records may follow a greeting of this process.
    pub(crate) fn can_seal(&self) -> bool {
        self.has_token() && self.tls.is_none()
    }

    /// Whether this listener may be called by `who`: servers and workers call the scheduler, workers call
    /// servers, and for exchanges each other.
    pub(crate) fn may_be_called_by(&self, who: Identity) -> bool {
        let calls = match self.identity.kind {
            CredentialKind::Scheduler => true,
            CredentialKind::Worker => who.kind == CredentialKind::Worker,
            CredentialKind::Server | CredentialKind::Reader => !who.listens(),
        };
        let has_rank = who.rank.is_some() || !self.needs_rank(who);
        calls
            && has_rank
            && who.kind != CredentialKind::Scheduler
            && self.names().any(|name| name == who)
    }

    /// Whether a caller may have a name with a port, or must not: of a worker that calls a worker it is the address
    /// of the caller; no other worker may have that of a process that listens.
    pub(crate) fn knows_as(&self, who: Identity, has_port: bool) -> bool {
        has_port == (who.listens() || self.identity.kind == CredentialKind::Worker)
    }

    /// Whether this process can check the credentials of other workers: not with a token of its rank alone.
    pub(crate) fn can_check_workers(&self) -> bool {
        let other = Identity::of_rank(CredentialKind::Worker, u32::MAX);
        !self.has_token() || self.passwords(other).next().is_some()
    }

    /// All identities that may take part in the job.
    fn names(&self) -> impl Iterator<Item = Identity> + '_ {
        let of = |kind, count| {
            let ranks = (0..count).map(move |rank| Identity::of_rank(kind, rank));
            std::iter::once(Identity::any(kind)).chain(ranks)
        };
        std::iter::once(Identity::SCHEDULER)
            .chain(of(CredentialKind::Server, self.servers))
            .chain(of(CredentialKind::Worker, self.workers))
            .chain(of(CredentialKind::Reader, self.workers))
    }
}

fn tls(secrets: &Secrets) -> Result<Option<Tls>> {
    let files = [&secrets.tls_ca_file, &secrets.tls_cert_file, &secrets.tls_key_file];
    match files.map(Clone::clone) {
        [None, None, None] => Ok(None),
        [Some(ca_file), Some(cert_file), Some(key_file)] => {
            let verify_names = secrets.verifies_names;
            Ok(Some(Tls { ca_file, cert_file, key_file, verify_names }))
        }
        _ => Err(fail!(
            Option,
            "TLS needs all of tls_ca_file, tls_cert_file and tls_key_file; `kvstore certs` makes them"
        )),
    }
}

fn token(secrets: &Secrets) -> Result<Option<JoinToken>> {
    match (&secrets.token, &secrets.token_file) {
        (Some(text), _) => JoinToken::parse(text, "token").map(Some),
        (None, Some(file)) => JoinToken::load(file).map(Some),
        (None, None) => Ok(None),
    }
}

/// The identity of this process by its certificate and its token; both must agree.
fn identity(
    job: &JobConfig,
    certified: Option<Identity>,
    token: Option<&JoinToken>,
) -> Result<Option<Identity>> {
    let own = match job.role {
        Role::Scheduler => CredentialKind::Scheduler,
        Role::Server => CredentialKind::Server,
        Role::Worker if job.secrets.reads_only => CredentialKind::Reader,
        Role::Worker => CredentialKind::Worker,
    };
    let told = match token {
        None => None,
        Some(JoinToken::Of(identity, _)) => Some(*identity),
        Some(JoinToken::Job(_)) => Some(certified.unwrap_or(Identity::any(own))),
    };
    match (certified, told) {
        (Some(one), Some(other))
            if one.kind != other.kind || (other.rank.is_some() && one.rank != other.rank) =>
        {
            Err(fail!(
                Refused,
                "the certificate of this process is for {one}, its token for {other}; both must be for one"
            ))
        }
        (Some(identity), _) | (None, Some(identity)) => Ok(Some(identity)),
        (None, None) => Ok(None),
    }
}

/// Reads a file in every credential format.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_file(path: &str) {
    let of = |path: &str| path.to_owned();
    let [ca_file, cert_file, key_file] = [of(path), of(path), of(path)];
    let _ = Tls { ca_file, cert_file, key_file, verify_names: true }.check();
    if let Ok(token) = JoinToken::load(path) {
        assert!(
            token.password(Identity::SCHEDULER).is_none_or(|it| it.is_proof(&[], &it.proof(&[])))
        );
    }
}
