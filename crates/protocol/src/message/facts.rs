//! Fields of observation (also: monitoring): statistics of a process, and the state of all members.

use super::body::MemberState;
use super::fields::{Field, FieldReader, put_cut_text, put_list, put_sized, record};
use super::terms::Terms;
use crate::job::{JobTerms, Peer, Time};
use crate::telemetry::{
    BUCKETS, CallKind, Histogram, MOST_NAME, MOST_PEERS, MOST_REASON, MOST_TRANSPORTS,
    MOST_WAITING, ProcessCounters, ProcessStats, StragglerDelay, TransportUse, WaitingCall,
};

/// Maximum bytes of a report; the scheduler drops a longer one.
pub(crate) const MOST_REPORT: usize = 16 << 10;

impl Field for Histogram {
    const LEAST: usize = 12;

    fn put(&self, out: &mut Vec<u8>) {
        self.sum.put(out);
        let used = (0u8..).zip(self.counts).filter(|(_, count)| *count > 0);
        used.collect::<Vec<_>>().put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let (sum, used) = <(u64, Vec<(u8, u64)>)>::take(from)?;
        let (mut histogram, mut next) = (Self { sum, ..Self::default() }, 0);
        for (at, count) in used {
            // Each bucket once, in ascending order, and no empty one.
            let at = usize::from(at);
            if at < next || at >= BUCKETS || count == 0 {
                return None;
            }
            histogram.counts[at] = count;
            next = at + 1;
        }
        Some(histogram)
    }
}

/// A list of numbers and values: counters of value 0 are left out, and those of a later release are skipped.
impl Field for ProcessCounters {
    const LEAST: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        let counters = Self::table().map(|counter| (counter.number, (counter.value)(self)));
        counters.filter(|(_, value)| *value != 0).collect::<Vec<_>>().put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let mut counters = Self::default();
        for (number, value) in Vec::<(u8, u64)>::take(from)? {
            counters.set(number, value);
        }
        Some(counters)
    }
}

/// The first items of a list, at most `most`.
fn first<T>(items: &[T], most: usize) -> &[T] {
    &items[..items.len().min(most)]
}

impl Field for ProcessStats {
    const LEAST: usize = 0;

    fn put(&self, out: &mut Vec<u8>) {
        self.age.put(out);
        self.counters.put(out);
        [&self.push, &self.pull, &self.pushpull].into_iter().for_each(|times| times.put(out));
        self.pending.put(out);
        let waiting = first(&self.waiting, MOST_WAITING).iter().cloned().map(Some);
        waiting.collect::<Vec<_>>().put(out);
        put_list(out, first(&self.late, MOST_PEERS));
        put_list(out, first(&self.transports, MOST_TRANSPORTS));
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let facts = Self {
            age: from.u64()?,
            counters: Field::take(from)?,
            push: Field::take(from)?,
            pull: Field::take(from)?,
            pushpull: Field::take(from)?,
            pending: from.u64()?,
            waiting: Vec::<Option<WaitingCall>>::take(from)?.into_iter().flatten().collect(),
            late: Field::take(from)?,
            // A process without this field sends none.
            transports: if from.is_at_end() { Vec::new() } else { Field::take(from)? },
        };
        let fits = facts.waiting.len() <= MOST_WAITING
            && facts.late.len() <= MOST_PEERS
            && facts.transports.len() <= MOST_TRANSPORTS;
        fits.then_some(facts)
    }
}

/// A waiting call behind its length; None if it is one of a later release.
impl Field for Option<WaitingCall> {
    const LEAST: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        put_sized(out, |out| self.iter().for_each(|call| call.put(out)));
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        Some(WaitingCall::take(&mut from.sized()?))
    }
}

impl Field for WaitingCall {
    const LEAST: usize = 32;

    fn put(&self, out: &mut Vec<u8>) {
        (self.call as u8, self.started).put(out);
        [self.key, self.round, self.age].into_iter().for_each(|number| number.put(out));
        put_cut_text(out, &self.name, MOST_NAME);
        put_list(out, first(&self.awaited, MOST_PEERS));
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let (call, started) = (CallKind::from_code(from.u8()?)?, bool::take(from)?);
        let (key, round, age) = (from.u64()?, from.u64()?, from.u64()?);
        let (name, awaited) = <(String, Vec<Peer>)>::take(from)?;
        let fits = name.len() <= MOST_NAME && awaited.len() <= MOST_PEERS;
        fits.then_some(Self { call, started, key, name, round, age, awaited })
    }
}

impl Field for TransportUse {
    const LEAST: usize = 12;

    fn put(&self, out: &mut Vec<u8>) {
        put_cut_text(out, &self.transport, MOST_NAME);
        put_cut_text(out, &self.others, MOST_REASON);
        self.count.put(out);
        put_list(out, first(&self.peers, MOST_PEERS));
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let (transport, others, count) = (from.text()?, from.text()?, from.u32()?);
        let peers: Vec<Peer> = Field::take(from)?;
        let fits = transport.len() <= MOST_NAME
            && others.len() <= MOST_REASON
            && peers.len() <= MOST_PEERS;
        fits.then_some(Self { transport, others, count, peers })
    }
}

record!(StragglerDelay: 20 { rank, rounds, time });

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
        self.address.put(&mut out);
        self.skip.put(&mut out);
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
        back.put(&mut out);
        out.resize(out.len() + there, 0);
        out
    }

    /// Bytes of the echo that the fields of a Look ask for; None if it asks for the state of the job.
    #[must_use]
    pub(crate) fn echo(bytes: &[u8]) -> Option<usize> {
        let mut from = FieldReader::new(bytes);
        from.text()?;
        from.u32()?;
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

/// Writes statistics behind their length.
fn put_report(out: &mut Vec<u8>, facts: &ProcessStats) {
    let facts = facts.encode();
    u32::try_from(facts.len()).unwrap_or(u32::MAX).put(out);
    out.extend_from_slice(&facts);
}

fn take_report(from: &mut FieldReader) -> Option<ProcessStats> {
    let len = usize::try_from(from.u32()?).ok()?;
    ProcessStats::decode(from.bytes(len).filter(|bytes| bytes.len() <= MOST_REPORT)?)
}

const NEVER: Time = Time::MAX;

impl Field for JobView {
    const LEAST: usize = 0;

    fn put(&self, out: &mut Vec<u8>) {
        (self.clock, self.job).put(out);
        [self.workers, self.servers, self.epoch].into_iter().for_each(|number| number.put(out));
        self.terms.map(Terms::from).put(out);
        put_report(out, &self.facts);
        self.members.put(out);
        self.sights.put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        Some(Self {
            clock: from.u64()?,
            job: from.u64()?,
            workers: from.u32()?,
            servers: from.u32()?,
            epoch: from.u32()?,
            terms: <Option<Terms> as Field>::take(from)?.map(|terms| terms.known),
            facts: take_report(from)?,
            members: from.u32()?,
            sights: Field::take(from)?,
        })
    }
}

impl JobView {
    /// Decodes the fields of a Seen; None if they are an echo or cannot be read.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Field::decode(bytes)
    }
}

impl Field for MemberReport {
    const LEAST: usize = 28;

    fn put(&self, out: &mut Vec<u8>) {
        put_sized(out, |out| {
            (self.peer, self.state).put(out);
            self.address.put(out);
            let said = self.report.as_ref().map_or(NEVER, |(ago, _)| *ago);
            (self.heard.unwrap_or(NEVER), said).put(out);
            if let Some((_, facts)) = &self.report {
                put_report(out, facts);
            }
        });
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let from = &mut from.sized()?;
        let (peer, state) = Field::take(from)?;
        let (address, heard, said) = (from.text()?, from.u64()?, from.u64()?);
        let report = if said == NEVER { None } else { Some((said, take_report(from)?)) };
        let heard = Some(heard).filter(|ago| *ago != NEVER);
        Some(Self { peer, state, address, heard, report })
    }
}
