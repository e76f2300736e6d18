//! Records what one process does in chosen rounds, with times comparable with those of other processes. Also
//! called: distributed tracing, timeline.
//!
//! Every process writes a file of its own at its end; `kvstore trace` merges them.

mod file;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32};
use std::time::Instant;

use crate::log::{Level, log};
use crate::sys::sync::{Mutex, Ordering};
use kvstore_protocol::{PeerEvent, TracedMessage};

/// Maximum number of events, which take 16 MB; further ones are only counted.
const MOST_EVENTS: usize = 1 << 18;

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceKind {
    /// A call of a program, from its beginning to its end.
    Push,
    Pull,
    Pushpull,
    /// Work of a server on a slice.
    Sum,
    Update,
    /// A message that carries values was sent, or received.
    SentPush,
    GotPush,
    SentValue,
    GotValue,
}

/// An event. Times are microseconds of the tracer's own clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceEvent {
    pub(crate) what: TraceKind,
    pub(crate) key: u64,
    pub(crate) slice: u32,
    pub(crate) round: u64,
    /// Ranks of the worker and the server between which a message is sent, and its request.
    pub(crate) between: (u32, u32, u64),
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// Set when it is kept.
    pub(crate) thread: u32,
}

/// One comparison of our clock with that of the scheduler.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Added to our time, it gives the scheduler's.
    offset: i64,
    /// Round-trip time: the offset is wrong by half of it at most.
    trip: u64,
}

#[derive(Default)]
struct TraceBuffer {
    events: Vec<TraceEvent>,
    dropped: u64,
    clock: Option<Sample>,
    written: bool,
}

/// Keeps the events of chosen rounds.
pub(crate) struct Tracer {
    prefix: String,
    rounds: (u64, u64),
    began: Instant,
    /// Added to the time of the state machine, it gives ours.
    shift: AtomicI64,
    kept: Mutex<TraceBuffer>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("rounds", &self.rounds).finish_non_exhaustive()
    }
}

impl Tracer {
    pub(crate) fn new(prefix: &str, rounds: (u64, u64)) -> Self {
        Self {
            prefix: prefix.into(),
            rounds,
            began: Instant::now(),
            shift: AtomicI64::new(0),
            kept: Mutex::default(),
        }
    }

    /// First and last round whose events are kept.
    pub(crate) fn rounds(&self) -> (u64, u64) {
        self.rounds
    }

    /// Whether the events of a round are kept.
    pub(crate) fn wants(&self, round: u64) -> bool {
        (self.rounds.0..=self.rounds.1).contains(&round)
    }

    /// Our time, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Aligns our clock with that of the state machine, which shows `machine_now` at the moment.
    pub(crate) fn align(&self, machine_now: u64) {
        self.shift.store(signed(self.now()) - signed(machine_now), Ordering::SeqCst);
    }

    /// Our time at a time of the state machine.
    fn at(&self, machine: u64) -> u64 {
        u64::try_from(signed(machine) + self.shift.load(Ordering::SeqCst)).unwrap_or(0)
    }

    /// Adds an event with times of the state machine.
    pub(crate) fn machine(&self, event: TraceEvent) {
        self.add(TraceEvent { begin: self.at(event.begin), end: self.at(event.end), ..event });
    }

    /// Adds an event with our times.
    pub(crate) fn add(&self, event: TraceEvent) {
        let mut kept = self.kept.lock();
        if kept.events.len() < MOST_EVENTS {
            kept.events.push(TraceEvent { thread: thread(), ..event });
        } else {
            kept.dropped += 1;
        }
    }

    /// Adds a comparison of clocks. The request was sent at `sent`, and its answer received at `came`, in
    /// time of the state machine; the scheduler answered at `clock`. The shortest round trip counts.
    pub(crate) fn compare(&self, sent: u64, came: u64, clock: u64) {
        let (sent, came) = (self.at(sent), self.at(came));
        let trip = came.saturating_sub(sent);
        let sample = Sample { offset: signed(clock) - signed(sent + trip / 2), trip };
        let mut kept = self.kept.lock();
        if kept.clock.is_none_or(|before| trip < before.trip) {
            kept.clock = Some(sample);
        }
    }

    /// Adds the protocol's events of messages and of clocks.
    pub(crate) fn tell(&self, news: &[PeerEvent]) {
        for news in news {
            match *news {
                PeerEvent::Passed(passage) => self.machine(TraceEvent::from(passage)),
                PeerEvent::Clock { asked, answered, clock } => self.compare(asked, answered, clock),
                _ => {}
            }
        }
    }

    /// Writes the trace file, once.
    pub(crate) fn finish(&self, role: &str, rank: u32) {
        let kept = {
            let mut kept = self.kept.lock();
            if std::mem::replace(&mut kept.written, true) {
                return;
            }
            std::mem::take(&mut *kept)
        };
        self.kept.lock().written = true;
        let path = format!("{}.{role}-{rank}.json", self.prefix);
        if let Err(error) = file::write(&path, role, rank, &kept) {
            log(Level::Warn, || format!("the trace {path} cannot be written: {error}"));
        }
    }
}

impl TraceEvent {
    /// An event between a worker and a server, or at one of them.
    pub(crate) fn new(what: TraceKind, key: u64, slice: u32, round: u64) -> Self {
        Self { what, key, slice, round, between: (0, 0, 0), begin: 0, end: 0, thread: 0 }
    }
}

impl From<TracedMessage> for TraceEvent {
    fn from(it: TracedMessage) -> Self {
        let what = match (it.is_value, it.is_sent) {
            (false, true) => TraceKind::SentPush,
            (false, false) => TraceKind::GotPush,
            (true, true) => TraceKind::SentValue,
            (true, false) => TraceKind::GotValue,
        };
        let between = (it.worker, it.server, it.request);
        let event = Self::new(what, it.key, it.slice, it.round);
        Self { between, begin: it.at, end: it.at, ..event }
    }
}

fn signed(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

/// A small number for this thread.
fn thread() -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static NUMBER: OnceLock<u32> = const { OnceLock::new() };
    }
    // Relaxed: the number only tells the threads apart.
    NUMBER.with(|number| *number.get_or_init(|| THREADS.fetch_add(1, Ordering::Relaxed)))
}
