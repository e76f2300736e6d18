//! The scheduler (also: coordinator, rendezvous, failure detector): it assigns ranks, detects losses, and
//! keeps barriers. It is not on the data path, and a restarted one learns its state from the members.

mod exit_notices;
mod isolation;
mod join;
mod observers;
mod refusals;
mod resume;
mod suspicion;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Drain;

use crate::drops::{DropCount, DropReason, Handled};
use crate::job::{Data, Failure, Limits, MS, Peer, Reason, Role, Time, list};
use crate::machine::Machine;
use crate::message::kinds::{Ask, Awaited, Barrier, Evicted, Leave, Refused, Released};
use crate::message::{
    BadFrame, Book, Content, FEATURES, MemberState, Message, MessageKind, ResumePoint, Standing,
    VERSION,
};
use crate::peers::{Incoming, OutgoingFrame, OutgoingMessage, PeerEvent, Peers};
use crate::stream::CONTROL;
use observers::MemberReports;
use refusals::TokenBucket;
use suspicion::Dispute;
use takeover::Takeover;

/// Maximum queued messages to a member: at this bound the member's own messages wait (backpressure).
const MOST_IN_LINE: usize = 65_536;

/// State of a member beside its entry in the book.
#[derive(Debug, Default)]
pub(super) struct MemberProgress {
    /// Barriers at which the member has arrived, that it has passed, and whose release was sent.
    pub(super) arrived: u64,
    pub(super) passed: u64,
    pub(super) told: u64,
    pub(super) done: bool,
    /// Last resume in which the member takes part, and the last one whose end was sent.
    pub(super) resume: ResumePoint,
    pub(super) resumed: u64,
    /// A hello in the stream has confirmed this state to this scheduler.
    pub(super) known: bool,
    /// After a restart of the scheduler: deadline of the member's hello, after which it is lost.
    pub(super) missing_at: Option<Time>,
    /// Address of the member in another member's book.
    pub(super) rumoured: Option<String>,
    /// Number that its launcher gave to the process, by its hello.
    pub(super) launch: u128,
}

/// The scheduler of one job. Its end is that of the job: all members have left, or it did not start, or the
/// scheduler was cut off.
pub struct Scheduler<D> {
    pub(super) net: Peers<D>,
    pub(super) book: Book,
    pub(super) progress: BTreeMap<Peer, MemberProgress>,
    disputes: Vec<Dispute>,
    /// Why members were declared lost, behind their names.
    losses: BTreeMap<Peer, String>,
    /// Members that joined and left before the start.
    pub(super) went: BTreeSet<Peer>,
    pub(super) started: bool,
    takeover: Takeover,
    /// Last resume, and the counts from which the workers went on.
    resumed: ResumePoint,
    /// Moment at which this scheduler, restarted, published the addresses of all members.
    pub(super) learned_at: Option<Time>,
    ending: bool,
    /// All members have left; their last messages are acknowledged until then.
    pub(super) gone_at: Option<Time>,
    end: Option<Result<(), Failure>>,
    start_by: Time,
    /// All members are silent: this scheduler may be cut off.
    pub(super) in_doubt: bool,
    /// Lost members that may wake up, by incarnation, and the moment until which the scheduler stays to evict
    /// them.
    pub(super) untold: BTreeMap<u64, Time>,
    allowance: TokenBucket,
    watch: MemberReports,
}

impl<D: Data> Scheduler<D> {
    /// A scheduler with an empty address book; the timeout of the start begins now. `incarnation` is larger
    /// than that of every earlier scheduler of the job. After a restart it learns the job from its members.
    #[must_use]
    pub fn new(limits: Limits, incarnation: u64, now: Time) -> Self {
        debug_assert!(incarnation > 0, "0 is the incarnation of no process");
        limits.check();
        let start_by = now + limits.start_timeout;
        Self {
            net: Peers::new(limits, Peer::SCHEDULER, incarnation, now),
            book: Book { features: FEATURES, ..Book::default() },
            progress: BTreeMap::new(),
            disputes: Vec::new(),
            losses: BTreeMap::new(),
            went: BTreeSet::new(),
            started: false,
            takeover: Takeover::None,
            resumed: ResumePoint::default(),
            learned_at: None,
            ending: false,
            gone_at: None,
            end: None,
            start_by,
            in_doubt: false,
            untold: BTreeMap::new(),
            allowance: TokenBucket::default(),
            watch: MemberReports::default(),
        }
    }
}

impl<D: Data> Machine<D> for Scheduler<D> {
    fn me(&self) -> Peer {
        Peer::SCHEDULER
    }

    fn limits(&self) -> &Limits {
        &self.net.limits
    }

    fn linked(&self, peer: Peer) -> Option<(&str, u64)> {
        self.net.linked(peer)
    }

    fn features(&self, peer: Peer) -> u64 {
        self.net.features(peer)
    }

    fn has_started(&self) -> bool {
        self.started
    }

    fn end(&self) -> Option<&Result<(), Failure>> {
        self.end.as_ref()
    }

    fn receive(&mut self, mut message: Message<D>, now: Time) {
        self.net.notice_pause(now);
        let head = &mut message.head;
        head.rank = self.net.present_name(head.sender(), head.incarnation).rank;
        // An observer need not know the identity of the job.
        let (peer, kind) = (message.head.sender(), message.head.kind);
        if kind == MessageKind::Look {
            let handled = self.look(message, now);
            return self.net.note_handled(peer, kind, handled);
        }
        // A launcher knows the process by a secret of its own, and no job.
        if kind == MessageKind::ExitNotice && message.head.sequence == 0 {
            let handled = self.exit_notice(message);
            self.net.note_handled(peer, kind, handled);
            return self.settle();
        }
        if message.head.job != self.net.limits.job {
            self.net.note_drop(peer, kind, DropReason::OtherJob);
            return self.turn_away(&message);
        }
        let was_cut_off = self.may_be_cut_off(now);
        match self.net.receive(message, now, MOST_IN_LINE) {
            Incoming::Stale => {}
            Incoming::Former(peer, incarnation) => self.unknown(peer, incarnation),
            Incoming::Linked(received) => {
                if self.net.takes_part(peer) {
                    self.believe(was_cut_off, now);
                }
                for message in received.next.into_iter().chain(received.early) {
                    let kind = message.head.kind;
                    let handled = self.message(peer, message, now);
                    self.net.note_handled(peer, kind, handled);
                }
            }
            Incoming::Stranger(message) => {
                let linked = self.net.incarnation_of(peer) == Some(message.head.incarnation);
                if linked && self.net.takes_part(peer) {
                    self.believe(was_cut_off, now);
                }
                let handled = self.stranger(peer, message, now);
                self.net.note_handled(peer, kind, handled);
            }
        }
        self.settle();
    }

    fn bad_frame(&mut self, from: &str, bad: BadFrame, _: Time) {
        self.net.note_bad();
        if let BadFrame::Version(theirs) = bad {
            let text = format!(
                "the scheduler speaks version {VERSION} of the protocol, the process at {from} version \
                 {theirs}; use the same release everywhere"
            );
            self.refuse(from, 0, text);
        }
    }

    fn down(&mut self, address: &str, now: Time) {
        self.net.notice_pause(now);
        let Some(peer) = self.book.peer_at(address) else { return };
        // Transports close silent connections too: after a partition, or a pause of this process, the
        // silence of the member decides.
        if !self.started || self.net.is_attentive(now) {
            self.lose(peer);
        }
        self.settle();
    }

    fn reconnected(&mut self, address: &str, now: Time) {
        self.net.reconnected(address, now);
    }

    fn knows(&self, address: &str) -> bool {
        self.book.members.iter().any(|member| member.address == address)
    }

    fn tick(&mut self, now: Time) {
        self.net.notice_pause(now);
        self.check_liveness(now);
        self.judge(now);
        if !self.started && now >= self.start_by && self.end.is_none() {
            self.give_up();
        }
        if self.doubt_ends().is_some_and(|at| at <= now) && self.end.is_none() {
            // Once the last worker has left, the job is over without its servers.
            self.end = Some(if self.ending { Ok(()) } else { Err(self.cut_off()) });
        }
        if self.over_at().is_some_and(|at| at <= now) {
            self.end.get_or_insert(Ok(()));
        }
        self.settle();
    }

    fn send(&mut self, now: Time) -> Drain<'_, OutgoingFrame<D>> {
        self.net.send(now)
    }

    fn news(&mut self) -> Vec<PeerEvent> {
        self.net.news()
    }

    fn ignored(&self) -> Vec<DropCount> {
        self.net.ignored()
    }

    fn wake_at(&self) -> Time {
        let missing = self.progress.values().filter_map(|progress| progress.missing_at);
        let missing = missing.filter(|_| !self.in_doubt);
        let disputes = self.disputes.iter().map(|dispute| dispute.due);
        let start = (!self.started && self.end.is_none()).then_some(self.start_by);
        let gone = [self.over_at(), self.doubt_ends()].into_iter().flatten();
        let own = start.into_iter().chain(gone.filter(|_| self.end.is_none()));
        missing.chain(disputes).chain(own).chain([self.net.wake_at()]).min().unwrap_or(Time::MAX)
    }
}

impl<D: Data> Scheduler<D> {
    fn stranger(&mut self, peer: Peer, message: Message<D>, now: Time) -> Handled {
        let incarnation = message.head.incarnation;
        match message.head.kind {
            MessageKind::Hello | MessageKind::Report => {
                match Content::read(&message.head, message.body)? {
                    Content::Hello(hello) => self.hello(peer, incarnation, &hello, false, now),
                    Content::Report(report) => self.report(peer, incarnation, report, now),
                    _ => Err(DropReason::Misdirected),
                }
            }
            kind => {
                self.unknown(peer, incarnation);
                let linked = self.net.incarnation_of(peer) == Some(incarnation);
                let is_later = matches!(kind, MessageKind::Unknown(_)) && linked;
                Err(if is_later { DropReason::UnknownKind } else { DropReason::Stranger })
            }
        }
    }

    /// A frame of a member without a link: it was declared lost, or does not know yet that the scheduler has
    /// restarted.
    fn unknown(&mut self, peer: Peer, incarnation: u64) {
        let known = self.book.find(peer).filter(|member| member.incarnation == incarnation);
        let Some(known) = known.cloned() else { return };
        if known.state == MemberState::Lost {
            self.untold.remove(&incarnation);
            self.evict_member(&known);
        } else if self.net.incarnation_of(peer) != Some(incarnation) {
            self.ask_who(&known);
        }
    }

    fn message(&mut self, from: Peer, message: Message<D>, now: Time) -> Handled {
        let incarnation = message.head.incarnation;
        let content = Content::read(&message.head, message.body)?;
        if let Content::Hello(hello) = content {
            return self.hello(from, incarnation, &hello, true, now);
        }
        let progress = self.progress.get_mut(&from).ok_or(DropReason::Stranger)?;
        match content {
            Content::Barrier(Barrier { number }) => progress.arrived = progress.arrived.max(number),
            Content::Done(_) => progress.done = true,
            Content::Resume(resume) if resume.number > progress.resume.number => {
                progress.resume = ResumePoint::from(&resume);
            }
            Content::Leave(_) if !self.started => self.lose(from),
            Content::Leave(_) => {
                progress.done = true;
                self.part(from, MemberState::Left);
            }
            Content::Suspect(suspicion) => return self.suspect(from, &suspicion, now),
            Content::Ask(Ask { setting: Ask::MEETING, .. }) => self.tell_book(from),
            Content::Ask(Ask { round, setting: Ask::RESUMING, .. }) => {
                let peers = self.missing_from_resume(round);
                self.post(from, Awaited { request: 1, round, peers });
            }
            Content::Ask(Ask { round, .. }) => {
                let peers = if round == 0 { self.missing_from_quorum() } else { self.late(round) };
                self.post(from, Awaited { request: 0, round, peers });
            }
            _ => return Err(DropReason::Misdirected),
        }
        Ok(())
    }

    /// Workers that have neither left nor been lost.
    #[must_use]
    pub fn workers_here(&self) -> Vec<Peer> {
        self.book.workers_here()
    }

    /// Number of members that are lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.book.lost()
    }

    /// Declares a member lost; before the start, frees its rank.
    pub(super) fn lose(&mut self, peer: Peer) {
        let known = self.book.find(peer).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.state == MemberState::Here) {
            self.note_loss(known);
        }
        self.net.disconnect(peer);
        if self.started {
            self.part(peer, MemberState::Lost);
        } else {
            self.book.members.retain(|member| member.peer != peer);
            let decides = |member: &Standing| member.peer.role == Role::Worker && !member.reads;
            if !self.book.members.iter().any(decides) {
                self.book.terms = None;
            }
            self.progress.remove(&peer);
            self.went.insert(peer);
        }
        // A member that still lives is evicted at once.
        if let Some(known) = known.filter(|_| self.started) {
            self.evict_member(&known);
        }
    }

    fn note_loss(&mut self, known: &Standing) {
        let silent = self.net.heard_at(known.peer);
        let silent = silent.map(|at| self.net.last_now().saturating_sub(at));
        let limits = &self.net.limits;
        let reason = match silent {
            _ if !known.cause.is_empty() => known.cause.clone(),
            None => "did not introduce itself to this scheduler".into(),
            Some(_) if !self.net.has_heard(known.peer, known.incarnation) => {
                format!("was not heard for {} ms after it had joined", limits.start_timeout / MS)
            }
            Some(silent) if silent < limits.heartbeat() * 2 => {
                "has lost its connection, or another member does not hear it".into()
            }
            Some(silent) => format!("was not heard for {} ms", silent / MS),
        };
        let address = self.whereabouts(known).unwrap_or_default();
        let event = if known.cause.is_empty() { format!("it {reason}") } else { reason.clone() };
        self.net.note(PeerEvent::Lost(known.peer, address, event));
        self.losses.insert(known.peer, reason);
    }

    fn part(&mut self, peer: Peer, state: MemberState) {
        if let Some(progress) = self.progress.get_mut(&peer) {
            progress.missing_at = None;
        }
        let Some(member) = self.book.find_mut(peer) else { return };
        if member.state == MemberState::Here {
            member.state = state;
            self.publish_epoch();
        }
    }

    /// Sends the book to all members, as the next epoch.
    pub(super) fn publish_epoch(&mut self) {
        // The epoch may be that of a member's book, and any number.
        self.book.epoch = self.book.epoch.saturating_add(1);
        debug_assert!(self.book.epoch >= self.net.epoch, "epochs only grow");
        self.book.check();
        self.net.epoch = self.book.epoch;
        let here = self.book.members.iter().filter(|member| member.state == MemberState::Here);
        for peer in here.map(|member| member.peer).collect::<Vec<_>>() {
            self.tell_book(peer);
        }
    }

    pub(super) fn tell_book(&mut self, peer: Peer) {
        self.post(peer, self.book.clone());
    }

    pub(super) fn post(&mut self, to: Peer, message: impl Into<Message<D>>) {
        let message = message.into();
        self.net.post(OutgoingMessage { to, message, priority: CONTROL, token: None });
    }

    /// Sends any message, as a scheduler of another implementation might.
    #[cfg(test)]
    pub(crate) fn say(&mut self, to: Peer, message: Message<D>) {
        self.post(to, message);
    }

    /// Whether a member has sent a frame since it is one.
    #[cfg(test)]
    pub(crate) fn has_heard(&self, peer: Peer) -> bool {
        self.book.find(peer).is_some_and(|member| self.net.has_heard(peer, member.incarnation))
    }

    fn evict_member(&mut self, known: &Standing) {
        if let Some(address) = self.whereabouts(known) {
            self.evict(known.peer, known.incarnation, &address);
        }
    }

    pub(super) fn evict(&mut self, peer: Peer, incarnation: u64, address: &str) {
        self.net.note(PeerEvent::Evicted(peer, address.into()));
        let cause = self.book.find(peer).map(|member| member.cause.clone());
        let cause =
            cause.filter(|cause| !cause.is_empty()).or_else(|| self.losses.get(&peer).cloned());
        let cause = cause.unwrap_or_else(|| "was not heard by an earlier scheduler".into());
        let text = format!("{peer} at {address} {cause}, and the job declared it lost");
        let failure = Failure::new(Reason::Evicted, text);
        self.net.cast(address, incarnation, Evicted { failure }.into());
    }

    /// Members that have not joined: the quorum of a start is all workers and servers of the job.
    fn missing_from_quorum(&self) -> Vec<Peer> {
        let workers = (0..self.net.limits.workers).map(Peer::worker);
        let servers = (0..self.net.limits.servers).map(Peer::server);
        workers.chain(servers).filter(|peer| self.book.find(*peer).is_none()).collect()
    }

    /// Active workers: neither lost, nor left, nor done.
    fn active(&self) -> impl Iterator<Item = (Peer, &MemberProgress)> {
        let counts = |peer: Peer, progress: &MemberProgress| {
            peer.role == Role::Worker && self.book.is_here(peer) && !progress.done
        };
        self.progress.iter().map(|(peer, p)| (*peer, p)).filter(move |(peer, p)| counts(*peer, p))
    }

    fn late(&self, barrier: u64) -> Vec<Peer> {
        self.active().filter(|(_, p)| p.arrived < barrier).map(|(peer, _)| peer).collect()
    }

    /// State that no frame of a reader changes: the other members, the terms, and their progress.
    #[cfg(any(fuzzing, test, feature = "testing"))]
    #[must_use]
    pub fn standing(&self, reader: Peer) -> String {
        let others = self.book.members.iter().filter(|member| member.peer != reader);
        let progress = self.progress.iter().filter(|(peer, _)| **peer != reader);
        let progress = progress.map(|(peer, p)| (peer, p.arrived, p.passed, p.done));
        let (others, progress) = (others.collect::<Vec<_>>(), progress.collect::<Vec<_>>());
        format!("{:?} {others:?} {progress:?}", self.book.terms)
    }

    /// Missing members, as a text. Some may have joined, and left when the others did not.
    fn absent(&self) -> String {
        let (went, never): (Vec<_>, Vec<_>) =
            self.missing_from_quorum().into_iter().partition(|peer| self.went.contains(peer));
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
            let refused = Refused { failure: failure.clone() };
            self.net.cast(&member.address, member.incarnation, refused.into());
        }
        self.end = Some(Err(failure));
    }

    /// Opens barriers and ends the job, after any change.
    fn settle(&mut self) {
        self.net.epoch = self.book.epoch;
        if !self.started || self.progress.values().any(|p| p.missing_at.is_some()) {
            return;
        }
        self.stop_learning();
        self.resume();
        self.release();
        let here = |member: &&Standing| member.state == MemberState::Here;
        let here = self.book.members.iter().filter(here).map(|member| member.peer);
        let mut workers = here.clone().filter(|peer| peer.role == Role::Worker);
        let servers = here.filter(|peer| peer.role == Role::Server);
        let no_server_is_here = servers.clone().next().is_none();
        if workers.next().is_none() && !self.ending {
            self.ending = true;
            for server in servers.collect::<Vec<_>>() {
                self.post(server, Leave { back: false });
            }
        }
        if self.ending && no_server_is_here {
            let pause = 2 * self.net.limits.patience();
            self.gone_at.get_or_insert(self.net.last_now() + pause);
        }
    }

    /// A barrier is open when all active workers have arrived, or a worker has passed it.
    fn release(&mut self) {
        let broken = self.is_broken();
        let passed = self.progress.values().map(|p| p.passed.max(p.told)).max().unwrap_or(0);
        let arrived = self.active().map(|(_, p)| p.arrived).min().filter(|_| !broken);
        let open = passed.max(arrived.unwrap_or(0));
        let mut told = Vec::new();
        for (peer, progress) in &mut self.progress {
            let now = open.min(progress.arrived);
            debug_assert!(
                progress.told <= progress.arrived,
                "{peer} passes barriers behind its own"
            );
            if now > progress.told {
                progress.told = now;
                told.push((*peer, now));
            }
        }
        for (peer, barrier) in told {
            self.post(peer, Released { barrier });
        }
    }
}
