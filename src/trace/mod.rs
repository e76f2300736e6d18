//! Reports what one process does to two listeners: subscribers of the crate `tracing`, and a file of chosen
//! rounds, whose times are comparable with those of other processes. Also called: distributed tracing,
//! timeline.
//!
//! Every process writes a file of its own at its end; `kvstore trace` merges them.

mod file;

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use crate::log::{Level, log};
use crate::spans::{self, Carried, Entered};
use crate::sys::sync::{Mutex, Ordering};
use kvstore_protocol::{CallKind, Ended, Peer, PeerEvent, Time, TracedMessage};

/// Maximum number of events, which take 14 MB; further ones are only counted.
const MOST_EVENTS: usize = 1 << 18;

/// An event of the file. Times are those of the state machine.
#[derive(Debug, Clone, Copy)]
enum TraceEvent {
    /// A call of a program, from its beginning to its end.
    Call(Ended),
    /// A message that carries values was sent, or received.
    Message(TracedMessage),
    /// Work of a server, on a thread.
    Work { work: SliceWork, begin: Time, end: Time, thread: u32 },
}

/// Work of a server on a slice: the sum with a contribution, or the update at the end of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SliceWork {
    pub(crate) is_sum: bool,
    pub(crate) key: u64,
    pub(crate) slice: u32,
    pub(crate) round: u64,
}

/// Guard of the work on a slice, which ends when the guard is dropped.
pub(crate) struct WorkSpan<'a> {
    traced: Option<(&'a Tracer, SliceWork, Time)>,
    _span: Entered,
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
}

/// Passes each event to both listeners.
pub(crate) struct Tracer {
    /// Path prefix of the file, and its first and last round, if an option sets them.
    file: Option<(String, (u64, u64))>,
    /// Time 0 of the state machine.
    began: Instant,
    /// None without a file, and once it is written.
    kept: Mutex<Option<TraceBuffer>>,
}

impl Tracer {
    pub(crate) fn new(file: Option<(String, (u64, u64))>, began: Instant) -> Self {
        let kept = Mutex::new(file.is_some().then(TraceBuffer::default));
        Self { file, began, kept }
    }

    /// First and last round of the file.
    pub(crate) fn rounds(&self) -> Option<(u64, u64)> {
        self.file.as_ref().map(|(_, rounds)| *rounds)
    }

    fn wants(&self, round: u64) -> bool {
        self.rounds().is_some_and(|(first, last)| (first..=last).contains(&round))
    }

    fn now(&self) -> Time {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(Time::MAX)
    }

    /// Reports an event of the protocol.
    pub(crate) fn tell(&self, me: Peer, event: &PeerEvent) {
        spans::tell(me, event);
        match *event {
            PeerEvent::Passed(message) => self.add(TraceEvent::Message(message)),
            PeerEvent::Clock { asked, answered, clock } => self.compare(asked, answered, clock),
            _ => {}
        }
    }

    /// Reports the end of one key of a call, which may be its only key.
    pub(crate) fn ended(&self, span: &Carried, ended: &Ended, ok: bool, only: bool) {
        span.ended(ended, ok, only);
        let is_data = matches!(ended.call, CallKind::Push | CallKind::Pushpull | CallKind::Pull);
        if ok && is_data && self.wants(ended.round) {
            self.add(TraceEvent::Call(*ended));
        }
    }

    /// Reports work that begins, and ends when the guard is dropped.
    pub(crate) fn work(&self, work: SliceWork) -> WorkSpan<'_> {
        let traced = self.wants(work.round).then(|| (self, work, self.now()));
        let SliceWork { is_sum, key, slice, round } = work;
        WorkSpan { traced, _span: spans::work(is_sum, key, slice, round) }
    }

    fn add(&self, event: TraceEvent) {
        if let Some(kept) = &mut *self.kept.lock() {
            if kept.events.len() < MOST_EVENTS {
                kept.events.push(event);
            } else {
                kept.dropped += 1;
            }
        }
    }

    /// Adds a comparison of clocks; the shortest round trip counts.
    fn compare(&self, asked: Time, answered: Time, clock: Time) {
        let trip = answered.saturating_sub(asked);
        let sample = Sample { offset: signed(clock) - signed(asked + trip / 2), trip };
        if let Some(kept) = &mut *self.kept.lock()
            && kept.clock.is_none_or(|before| trip < before.trip)
        {
            kept.clock = Some(sample);
        }
    }

    /// Writes the file, once.
    pub(crate) fn finish(&self, role: &str, rank: u32) {
        let (Some((prefix, _)), Some(kept)) = (&self.file, self.kept.lock().take()) else { return };
        let path = format!("{prefix}.{role}-{rank}.json");
        if let Err(error) = file::write(&path, role, rank, &kept) {
            log(Level::Warn, || format!("the trace {path} cannot be written: {error}"));
        }
    }
}

impl Drop for WorkSpan<'_> {
    fn drop(&mut self) {
        if let Some((tracer, work, begin)) = self.traced {
            let (end, thread) = (tracer.now(), thread());
            tracer.add(TraceEvent::Work { work, begin, end, thread });
        }
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
