//! Fields of control messages (also: control plane payloads).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fields::{Field, FieldReader, codes, put_sized, record};
use super::terms::Terms;
use crate::job::{Failure, Peer, Reason, Role};

/// State of a member; the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Takes part in the job.
    Here = 0,
    /// Declared lost by the scheduler; it never rejoins.
    Lost = 1,
    /// Has left in order.
    Left = 2,
}

impl MemberState {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::Here, Self::Lost, Self::Left].into_iter().find(|state| *state as u8 == code)
    }
}

/// Mask of the features of this build, which members learn from Hello and the address book. A message that only
/// some members take is sent to those that have its feature.
#[cfg(not(feature = "wire-next"))]
pub(crate) const FEATURES: u64 = SUMS_BY_TREE | WEIGHTS | RESUMES | EXCHANGES | GROUPS | SCALES;
#[cfg(feature = "wire-next")]
pub(crate) const FEATURES: u64 =
    SUMS_BY_TREE | WEIGHTS | RESUMES | EXCHANGES | GROUPS | SCALES | super::next::FEATURE;

/// Bit of the features: the member knows the term `sum_order`.
pub(crate) const SUMS_BY_TREE: u64 = 1;

/// Bit of the features: the member divides sums by the weights of pushes, and answers queries for them.
pub const WEIGHTS: u64 = 2;

/// Bit of the features: the member takes part in resumes.
pub const RESUMES: u64 = 4;

/// Bit of the features: the member passes on where workers listen for each other, and takes part in exchanges.
pub const EXCHANGES: u64 = 8;

/// Bit of the features: the member takes messages of groups of workers.
pub const GROUPS: u64 = 16;

/// Bit of the features: the member multiplies the sum of a round by the scale of its pushes.
pub const SCALES: u64 = 32;

/// Where a worker listens for other workers (also: rendezvous information), for exchanges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExchangeAddress {
    /// Incarnation of its exchanges; 0 for one that does not listen.
    pub incarnation: u64,
    /// Empty for one that does not listen.
    pub address: String,
}

impl ExchangeAddress {
    pub(crate) fn is_known(&self) -> bool {
        self.incarnation > 0 && !self.address.is_empty()
    }
}

impl Field for ExchangeAddress {
    const LEAST: usize = 10;

    fn put(&self, out: &mut Vec<u8>) {
        self.incarnation.put(out);
        self.address.put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        Some(Self { incarnation: from.u64()?, address: from.text()? })
    }
}

/// Entry of the address book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub peer: Peer,
    pub incarnation: u64,
    pub state: MemberState,
    /// A reader: it pulls values, and no round and no barrier waits for it.
    pub reads: bool,
    /// Empty in the book of a restarted scheduler until the Hello of the member.
    pub address: String,
    /// Mask of the features that the member takes.
    pub features: u64,
    /// How the process of a lost member ended, if its launcher has said so; else empty.
    pub cause: String,
    /// Where a worker listens for other workers.
    pub exchange: ExchangeAddress,
}

/// Added to the state of a reader; smaller numbers are for states.
const READS: u8 = 128;
/// Bits of the last byte of a hello: the sender pushes no more, the sender is a reader.
const IS_DONE: u8 = 1;
const ONLY_READS: u8 = 2;

codes!(MemberState);

/// Address book (also: membership view): all members that the job ever had, at one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Book {
    pub epoch: u32,
    /// None before the first worker has joined.
    pub terms: Option<Terms>,
    /// Mask of the features that the scheduler takes.
    pub features: u64,
    pub members: Vec<Standing>,
}

impl Book {
    pub(crate) fn find(&self, peer: Peer) -> Option<&Standing> {
        self.members.iter().find(|member| member.peer == peer)
    }

    /// The member that is here with this address.
    pub(crate) fn peer_at(&self, address: &str) -> Option<Peer> {
        let here =
            |member: &&Standing| member.state == MemberState::Here && member.address == address;
        self.members.iter().find(here).map(|member| member.peer)
    }

    /// Number of members that are lost.
    pub(crate) fn lost(&self) -> usize {
        self.members.iter().filter(|member| member.state == MemberState::Lost).count()
    }

    /// Workers that have neither left nor been lost.
    pub(crate) fn workers_here(&self) -> Vec<Peer> {
        let here = |member: &&Standing| {
            member.peer.role == Role::Worker && member.state == MemberState::Here
        };
        self.members.iter().filter(here).map(|member| member.peer).collect()
    }

    pub(crate) fn find_mut(&mut self, peer: Peer) -> Option<&mut Standing> {
        self.members.iter_mut().find(|member| member.peer == peer)
    }

    pub(crate) fn is_here(&self, peer: Peer) -> bool {
        self.find(peer).is_some_and(|member| member.state == MemberState::Here)
    }

    /// Merges an earlier book of the job into this one, of an older or a restarted scheduler: members that
    /// have left, missing addresses, and the terms.
    pub(crate) fn keep(&mut self, earlier: &Self) {
        for old in &earlier.members {
            let same = |new: &&mut Standing| new.incarnation == old.incarnation;
            let Some(new) = self.find_mut(old.peer).filter(same) else { continue };
            if new.state == MemberState::Here && old.state == MemberState::Left {
                new.state = MemberState::Left;
            }
            if new.address.is_empty() {
                new.address.clone_from(&old.address);
            }
            if !new.exchange.is_known() {
                new.exchange.clone_from(&old.exchange);
            }
        }
        if self.terms.is_none() {
            self.terms.clone_from(&earlier.terms);
        }
    }

    /// Whether a process can begin to work with the book: it has the address of each member and, if a worker
    /// pushes, the terms.
    pub(crate) fn is_whole(&self) -> bool {
        let mut here = self.members.iter().filter(|member| member.state == MemberState::Here);
        let pushes = |member: &Standing| member.peer.role == Role::Worker && !member.reads;
        here.all(|m| !m.address.is_empty() && (self.terms.is_some() || !pushes(m)))
    }

    /// Asserts that no two members have one seat (role and rank), and that no process has two.
    pub(crate) fn check(&self) {
        let identity = |member: &Standing| (member.peer.role, member.incarnation);
        debug_assert!(
            self.members.is_sorted_by(|one, next| one.peer < next.peer),
            "each seat has one member: {self:?}"
        );
        debug_assert!(
            self.members.iter().map(identity).collect::<BTreeSet<_>>().len() == self.members.len(),
            "each process has one seat: {self:?}"
        );
    }
}

record!(Book: 20 { epoch, terms, features, members });

impl Standing {
    /// How the process ended, behind the text of its loss; nothing if that is not known.
    pub(crate) fn cause(&self) -> String {
        if self.cause.is_empty() { String::new() } else { format!(": {}", self.cause) }
    }
}

impl Field for Standing {
    const LEAST: usize = 28;

    fn put(&self, out: &mut Vec<u8>) {
        put_sized(out, |out| {
            self.peer.put(out);
            self.incarnation.put(out);
            out.push(self.state as u8 | if self.reads { READS } else { 0 });
            self.address.put(out);
            self.features.put(out);
            self.cause.put(out);
            self.exchange.put(out);
        });
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let from = &mut from.sized()?;
        let (peer, incarnation, state) = (Peer::take(from)?, from.u64()?, from.u8()?);
        let (reads, address) = (state & READS != 0, from.text()?);
        let state = MemberState::from_code(state & !READS)?;
        let features = from.u64()?;
        // A field that earlier releases do not have.
        let cause = if from.is_at_end() { String::new() } else { from.text()? };
        let exchange =
            if from.is_at_end() { ExchangeAddress::default() } else { Field::take(from)? };
        Some(Self { peer, incarnation, state, reads, address, features, cause, exchange })
    }
}

/// Counts of a worker that takes part in a resume, or the largest ones of all that did: they go on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ResumePoint {
    /// Number of the resume, from 1; 0 before the first.
    pub number: u64,
    /// Most pushes to a key.
    pub pushes: u64,
    pub barriers: u64,
    /// Agreements of collective calls.
    pub agreements: u64,
}

impl ResumePoint {
    /// The counts of all, with those of one more worker.
    pub(crate) fn with(self, other: &Self) -> Self {
        Self {
            number: self.number,
            pushes: self.pushes.max(other.pushes),
            barriers: self.barriers.max(other.barriers),
            agreements: self.agreements.max(other.agreements),
        }
    }
}

impl Field for ResumePoint {
    const LEAST: usize = 32;

    fn put(&self, out: &mut Vec<u8>) {
        (self.number, self.pushes).put(out);
        (self.barriers, self.agreements).put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let ((number, pushes), (barriers, agreements)) = (Field::take(from)?, Field::take(from)?);
        Some(Self { number, pushes, barriers, agreements })
    }
}

/// Introduction of a process (also: join request): what it expects of the job, and, for a restarted
/// scheduler, what it knows of the job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hello {
    pub workers: u32,
    pub servers: u32,
    pub address: String,
    /// Terms of a worker; None from a server.
    pub terms: Option<Terms>,
    /// Empty before the process is a member.
    pub book: Book,
    /// Barriers at which the process has arrived, and that it has passed.
    pub arrived: u64,
    pub passed: u64,
    pub done: bool,
    /// The process is a reader; the receiver compares it with the credential.
    pub reads: bool,
    /// Mask of the features that the process takes.
    pub features: u64,
    /// Secret number that the launcher gave to the process; 0 without a launcher that announces its end.
    pub launch: u128,
    /// Last resume in which the process takes part, with its counts, and the last that it has passed.
    pub resume: Box<ResumePoint>,
    pub resumed: Box<ResumePoint>,
    /// Where a worker listens for other workers.
    pub exchange: Box<ExchangeAddress>,
}

impl Field for Hello {
    const LEAST: usize = 63;

    fn put(&self, out: &mut Vec<u8>) {
        (self.workers, self.servers).put(out);
        self.address.put(out);
        self.terms.put(out);
        put_sized(out, |out| self.book.put(out));
        (self.arrived, self.passed).put(out);
        let reads = if self.reads { ONLY_READS } else { 0 };
        out.push(reads + if self.done { IS_DONE } else { 0 });
        self.features.put(out);
        self.launch.put(out);
        self.resume.put(out);
        self.resumed.put(out);
        self.exchange.put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let (workers, servers) = Field::take(from)?;
        let (address, terms) = (from.text()?, Field::take(from)?);
        let book = Field::take(&mut from.sized()?)?;
        let ((arrived, passed), last) = (Field::take(from)?, from.u8()?);
        let (done, reads, features) = (last & IS_DONE != 0, last & ONLY_READS != 0, from.u64()?);
        // A field that earlier releases do not have.
        let launch = if from.is_at_end() { 0 } else { from.u128()? };
        let is_earlier = from.is_at_end();
        let mut point = || {
            let point = if is_earlier { ResumePoint::default() } else { Field::take(from)? };
            Some(Box::new(point))
        };
        let (resume, resumed) = (point()?, point()?);
        let exchange =
            if from.is_at_end() { ExchangeAddress::default() } else { Field::take(from)? };
        let exchange = Box::new(exchange);
        Some(Self {
            workers,
            servers,
            address,
            terms,
            book,
            arrived,
            passed,
            done,
            reads,
            features,
            launch,
            resume,
            resumed,
            exchange,
        })
    }
}

/// Word of a launcher (also: exit notification) that all processes to which it gave a number have ended. The number is
/// a secret of the launcher, the processes and the scheduler, so no other member can send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitNotice {
    /// The number, not 0.
    pub launch: u128,
    /// How they ended, as in `ended by signal 9, said kvstore run`: at most 128 bytes of a line.
    pub how: String,
}

/// Maximum length of the text of an exit notice, in bytes: the book repeats it to all members.
const MOST_HOW: usize = 128;

impl ExitNotice {
    /// Fields of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Field::encode(self)
    }

    /// Whether its text is short, and one line.
    pub(crate) fn is_line(&self) -> bool {
        self.how.len() <= MOST_HOW && !self.how.chars().any(char::is_control)
    }
}

record!(ExitNotice: 18 { launch, how });

/// Dtype and shape of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpec {
    /// Dtype, as `kv_dtype`: code, bits << 8, lanes << 16. `float32` is `2 | 32 << 8 | 1 << 16`.
    pub dtype: u32,
    /// Extents, in elements.
    pub shape: Vec<u64>,
    /// The merge rule needs the whole key on one server.
    pub whole: bool,
}

impl KeySpec {
    /// Bytes of an element.
    #[must_use]
    pub fn item_bytes(&self) -> u64 {
        u64::from(self.dtype >> 8 & 0xff).div_ceil(8) * u64::from((self.dtype >> 16).max(1))
    }

    /// Bytes of the value; None on overflow.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.item_bytes(), |size, extent| size.checked_mul(*extent))
    }
}

record!(KeySpec: 9 { dtype, whole, shape });

/// What a Declare proposes or looks up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proposal {
    /// A key: the second hash of its name, 0 for an integer or if the sender does not know the name, and its
    /// spec; without a spec a look-up.
    Key(u64, Option<KeySpec>),
    /// A setting; empty accepts the decided one.
    Setting(Vec<u8>),
}

impl Proposal {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Key(name, spec) => {
                let mut out = (*name, spec.is_some()).encode();
                spec.iter().for_each(|spec| spec.put(&mut out));
                out
            }
            Self::Setting(fields) => fields.clone(),
        }
    }

    /// Decodes the proposal, or the look-up, of a key.
    pub(crate) fn decode_key(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let (name, has_spec) = Field::take(&mut from)?;
        let spec = if has_spec { Some(KeySpec::take(&mut from)?) } else { None };
        Some(Self::Key(name, spec))
    }
}

/// What a Place decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The placement of a key.
    Key(Arc<Placement>),
    /// The decided setting; empty if it is the receiver's.
    Setting(Vec<u8>),
}

/// Name of a slice, in one generation of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceName {
    /// Key of the slice.
    pub key: u64,
    /// Generation of the key, from 1; a removed key that is initialised again has the next one.
    pub generation: u32,
    /// Index of the slice, from 0.
    pub slice: u32,
}

/// Placement of a key (also: shard map): its shape and the server of each slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Dtype and shape.
    pub spec: KeySpec,
    /// Bytes of every slice but the last.
    pub slice_bytes: u64,
    /// Rank of the server of each slice.
    pub servers: Vec<u16>,
}

impl Field for Placement {
    const LEAST: usize = 21;

    fn put(&self, out: &mut Vec<u8>) {
        self.spec.put(out);
        self.slice_bytes.put(out);
        self.servers.put(out);
    }

    /// Reads a placement whose slices make up the key, and no other: later code need not check that.
    fn take(from: &mut FieldReader) -> Option<Self> {
        let (spec, (slice_bytes, servers)) = <(KeySpec, (u64, Vec<u16>))>::take(from)?;
        let slices = spec.bytes()?.div_ceil(slice_bytes.max(1)).max(1);
        (slices == servers.len() as u64).then_some(Self { spec, slice_bytes, servers })
    }
}

impl Placement {
    /// Offset of a slice in the value, and its length, in bytes.
    #[must_use]
    pub fn range(&self, slice: u32) -> (u64, u64) {
        range(self.spec.bytes().unwrap_or(0), self.slice_bytes, slice)
    }
}

/// Offset of a slice in a value of `bytes` bytes, and its length.
pub(crate) fn range(bytes: u64, slice_bytes: u64, slice: u32) -> (u64, u64) {
    let at = u64::from(slice).saturating_mul(slice_bytes).min(bytes);
    (at, (bytes - at).min(slice_bytes))
}

/// Fields of a Failed: a failure.
pub(crate) mod failed {
    use super::{Failure, Field, Reason};
    use crate::job::{TextPart, label, words};

    pub(crate) fn encode(failure: &Failure) -> Vec<u8> {
        (failure.reason as u8, failure.to_string()).encode()
    }

    /// Decodes a failure about a key. Bytes have no parts: the directory's texts about an init, and those of a
    /// merge rule that failed on a server, contain the number of the key.
    pub(crate) fn decode(bytes: &[u8], key: u64) -> Option<Failure> {
        let (reason, text) = <(u8, String)>::decode(bytes)?;
        // A reason of a later release still has its text.
        let reason = Reason::from_code(reason).unwrap_or(Reason::Invalid);
        let parts: Vec<_> = text.split(&label(key)).map(words).collect();
        Some(Failure { reason, text: parts.join(&TextPart::Key(key)) })
    }
}
