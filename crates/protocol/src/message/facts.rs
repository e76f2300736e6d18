//! Fields of observation (also: monitoring): statistics of a process, and the state of all members.

use super::body::{MemberState, put_terms, take_terms};
use super::reader::{FieldReader, put_count, put_cut_text, put_text};
use crate::job::{JobTerms, MemberRole, Peer, Time};
use crate::telemetry::{
    BUCKETS, CallKind, Histogram, MOST_NAME, MOST_PEERS, MOST_WAITING, ProcessCounters,
    ProcessStats, StragglerDelay, WaitingCall,
};

/// Maximum bytes of a report; the scheduler drops a longer one.
pub(crate) const MOST_REPORT: usize = 16 << 10;

fn put_peer(out: &mut Vec<u8>, peer: Peer) {
    out.push(peer.role as u8);
    out.extend_from_slice(&peer.rank.to_le_bytes());
}

fn take_peer(from: &mut FieldReader) -> Option<Peer> {
    Some(Peer { role: MemberRole::from_code(from.u8()?)?, rank: from.u32()? })
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put_histogram(out: &mut Vec<u8>, histogram: &Histogram) {
    let used = (0u8..).zip(&histogram.counts).filter(|(_, count)| **count > 0);
    put_numbers(out, &[histogram.sum]);
    put_count(out, used.clone().count());
    for (at, count) in used {
        out.push(at);
        put_numbers(out, &[*count]);
    }
}

fn take_histogram(from: &mut FieldReader) -> Option<Histogram> {
    let mut histogram = Histogram { sum: from.u64()?, ..Histogram::default() };
    let mut next = 0;
    let used = from.list(9, |from| Some((usize::from(from.u8()?), from.u64()?)))?;
    for (at, count) in used {
        // Each bucket once, in ascending order, and no empty one.
        if at < next || at >= BUCKETS || count == 0 {
            return None;
        }
        histogram.counts[at] = count;
        next = at + 1;
    }
    Some(histogram)
}

impl ProcessStats {
    #[must_use]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_numbers(&mut out, &[self.age]);
        for counter in ProcessCounters::table() {
            put_numbers(&mut out, &[(counter.value)(&self.counters)]);
        }
        for histogram in [&self.push, &self.pull, &self.pushpull] {
            put_histogram(&mut out, histogram);
        }
        put_numbers(&mut out, &[self.pending]);
        let waiting = &self.waiting[..self.waiting.len().min(MOST_WAITING)];
        put_count(&mut out, waiting.len());
        for call in waiting {
            out.extend_from_slice(&[call.call as u8, u8::from(call.started)]);
            put_numbers(&mut out, &[call.key, call.round, call.age]);
            put_cut_text(&mut out, &call.name, MOST_NAME);
            let awaited = &call.awaited[..call.awaited.len().min(MOST_PEERS)];
            put_count(&mut out, awaited.len());
            awaited.iter().for_each(|peer| put_peer(&mut out, *peer));
        }
        let late = &self.late[..self.late.len().min(MOST_PEERS)];
        put_count(&mut out, late.len());
        for late in late {
            out.extend_from_slice(&late.rank.to_le_bytes());
            put_numbers(&mut out, &[late.rounds, late.time]);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let facts = Self {
            age: from.u64()?,
            counters: ProcessCounters::take(|| from.u64())?,
            push: take_histogram(&mut from)?,
            pull: take_histogram(&mut from)?,
            pushpull: take_histogram(&mut from)?,
            pending: from.u64()?,
            waiting: from.list(32, take_waiting)?,
            late: from.list(20, |from| {
                Some(StragglerDelay { rank: from.u32()?, rounds: from.u64()?, time: from.u64()? })
            })?,
        };
        from.end()?;
        let fits = facts.waiting.len() <= MOST_WAITING && facts.late.len() <= MOST_PEERS;
        fits.then_some(facts)
    }
}

fn take_waiting(from: &mut FieldReader) -> Option<WaitingCall> {
    let (call, started) = (CallKind::from_code(from.u8()?)?, from.u8()? != 0);
    let (key, round, age) = (from.u64()?, from.u64()?, from.u64()?);
    let name = from.text()?;
    let awaited = from.list(5, take_peer)?;
    let fits = name.len() <= MOST_NAME && awaited.len() <= MOST_PEERS;
    fits.then_some(WaitingCall { call, started, key, name, round, age, awaited })
}

/// Query of the job's state, or a probe of the network path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Address of the observer, for the answer.
    pub address: String,
    /// Members to skip, in the order of the address book; `u32::MAX` asks for the clock only.
    pub skip: u32,
}

impl Look {
    /// Fields of a Look, with `ballast` zero bytes behind them, which probe the path.
    #[must_use]
    pub fn encode(&self, ballast: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.address.len() + 6 + ballast);
        put_text(&mut out, &self.address);
        out.extend_from_slice(&self.skip.to_le_bytes());
        out.resize(out.len() + ballast, 0);
        out
    }

    #[must_use]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        Some(Self { address: from.text()?, skip: from.u32()? })
    }
}

/// First byte behind the fields of a Look that asks for an echo; value of each byte of the echo.
const ECHO: u8 = 0xff;
/// Maximum bytes of an echo: more than any packet of a network.
const MOST_ECHO: u32 = 64 << 10;

impl Look {
    /// Fields of a Look that asks for an echo of `back` bytes, with `there` zero bytes behind them.
    #[must_use]
    pub fn encode_echo(&self, there: usize, back: u32) -> Vec<u8> {
        let mut out = self.encode(0);
        out.push(ECHO);
        out.extend_from_slice(&back.to_le_bytes());
        out.resize(out.len() + there, 0);
        out
    }

    /// Bytes of the echo that the fields of a Look ask for; None if it asks for the state of the job.
    #[must_use]
    pub(crate) fn echo(bytes: &[u8]) -> Option<usize> {
        let mut from = FieldReader::new(bytes);
        (from.text()?, from.u32()?);
        let is_echo = from.u8()? == ECHO;
        let back = from.u32()?.clamp(1, MOST_ECHO);
        usize::try_from(back).ok().filter(|_| is_echo)
    }
}

/// Fields of a Seen that is an echo of this many bytes.
pub(crate) fn echo_of(bytes: usize) -> Vec<u8> {
    vec![ECHO; bytes]
}

/// Whether the fields of a Seen are an echo rather than the state of the job.
#[must_use]
pub fn is_echo(fields: &[u8]) -> bool {
    !fields.is_empty() && fields.iter().all(|byte| *byte == ECHO)
}

/// One member, as the scheduler knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberReport {
    /// Role and rank.
    pub peer: Peer,
    /// State of the membership.
    pub state: MemberState,
    /// Address; empty if this scheduler, after a restart, does not know it yet.
    pub address: String,
    /// Time since its last frame; None without a stream to it.
    pub heard: Option<Time>,
    /// Time since its last report, and the report.
    pub report: Option<(Time, ProcessStats)>,
}

/// State of the job, with some or all of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// Clock of the scheduler's machine, in microseconds since 1970.
    pub clock: u64,
    pub(crate) job: u64,
    /// Workers of the job.
    pub workers: u32,
    /// Servers of the job.
    pub servers: u32,
    /// Epoch of the address book; 0 before the start.
    pub epoch: u32,
    /// Terms of the workers; None before the first worker has joined.
    pub terms: Option<JobTerms>,
    /// Statistics of the scheduler.
    pub facts: ProcessStats,
    /// Members in all, skipped ones included.
    pub members: u32,
    /// Members, in the order of the address book.
    pub sights: Vec<MemberReport>,
}

fn put_report(out: &mut Vec<u8>, facts: &ProcessStats) {
    let facts = facts.encode();
    put_count(out, facts.len());
    out.extend_from_slice(&facts);
}

fn take_report(from: &mut FieldReader) -> Option<ProcessStats> {
    let len = usize::try_from(from.u32()?).ok()?;
    ProcessStats::decode(from.bytes(len).filter(|bytes| bytes.len() <= MOST_REPORT)?)
}

const NEVER: Time = Time::MAX;

impl JobView {
    #[must_use]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_numbers(&mut out, &[self.clock, self.job]);
        for number in [self.workers, self.servers, self.epoch] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_terms(&mut out, self.terms.as_ref());
        put_report(&mut out, &self.facts);
        out.extend_from_slice(&self.members.to_le_bytes());
        put_count(&mut out, self.sights.len());
        for sight in &self.sights {
            put_peer(&mut out, sight.peer);
            out.push(sight.state as u8);
            put_text(&mut out, &sight.address);
            let said = sight.report.as_ref().map_or(NEVER, |(ago, _)| *ago);
            put_numbers(&mut out, &[sight.heard.unwrap_or(NEVER), said]);
            if let Some((_, facts)) = &sight.report {
                put_report(&mut out, facts);
            }
        }
        out
    }

    /// Decodes the fields of a Seen; None if they are an echo or cannot be read.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let seen = Self {
            clock: from.u64()?,
            job: from.u64()?,
            workers: from.u32()?,
            servers: from.u32()?,
            epoch: from.u32()?,
            terms: take_terms(&mut from).ok()?,
            facts: take_report(&mut from)?,
            members: from.u32()?,
            sights: from.list(24, take_sight)?,
        };
        from.end()?;
        Some(seen)
    }
}

fn take_sight(from: &mut FieldReader) -> Option<MemberReport> {
    let (peer, state) = (take_peer(from)?, MemberState::from_code(from.u8()?)?);
    let address = from.text()?;
    let (heard, said) = (from.u64()?, from.u64()?);
    let report = if said == NEVER { None } else { Some((said, take_report(from)?)) };
    Some(MemberReport {
        peer,
        state,
        address,
        heard: Some(heard).filter(|ago| *ago != NEVER),
        report,
    })
}
