//! Conversion of options into the limits of the protocol and the configuration of the transport.

use std::hash::Hasher;
use std::net::SocketAddr;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use crate::codec;
use crate::config::address::{is_any, is_loopback, local_address, with_port};
use crate::config::{JobConfig, MOST_CONNECTIONS};
use crate::credentials::Credentials;
use crate::error::{Error, Result, fail};
use crate::local::kind::StoreKind;
use crate::role::Role;
use crate::sys::{has_few_processors, processors};
use crate::transport::{self, DialPolicy, TransportConfig};
use kvstore_protocol::{Limits, MS, Mode, OnLoss, SumOrder};

/// Maximum frames in the send window of a link: small frames reach the limit in bytes later.
const WINDOW_FRAMES: usize = 1_024;
/// Connections for observers, beyond those of the members.
const SPARE_CONNECTIONS: u64 = 32;
/// Maximum grace period of a process that has lost its connections: to connect anew takes some round trips.
const MOST_GRACE_MS: u64 = 1_000;
/// Maximum bytes in the send window. An urgent message does not overtake the window; with less,
/// acknowledgements take a good part of the time.
const WINDOW_BYTES: u64 = 4 << 20;

/// Limits of the job; the terms that all workers must have alike are used only on workers.
pub(crate) fn limits(job: &JobConfig, kind: StoreKind) -> Limits {
    let mode =
        if kind.is_asynchronous() { Mode::Async { staleness: job.staleness } } else { Mode::Sync };
    let goes_on = job.goes_on_without_lost_workers;
    let mut name = SipHasher24::new();
    name.write(job.name.as_deref().unwrap_or_default().as_bytes());
    Limits {
        job: name.finish(),
        workers: job.workers,
        servers: job.servers,
        mode,
        on_loss: if goes_on { OnLoss::Continue } else { OnLoss::Fail },
        peer_timeout: job.peer_timeout_ms * MS,
        start_timeout: job.start_timeout_ms * MS,
        embedded: job.embedded,
        block_elements: codec::BLOCK as u64,
        slice_bytes: job.slice_bytes,
        hold_bytes: job.hold_bytes,
        max_rounds_ahead: job.max_rounds_ahead,
        sum_order: if job.adds_by_tree { SumOrder::Tree } else { SumOrder::Linear },
        window_frames: WINDOW_FRAMES,
        window_bytes: WINDOW_BYTES,
        one_way_at_a_time: job.role != Role::Scheduler
            && has_few_processors()
            && is_loopback(&job.root).unwrap_or(false),
    }
}

/// Checks that this process may open the files and start the threads that its peers in this job need.
fn check_room(job: &JobConfig) -> Result<()> {
    let (workers, servers) = (job.workers, job.servers);
    let peers = match job.role {
        Role::Scheduler => workers.saturating_add(servers),
        Role::Server => workers,
        Role::Worker => servers,
    };
    transport::check_room(peers, &format!("a job of {workers} workers and {servers} servers"))
}

/// Listen address and peers of this process. Off the loopback, listening needs credentials or the explicit
/// option that the job is not secure.
pub(crate) fn place(job: &JobConfig) -> Result<TransportConfig> {
    check_room(job).map_err(|error: Error| error.at("create"))?;
    let credentials = Credentials::load(job)?;
    let (calls, listen) = match job.role {
        Role::Worker => (DialPolicy::Everybody, None),
        Role::Server => (DialPolicy::Scheduler, Some(any_port(job)?)),
        Role::Scheduler => {
            let port = job.root.rsplit_once(':').map_or("0", |(_, port)| port);
            let bind = job.bind.as_ref();
            (
                DialPolicy::Nobody,
                Some(bind.map_or_else(|| job.root.clone(), |it| with_port(it, port))),
            )
        }
    };
    place_at(job, credentials, calls, listen)
}

/// Listen address and peers of a worker for exchanges with the others.
pub(crate) fn exchange_place(job: &JobConfig) -> Result<TransportConfig> {
    let (workers, call) = (job.workers, "exchanges between workers");
    transport::check_room(2 * workers, &format!("{call} of a job of {workers}"))?;
    let credentials = Credentials::load(job)?;
    if credentials.as_ref().is_some_and(|known| !known.can_check_workers()) {
        return Err(fail!(
            Unsupported,
            "{call} need a token of the job: with a token of its own rank, a worker cannot check those of others"
        ));
    }
    let listen = Some(any_port(job)?);
    let place = place_at(job, credentials, DialPolicy::Smaller, listen)?;
    // All workers of a machine send at the same time, and their threads would wait for each other.
    let most_threads = if has_few_processors() { 1 } else { place.most_threads };
    Ok(TransportConfig { root: "".into(), most_threads, ..place })
}

/// Where a process listens that is not the scheduler.
fn any_port(job: &JobConfig) -> Result<String> {
    match &job.bind {
        Some(bind) => Ok(with_port(bind, "0")),
        None => Ok(SocketAddr::new(local_address(&job.root)?, 0).to_string()),
    }
}

fn place_at(
    job: &JobConfig,
    credentials: Option<Arc<Credentials>>,
    calls: DialPolicy,
    listen: Option<String>,
) -> Result<TransportConfig> {
    let root: Arc<str> = job.root.as_str().into();
    if let Some(listen) = &listen
        && !job.secrets.insecure
        && credentials.is_none()
        && !is_loopback(listen)?
    {
        return Err(fail!(
            Option,
            "create: {listen} is not on the loopback, and every process that reaches it could join the job; give \
             all processes a token (token_file, KV_TOKEN) or certificates (tls_ca_file, tls_cert_file, \
             tls_key_file), which `kvstore certs` makes; `kvstore run` gives the jobs that it starts a \
             token of their own"
        ));
    }
    if let (Some(metrics), Role::Scheduler, false) = (&job.metrics, job.role, job.secrets.insecure)
        && !is_loopback(metrics)?
    {
        return Err(fail!(
            Option,
            "create: metrics={metrics} is not on the loopback, and every process that reaches it could read how the \
             job does; set insecure=yes if the network is closed to others"
        ));
    }
    let advertised = match &listen {
        Some(listen) if is_any(listen)? => Some(local_address(&job.root)?),
        _ => None,
    };
    // A fallback: the protocol's peer timeout detects a silent peer earlier.
    let lease_ms = (2 * job.peer_timeout_ms).max(10_000);
    let grace_ms = (job.peer_timeout_ms / 4).min(MOST_GRACE_MS);
    let is_scheduler = job.role == Role::Scheduler;
    // Those of a process that connects anew may remain for a while.
    let of_worker = u64::from(job.connections.unwrap_or(MOST_CONNECTIONS));
    let most_connections =
        2 * (of_worker * u64::from(job.workers) + u64::from(job.servers)) + SPARE_CONNECTIONS;
    Ok(TransportConfig {
        listen,
        advertised,
        calls,
        root,
        is_scheduler,
        lease_ms,
        grace_ms,
        shm: job.shm,
        transport: job.transport.as_str().into(),
        connections: job.connections,
        most_connections,
        most_threads: processors(),
        credentials,
    })
}

/// Whether this process only pulls.
pub(crate) fn reads_only(job: &JobConfig, place: &TransportConfig) -> bool {
    let known = place.credentials.as_ref();
    job.secrets.reads_only || known.is_some_and(|known| known.identity.is_reader())
}

/// Rank that a process requests: from the option, or from its credential.
pub(crate) fn rank(job: &JobConfig, place: &TransportConfig) -> Option<u32> {
    job.rank.or_else(|| place.credentials.as_ref()?.identity.rank)
}
