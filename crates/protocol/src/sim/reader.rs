//! Hostile reader (also: Byzantine client): a process with the credential of a reader that sends arbitrary
//! frames all the time. The members, their barriers, the terms and all results are as without its frames.
//!
//! The reader has the address book of the job, and claims to be itself or another member, in its streams and
//! outside of them. Each of its frames passes `admission` first, as in a job with credentials.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Bytes;
use super::cluster::{Cluster, Machine, SCHEDULER};
use super::frames::{read_frame, write_frame};
use super::network::Happening;
use crate::job::{Limits, MS, Mode, NO_RANK, Peer, Role, Time};
use crate::machine::Machine as _;
use crate::membership::{AuthenticatedPeer, is_at};
use crate::message::{
    Body, Book, Field as _, Header, Hello, KeySpec, Look, MemberState, Message, MessageKind,
    Proposal,
};
use crate::testing::Random;

pub(super) const READER: &str = "reader";
const PAUSE: Time = 20 * MS;
/// Minimum frames in each job: the reader continues until it has sent this many.
pub(super) const LEAST: u64 = 100;

/// One direction of a stream to another process, and the last sequence of the other direction.
#[derive(Debug, Default)]
struct Stream {
    incarnation: u64,
    sent: u64,
    received: u64,
}

#[derive(Debug)]
pub(super) struct Reader {
    me: Peer,
    speaker: AuthenticatedPeer,
    incarnation: u64,
    random: Random,
    streams: BTreeMap<Arc<str>, Stream>,
    book: Book,
    job: u64,
    servers: u32,
    /// Frames sent so far.
    pub(super) sent: u64,
}

impl Reader {
    /// Rank of the last worker; in half of the jobs its credential is for this rank only.
    pub(super) fn new(seed: u64, limits: &Limits) -> Self {
        let mut random = Random::new(seed ^ 0x4ead);
        let me = Peer::worker(limits.workers - 1);
        let rank = Some(me.rank).filter(|_| random.one_in(2));
        let speaker = AuthenticatedPeer { role: Role::Worker, rank, reads: true };
        let (streams, book) = (BTreeMap::new(), Book::default());
        let Limits { job, servers, .. } = *limits;
        Self { me, speaker, incarnation: 7, random, streams, book, job, servers, sent: 0 }
    }

    pub(super) fn me(&self) -> Peer {
        self.me
    }

    /// Receives a frame: it maintains the streams, and learns the address book.
    fn hear(&mut self, from: &Arc<str>, bytes: &[u8]) {
        let Ok(Message { head, body }) = read_frame(bytes) else { return };
        let stream = self.streams.entry(from.clone()).or_default();
        if head.incarnation > stream.incarnation {
            *stream = Stream { incarnation: head.incarnation, ..Stream::default() };
        }
        stream.received = stream.received.max(head.sequence);
        if let (MessageKind::Book, Body::Fields(fields)) = (head.kind, body) {
            self.book = Book::decode(&fields).unwrap_or_default();
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// Small numbers, and some of the largest.
    fn number(&mut self) -> u64 {
        match self.random.below(4) {
            0 => u64::MAX - self.random.below(3),
            1 => 1 << self.random.below(64),
            _ => self.random.below(6),
        }
    }

    /// Next message to a process.
    fn say(&mut self, to: &Arc<str>) -> Message<Bytes> {
        let of_its_own = self.random.below(5);
        let mut message = match of_its_own {
            // Keeps its membership.
            0 => self.fields(MessageKind::Hello, false),
            1 => Message::new(MessageKind::Alive, Vec::new()),
            _ => self.forge(),
        };
        let peer = if of_its_own < 2 { self.me } else { self.name() };
        message.head.job = self.job;
        message.head.role = peer.role;
        message.head.rank = peer.rank;
        let known = self.book.find(peer).map(|member| member.incarnation);
        message.head.incarnation = match self.random.below(10) {
            _ if of_its_own < 2 => self.incarnation,
            0 => self.random.next(),
            1..6 => known.unwrap_or(self.incarnation),
            _ => self.incarnation,
        };
        let in_stream = of_its_own > 1 && self.chance(50);
        let odd = of_its_own > 1 && self.chance(5);
        let stream = self.streams.entry(to.clone()).or_default();
        message.head.to_incarnation = if odd { 3 } else { stream.incarnation };
        message.head.ack = stream.received;
        if in_stream {
            stream.sent += 1;
            message.head.sequence = stream.sent;
        }
        message
    }

    /// Claimed sender: mostly itself. Before the start it claims no rank of another worker: a free rank would
    /// be assigned to it.
    fn name(&mut self) -> Peer {
        let started = self.book.epoch > 0;
        match self.random.below(20) {
            0 => Peer::server(0),
            1 => Peer::SCHEDULER,
            2 if started => Peer::worker(NO_RANK),
            3..8 if started => {
                Peer::worker(u32::try_from(self.random.below(self.me.rank.into())).unwrap())
            }
            _ => self.me,
        }
    }

    fn forge(&mut self) -> Message<Bytes> {
        let kinds = MessageKind::ALL.len() as u64;
        let kind = match self.random.below(10) {
            0..3 => MessageKind::Hello,
            3 => MessageKind::Pull,
            _ => MessageKind::ALL[usize::try_from(self.random.below(kinds)).unwrap()],
        };
        // Such a message would remove it from the job at once.
        let kind = match kind {
            MessageKind::Leave | MessageKind::Suspect if !self.chance(5) => MessageKind::Done,
            kind => kind,
        };
        if kind == MessageKind::Bundle {
            let parts = [MessageKind::Pull, MessageKind::Push].map(|kind| self.fields(kind, true));
            return Message::bundle(parts.into());
        }
        self.fields(kind, true)
    }

    /// A message with the fields of its kind.
    fn fields(&mut self, kind: MessageKind, forged: bool) -> Message<Bytes> {
        let fields = match kind {
            MessageKind::Hello => self.hello(forged).encode(),
            MessageKind::Book => self.forged_book().encode(),
            MessageKind::Look => Look { address: READER.into(), skip: 0 }.encode(0),
            MessageKind::Suspect => (Peer::server(0), self.random.below(9)).encode(),
            MessageKind::Declare => {
                let spec = KeySpec { dtype: super::program::F32, shape: vec![3], whole: false };
                Proposal::Key(0, Some(spec).filter(|_| self.random.one_in(2))).encode()
            }
            _ => (0..self.random.below(20)).map(|byte| byte.to_le_bytes()[0]).collect(),
        };
        let is_data = kind.carries_data(fields.len());
        let mut message = Message::new(kind, fields);
        if is_data {
            message.body = Body::Data(Bytes::new(&[1; 16]));
        }
        if forged {
            let generation = 1 + u32::try_from(self.random.below(2)).unwrap();
            let head = Header { key: self.random.below(4), generation, ..message.head };
            message.head = Header { round: self.number(), request: self.number(), ..head };
            message.head.setting = self.number() >> 60;
            message.head.total = self.number();
        }
        message
    }

    fn hello(&mut self, forged: bool) -> Hello {
        let (workers, servers) = (self.me.rank + 1, self.servers);
        let (address, reads) = (READER.into(), true);
        let hello = Hello { workers, servers, address, reads, ..Hello::default() };
        if !forged {
            return hello;
        }
        let mut terms = super::limits().terms();
        terms.mode = Mode::Async { staleness: Some(9) };
        Hello {
            // A reader with different terms is refused, as any process.
            terms: Some(terms.into()).filter(|_| self.book.terms.is_none()),
            book: self.forged_book(),
            arrived: self.number(),
            passed: self.number(),
            done: self.chance(50),
            reads: self.chance(80),
            ..hello
        }
    }

    /// The address book, with other members lost, left, or at another address.
    fn forged_book(&mut self) -> Book {
        let mut book = self.book.clone();
        book.epoch = u32::try_from(self.number().min(u32::MAX.into())).unwrap();
        for member in &mut book.members {
            match self.random.below(6) {
                0 => member.state = MemberState::Lost,
                1 => member.state = MemberState::Left,
                2 => member.address = READER.into(),
                3 => member.incarnation = self.random.next(),
                4 => member.reads = true,
                _ => {}
            }
        }
        book
    }
}

impl Cluster {
    /// Sends some frames of the reader, until the workers have ended.
    pub(super) fn attack(&mut self) {
        let Some(mut reader) = self.reader.take() else { return };
        let servers = self.scenario.limits.servers;
        for _ in 0..3 {
            let to = match reader.random.below(2) {
                0 => SCHEDULER.into(),
                _ => format!("server-{}", reader.random.below(servers.into())),
            };
            let to: Arc<str> = to.into();
            let bytes = write_frame(&reader.say(&to));
            self.network.send(&READER.into(), &to, &bytes, &self.scenario);
            reader.sent += 1;
        }
        let works = self.processes.keys().any(|address| address.starts_with("worker"));
        if works || reader.sent < LEAST || self.network.now < 2_000 * MS {
            self.network.at(self.network.now + PAUSE, Happening::Attack);
        }
        self.met.attacks += 3;
        self.reader = Some(reader);
    }

    pub(super) fn reader_hears(&mut self, from: &Arc<str>, bytes: &[u8]) {
        if let Some(reader) = &mut self.reader {
            reader.hear(from, bytes);
        }
    }
}

/// Delivers a frame of the reader to a process, if it is admitted. Checks that the scheduler's state of the
/// other members is unchanged.
pub(super) fn receive(
    reader: &Reader,
    machine: &mut Machine,
    mut message: Message<Bytes>,
    now: Time,
) -> bool {
    let peer = Peer { role: message.head.role, rank: message.head.rank };
    let linked = match machine {
        Machine::Scheduler(scheduler) => scheduler.linked(peer),
        Machine::Node(node) => node.linked(peer),
    };
    let admitted = reader.speaker.admit(READER, &mut message).is_ok();
    if !admitted || !is_at(&message.head, linked, READER) {
        return false;
    }
    match machine {
        Machine::Node(node) => node.receive(message, now),
        Machine::Scheduler(scheduler) => {
            let head = format!("{:?}", message.head);
            let counts = scheduler.has_started() || reader.speaker.rank.is_some();
            let before = scheduler.standing(reader.me());
            scheduler.receive(message, now);
            let after = scheduler.standing(reader.me());
            assert!(!counts || before == after, "{head} changes\n{before} to\n{after}");
        }
    }
    true
}
