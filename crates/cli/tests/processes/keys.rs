//! Credentials for the processes of a test, and jobs that have them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::common::folder::Folder;
use super::greeting;
use super::job::{Job, KVSTORE, Running};

/// A folder of credentials.
pub struct Keys(Folder);

impl Keys {
    /// An authority, and a token.
    pub fn new(name: &str) -> Self {
        let keys = Self(Folder::new(name));
        keys.make(&["init"]);
        keys.make(&["token"]);
        keys
    }

    pub fn make(&self, arguments: &[&str]) {
        let end = self.certs(arguments);
        assert!(end.status.success(), "{end:?}");
    }

    /// A certificate for each role, named like it.
    pub fn make_roles(&self) {
        ["scheduler", "server", "worker", "reader"].iter().for_each(|role| self.make(&[role]));
    }

    pub fn certs(&self, arguments: &[&str]) -> std::process::Output {
        let dir = self.path("").into_os_string();
        Command::new(KVSTORE).arg("certs").args(arguments).arg("--dir").arg(dir).output().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A job whose processes have a certificate each; its name is that of the file.
    pub fn secured(&self, job: &Job, name: &str) -> Job {
        let file = |name: &str| self.path(name).display().to_string();
        job.clone()
            .with("tls_ca_file", file("ca.pem"))
            .with("tls_cert_file", file(&format!("{name}.pem")))
            .with("tls_key_file", file(&format!("{name}.key")))
    }

    pub fn tokened(&self, job: &Job, name: &str) -> Job {
        job.clone().with("token_file", self.path(&format!("{name}.token")).display())
    }

    /// The password of an identity that has a token here.
    pub fn password(&self, identity: &str) -> String {
        greeting::password(&self.path(&format!("{identity}.token")), identity)
    }

    /// The certificate of the authority.
    pub fn authority(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()
    }

    /// The certificate of a name, and its key.
    pub fn certificate(
        &self,
        name: &str,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let file = |kind: &str| self.path(&format!("{name}.{kind}"));
        let chain = vec![CertificateDer::from_pem_file(file("pem")).unwrap()];
        (chain, PrivateKeyDer::from_pem_file(file("key")).unwrap())
    }

    /// A certificate that `kvstore certs` would not make.
    pub fn odd(&self, name: &str, common_name: &str, from_days: i64, to_days: i64) {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap();
        let authority = KeyPair::from_pem(&read("ca.key")).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), authority).unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let at = |days: i64| {
            let time = Duration::from_secs(days.unsigned_abs() * 86_400);
            let now = SystemTime::now();
            if days < 0 { now - time } else { now + time }
        };
        (params.not_before, params.not_after) = (at(from_days).into(), at(to_days).into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// How the processes of a job are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    Tcp,
    SharedMemory,
    /// Over TCP, with certificates that are named like the roles.
    Tls,
}

impl Connection {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::SharedMemory, Self::Tls];

    /// A job whose processes of this role are connected so.
    pub fn give(self, keys: &Keys, job: &Job, role: &str) -> Job {
        let job = job.clone().with("shm", if self == Self::SharedMemory { "yes" } else { "no" });
        if self == Self::Tls { keys.secured(&job, role) } else { job }
    }
}

/// Starts a job whose processes each have what `give` gives to their role.
pub fn start(job: &Job, give: impl Fn(&Job, &str) -> Job) -> Running {
    let mut all = vec![give(job, "scheduler").start_scheduler()];
    all.extend((0..job.servers).map(|rank| give(job, "server").start_server(rank)));
    all.extend((0..job.workers).map(|rank| give(job, "worker").start_worker(rank)));
    Running { all, job: job.clone() }
}

pub fn certified(keys: &Keys) -> impl Fn(&Job, &str) -> Job + '_ {
    keys.make_roles();
    |job, role| keys.secured(job, role)
}
