//! Fields of control messages (also: control plane payloads).

use std::collections::BTreeSet;

use super::reader::{FieldReader, put_count, put_text};
use crate::job::{Failure, JobTerms, LONGEST_MS, MS, MemberRole, Mode, OnLoss, Peer, Reason};

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
}

/// Added to the state of a reader.
const READS: u8 = 4;
/// Bits of the last byte of a hello: the sender pushes no more, the sender is a reader.
const IS_DONE: u8 = 1;
const ONLY_READS: u8 = 2;

/// Writes terms, or that they are not known.
pub(super) fn put_terms(out: &mut Vec<u8>, terms: Option<&JobTerms>) {
    let Some(terms) = terms else { return out.push(0) };
    let (mode, staleness) = match terms.mode {
        Mode::Sync => (1, 0),
        Mode::Async { staleness: None } => (2, 0),
        Mode::Async { staleness: Some(most) } => (3, most),
    };
    out.extend_from_slice(&[mode, u8::from(terms.on_loss == OnLoss::Continue)]);
    let numbers = [staleness, terms.peer_timeout / MS, terms.slice_bytes, terms.hold_bytes];
    for number in numbers.into_iter().chain([terms.max_rounds_ahead]) {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Terms, or None if the sender does not know them; `Err` if they cannot be read.
pub(super) fn take_terms(from: &mut FieldReader) -> Result<Option<JobTerms>, ()> {
    match from.u8().ok_or(())? {
        0 => Ok(None),
        mode => take_known_terms(mode, from).map(Some).ok_or(()),
    }
}

fn take_known_terms(mode: u8, from: &mut FieldReader) -> Option<JobTerms> {
    let on_loss = if from.u8()? == 0 { OnLoss::Fail } else { OnLoss::Continue };
    let staleness = from.u64()?;
    let mode = match mode {
        1 => Mode::Sync,
        2 => Mode::Async { staleness: None },
        3 => Mode::Async { staleness: Some(staleness) },
        _ => return None,
    };
    Some(JobTerms {
        mode,
        on_loss,
        peer_timeout: Some(from.u64()?).filter(|ms| (1..=LONGEST_MS).contains(ms))? * MS,
        slice_bytes: Some(from.u64()?).filter(|bytes| *bytes > 0)?,
        hold_bytes: from.u64()?,
        max_rounds_ahead: Some(from.u64()?).filter(|rounds| *rounds > 0)?,
    })
}

/// Address book (also: membership view): all members that the job ever had, at one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Book {
    pub epoch: u32,
    /// None before the first worker has joined.
    pub terms: Option<JobTerms>,
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
        }
        self.terms = self.terms.or(earlier.terms);
    }

    /// Whether a process can begin to work with the book: it has the address of each member and, if a worker
    /// pushes, the terms.
    pub(crate) fn is_whole(&self) -> bool {
        let mut here = self.members.iter().filter(|member| member.state == MemberState::Here);
        let pushes = |member: &Standing| member.peer.role == MemberRole::Worker && !member.reads;
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

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_le_bytes());
        put_terms(out, self.terms.as_ref());
        put_count(out, self.members.len());
        for member in &self.members {
            out.push(member.peer.role as u8);
            out.extend_from_slice(&member.peer.rank.to_le_bytes());
            out.extend_from_slice(&member.incarnation.to_le_bytes());
            out.push(member.state as u8 + if member.reads { READS } else { 0 });
            put_text(out, &member.address);
        }
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let epoch = from.u32()?;
        let terms = take_terms(from).ok()?;
        let members = from.list(16, |from| {
            let peer = Peer { role: MemberRole::from_code(from.u8()?)?, rank: from.u32()? };
            let (incarnation, state) = (from.u64()?, from.u8()?);
            let (reads, address) = (state & READS != 0, from.text()?);
            let state = MemberState::from_code(state & !READS)?;
            Some(Standing { peer, incarnation, state, reads, address })
        })?;
        Some(Self { epoch, terms, members })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let book = Self::take(&mut from)?;
        from.end()?;
        Some(book)
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
    pub terms: Option<JobTerms>,
    /// Empty before the process is a member.
    pub book: Book,
    /// Barriers at which the process has arrived, and that it has passed.
    pub arrived: u64,
    pub passed: u64,
    pub done: bool,
    /// The process is a reader; the receiver compares it with the credential.
    pub reads: bool,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.workers.to_le_bytes());
        out.extend_from_slice(&self.servers.to_le_bytes());
        put_text(&mut out, &self.address);
        put_terms(&mut out, self.terms.as_ref());
        self.book.put(&mut out);
        out.extend_from_slice(&self.arrived.to_le_bytes());
        out.extend_from_slice(&self.passed.to_le_bytes());
        let reads = if self.reads { ONLY_READS } else { 0 };
        out.push(reads + if self.done { IS_DONE } else { 0 });
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let mut hello = Self {
            workers: from.u32()?,
            servers: from.u32()?,
            address: from.text()?,
            terms: take_terms(&mut from).ok()?,
            book: Book::take(&mut from)?,
            arrived: from.u64()?,
            passed: from.u64()?,
            ..Self::default()
        };
        let last = from.u8()?;
        (hello.done, hello.reads) = (last & IS_DONE != 0, last & ONLY_READS != 0);
        from.end()?;
        Some(hello)
    }
}

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

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.dtype.to_le_bytes());
        out.push(u8::from(self.whole));
        put_count(out, self.shape.len());
        for extent in &self.shape {
            out.extend_from_slice(&extent.to_le_bytes());
        }
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        Some(Self {
            dtype: from.u32()?,
            whole: from.u8()? != 0,
            shape: from.list(8, FieldReader::u64)?,
        })
    }
}

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
                let mut out = name.to_le_bytes().to_vec();
                out.push(u8::from(spec.is_some()));
                if let Some(spec) = spec {
                    spec.put(&mut out);
                }
                out
            }
            Self::Setting(fields) => fields.clone(),
        }
    }

    /// Decodes the proposal, or the look-up, of a key.
    pub(crate) fn decode_key(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let name = from.u64()?;
        let spec = if from.u8()? == 0 { None } else { Some(KeySpec::take(&mut from)?) };
        from.end()?;
        Some(Self::Key(name, spec))
    }
}

/// What a Place decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The placement of a key.
    Key(Placement),
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

impl Placement {
    #[must_use]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.spec.put(&mut out);
        out.extend_from_slice(&self.slice_bytes.to_le_bytes());
        put_count(&mut out, self.servers.len());
        for server in &self.servers {
            out.extend_from_slice(&server.to_le_bytes());
        }
        out
    }

    /// Decodes a place whose slices make up the key, and no other: later code need not check that.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(bytes);
        let place = Self {
            spec: KeySpec::take(&mut from)?,
            slice_bytes: from.u64()?,
            servers: from.list(2, FieldReader::u16)?,
        };
        from.end()?;
        let slices = place.spec.bytes()?.div_ceil(place.slice_bytes.max(1)).max(1);
        (slices == place.servers.len() as u64).then_some(place)
    }

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

/// Fields of an Awaited: the members that a request, a barrier or the start waits for.
pub(crate) mod awaited {
    use super::{FieldReader, MemberRole, Peer, put_count};

    pub(crate) fn encode(peers: &[Peer]) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, peers.len());
        for peer in peers {
            out.push(peer.role as u8);
            out.extend_from_slice(&peer.rank.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Peer>> {
        let mut from = FieldReader::new(bytes);
        let peers = from.list(5, |from| {
            Some(Peer { role: MemberRole::from_code(from.u8()?)?, rank: from.u32()? })
        })?;
        from.end()?;
        Some(peers)
    }
}

/// Fields of a Suspect: a member and its incarnation.
pub(crate) mod accused {
    use super::{FieldReader, MemberRole, Peer};

    pub(crate) fn encode(peer: Peer, incarnation: u64) -> Vec<u8> {
        let mut out = vec![peer.role as u8];
        out.extend_from_slice(&peer.rank.to_le_bytes());
        out.extend_from_slice(&incarnation.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<(Peer, u64)> {
        let mut from = FieldReader::new(bytes);
        let peer = Peer { role: MemberRole::from_code(from.u8()?)?, rank: from.u32()? };
        let incarnation = from.u64()?;
        from.end()?;
        Some((peer, incarnation))
    }
}

/// Fields of a Failed: a failure.
pub(crate) mod failed {
    use super::{Failure, FieldReader, Reason, put_text};
    use crate::job::{TextPart, label, words};

    pub(crate) fn encode(failure: &Failure) -> Vec<u8> {
        let mut out = vec![failure.reason as u8];
        put_text(&mut out, &failure.to_string());
        out
    }

    /// Decodes a failure about a key. Bytes have no parts: the directory's texts about an init, and those of a
    /// merge rule that failed on a server, contain the number of the key.
    pub(crate) fn decode(bytes: &[u8], key: u64) -> Option<Failure> {
        let mut from = FieldReader::new(bytes);
        let (reason, text) = (Reason::from_code(from.u8()?)?, from.text()?);
        from.end()?;
        let parts: Vec<_> = text.split(&label(key)).map(words).collect();
        Some(Failure { reason, text: parts.join(&TextPart::Key(key)) })
    }
}
