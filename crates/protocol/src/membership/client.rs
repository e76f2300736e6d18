//! The client of the scheduler in every member: joining, the address book, barriers, leaving.

use std::sync::Arc;

use crate::drops::{DropReason, Handled};
use crate::job::{
    Data, DeliveryToken, Failure, Limits, MS, NO_RANK, Peer, Reason, Role, SumOrder, Time, list,
};
use crate::message::kinds::{Ask, Awaited, Barrier, Done, Leave, Released, Report, Resume};
use crate::message::{
    BadFrame, Book, Content, ExchangeAddress, FEATURES, Hello, Look, MemberState, Message,
    MessageKind, ResumePoint, SUMS_BY_TREE, Standing, Terms, VERSION, failed,
};
use crate::peers::{OutgoingMessage, PeerEvent, Peers};
use crate::stream::{CONTROL, LAST};
use crate::telemetry::ProcessStats;

/// Event of the client for its node.
#[derive(Debug)]
pub(crate) enum ClientEvent {
    /// The job has started, or its members have changed.
    Members,
    /// Barriers up to this one are open.
    Released(u64),
    /// Members that a barrier waits for.
    Awaited(u64, Vec<Peer>),
    /// No worker is done any more.
    Resumed(ResumePoint),
    /// Members that a resume waits for.
    ResumeAwaited(u64, Vec<Peer>),
    /// This process was evicted or refused, or cannot continue.
    Fatal(Failure),
    /// The job is over, for a server.
    Over,
    /// This process has left without the acknowledgement of the scheduler.
    Left,
}

/// Maximum retry interval of a hello: a process that starts before the scheduler joins soon after it.
const HELLO: Time = 100 * MS;

/// State of the membership in one member.
#[derive(Debug)]
pub(crate) struct Client {
    scheduler: Arc<str>,
    /// Rank chosen by the user, or `NO_RANK`.
    rank: u32,
    hello: Hello,
    next_hello: Time,
    /// Begin of the silence of the scheduler, which may be restarting.
    away: Option<Time>,
    start_by: Time,
    asked: bool,
    awaited: Vec<Peer>,
    leaving: bool,
    over: bool,
    events: Vec<ClientEvent>,
}

/// Token of the Leave to the scheduler.
pub(crate) const GOODBYE: DeliveryToken =
    DeliveryToken { operation: u64::MAX, attempt: 0, group: 0 };

impl Client {
    pub(crate) fn new(
        limits: &Limits,
        Peer { role, rank }: Peer,
        address: &str,
        scheduler: &str,
        now: Time,
    ) -> Self {
        let hello = Hello {
            terms: (role == Role::Worker).then(|| Terms::own(limits.terms())),
            workers: limits.workers,
            servers: limits.servers,
            address: address.into(),
            features: FEATURES,
            ..Hello::default()
        };
        Self {
            scheduler: scheduler.into(),
            rank,
            hello,
            next_hello: now,
            away: Some(now),
            start_by: now + limits.start_timeout,
            asked: false,
            awaited: Vec::new(),
            leaving: false,
            over: false,
            events: Vec::new(),
        }
    }

    pub(crate) fn book(&self) -> &Book {
        &self.hello.book
    }

    pub(crate) fn events(&mut self) -> Vec<ClientEvent> {
        std::mem::take(&mut self.events)
    }

    pub(crate) fn has_started(&self) -> bool {
        self.hello.book.epoch > 0
    }

    /// Arrives at the next barrier; returns its number.
    pub(crate) fn arrive<D: Data>(&mut self, net: &mut Peers<D>) -> u64 {
        self.hello.arrived += 1;
        tell(net, Barrier { number: self.hello.arrived }, CONTROL, None);
        self.hello.arrived
    }

    /// Takes part in a resume.
    pub(crate) fn resume<D: Data>(&mut self, net: &mut Peers<D>, point: ResumePoint) {
        *self.hello.resume = point;
        tell(net, Resume::from(point), CONTROL, None);
    }

    /// Asks for the members that a resume waits for.
    pub(crate) fn ask_resume<D: Data>(net: &mut Peers<D>, resume: u64) {
        tell(net, Ask::about(Ask::RESUMING, resume), CONTROL, None);
    }

    /// Says where this worker listens for other workers: a hello is repeated to every scheduler.
    pub(crate) fn listen<D: Data>(&mut self, net: &mut Peers<D>, address: ExchangeAddress) {
        *self.hello.exchange = address;
        self.introduce(net);
    }

    /// Asks for the book, with the addresses of the workers that listen so far.
    pub(crate) fn ask_meeting<D: Data>(net: &mut Peers<D>) {
        tell(net, Ask::about(Ask::MEETING, 0), CONTROL, None);
    }

    /// Asks for the members that a barrier waits for.
    pub(crate) fn ask<D: Data>(net: &mut Peers<D>, barrier: u64) {
        tell(net, Ask::about(Ask::ARRIVING, barrier), CONTROL, None);
    }

    /// Sends the statistics of this process.
    pub(crate) fn report<D: Data>(
        &self,
        net: &mut Peers<D>,
        incarnation: u64,
        facts: ProcessStats,
    ) {
        let report = Report { facts: Some(Box::new(facts)) };
        net.cast(&self.scheduler, incarnation, report.into());
    }

    /// Asks for the scheduler's clock; the moment of the question is the request.
    pub(crate) fn ask_time<D: Data>(&self, net: &mut Peers<D>, now: Time) {
        let look = Look { address: self.hello.address.clone(), skip: u32::MAX };
        let mut message = Message::from(look);
        message.head.request = now;
        net.cast(&self.scheduler, 0, message);
    }

    /// Declares this process a reader, from its first hello on.
    pub(crate) fn only_read(&mut self) {
        self.hello.reads = true;
    }

    /// Introduces this process with the number that its launcher gave to it.
    pub(crate) fn set_launch(&mut self, launch: u128) {
        self.hello.launch = launch;
    }

    pub(crate) fn done<D: Data>(&mut self, net: &mut Peers<D>) {
        self.hello.done = true;
        tell(net, Done { key: 0, generation: 0, pushes: 0 }, CONTROL, None);
    }

    /// Leaves; the token `GOODBYE` is returned when the scheduler has acknowledged it.
    pub(crate) fn leave<D: Data>(&mut self, net: &mut Peers<D>) {
        self.leaving = true;
        tell(net, Leave { back: false }, LAST, Some(GOODBYE));
    }

    pub(crate) fn is_scheduler(&self, address: &str) -> bool {
        *self.scheduler == *address
    }

    pub(crate) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// A member has sent Leave to this process. A restarted scheduler may learn it from here.
    pub(crate) fn left(&mut self, peer: Peer) {
        let known = self.hello.book.find_mut(peer);
        if let Some(member) = known.filter(|member| member.state == MemberState::Here) {
            member.state = MemberState::Left;
        }
    }

    /// Takes a message of the scheduler that is linked, or returns the reason to drop it.
    pub(crate) fn message<D: Data>(&mut self, message: Message<D>, net: &mut Peers<D>) -> Handled {
        match Content::read(&message.head, message.body)? {
            Content::Book(book) => return self.turn_page(book, net),
            Content::Released(Released { barrier }) => {
                self.hello.passed = self.hello.passed.max(barrier);
                self.events.push(ClientEvent::Released(barrier));
            }
            Content::Resumed(resumed) => {
                let point = ResumePoint::from(&resumed);
                if point.number <= self.hello.resumed.number {
                    return Err(DropReason::Outdated);
                }
                *self.hello.resumed = point;
                self.hello.done = false;
                (self.hello.arrived, self.hello.passed) = (point.barriers, point.barriers);
                self.events.push(ClientEvent::Resumed(point));
            }
            Content::Awaited(Awaited { round, request: 1, peers }) => {
                self.events.push(ClientEvent::ResumeAwaited(round, peers));
            }
            Content::Awaited(Awaited { round: 0, peers, .. }) => self.awaited = peers,
            Content::Awaited(Awaited { round, peers, .. }) => {
                self.events.push(ClientEvent::Awaited(round, peers));
            }
            Content::Leave(_) => self.end(ClientEvent::Over),
            // The scheduler was cut off, and asks for the changes meanwhile.
            Content::Who(_) => self.introduce(net),
            _ => return Err(DropReason::Misdirected),
        }
        Ok(())
    }

    /// Takes a book of the scheduler. The book of a restarted scheduler may lack addresses: a process that
    /// has not begun to work waits for a whole one.
    fn turn_page<D: Data>(&mut self, mut book: Book, net: &mut Peers<D>) -> Handled {
        if book.epoch < self.hello.book.epoch {
            return Err(DropReason::Outdated);
        }
        let me = |member: &&Standing| {
            member.peer.role == net.me.role && member.incarnation == net.incarnation
        };
        if let Some(own) = book.members.iter().find(me) {
            net.me = own.peer;
        }
        book.keep(&self.hello.book);
        if let Some(incarnation) = net.incarnation_of(Peer::SCHEDULER) {
            net.note_features(Peer::SCHEDULER, incarnation, book.features);
        }
        let lost = |member: &&Standing| {
            let before = self.hello.book.find(member.peer).map(|before| before.state);
            member.state == MemberState::Lost && before != Some(MemberState::Lost)
        };
        for member in book.members.iter().filter(lost) {
            let reason = format!("the scheduler says so{}", member.cause());
            let address = member.address.clone();
            net.note(PeerEvent::Lost(member.peer, address, reason));
        }
        if book.epoch == 0 || book.is_whole() {
            if !self.has_started() && book.epoch > 0 {
                self.check_sum_order(&book, net);
            }
            debug_assert!(book.epoch >= net.epoch, "epochs only grow");
            net.epoch = book.epoch;
            self.hello.book = book;
            if self.has_started() {
                self.events.push(ClientEvent::Members);
            }
        }
        Ok(())
    }

    /// Ends a worker that adds by a tree, if a member of the job would add from the left.
    fn check_sum_order<D: Data>(&mut self, book: &Book, net: &Peers<D>) {
        // Readers push nothing.
        let adds = |member: &&Standing| member.state == MemberState::Here && !member.reads;
        let is_linear = |member: &&Standing| member.features & SUMS_BY_TREE == 0;
        if net.me.role != Role::Worker || net.limits.sum_order == SumOrder::Linear {
            return;
        }
        if let Some(member) = book.members.iter().filter(adds).find(is_linear) {
            let text = format!(
                "{} at {} is of an earlier release, which does not know sum_order; use the same release \
                 everywhere, or sum_order=linear",
                member.peer, member.address
            );
            self.end(ClientEvent::Fatal(Failure::new(Reason::Refused, text)));
        }
    }

    /// A frame of the linked scheduler has arrived.
    pub(crate) fn heard(&mut self) {
        self.away = None;
    }

    /// A frame of a scheduler without a link, or outside of the stream. True when the frame begins a stream,
    /// which is linked now; else the reason to drop it, if it has no effect.
    pub(crate) fn stranger<D: Data>(
        &mut self,
        message: &Message<D>,
        net: &mut Peers<D>,
        now: Time,
    ) -> Result<bool, DropReason> {
        let linked = net.incarnation_of(Peer::SCHEDULER).unwrap_or(0);
        if message.head.incarnation < linked {
            return Err(DropReason::Earlier);
        }
        if message.head.to_incarnation != net.incarnation {
            return Err(DropReason::Former);
        }
        match message.head.kind {
            MessageKind::Refused if self.has_started() => Err(DropReason::Outdated),
            MessageKind::Refused | MessageKind::Evicted => {
                // A reason of a later release cannot be read.
                let failure = failed::decode(message.fields(), message.head.key);
                let nothing = Failure::new(Reason::Refused, "refused without a reason");
                self.end(ClientEvent::Fatal(failure.unwrap_or(nothing)));
                Ok(false)
            }
            MessageKind::Who => {
                self.away.get_or_insert(now);
                self.next_hello = self.next_hello.min(now);
                Ok(false)
            }
            MessageKind::Unknown(_) if message.head.sequence == 0 => Err(DropReason::UnknownKind),
            _ if message.head.incarnation > linked => {
                net.connect(Peer::SCHEDULER, message.head.incarnation, &self.scheduler, now);
                self.heard();
                // The hello that the scheduler has received may be an old one.
                self.introduce(net);
                if self.leaving {
                    self.leave(net);
                }
                Ok(true)
            }
            _ => Err(DropReason::Misdirected),
        }
    }

    fn introduce<D: Data>(&self, net: &mut Peers<D>) {
        let message = self.greeting();
        net.post(OutgoingMessage { to: Peer::SCHEDULER, message, priority: CONTROL, token: None });
    }

    /// Before the start, a book in which the process has its rank means that a scheduler assigned the rank.
    /// One that the user chose must not be replaced, so the hello then has no book.
    fn greeting<D: Data>(&self) -> Message<D> {
        let chosen = self.rank != NO_RANK && !self.has_started();
        let book = if chosen { Book::default() } else { self.hello.book.clone() };
        Hello { book, ..self.hello.clone() }.into()
    }

    /// No frame of any member has arrived within the silence timeout.
    pub(crate) fn cut_off(&mut self, me: Peer, limits: &Limits) {
        let text = format!(
            "{me} has not heard any member of the job for {} ms: it was cut off, or the job has ended",
            limits.peer_timeout / MS
        );
        self.end(ClientEvent::Fatal(Failure::new(Reason::Evicted, text)));
    }

    /// A delivery is no frame of this version.
    pub(crate) fn bad_frame(&mut self, from: &str, bad: BadFrame) {
        let joining = !self.has_started() && *from == *self.scheduler;
        if let (BadFrame::Version(theirs), true) = (bad, joining) {
            let text = format!(
                "the scheduler at {from} speaks version {theirs} of the protocol, this process \
                 version {VERSION}; use the same release everywhere"
            );
            self.end(ClientEvent::Fatal(Failure::new(Reason::Refused, text)));
        }
    }

    /// The first contact with a server has not come about in the time of the start.
    pub(crate) fn unreached(&mut self, me: Peer, server: &Standing, limits: &Limits) {
        let text = format!(
            "{me}: {} at {} was not reached within {} ms: no frame of it has arrived",
            server.peer,
            server.address,
            limits.start_timeout / MS
        );
        self.end(ClientEvent::Fatal(Failure::new(Reason::Timeout, text)));
    }

    /// A process that this one needs rejects its connections.
    pub(crate) fn refused(&mut self, text: String) {
        self.end(ClientEvent::Fatal(Failure::new(Reason::Refused, text)));
    }

    /// The silence timeout of the scheduler has expired, or its connection has ended.
    pub(crate) fn miss(&mut self, now: Time) {
        self.away.get_or_insert(now);
        self.next_hello = self.next_hello.min(now);
    }

    pub(crate) fn tick<D: Data>(&mut self, net: &mut Peers<D>, now: Time) {
        if self.left_by(&net.limits).is_some_and(|at| at <= now) {
            self.events.push(ClientEvent::Left);
        }
        if self.over {
            return;
        }
        if self.away.is_some() && now >= self.next_hello {
            self.next_hello = now + net.limits.heartbeat().min(HELLO);
            net.cast(&self.scheduler, 0, self.greeting());
        }
        let timeout = net.limits.start_timeout;
        if !self.has_started() {
            if !self.asked && now + timeout / 2 >= self.start_by && !self.is_away() {
                self.asked = true;
                Self::ask(net, 0);
            }
            if now >= self.start_by {
                let text = self.not_started(net.me, timeout);
                self.end(ClientEvent::Fatal(Failure::new(Reason::Timeout, text)));
            }
        } else if self.away.is_some_and(|since| now >= since + net.limits.scheduler_timeout()) {
            let text = self.scheduler_lost(&net.limits);
            self.end(ClientEvent::Fatal(Failure::new(Reason::PeerLost, text)));
        }
    }

    /// Moment at which a leaving process stops waiting for the scheduler. A scheduler that was cut off for a
    /// shorter time receives the Leave; one that was cut off for longer learns it from the servers.
    fn left_by(&self, limits: &Limits) -> Option<Time> {
        self.away.filter(|_| self.leaving).map(|since| since + limits.peer_timeout / 8 * 3)
    }

    fn not_started(&self, me: Peer, timeout: Time) -> String {
        let start = format!("{me}: the job did not start within {} ms", timeout / MS);
        match &self.awaited[..] {
            // A scheduler that has given up answers no more; its last answer names the missing members.
            missing @ [_, ..] if me.rank != NO_RANK => {
                format!("{start}: {} did not come", list(missing))
            }
            _ if self.is_away() => {
                format!("{start}: the scheduler at {} does not answer", self.scheduler)
            }
            _ => format!("{start}; the scheduler did not say who is missing"),
        }
    }

    fn scheduler_lost(&self, limits: &Limits) -> String {
        let (address, timeout) = (&self.scheduler, limits.scheduler_timeout() / MS);
        if limits.embedded {
            return format!(
                "worker 0 is lost: the scheduler in its process, at {address}, was not heard for {timeout} ms"
            );
        }
        format!(
            "the scheduler at {address} was not heard for {timeout} ms and was not started again"
        )
    }

    fn end(&mut self, event: ClientEvent) {
        if !self.over {
            self.over = true;
            self.events.push(event);
        }
    }

    pub(crate) fn wake_at(&self, limits: &Limits) -> Time {
        let left = self.left_by(limits).unwrap_or(Time::MAX);
        if self.over {
            return left;
        }
        let hello = self.away.map(|since| {
            let lost = since + limits.scheduler_timeout();
            if self.has_started() { self.next_hello.min(lost) } else { self.next_hello }
        });
        let ask = (!self.asked && !self.is_away())
            .then(|| self.start_by.saturating_sub(limits.start_timeout / 2));
        let start = if self.has_started() { None } else { ask.or(Some(self.start_by)) };
        [hello, start].into_iter().flatten().min().unwrap_or(Time::MAX).min(left)
    }
}

fn tell<D: Data>(
    net: &mut Peers<D>,
    message: impl Into<Message<D>>,
    priority: i32,
    token: Option<DeliveryToken>,
) {
    let (to, message) = (Peer::SCHEDULER, message.into());
    net.post(OutgoingMessage { to, message, priority, token });
}
