//! Observes a running job from outside: no member, no rank, and no process waits for it. Observers are
//! stateless clients of the scheduler. Also called: monitoring client.

mod compose;
mod digests;
mod echo;
mod exit_notice;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
mod view;

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

pub(crate) use compose::{PreviousReports, facts, number, view};
pub use digests::{JobDigests, ObservedKey, RoundDigest};
pub use kvstore_protocol::{ProcessCounters, Unit};
pub use view::{
    Facts, LATENCY_BOUNDS_US, Latency, Node, Rates, State, TransportUse, View, WaitedFor, Waiting,
};

use crate::config::{Config, JobConfig};
use crate::credentials::{Credentials, take_kept};
use crate::error::{Result, fail};
use crate::runtime::{BadDelivery, BlockPool, Bytes, TransportOpener, incarnation, read_all};
use crate::transport::{
    self, BlockingSender, DialPolicy, Inbox, Piece, Transport, TransportConfig,
};
use kvstore_protocol::{
    BadFrame, HEADER, Header, JobView, Look, Message, MessageKind, NO_RANK, Role, SeenDigests,
    is_echo, write,
};

/// Maximum number of answers that were not read yet; more are dropped.
const MOST_ANSWERS: usize = 16;
/// Interval between repeated requests: one may have been lost, or reports may have arrived meanwhile.
const AGAIN: Duration = Duration::from_millis(120);
/// Maximum age of a report that is not requested again.
const FRESH: Duration = Duration::from_millis(150);
/// Timeout for the reports of silent processes.
const PATIENCE: Duration = Duration::from_millis(600);
/// Timeout of the probe that finds out why a connection failed.
const PROBE: Duration = Duration::from_secs(2);

/// Observes the job of a scheduler. It is no part of the job, and may connect and disconnect at any time.
///
/// ```no_run
/// # fn main() -> kvstore::Result<()> {
/// let config = kvstore::Config::new().with("root", "127.0.0.1:9091")?;
/// let mut observer = kvstore::Observer::open(&config)?;
/// let view = observer.look(std::time::Duration::from_secs(5))?;
/// println!("{} of {} workers", view.nodes.len(), view.num_workers);
/// # Ok(())
/// # }
/// ```
pub struct Observer {
    root: Arc<str>,
    transport: Arc<dyn Transport>,
    line: BlockingSender,
    answers: Receiver<ObserverReply>,
    incarnation: u64,
    requests: u64,
    before: PreviousReports,
}

enum ObserverReply {
    Seen {
        request: u64,
        seen: Box<JobView>,
    },
    /// Answer to a request for digests.
    Digests {
        request: u64,
        seen: Box<SeenDigests>,
    },
    /// Answer to an echo request.
    Echo,
    Version(u16),
    /// The peer rejects this process.
    Refused(String),
}

/// Inbox for the answers.
struct ReplyInbox {
    answers: SyncSender<ObserverReply>,
    blocks: Arc<BlockPool>,
}

impl Inbox for ReplyInbox {
    fn arrived(&self, _: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        self.take(read_all(len, pieces, &self.blocks, false));
    }

    fn opened(&self, _: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        self.take(read_all(len, pieces, &self.blocks, true));
    }

    fn down(&self, _: &str) {}

    fn refused(&self, _: &str, reason: &str) {
        let _ = self.answers.try_send(ObserverReply::Refused(reason.into()));
    }
}

impl ReplyInbox {
    fn take(&self, (messages, broken): (Vec<Message<Bytes>>, Option<BadDelivery>)) {
        for message in messages.iter().filter(|message| message.head.kind == MessageKind::Seen) {
            if let Some(seen) = JobView::decode(message.fields()) {
                let (request, seen) = (message.head.request, Box::new(seen));
                let _ = self.answers.try_send(ObserverReply::Seen { request, seen });
            } else if let Some(seen) = SeenDigests::decode(message.fields()) {
                let (request, seen) = (message.head.request, Box::new(seen));
                let _ = self.answers.try_send(ObserverReply::Digests { request, seen });
            } else if is_echo(message.fields()) {
                let _ = self.answers.try_send(ObserverReply::Echo);
            }
        }
        if let Some(BadDelivery::Bad(BadFrame::Version(version))) = broken {
            let _ = self.answers.try_send(ObserverReply::Version(version));
        }
    }
}

impl Observer {
    /// Prepares to observe the job whose scheduler is at the option `root`.
    ///
    /// # Errors
    /// `Option` without a `root`, or `Network`.
    pub fn open(config: &Config) -> Result<Self> {
        Self::connect(config, None).map_err(|error| error.at("observe"))
    }

    /// Connects to the scheduler, or to the server at this address.
    fn connect(config: &Config, server: Option<&str>) -> Result<Self> {
        let mut job = JobConfig::of_observer(config)?;
        take_kept(&mut job);
        transport::check_room(1, "a look at a job")?;
        let root: Arc<str> = job.root.as_str().into();
        let place = TransportConfig {
            listen: None,
            advertised: None,
            calls: if server.is_some() { DialPolicy::Everybody } else { DialPolicy::Scheduler },
            root: Arc::clone(&root),
            is_scheduler: false,
            lease_ms: 10_000,
            grace_ms: 0,
            shm: false,
            transport: "tcp".into(),
            connections: None,
            most_connections: 1,
            most_threads: 1,
            credentials: Credentials::load(&job)?,
        };
        let to = server.map_or(root, Arc::from);
        Self::with(to, &|inbox| transport::open(&place, &inbox))
    }

    fn with(root: Arc<str>, open: TransportOpener<'_>) -> Result<Self> {
        let (sender, answers) = sync_channel(MOST_ANSWERS);
        let transport = open(Arc::new(ReplyInbox { answers: sender, blocks: Arc::default() }))?;
        let line = BlockingSender::new(&*transport, &root);
        let (incarnation, before) = (incarnation(), PreviousReports::new());
        Ok(Self { root, transport, line, answers, incarnation, requests: 0, before })
    }

    /// The state of the job now. Rates and quantiles cover the time since the previous look.
    ///
    /// Processes that send nothing for more than half a second are shown with their last report.
    ///
    /// # Errors
    /// `Network`: no process listens there. `Refused`: the scheduler speaks another version. `Timeout`.
    pub fn look(&mut self, timeout: Duration) -> Result<View> {
        let begun = Instant::now();
        let end = begun + timeout;
        loop {
            let seen = self.see(end)?;
            let elapsed = begun.elapsed();
            if elapsed >= PATIENCE.min(timeout) || all_are_fresh(&seen, elapsed + FRESH) {
                return Ok(view(&self.root, &seen, &mut self.before));
            }
            std::thread::sleep(AGAIN.min(end.saturating_duration_since(Instant::now())));
        }
    }

    /// Throughput to the scheduler in bytes per second, and round-trip time of a short request. Sends `bytes`
    /// of padding, in pieces.
    ///
    /// # Errors
    /// As [`Observer::look`].
    pub fn measure(&mut self, bytes: usize, timeout: Duration) -> Result<(f64, Duration)> {
        const PIECE: usize = 1 << 20;
        let end = Instant::now() + timeout;
        self.ask(0, 0, end)?;
        let mut trips = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            self.ask(u32::MAX, 0, end)?;
            trips.push(begun.elapsed());
        }
        let trip = trips.into_iter().min().unwrap_or_default();
        let begun = Instant::now();
        let count = bytes.div_ceil(PIECE).max(1);
        for _ in 1..count {
            self.send(u32::MAX, PIECE, end);
            // Answers to padding carry no data.
            while self.answers.try_recv().is_ok() {}
        }
        // Answers arrive in order; that of the last piece confirms that all have arrived.
        self.ask(u32::MAX, PIECE, end)?;
        let took = begun.elapsed().saturating_sub(trip).max(Duration::from_micros(1));
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let sent = (count * PIECE) as f64;
        Ok((sent / took.as_secs_f64(), trip))
    }

    /// All members, page by page.
    fn see(&mut self, end: Instant) -> Result<JobView> {
        let mut seen = self.ask(0, 0, end)?;
        while seen.sights.len() < seen.members as usize {
            let skip = u32::try_from(seen.sights.len()).unwrap_or(u32::MAX);
            let more = self.ask(skip, 0, end)?.sights;
            if more.is_empty() {
                break;
            }
            seen.sights.extend(more);
        }
        Ok(seen)
    }

    fn ask(&mut self, skip: u32, ballast: usize, end: Instant) -> Result<JobView> {
        loop {
            let request = self.send(skip, ballast, end);
            let now = Instant::now();
            if !self.line.is_connected() {
                self.explain(end)?;
            }
            // A large request may be in flight for long, and a repetition would prolong that.
            let again = now + Duration::from_secs(1) + AGAIN;
            let until = if ballast > 0 { end } else { end.min(again) };
            if let Some(seen) = self.receive(request, until)? {
                return Ok(seen);
            }
            if Instant::now() >= end {
                return Err(fail!(
                    Timeout,
                    "observe: the scheduler at {} does not answer; it is stopped, or of a release that \
                     cannot be looked at",
                    self.root
                ));
            }
        }
    }

    fn send(&mut self, skip: u32, ballast: usize, end: Instant) -> u64 {
        let look = Look { address: self.transport.address().into(), skip };
        self.send_look(&look.encode(ballast), end)
    }

    fn send_look(&mut self, fields: &[u8], end: Instant) -> u64 {
        self.send_fields(MessageKind::Look, fields, end)
    }

    /// Sends a message outside of any job; returns the number of its request.
    fn send_fields(&mut self, kind: MessageKind, fields: &[u8], end: Instant) -> u64 {
        self.requests += 1;
        let head = Header {
            kind,
            role: Role::Worker,
            rank: NO_RANK,
            incarnation: self.incarnation,
            request: self.requests,
            ..Header::default()
        };
        let mut parcel = self.line.parcel(HEADER + fields.len(), 0);
        parcel.put(head.len() + fields.len(), |room| _ = write(&head, fields, room));
        self.line.send(parcel, end);
        self.requests
    }

    fn receive(&mut self, request: u64, until: Instant) -> Result<Option<JobView>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(ObserverReply::Seen { request: of, seen }) if of == request => {
                    return Ok(Some(*seen));
                }
                Ok(
                    ObserverReply::Seen { .. }
                    | ObserverReply::Digests { .. }
                    | ObserverReply::Echo,
                ) => {}
                Ok(ObserverReply::Version(theirs)) => {
                    return Err(fail!(
                        Refused,
                        "observe: the scheduler at {} speaks version {theirs} of the protocol, this \
                         program version {}; use the same release",
                        self.root,
                        kvstore_protocol::VERSION
                    ));
                }
                Ok(ObserverReply::Refused(reason)) => {
                    let root = &self.root;
                    return Err(fail!(Refused, "observe: not let in by {root}: {reason}"));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Why there is no connection, unless it is only late.
    fn explain(&self, end: Instant) -> Result<()> {
        let name = |error: &dyn std::fmt::Display| {
            fail!(Network, "observe: nothing can be reached at {}: {error}", self.root)
        };
        let mut last = None;
        for address in self.root.to_socket_addrs().map_err(|error| name(&error))? {
            match TcpStream::connect_timeout(&address, PROBE) {
                Ok(_) if Instant::now() < end => return Ok(()),
                Ok(_) => {
                    return Err(fail!(
                        Timeout,
                        "observe: what listens at {} is no scheduler, or is stopped",
                        self.root
                    ));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| name(&"the host is unknown"), |error| name(&error)))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.transport.close();
    }
}

/// Whether every process that takes part has reported within this time.
fn all_are_fresh(seen: &JobView, limit: Duration) -> bool {
    let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let here =
        seen.sights.iter().filter(|sight| sight.state == kvstore_protocol::MemberState::Here);
    here.into_iter().all(|sight| sight.report.as_ref().is_some_and(|(ago, _)| *ago <= limit))
}
