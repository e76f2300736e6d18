//! `kvstore certs`: a private authority, the certificates of a job's processes, and join tokens.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::hmac;

use crate::messages::say;
use crate::sys::{hex, random};

/// The source of errors of random numbers.
const RANDOM: &str = "/dev/urandom";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum clock difference of machines.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Makes what lets processes into a job over a network: certificates and tokens.
///
/// Everything is written into one folder, for its owner only; no file is ever overwritten.
/// docs/operate/security.md says what each protects.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: CertsCommand,
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Make an authority: `ca.pem`, which all processes need, and `ca.key`, which none needs
    Init {
        #[command(flatten)]
        place: OutputFolder,
        /// How long it is valid
        #[arg(long, value_name = "DAYS", default_value_t = 365)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Make a certificate for the scheduler
    Scheduler(ListenerOptions),
    /// Make a certificate for servers
    Server(ListenerOptions),
    /// Make a certificate for workers, which listen for each other in collective calls
    Worker(ListenerOptions),
    /// Make a certificate for workers that only pull
    Reader(ClientCertArgs),
    /// Make the token of a job, `job.token`, or derive one of it
    Token {
        #[command(flatten)]
        place: OutputFolder,
        /// Derive a token of `job.token` that is good for such processes only
        #[arg(long = "for", value_name = "ROLE", value_parser = ["worker", "reader"])]
        role: Option<String>,
        /// Derive it for the process of this rank only
        #[arg(long, requires = "role")]
        rank: Option<u16>,
    },
}

#[derive(Debug, Args)]
struct OutputFolder {
    /// The folder of the files
    #[arg(long, value_name = "FOLDER", default_value = "kvstore-certs")]
    dir: PathBuf,
}

#[derive(Debug, Args)]
struct ClientCertArgs {
    #[command(flatten)]
    place: OutputFolder,
    /// How long it is valid
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// For the process of this rank only; else for all of its role
    #[arg(long)]
    rank: Option<u16>,
}

#[derive(Debug, Args)]
struct ListenerOptions {
    #[command(flatten)]
    common: ClientCertArgs,
    /// An address or a name under which others call it, repeatable; else this machine's own name and
    /// the loopback
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let files = match &arguments.command {
        CertsCommand::Init { place, days } => authority(&place.dir, *days)?,
        CertsCommand::Scheduler(listener) => {
            ensure!(listener.common.rank.is_none(), "there is one scheduler, which has no rank");
            listening(listener, "scheduler")?
        }
        CertsCommand::Server(listener) => listening(listener, "server")?,
        CertsCommand::Worker(listener) => listening(listener, "worker")?,
        CertsCommand::Reader(caller) => certificate(caller, "reader", &[])?,
        CertsCommand::Token { place, role: None, .. } => {
            let token = random::<32>().context(RANDOM)? + "\n";
            write(&place.dir, &[("job.token", &token)])?
        }
        CertsCommand::Token { place, role: Some(role), rank } => {
            derived_token(&place.dir, &named(role, *rank))?
        }
    };
    say("certs", format_args!("wrote {}", files.join(" and ")));
    Ok(ExitCode::SUCCESS)
}

/// `worker.3`, or `worker` for all of them.
fn named(role: &str, rank: Option<u16>) -> String {
    rank.map_or_else(|| role.to_owned(), |rank| format!("{role}.{rank}"))
}

fn authority(dir: &Path, days: u32) -> Result<Vec<String>> {
    // Two authorities have different names, so that errors identify an unknown one.
    let name = format!("kvstore authority {}", random::<4>().context(RANDOM)?);
    let mut params = parameters(&[], &name, days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    write(dir, &[("ca.pem", &params.self_signed(&key)?.pem()), ("ca.key", &key.serialize_pem())])
}

fn listening(listener: &ListenerOptions, role: &str) -> Result<Vec<String>> {
    let mut hosts = listener.hosts.clone();
    if hosts.is_empty() {
        hosts = ["localhost", "127.0.0.1", "::1"].map(Into::into).to_vec();
        let own = fs::read_to_string("/proc/sys/kernel/hostname");
        hosts.extend(own.ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()));
    }
    certificate(&listener.common, role, &hosts)
}

/// A process with hosts may be dialled; every process may dial.
fn certificate(caller: &ClientCertArgs, role: &str, hosts: &[String]) -> Result<Vec<String>> {
    let (dir, name) = (&caller.place.dir, named(role, caller.rank));
    let mut params = parameters(hosts, &name, caller.days)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !hosts.is_empty() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let hint = "; `kvstore certs init` makes an authority";
    let signer = KeyPair::from_pem(&read(dir, "ca.key", hint)?).context("ca.key")?;
    let issuer = Issuer::from_ca_cert_pem(&read(dir, "ca.pem", hint)?, signer).context("ca.pem")?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let names = [format!("{name}.pem"), format!("{name}.key")];
    write(dir, &[(&names[0], &certificate.pem()), (&names[1], &key.serialize_pem())])
}

fn parameters(hosts: &[String], name: &str, days: u32) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - SKEW).into();
    params.not_after = (now + DAY * days).into();
    Ok(params)
}

/// Derived from the job's token as the library does.
fn derived_token(dir: &Path, name: &str) -> Result<Vec<String>> {
    let job = read(dir, "job.token", "; `kvstore certs token` makes one")?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, job.trim().as_bytes());
    let tag = hmac::sign(&key, format!("kvstore token {name}").as_bytes());
    write(dir, &[(&format!("{name}.token"), &format!("{name}:{}\n", hex(tag.as_ref())))])
}

fn read(dir: &Path, name: &str, hint: &str) -> Result<String> {
    let path = dir.join(name);
    fs::read_to_string(&path).map_err(|error| {
        let hint = if error.kind() == io::ErrorKind::NotFound { hint } else { "" };
        anyhow!("{}: {error}{hint}", path.display())
    })
}

/// Writes new files, or none, that only their owner may read.
fn write(dir: &Path, files: &[(&str, &str)]) -> Result<Vec<String>> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| dir.display().to_string())?;
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| dir.join(name)).collect();
    if let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        bail!(
            "{} exists already, and nothing is overwritten; remove it, or choose another folder with \
             --dir",
            path.display()
        );
    }
    for (path, (_, content)) in paths.iter().zip(files) {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| file.write_all(content.as_bytes()));
        written.with_context(|| path.display().to_string())?;
    }
    Ok(paths.iter().map(|path| path.display().to_string()).collect())
}
