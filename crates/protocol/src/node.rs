//! A worker or a server (also: member, endpoint): its machine, its links, and its client of the scheduler.

mod groups;
mod keeper;
mod looks;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::vec::Drain;

pub use groups::GroupExit;
use groups::NodeGroups;
pub use looks::DigestLook;

use super::drops::{DropCount, DropReason, Handled};
use super::job::{
    Data, DeliveryToken, Failure, Limits, MS, NO_RANK, Peer, Reason, Role, Time, words,
};
use super::machine::{Machine, NodeRole, SchedulerRequest};
use super::membership::{Client, ClientEvent, GOODBYE};
use super::message::kinds::{Report, Suspect};
use super::message::{
    BadFrame, BundleParts, Content, Header, MemberState, Message, MessageKind, Standing,
};
use super::peers::{Incoming, OutgoingFrame, OutgoingMessage, PeerEvent, Peers};
#[cfg(test)]
use super::server::Server;
use super::stream::CONTROL;
use super::telemetry::{ProcessCounters, ProcessStats, TransportsByAddress, transport_uses};
use super::worker::{OpId, Worker};

/// Interval of clock comparisons while rounds are traced, and the first one, which doubles: a question from
/// before the job has begun may get lost, and a short job needs an answer too.
const COMPARE_AGAIN: Time = 1_000 * MS;
const COMPARE_FIRST: Time = 10 * MS;

/// Maximum number of received bundles whose memory is kept.
const MOST_BUNDLES: usize = 64;

/// Identity and addresses of a new node.
pub struct NodeStart<'a> {
    /// Rank of the process, below the number of its role in [`Limits`]. None: the scheduler assigns one.
    pub rank: Option<u32>,
    /// Larger than that of every earlier process of the same role and rank, different from that of every
    /// other process of the role, and not 0.
    pub incarnation: u64,
    /// Address of the process, opaque to the protocol and unique in the job: peers put it into
    /// [`OutgoingFrame::to`].
    pub address: &'a str,
    /// Address of the scheduler, opaque as well.
    pub scheduler: &'a str,
}

/// A worker or a server of one job: `R` is its [`Worker`] or [`Server`](crate::Server).
pub struct Node<D, R> {
    net: Peers<D>,
    client: Client,
    /// Machine of the role: the driver makes requests there and takes actions from there.
    pub part: R,
    end: Option<Result<(), Failure>>,
    /// Silent peers that were reported to the scheduler.
    suspects: BTreeSet<Peer>,
    leaving: bool,
    /// Maximum delay of a `tick`, and with it of heartbeats.
    delay: Time,
    /// Next clock comparison, while rounds are traced, and the pause behind it.
    compare_at: Time,
    compare_pause: Time,
    transports: TransportsByAddress,
    /// Memory of received bundles, for the driver.
    bundles: Vec<Arc<BundleParts<D>>>,
    /// A frame of each server has arrived, on a worker: then the first contact is made.
    met: bool,
    /// Unanswered requests for digests, on a server.
    looks: Vec<DigestLook>,
    groups: NodeGroups<R>,
}

#[expect(private_bounds, reason = "only the worker and the server of this crate are roles")]
impl<D: Data, R: NodeRole<D>> Node<D, R> {
    /// A node that joins the job with its first [`tick`](Self::tick); the timeout of the start begins now.
    #[must_use]
    pub fn new(limits: Limits, birth: &NodeStart, now: Time) -> Self {
        debug_assert!(birth.incarnation > 0, "0 is the incarnation of no process");
        limits.check();
        let me = Peer { role: R::ROLE, rank: birth.rank.unwrap_or(NO_RANK) };
        Self {
            client: Client::new(&limits, me, birth.address, birth.scheduler, now),
            part: R::new(&limits),
            net: Peers::new(limits, me, birth.incarnation, now),
            end: None,
            suspects: BTreeSet::new(),
            leaving: false,
            delay: 0,
            compare_at: Time::MAX,
            compare_pause: COMPARE_FIRST,
            transports: TransportsByAddress::new(),
            bundles: Vec::new(),
            met: R::ROLE != Role::Worker,
            looks: Vec::new(),
            groups: NodeGroups::default(),
        }
    }

    /// Gives the process the secret number of its launcher, by which the launcher announces its end; 0 is none.
    /// Called before the first [`tick`](Self::tick).
    pub fn set_launch(&mut self, launch: u128) {
        self.client.set_launch(launch);
    }

    /// Servers of which no frame has arrived yet.
    fn unmet(&self) -> impl Iterator<Item = &Standing> {
        let is_unmet = |member: &&Standing| {
            member.peer.role == Role::Server
                && member.state == MemberState::Here
                && !self.net.has_heard(member.peer, member.incarnation)
        };
        self.client.book().members.iter().filter(is_unmet)
    }

    /// A peer is silent: it is suspected, or was never reached.
    fn miss_peer(&mut self, peer: Peer) {
        let unmet = if self.met { None } else { self.unmet().find(|it| it.peer == peer).cloned() };
        match unmet {
            Some(server) => self.client.unreached(self.net.me, &server, &self.net.limits),
            None => self.suspect(peer),
        }
    }

    /// A process that is evicted although it lives, and whose frames were not acknowledged, may be behind a
    /// network path that drops packets of full size.
    fn hint_at_packets(&self, failure: &mut Failure) {
        if failure.reason == Reason::Evicted
            && let Some(peer) = self.net.unanswered()
        {
            let hint = format!(
                "; {peer} never acknowledged what was sent to it last: packets of full size may be lost \
                 on the way (MTU), for which `kvstore doctor` looks"
            );
            failure.text.extend(words(hint));
        }
    }

    #[cfg(test)]
    pub(super) fn say(&mut self, to: Peer, message: Message<D>, priority: i32) {
        self.net.post(OutgoingMessage { to, message, priority, token: None });
    }

    /// Workers that have neither left nor been lost, as far as this member knows.
    #[must_use]
    pub fn workers_here(&self) -> Vec<Peer> {
        self.client.book().workers_here()
    }

    /// Number of members that are lost, as far as this one knows.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.client.book().lost()
    }

    fn tell_time(&mut self, now: Time) {
        self.part.tell_time(now);
        self.parts_of_groups().for_each(|part| part.tell_time(now));
    }

    /// Statistics of this process.
    pub fn facts(&mut self, now: Time) -> ProcessStats {
        self.part.tell_time(now);
        let counters = ProcessCounters { heartbeat_delay_us: self.delay, ..self.net.traffic() };
        let mut facts = ProcessStats { age: now, counters, ..ProcessStats::default() };
        facts.transports = transport_uses(&self.transports, self.net.addresses());
        self.part.report(&mut facts);
        self.report_groups(&mut facts);
        facts
    }

    /// The scheduler has answered with its clock; the request is the moment of the question.
    fn compared(&mut self, message: Message<D>, now: Time) -> Handled {
        let content = Content::read(&message.head, message.body)?;
        let Content::Seen(seen) = content else { return Err(DropReason::Misdirected) };
        if self.net.traced.is_some() {
            let (asked, clock) = (message.head.request, seen.clock);
            self.net.note(PeerEvent::Clock { asked, answered: now, clock });
        }
        Ok(())
    }

    /// The scheduler, in the linked incarnation, asks for the statistics.
    fn report(&mut self, message: Message<D>, now: Time) -> Handled {
        let incarnation = message.head.incarnation;
        let content = Content::read(&message.head, message.body)?;
        let Content::Report(Report { facts: None }) = content else {
            return Err(DropReason::Misdirected);
        };
        if self.net.incarnation_of(Peer::SCHEDULER) != Some(incarnation) {
            return Err(DropReason::Stranger);
        }
        let facts = self.facts(now);
        self.client.report(&mut self.net, incarnation, facts);
        self.settle(now);
        Ok(())
    }

    /// Moment at which this process counts as cut off, unless a frame of a member arrives before. Where the
    /// scheduler is the only peer, it may be restarting; so it may while no frame of another member has
    /// arrived, as it may have died before they knew of the start.
    fn cut_off_at(&self) -> Option<Time> {
        let is_partner = |member: &Standing| {
            let heard = self.net.has_heard(member.peer, member.incarnation);
            heard && member.state == MemberState::Here && !member.reads
        };
        let exchanges = !self.leaving && self.client.book().members.iter().any(is_partner);
        exchanges.then(|| self.net.any_heard() + self.net.limits.silence())
    }

    fn is_cut_off(&self, now: Time) -> bool {
        self.end.is_none() && self.cut_off_at().is_some_and(|at| at <= now)
    }

    fn suspect(&mut self, peer: Peer) {
        self.suspects.insert(peer);
        self.tell_suspicion(peer, 0);
    }

    fn tell_suspicion(&mut self, peer: Peer, stage: u64) {
        if let Some(incarnation) = self.net.incarnation_of(peer) {
            let (to, accused) = (Peer::SCHEDULER, (peer, incarnation));
            let message = Suspect { stage, accused }.into();
            self.net.post(OutgoingMessage { to, message, priority: CONTROL, token: None });
        }
    }

    fn delivered(&mut self, by: Peer, token: DeliveryToken) {
        if token == GOODBYE {
            return self.leave_now();
        }
        if let Some(part) = self.part_of(token.group) {
            part.delivered(by.rank, token);
        }
    }

    /// No frames of members arrive. The Leave of a worker may have ended the job before each server had
    /// acknowledged it.
    fn end_alone(&mut self) {
        if self.part.is_closing() {
            self.leave_now();
        } else {
            self.client.cut_off(self.net.me, &self.net.limits);
        }
    }

    /// The scheduler knows of the leave, or is away as well.
    fn leave_now(&mut self) {
        self.part.left();
        self.end.get_or_insert(Ok(()));
    }

    fn message(&mut self, from: Peer, message: Message<D>, now: Time) {
        if message.head.kind == MessageKind::Bundle {
            return match Content::read(&message.head, message.body) {
                Ok(Content::Bundle(bundle)) => {
                    let mut bundle = bundle.parts;
                    let parts = Arc::make_mut(&mut bundle).drain();
                    parts.for_each(|part| self.message(from, part, now));
                    if self.bundles.len() < MOST_BUNDLES {
                        self.bundles.push(bundle);
                    }
                }
                Ok(_) => self.net.note_drop(from, MessageKind::Bundle, DropReason::Misdirected),
                Err(why) => self.net.note_drop(from, MessageKind::Bundle, why.into()),
            };
        }
        let kind = message.head.kind;
        if let MessageKind::Unknown(_) = kind {
            return self.net.note_drop(from, kind, DropReason::UnknownKind);
        }
        if from == Peer::SCHEDULER {
            let handled = self.client.message(message, &mut self.net);
            self.net.note_handled(from, kind, handled);
            // The following messages may concern members that this one has named.
            return self.settle(now);
        }
        if message.head.group > 0 {
            let handled = self.group_message(from, message);
            return self.net.note_handled(from, kind, handled);
        }
        if kind == MessageKind::Leave {
            self.client.left(from);
        }
        let handled = self.part.message(from, message);
        self.net.note_handled(from, kind, handled);
    }

    /// Passes events, messages and wants between client, links and machine.
    fn settle(&mut self, now: Time) {
        for event in self.client.events() {
            self.event(event, now);
        }
        self.settle_groups();
        self.part.letters().for_each(|letter| self.net.post(letter));
        for request in self.part.requests() {
            match request {
                SchedulerRequest::Barrier => {
                    self.client.arrive(&mut self.net);
                }
                SchedulerRequest::AskBarrier(barrier) => Client::ask(&mut self.net, barrier),
                SchedulerRequest::Done => self.client.done(&mut self.net),
                SchedulerRequest::Resume(point) => self.client.resume(&mut self.net, point),
                SchedulerRequest::AskResume(resume) => Client::ask_resume(&mut self.net, resume),
                SchedulerRequest::Listen(address) => self.client.listen(&mut self.net, address),
                SchedulerRequest::AskMeeting => Client::ask_meeting(&mut self.net),
                SchedulerRequest::Leave => {
                    self.leaving = true;
                    self.client.leave(&mut self.net);
                }
            }
        }
        if self.part.has_ended() {
            self.end.get_or_insert(Ok(()));
        }
        if !self.met {
            self.met = self.client.has_started() && self.unmet().next().is_none();
        }
    }

    fn event(&mut self, event: ClientEvent, now: Time) {
        match event {
            ClientEvent::Members => {
                self.adopt_terms();
                self.relink(now);
                self.part.members(self.client.book());
                self.tell_groups();
            }
            ClientEvent::Fatal(mut failure) => {
                self.hint_at_packets(&mut failure);
                self.net.note(PeerEvent::Fatal(failure.to_string()));
                self.part.fatal(&failure);
                self.parts_of_groups().for_each(|part| part.fatal(&failure));
                self.end.get_or_insert(Err(failure));
            }
            ClientEvent::Left => self.leave_now(),
            ClientEvent::Over => {
                self.leaving = true;
                self.client.leave(&mut self.net);
            }
            ClientEvent::Released(barrier) => self.part.released(barrier),
            ClientEvent::Awaited(barrier, peers) => self.part.barrier_awaits(barrier, &peers),
            ClientEvent::Resumed(point) => self.part.resumed(point),
            ClientEvent::ResumeAwaited(resume, peers) => self.part.resume_awaits(resume, &peers),
        }
    }

    /// A server adopts the terms of the workers when the job starts, before any other message.
    fn adopt_terms(&mut self) {
        let Some(terms) = self.client.book().terms.as_ref().map(|terms| terms.known) else {
            return;
        };
        if R::ROLE == Role::Server && self.net.limits.terms() != terms {
            self.net.limits.adopt(&terms);
            self.part.adopt(&self.net.limits);
        }
    }

    /// Links the members that this one exchanges data with: a worker all servers, a server all workers.
    fn relink(&mut self, now: Time) {
        let book = self.client.book();
        for member in book.members.iter().filter(|member| member.peer.role == R::PARTNERS) {
            let linked = self.net.incarnation_of(member.peer) == Some(member.incarnation);
            match member.state {
                MemberState::Here if !linked && !member.address.is_empty() => {
                    self.net.connect(member.peer, member.incarnation, &member.address, now);
                    self.net.introduce(member.peer, now);
                    if member.reads {
                        self.net.only_reads(member.peer);
                    }
                }
                MemberState::Lost => self.net.disconnect(member.peer),
                _ => {}
            }
            self.net.note_features(member.peer, member.incarnation, member.features);
        }
    }
}

impl<D: Data> Node<D, Worker<D>> {
    /// Makes this worker a reader, which only pulls and whose loss concerns no other member. Called before
    /// the first [`tick`](Self::tick).
    pub fn only_read(&mut self) {
        self.client.only_read();
    }

    /// Operation that a slice of a value is for, and the offset of the slice in its key in bytes; None if the
    /// worker would drop it. Lets a driver receive the payload of `len` bytes in place, before
    /// [`receive`](Self::receive).
    pub fn awaits(&self, head: &Header, len: u64) -> Option<(OpId, u64)> {
        let part = if head.group == 0 { Some(&self.part) } else { self.groups.part(head.group) };
        part.filter(|_| self.net.is_new(head))?.awaits(head, len)
    }
}

#[cfg(test)]
impl<D: Data> Node<D, Server<D>> {
    /// Delivers a slice a second time outside of its link, as after a change of servers.
    #[cfg(test)]
    pub(super) fn come_again(&mut self, message: Message<D>, now: Time) {
        let from = Peer { role: message.head.role, rank: message.head.rank };
        let linked = self.net.incarnation_of(from) == Some(message.head.incarnation);
        if linked {
            let kind = message.head.kind;
            let handled = self.part.message(from, message);
            self.net.note_handled(from, kind, handled);
        }
        self.settle(now);
    }
}

impl<D: Data, R: NodeRole<D>> Machine<D> for Node<D, R> {
    fn me(&self) -> Peer {
        self.net.me
    }

    fn limits(&self) -> &Limits {
        &self.net.limits
    }

    fn set_transports(&mut self, known: TransportsByAddress) {
        self.transports = known;
    }

    fn linked(&self, peer: Peer) -> Option<(&str, u64)> {
        self.net.linked(peer)
    }

    fn features(&self, peer: Peer) -> u64 {
        self.net.features(peer)
    }

    fn has_started(&self) -> bool {
        self.client.has_started()
    }

    fn is_ready(&self) -> bool {
        self.client.has_started() && self.met
    }

    fn end(&self) -> Option<&Result<(), Failure>> {
        self.end.as_ref()
    }

    fn receive(&mut self, message: Message<D>, now: Time) {
        self.net.notice_pause(now);
        self.tell_time(now);
        let (from, kind) = (message.head.sender(), message.head.kind);
        if kind == MessageKind::Look {
            let handled = self.look(message, now);
            return self.net.note_handled(from, kind, handled);
        }
        match self.net.receive(message, now, self.room_for(from)) {
            Incoming::Linked(mut received) => {
                if from == Peer::SCHEDULER {
                    self.client.heard();
                } else if self.suspects.remove(&from) {
                    self.tell_suspicion(from, Suspect::TAKEN_BACK);
                }
                received.delivered.drain(..).for_each(|token| self.delivered(from, token));
                self.net.give_back(from, received.delivered);
                for message in received.next.into_iter().chain(received.early) {
                    self.message(from, message, now);
                }
            }
            Incoming::Stranger(message) if from == Peer::SCHEDULER => {
                let handled = match kind {
                    MessageKind::Report => self.report(message, now),
                    MessageKind::Seen => self.compared(message, now),
                    _ => match self.client.stranger(&message, &mut self.net, now) {
                        Ok(true) => return self.receive(message, now),
                        Ok(false) => Ok(()),
                        Err(why) => Err(why),
                    },
                };
                self.net.note_handled(from, kind, handled);
            }
            Incoming::Stranger(message) => {
                let linked = self.net.incarnation_of(from) == Some(message.head.incarnation);
                let why = match kind {
                    MessageKind::Unknown(_) if linked => DropReason::UnknownKind,
                    _ => DropReason::Stranger,
                };
                self.net.note_drop(from, kind, why);
            }
            // Noted before.
            Incoming::Stale | Incoming::Former(..) => {}
        }
        // The next messages may concern members that this one has named. All else waits for `send`.
        if from == Peer::SCHEDULER {
            self.settle(now);
        }
    }

    fn bad_frame(&mut self, from: &str, bad: BadFrame, now: Time) {
        self.net.note_bad();
        self.client.bad_frame(from, bad);
        self.settle(now);
    }

    fn down(&mut self, address: &str, now: Time) {
        // A member whose connection ends may have another one soon: its silence decides.
        if self.client.is_scheduler(address) {
            self.client.miss(now);
            self.settle(now);
        }
    }

    fn reconnected(&mut self, address: &str, now: Time) {
        self.net.reconnected(address, now);
        // A new scheduler may be at the address: it learns of this process by its hello.
        if self.client.is_scheduler(address) {
            self.client.miss(now);
        }
        self.settle(now);
    }

    fn refused(&mut self, address: &str, reason: &str, now: Time) {
        let joining = self.client.is_scheduler(address) && !self.has_started();
        let server = self.client.book().peer_at(address).filter(|peer| peer.role == Role::Server);
        if joining || (server.is_some() && R::PARTNERS == Role::Server) {
            let peer = server.unwrap_or(Peer::SCHEDULER);
            self.client.refused(format!("{}: no way to {peer}: {reason}", self.net.me));
            self.settle(now);
        }
    }

    fn tick(&mut self, now: Time) {
        self.net.notice_pause(now);
        self.tell_time(now);
        for peer in self.net.silent(now) {
            let state = self.client.book().find(peer).map(|member| member.state);
            match (peer, state) {
                (Peer::SCHEDULER, _) => self.client.miss(now),
                (_, Some(MemberState::Here)) => self.miss_peer(peer),
                _ => self.net.disconnect(peer),
            }
        }
        if self.is_cut_off(now) {
            self.end_alone();
        }
        self.client.tick(&mut self.net, now);
        if now >= self.compare_at {
            self.compare_at = now + self.compare_pause;
            self.compare_pause = (2 * self.compare_pause).min(COMPARE_AGAIN);
            self.client.ask_time(&mut self.net, now);
        }
        self.part.tick(now);
        self.parts_of_groups().for_each(|part| part.tick(now));
        self.settle(now);
    }

    fn note_delay(&mut self, delay: Time) {
        self.delay = self.delay.max(delay);
    }

    fn trace(&mut self, rounds: (u64, u64), now: Time) {
        self.compare_at = now;
        self.net.traced = Some(rounds);
    }

    fn send(&mut self, now: Time) -> Drain<'_, OutgoingFrame<D>> {
        self.settle(now);
        if self.end.is_some() { self.net.send_none() } else { self.net.send(now) }
    }

    fn spare_bundle(&mut self) -> Option<Arc<BundleParts<D>>> {
        self.bundles.pop()
    }

    fn ignored(&self) -> Vec<DropCount> {
        self.net.ignored()
    }

    fn news(&mut self) -> Vec<PeerEvent> {
        self.net.news()
    }

    fn wake_at(&self) -> Time {
        if self.end.is_some() {
            return Time::MAX;
        }
        let own = self.net.wake_at().min(self.compare_at);
        let own = own.min(self.cut_off_at().unwrap_or(Time::MAX));
        let own = own.min(self.wake_groups_at());
        self.part.wake_at().min(own).min(self.client.wake_at(&self.net.limits))
    }
}
