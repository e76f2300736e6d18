//! The scheduler: it brings the members together, notices losses, and keeps barriers. It is never on
//! the way of data, and a new one learns from the members what the old one knew.

use std::collections::{BTreeMap, BTreeSet};

use super::disputes::Dispute;
use super::refusals::Allowance;
use super::watch::Watch;
use crate::cluster::common::{
    Data, Failure, Limits, MS, NO_RANK, OnLoss, Peer, Reason, Role, Terms, Time, list,
};
use crate::cluster::link::CONTROL;
use crate::cluster::net::{Frame, Incoming, Letter, Net, News};
use crate::cluster::wire::{
    Awaited, BadFrame, Book, Hello, Kind, Message, Standing, State, VERSION, accused, failed,
};

/// What the scheduler knows of a member beside its line in the book.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Barriers that it has come to, passed, and was told to pass.
    arrived: u64,
    passed: u64,
    told: u64,
    done: bool,
    /// It has said all this to this scheduler, in a hello that is not an old one.
    pub(super) known: bool,
    /// A member that this scheduler, restarted, has not heard counts as lost from then on.
    pub(super) missing_at: Option<Time>,
}

/// The scheduler of one job.
pub(crate) struct Scheduler<D> {
    pub(super) net: Net<D>,
    pub(super) book: Book,
    pub(super) progress: BTreeMap<Peer, Progress>,
    pub(super) disputes: Vec<Dispute>,
    /// Those that came and were gone before the start.
    went: BTreeSet<Peer>,
    pub(super) started: bool,
    pub(super) ending: bool,
    /// Everybody has left. What they sent last is still acknowledged until then.
    pub(super) gone_at: Option<Time>,
    end: Option<Result<(), Failure>>,
    start_by: Time,
    /// Members are silent, and so are all others: this scheduler may be cut off.
    pub(super) in_doubt: bool,
    /// Lost members that may wake up, by incarnation, and until when the scheduler stays to tell them.
    pub(super) untold: BTreeMap<u64, Time>,
    pub(super) allowance: Allowance,
    pub(super) watch: Watch,
}

impl<D: Data> Scheduler<D> {
    pub(crate) fn new(limits: Limits, incarnation: u64, now: Time) -> Self {
        let start_by = now + limits.start_timeout;
        Self {
            net: Net::new(limits, Peer::SCHEDULER, incarnation, now),
            book: Book::default(),
            progress: BTreeMap::new(),
            disputes: Vec::new(),
            went: BTreeSet::new(),
            started: false,
            ending: false,
            gone_at: None,
            end: None,
            start_by,
            in_doubt: false,
            untold: BTreeMap::new(),
            allowance: Allowance::default(),
            watch: Watch::default(),
        }
    }

    /// Where a member is to be reached that there is a stream to.
    pub(crate) fn address_of(&self, peer: Peer) -> Option<&str> {
        self.net.address_of(peer)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.net.limits
    }

    /// How the job ended for the scheduler, once it has.
    pub(crate) fn end(&self) -> Option<&Result<(), Failure>> {
        self.end.as_ref()
    }

    /// A frame came in.
    pub(crate) fn receive(&mut self, message: Message<D>, now: Time) {
        self.net.notice_pause(now);
        // Whoever looks need not know what the job is called.
        if message.head.kind == Kind::Look {
            return self.look(&message, now);
        }
        if message.head.job != self.net.limits.job {
            return self.turn_away(&message);
        }
        let peer = Peer { role: message.head.role, rank: message.head.rank };
        match self.net.receive(message, now) {
            Incoming::Stale => {}
            Incoming::Former(peer, incarnation) => self.unknown(peer, incarnation),
            Incoming::Linked(received) => {
                self.believe(now);
                for message in received.next.into_iter().chain(received.early) {
                    self.message(peer, &message, now);
                }
            }
            Incoming::Stranger(message) => {
                if self.net.incarnation_of(peer) == Some(message.head.incarnation) {
                    self.believe(now);
                }
                self.stranger(peer, &message, now);
            }
        }
        self.settle();
    }

    /// Bytes came in that are no frame of this version.
    pub(crate) fn bad_frame(&mut self, from: &str, bad: BadFrame) {
        self.net.note_bad();
        if let BadFrame::Version(theirs) = bad {
            let text = format!(
                "the scheduler speaks version {VERSION} of the protocol, the process at {from} version \
                 {theirs}; use the same release everywhere"
            );
            self.refuse(from, 0, text);
        }
    }

    /// Whether an address is that of a process of the job.
    pub(crate) fn knows(&self, address: &str) -> bool {
        self.book.members.iter().any(|member| member.address == address)
    }

    /// The engine saw a connection end.
    pub(crate) fn down(&mut self, address: &str, now: Time) {
        self.net.notice_pause(now);
        let Some(peer) = self.book.peer_at(address) else { return };
        // Engines close silent connections too: after a cut, or a pause of this process, the silence
        // of the member decides.
        if !self.started || self.net.is_attentive(now) {
            self.lose(peer);
        }
        self.settle();
    }

    pub(crate) fn tick(&mut self, now: Time) {
        self.net.notice_pause(now);
        self.lose_silent(now);
        self.judge(now);
        if !self.started && now >= self.start_by && self.end.is_none() {
            self.give_up();
        }
        if self.doubt_ends().is_some_and(|at| at <= now) && self.end.is_none() {
            self.end = Some(Err(self.cut_off()));
        }
        if self.over_at().is_some_and(|at| at <= now) {
            self.end.get_or_insert(Ok(()));
        }
        self.settle();
    }

    pub(crate) fn send(&mut self, now: Time) -> Vec<Frame<D>> {
        self.net.send(now)
    }

    /// What has changed since the last time.
    pub(crate) fn news(&mut self) -> Vec<News> {
        self.net.news()
    }

    pub(crate) fn wake_at(&self) -> Time {
        let missing = self.progress.values().filter_map(|progress| progress.missing_at);
        let missing = missing.filter(|_| !self.in_doubt);
        let disputes = self.disputes.iter().map(|dispute| dispute.due);
        let start = (!self.started && self.end.is_none()).then_some(self.start_by);
        let gone = [self.over_at(), self.doubt_ends()].into_iter().flatten();
        let own = start.into_iter().chain(gone.filter(|_| self.end.is_none()));
        missing.chain(disputes).chain(own).chain([self.net.wake_at()]).min().unwrap_or(Time::MAX)
    }

    fn stranger(&mut self, peer: Peer, message: &Message<D>, now: Time) {
        let incarnation = message.head.incarnation;
        if message.head.kind == Kind::Hello {
            if let Some(hello) = Hello::decode(message.fields()) {
                self.hello(peer, incarnation, &hello, false, now);
            }
            return;
        }
        if message.head.kind == Kind::Report {
            return self.report(peer, message, now);
        }
        self.unknown(peer, incarnation);
    }

    /// A frame of a member that is not linked: it was declared lost, or has not noticed yet that
    /// this is another scheduler.
    fn unknown(&mut self, peer: Peer, incarnation: u64) {
        let Some(known) = self.book.find(peer).filter(|m| m.incarnation == incarnation) else {
            return;
        };
        let address = known.address.clone();
        if known.state == State::Lost {
            self.untold.remove(&incarnation);
            self.evict(peer, incarnation, &address);
        } else if self.net.incarnation_of(peer) != Some(incarnation) {
            self.net.cast(&address, incarnation, Message::new(Kind::Who, Vec::new()));
        }
    }

    /// `linked` when it came in the stream of the member.
    fn hello(&mut self, peer: Peer, incarnation: u64, hello: &Hello, linked: bool, now: Time) {
        let fresh = linked || hello.book.epoch > 0;
        if let Err(text) = self.fits(peer, hello) {
            return self.refuse(&hello.address, incarnation, text);
        }
        if hello.book.epoch > 0 {
            self.adopt(&hello.book, now);
        }
        if let (None, Some(terms)) = (self.book.terms, &hello.terms) {
            self.set_terms(terms);
        }
        let same =
            |member: &&Standing| member.peer.role == peer.role && member.incarnation == incarnation;
        if let Some(known) = self.book.members.iter().find(same).cloned() {
            return self.greet(&known, hello, fresh, now);
        }
        match self.seat(peer) {
            Ok(peer) => {
                let address = hello.address.clone();
                let member = Standing { peer, incarnation, state: State::Here, address };
                self.book.members.push(member.clone());
                self.book.members.sort_by_key(|member| member.peer);
                self.progress.insert(peer, Progress::default());
                self.went.remove(&peer);
                self.greet(&member, hello, fresh, now);
            }
            Err(text) => self.refuse(&hello.address, incarnation, text),
        }
    }

    /// Whether the process expects the job that this is.
    fn fits(&self, peer: Peer, hello: &Hello) -> Result<(), String> {
        let (workers, servers) = (self.net.limits.workers, self.net.limits.servers);
        if (hello.workers, hello.servers) != (workers, servers) {
            return Err(format!(
                "{peer} at {} expects {} workers and {} servers; the job has {workers} and \
                 {servers}: start all processes with the same num_workers and num_servers",
                hello.address, hello.workers, hello.servers
            ));
        }
        let differs = |(ours, theirs): (&Terms, &Terms)| ours.difference(theirs);
        if let Some((what, ours, theirs)) =
            self.book.terms.as_ref().zip(hello.terms.as_ref()).and_then(differs)
        {
            return Err(format!(
                "{peer} at {} has {theirs} for {what}, the workers before it have {ours}; use the \
                 same type and options in all workers",
                hello.address
            ));
        }
        let count = self.count(peer.role);
        if peer.rank != NO_RANK && peer.rank >= count {
            return Err(format!(
                "{peer} at {}: the job has room for {count} of this role; ranks begin at 0",
                hello.address
            ));
        }
        Ok(())
    }

    /// The job goes by what its first worker wants.
    pub(super) fn set_terms(&mut self, terms: &Terms) {
        self.book.terms = Some(*terms);
        self.net.limits.adopt(terms);
    }

    fn count(&self, role: Role) -> u32 {
        match role {
            Role::Scheduler => 0,
            Role::Worker => self.net.limits.workers,
            Role::Server => self.net.limits.servers,
        }
    }

    /// The rank of a new process: the one that it asks for, or the lowest that is free.
    fn seat(&self, peer: Peer) -> Result<Peer, String> {
        let taken = |rank| self.book.find(Peer { rank, ..peer });
        if peer.rank == NO_RANK {
            let free = (0..self.count(peer.role)).find(|rank| taken(*rank).is_none());
            let Some(rank) = free else {
                return Err(format!("{peer}: all ranks of its role are taken"));
            };
            return Ok(Peer { rank, ..peer });
        }
        match taken(peer.rank) {
            None => Ok(peer),
            Some(other) if other.state == State::Here => Err(format!(
                "there is a {peer} already, at {}; give every process a rank of its own",
                other.address
            )),
            Some(other) => Err(format!(
                "{peer} was at {} before and is gone; it cannot join the running job again",
                other.address
            )),
        }
    }

    /// Links a member, and brings it up to date. A repeated hello changes nothing.
    fn greet(&mut self, member: &Standing, hello: &Hello, fresh: bool, now: Time) {
        if member.state == State::Lost {
            self.untold.remove(&member.incarnation);
            return self.evict(member.peer, member.incarnation, &member.address);
        }
        let progress = self.progress.entry(member.peer).or_default();
        progress.arrived = progress.arrived.max(hello.arrived);
        progress.passed = progress.passed.max(hello.passed);
        progress.told = progress.told.max(hello.passed);
        progress.done |= hello.done;
        if fresh {
            progress.known = true;
            progress.missing_at = None;
        }
        if self.net.incarnation_of(member.peer) == Some(member.incarnation) {
            return;
        }
        self.net.connect(member.peer, member.incarnation, &member.address, now);
        let everybody = self.book.members.len() as u64;
        let expected = u64::from(self.net.limits.workers) + u64::from(self.net.limits.servers);
        if !self.started && everybody == expected {
            self.started = true;
            self.publish();
        } else {
            self.tell_book(member.peer);
        }
    }

    fn message(&mut self, from: Peer, message: &Message<D>, now: Time) {
        let round = message.head.round;
        if message.head.kind == Kind::Hello {
            if let Some(hello) = Hello::decode(message.fields()) {
                self.hello(from, message.head.incarnation, &hello, true, now);
            }
            return;
        }
        let Some(progress) = self.progress.get_mut(&from) else { return };
        match message.head.kind {
            Kind::Barrier => progress.arrived = progress.arrived.max(round),
            Kind::Done => progress.done = true,
            Kind::Leave => {
                progress.done = true;
                self.part(from, State::Left);
            }
            Kind::Suspect => {
                if let Some(accused) = accused::decode(message.fields()) {
                    self.suspect(from, accused, message.head.round, now);
                }
            }
            Kind::Ask => {
                let peers = if round == 0 { self.missing() } else { self.late(round) };
                let mut answer = Message::new(Kind::Awaited, Awaited { peers }.encode());
                answer.head.round = round;
                self.post(from, answer);
            }
            _ => {}
        }
    }

    /// Before the start a process that is gone leaves its place to another one.
    pub(super) fn lose(&mut self, peer: Peer) {
        let known = self.book.find(peer).map(|member| (member.incarnation, member.address.clone()));
        self.net.disconnect(peer);
        if self.started {
            self.part(peer, State::Lost);
        } else {
            self.book.members.retain(|member| member.peer != peer);
            if self.book.members.iter().all(|member| member.peer.role != Role::Worker) {
                self.book.terms = None;
            }
            self.progress.remove(&peer);
            self.went.insert(peer);
        }
        // If it still lives, it shall know at once.
        if let Some((incarnation, address)) = known.filter(|_| self.started) {
            self.evict(peer, incarnation, &address);
        }
    }

    fn part(&mut self, peer: Peer, state: State) {
        if let Some(progress) = self.progress.get_mut(&peer) {
            progress.missing_at = None;
        }
        let Some(member) = self.book.find_mut(peer) else { return };
        if member.state == State::Here {
            member.state = state;
            self.publish();
        }
    }

    /// Tells everybody what has changed, as the next epoch.
    pub(super) fn publish(&mut self) {
        // A member may have said that it is the last one already.
        self.book.epoch = self.book.epoch.saturating_add(1);
        self.net.epoch = self.book.epoch;
        let here = self.book.members.iter().filter(|member| member.state == State::Here);
        for peer in here.map(|member| member.peer).collect::<Vec<_>>() {
            self.tell_book(peer);
        }
    }

    pub(super) fn tell_book(&mut self, peer: Peer) {
        let message = Message::new(Kind::Book, self.book.encode());
        self.post(peer, message);
    }

    pub(super) fn post(&mut self, to: Peer, message: Message<D>) {
        self.net.post(Letter { to, message, priority: CONTROL, token: None });
    }

    fn evict(&mut self, peer: Peer, incarnation: u64, address: &str) {
        let text = format!(
            "{peer} at {address} was not heard for {} ms, and the job declared it lost",
            self.net.limits.peer_timeout / MS
        );
        let fields = failed::encode(&Failure::new(Reason::Evicted, text));
        self.net.cast(address, incarnation, Message::new(Kind::Evicted, fields));
    }

    /// Who has not come yet.
    fn missing(&self) -> Vec<Peer> {
        let workers = (0..self.net.limits.workers).map(Peer::worker);
        let servers = (0..self.net.limits.servers).map(Peer::server);
        workers.chain(servers).filter(|peer| self.book.find(*peer).is_none()).collect()
    }

    /// Workers that count, by what they have come to.
    fn active(&self) -> impl Iterator<Item = (Peer, &Progress)> {
        let counts = |peer: Peer, progress: &Progress| {
            peer.role == Role::Worker && self.book.is_here(peer) && !progress.done
        };
        self.progress.iter().map(|(peer, p)| (*peer, p)).filter(move |(peer, p)| counts(*peer, p))
    }

    fn late(&self, barrier: u64) -> Vec<Peer> {
        self.active().filter(|(_, p)| p.arrived < barrier).map(|(peer, _)| peer).collect()
    }

    /// Who is missing, in words. Some may have gone because they waited for others.
    fn absent(&self) -> String {
        let (went, never): (Vec<_>, Vec<_>) =
            self.missing().into_iter().partition(|peer| self.went.contains(peer));
        let part = |peers: &[Peer], what| match peers {
            [] => None,
            peers => Some(format!("{} {what}", list(peers))),
        };
        let parts = [part(&never, "did not come"), part(&went, "came and went")];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn give_up(&mut self) {
        let failure = Failure::new(
            Reason::Timeout,
            format!(
                "the job did not start within {} ms: {}",
                self.net.limits.start_timeout / MS,
                self.absent()
            ),
        );
        for member in self.book.members.clone() {
            let message = Message::new(Kind::Refused, failed::encode(&failure));
            self.net.cast(&member.address, member.incarnation, message);
        }
        self.end = Some(Err(failure));
    }

    /// Opens barriers and ends the job, whatever has just changed.
    fn settle(&mut self) {
        self.net.epoch = self.book.epoch;
        if !self.started || self.progress.values().any(|p| p.missing_at.is_some()) {
            return;
        }
        self.release();
        let here = |role| {
            let here = |m: &&Standing| m.peer.role == role && m.state == State::Here;
            self.book.members.iter().filter(here).map(|m| m.peer).collect::<Vec<_>>()
        };
        let (workers, servers) = (here(Role::Worker), here(Role::Server));
        if workers.is_empty() && !self.ending {
            self.ending = true;
            for server in &servers {
                self.post(*server, Message::new(Kind::Leave, Vec::new()));
            }
        }
        if self.ending && servers.is_empty() {
            let pause = 2 * self.net.limits.patience();
            self.gone_at.get_or_insert(self.net.last_now() + pause);
        }
    }

    /// A barrier is open when all active workers have come to it, or somebody has passed it.
    fn release(&mut self) {
        let lost = |m: &Standing| m.peer.role == Role::Worker && m.state == State::Lost;
        let broken = self.net.limits.on_loss == OnLoss::Fail && self.book.members.iter().any(lost);
        let passed = self.progress.values().map(|p| p.passed.max(p.told)).max().unwrap_or(0);
        let arrived = self.active().map(|(_, p)| p.arrived).min().filter(|_| !broken);
        let open = passed.max(arrived.unwrap_or(0));
        let mut told = Vec::new();
        for (peer, progress) in &mut self.progress {
            let now = open.min(progress.arrived);
            if now > progress.told {
                progress.told = now;
                told.push((*peer, now));
            }
        }
        for (peer, round) in told {
            let mut message = Message::new(Kind::Released, Vec::new());
            message.head.round = round;
            self.post(peer, message);
        }
    }
}
