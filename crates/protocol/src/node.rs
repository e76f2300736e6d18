//! A worker or a server as a whole: its machine, its links, and its line to the scheduler.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use super::job::{Data, Failure, Limits, MS, Mode, NO_RANK, Peer, Reason, Role, Time, Token};
use super::membership::{Client, Event, GOODBYE};
use super::message::{BadFrame, Body, Header, Kind, Message, Seen, Standing, State, accused};
use super::peers::{Frame, Incoming, Letter, Net, News, Why};
use super::server::Server;
use super::stream::CONTROL;
use super::telemetry::Facts;
use super::worker::{OpId, Want, Worker};

/// Clocks are compared so often while something is traced.
const COMPARE_AGAIN: Time = 1_000 * MS;

/// What a node does beside keeping its links.
#[derive(Debug)]
pub enum Part<D> {
    Worker(Worker<D>),
    Server(Server<D>),
}

/// How a process begins.
pub struct Birth<'a> {
    pub role: Role,
    /// None leaves the choice to the scheduler.
    pub rank: Option<u32>,
    /// Larger than that of every earlier process of the same rank.
    pub incarnation: u64,
    pub address: &'a str,
    pub scheduler: &'a str,
}

/// A worker or a server of one job.
pub struct Node<D> {
    net: Net<D>,
    client: Client,
    pub part: Part<D>,
    end: Option<Result<(), Failure>>,
    /// Peers that the scheduler was told are not heard.
    suspects: BTreeSet<Peer>,
    leaving: bool,
    /// The longest that `tick` was late, and with it heartbeats.
    delay: Time,
    /// When to compare clocks next, while something is traced.
    compare_at: Time,
}

impl<D: Data> Node<D> {
    #[must_use]
    pub fn new(limits: Limits, birth: &Birth, now: Time) -> Self {
        let me = Peer { role: birth.role, rank: birth.rank.unwrap_or(NO_RANK) };
        let part = match birth.role {
            Role::Worker => Part::Worker(Worker::new(&limits)),
            Role::Server | Role::Scheduler => Part::Server(Server::new(&limits)),
        };
        let client = Client::new(&limits, me, birth.address, birth.scheduler, now);
        let net = Net::new(limits, me, birth.incarnation, now);
        Self {
            net,
            client,
            part,
            end: None,
            suspects: BTreeSet::new(),
            leaving: false,
            delay: 0,
            compare_at: Time::MAX,
        }
    }

    /// Address and incarnation of a member that there is a stream to.
    pub fn linked(&self, peer: Peer) -> Option<(&str, u64)> {
        self.net.linked(peer)
    }

    pub fn limits(&self) -> &Limits {
        &self.net.limits
    }

    /// What this process is, once the scheduler has said so.
    pub fn me(&self) -> Peer {
        self.net.me
    }

    /// This worker only pulls: its loss concerns no other member. To be called before it joins.
    pub fn only_read(&mut self) {
        self.client.only_read();
    }

    /// The job has started.
    pub fn has_started(&self) -> bool {
        self.client.has_started()
    }

    /// When pushes take effect in this job.
    pub fn mode(&self) -> Mode {
        self.net.limits.mode
    }

    /// How the job ended for this process, once it has.
    pub fn end(&self) -> Option<&Result<(), Failure>> {
        self.end.as_ref()
    }

    /// A frame came in.
    pub fn receive(&mut self, message: Message<D>, now: Time) {
        self.net.notice_pause(now);
        self.tell_time(now);
        if message.head.kind == Kind::Look {
            return self.echo(&message, now);
        }
        let from = Peer { role: message.head.role, rank: message.head.rank };
        let room = match &self.part {
            Part::Server(server) if from.role == Role::Worker => server.room_for(from),
            _ => usize::MAX,
        };
        match self.net.receive(message, now, room) {
            Incoming::Linked(received) => {
                if from == Peer::SCHEDULER {
                    self.client.heard();
                } else if self.suspects.remove(&from) {
                    self.tell_suspicion(from, accused::TAKEN_BACK);
                }
                received.delivered.into_iter().for_each(|token| self.delivered(from, token));
                for message in received.next.into_iter().chain(received.early) {
                    self.message(from, message, now);
                }
            }
            Incoming::Stranger(message) if from == Peer::SCHEDULER => {
                match message.head.kind {
                    Kind::Report => return self.report(message.head.incarnation, now),
                    Kind::Seen => return self.compared(&message, now),
                    _ => {}
                }
                if self.client.stranger(&message, &mut self.net, now) {
                    return self.receive(message, now);
                }
            }
            Incoming::Stranger(_) => self.net.note_drop(from, Why::Stranger),
            // Noted before.
            Incoming::Stale | Incoming::Former(..) => {}
        }
        // What comes next may concern members that this message has named. All else waits for `send`.
        if from == Peer::SCHEDULER {
            self.settle(now);
        }
    }

    /// A process that is lost although it lives, and whose frames were not acknowledged, may be behind a
    /// way on which packets of full size are dropped.
    fn hint_at_packets(&self, failure: &mut Failure) {
        if failure.reason == Reason::Evicted
            && let Some(peer) = self.net.unanswered()
        {
            let _ = write!(
                failure.text,
                "; {peer} never acknowledged what was sent to it last: packets of full size may be lost \
                 on the way (MTU), for which `kvstore doctor` looks"
            );
        }
    }

    /// Sends back what an observer asks for, which tells it that frames of this size get through. Only
    /// servers do, and nothing else than that.
    fn echo(&mut self, message: &Message<D>, now: Time) {
        if !self.net.may_echo(now) {
            return;
        }
        if !(matches!(self.part, Part::Server(_)) && self.net.echo(message)) {
            let from = Peer { role: message.head.role, rank: message.head.rank };
            self.net.note_drop(from, Why::Unreadable);
        }
    }

    /// The operation that a slice of a value is for, and the place of the slice in its key; None if
    /// it would not be taken.
    pub fn awaits(&self, head: &Header, len: u64) -> Option<(OpId, u64)> {
        match &self.part {
            Part::Worker(worker) if self.net.is_new(head) => worker.awaits(head, len),
            _ => None,
        }
    }

    /// Bytes came in that are no frame of this version.
    pub fn bad_frame(&mut self, from: &str, bad: BadFrame, now: Time) {
        self.net.note_bad();
        self.client.bad_frame(from, bad);
        self.settle(now);
    }

    /// The engine saw a connection end.
    pub fn down(&mut self, address: &str, now: Time) {
        // A member whose connection ends may have another one soon: its silence decides.
        if self.client.is_scheduler(address) {
            self.client.miss(now);
            self.settle(now);
        }
    }

    /// Whoever is at an address does not take this process. Without its scheduler it never joins, and
    /// without one of its servers a worker can do nothing.
    pub fn refused(&mut self, address: &str, reason: &str, now: Time) {
        let joining = self.client.is_scheduler(address) && !self.has_started();
        let server = self.client.book().peer_at(address).filter(|peer| peer.role == Role::Server);
        if joining || (server.is_some() && self.net.me.role == Role::Worker) {
            let peer = server.unwrap_or(Peer::SCHEDULER);
            self.client.refused(format!("{}: no way to {peer}: {reason}", self.net.me));
            self.settle(now);
        }
    }

    pub fn tick(&mut self, now: Time) {
        self.net.notice_pause(now);
        self.tell_time(now);
        for peer in self.net.silent(now) {
            let state = self.client.book().find(peer).map(|member| member.state);
            match (peer, state) {
                (Peer::SCHEDULER, _) => self.client.miss(now),
                (_, Some(State::Here)) => self.suspect(peer),
                _ => self.net.disconnect(peer),
            }
        }
        if self.is_cut_off(now) {
            self.end_alone();
        }
        self.client.tick(&mut self.net, now);
        if now >= self.compare_at {
            self.compare_at = now + COMPARE_AGAIN;
            self.client.ask_time(&mut self.net, now);
        }
        match &mut self.part {
            Part::Worker(worker) => worker.tick(now),
            Part::Server(server) => server.tick(),
        }
        self.settle(now);
    }

    /// Notes by how much a `tick` is late.
    pub fn note_delay(&mut self, delay: Time) {
        self.delay = self.delay.max(delay);
    }

    /// All frames that are to be sent now. To be called after every event.
    pub fn send(&mut self, now: Time) -> Vec<Frame<D>> {
        self.settle(now);
        if self.end.is_some() {
            return Vec::new();
        }
        self.net.send(now)
    }

    /// What has changed since the last time.
    pub fn news(&mut self) -> Vec<News> {
        self.net.news()
    }

    /// When `tick` has something to do at the latest.
    pub fn wake_at(&self) -> Time {
        if self.end.is_some() {
            return Time::MAX;
        }
        let part = match &self.part {
            Part::Worker(worker) => worker.wake_at(),
            Part::Server(server) => server.wake_at(),
        };
        let own = self.net.wake_at().min(self.compare_at);
        let own = own.min(self.cut_off_at().unwrap_or(Time::MAX));
        part.min(own).min(self.client.wake_at(&self.net.limits))
    }

    /// A slice comes a second time on another way than its link, as after a change of servers.
    #[cfg(test)]
    pub(super) fn come_again(&mut self, message: Message<D>, now: Time) {
        let from = Peer { role: message.head.role, rank: message.head.rank };
        let linked = self.net.incarnation_of(from) == Some(message.head.incarnation);
        if let (Part::Server(server), true) = (&mut self.part, linked) {
            server.message(from, message);
        }
        self.settle(now);
    }

    /// Says anything, as a process that is not ours might.
    #[cfg(test)]
    pub(super) fn say(&mut self, to: Peer, message: Message<D>) {
        self.net.post(Letter { to, message, priority: CONTROL, token: None });
    }

    fn tell_time(&mut self, now: Time) {
        match &mut self.part {
            Part::Worker(worker) => worker.tell_time(now),
            Part::Server(server) => server.tell_time(now),
        }
    }

    /// What this process can say of itself.
    pub fn facts(&mut self, now: Time) -> Facts {
        self.tell_time(now);
        let (traffic, delay) = (self.net.traffic(), self.delay);
        let mut facts = Facts { age: now, traffic, delay, ..Facts::default() };
        match &mut self.part {
            Part::Worker(worker) => worker.report(&mut facts),
            Part::Server(server) => server.report(&mut facts),
        }
        facts
    }

    /// From now on reports the messages with values of these rounds, the last one included, and compares
    /// its clock with the scheduler's.
    pub fn trace(&mut self, rounds: (u64, u64), now: Time) {
        self.compare_at = now;
        self.net.traced = Some(rounds);
    }

    /// The scheduler has said how late it is; the request says when it was asked.
    fn compared(&mut self, message: &Message<D>, now: Time) {
        let Some(seen) = Seen::decode(message.fields()) else {
            return self.net.note_drop(Peer::SCHEDULER, Why::Unreadable);
        };
        if self.net.traced.is_some() {
            let (asked, clock) = (message.head.request, seen.clock);
            self.net.note(News::Clock { asked, answered: now, clock });
        }
    }

    /// The scheduler, in the life that is linked, wants to know how this process does.
    fn report(&mut self, incarnation: u64, now: Time) {
        if self.net.incarnation_of(Peer::SCHEDULER) == Some(incarnation) {
            let facts = self.facts(now);
            self.client.report(&mut self.net, incarnation, &facts);
            self.settle(now);
        }
    }

    /// When this process takes itself for cut off, if no member is heard until then. While only the
    /// scheduler is left to hear, it may be started again; so it may while no other member has been heard
    /// yet, as it may have died before they knew of the start.
    fn cut_off_at(&self) -> Option<Time> {
        let is_partner = |member: &Standing| {
            let heard = self.net.has_heard(member.peer, member.incarnation);
            heard && member.state == State::Here && !member.reads
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

    fn tell_suspicion(&mut self, peer: Peer, round: u64) {
        if let Some(incarnation) = self.net.incarnation_of(peer) {
            let mut message = Message::new(Kind::Suspect, accused::encode(peer, incarnation));
            message.head.round = round;
            let to = Peer::SCHEDULER;
            self.net.post(Letter { to, message, priority: CONTROL, token: None });
        }
    }

    fn delivered(&mut self, by: Peer, token: Token) {
        if token == GOODBYE {
            return self.leave_now();
        }
        match &mut self.part {
            Part::Worker(worker) => worker.delivered(by.rank, token),
            Part::Server(server) => server.delivered(by.rank, token),
        }
    }

    /// No member is heard any more. The goodbye of a worker may have ended the job before each server
    /// had acknowledged it.
    fn end_alone(&mut self) {
        match &self.part {
            Part::Worker(worker) if worker.is_closing() => self.leave_now(),
            _ => self.client.cut_off(self.net.me, &self.net.limits),
        }
    }

    /// The scheduler knows, or is gone as well.
    fn leave_now(&mut self) {
        if let Part::Worker(worker) = &mut self.part {
            worker.left();
        }
        self.end.get_or_insert(Ok(()));
    }

    fn message(&mut self, from: Peer, message: Message<D>, now: Time) {
        if let Body::Parts(parts) = message.body {
            let parts = Arc::unwrap_or_clone(parts).into_messages();
            return parts.into_iter().for_each(|part| self.message(from, part, now));
        }
        if from == Peer::SCHEDULER {
            self.client.message(&message, &mut self.net);
            // What follows in the stream may concern members that this message has named.
            return self.settle(now);
        }
        if message.head.kind == Kind::Leave {
            self.client.left(from);
        }
        match &mut self.part {
            Part::Worker(worker) => {
                worker.message(from, message);
                worker.faults().into_iter().for_each(|why| self.net.note_drop(from, why));
            }
            Part::Server(server) => {
                let fault = server.message(from, message);
                fault.into_iter().for_each(|why| self.net.note_drop(from, why));
            }
        }
    }

    /// Carries what one part has to say to the others.
    fn settle(&mut self, now: Time) {
        for event in self.client.events() {
            self.event(event, now);
        }
        let letters = match &mut self.part {
            Part::Worker(worker) => worker.letters(),
            Part::Server(server) => server.letters(),
        };
        letters.into_iter().for_each(|letter| self.net.post(letter));
        let Part::Worker(worker) = &mut self.part else { return };
        for want in worker.wants() {
            match want {
                Want::Barrier => {
                    self.client.arrive(&mut self.net);
                }
                Want::AskBarrier(barrier) => Client::ask(&mut self.net, barrier),
                Want::Done => self.client.done(&mut self.net),
                Want::Leave => {
                    self.leaving = true;
                    self.client.leave(&mut self.net);
                }
            }
        }
        if worker.has_ended() {
            self.end.get_or_insert(Ok(()));
        }
    }

    fn event(&mut self, event: Event, now: Time) {
        match event {
            Event::Members => {
                self.adopt_terms();
                self.relink(now);
                match &mut self.part {
                    Part::Worker(worker) => worker.members(self.client.book()),
                    Part::Server(server) => server.members(self.client.book()),
                }
            }
            Event::Fatal(mut failure) => {
                self.hint_at_packets(&mut failure);
                self.net.note(News::Fatal(failure.text.clone()));
                if let Part::Worker(worker) = &mut self.part {
                    worker.fatal(&failure);
                }
                self.end.get_or_insert(Err(failure));
            }
            Event::Left => self.leave_now(),
            Event::Over => {
                self.leaving = true;
                self.client.leave(&mut self.net);
            }
            Event::Released(barrier) => {
                if let Part::Worker(worker) = &mut self.part {
                    worker.released(barrier);
                }
            }
            Event::Awaited(barrier, peers) => {
                if let Part::Worker(worker) = &mut self.part {
                    worker.barrier_awaits(barrier, &peers);
                }
            }
        }
    }

    /// A server learns what the workers have agreed on when the job starts, before anything else.
    fn adopt_terms(&mut self) {
        let Some(terms) = self.client.book().terms else { return };
        if let (Part::Server(server), true) = (&mut self.part, self.net.limits.terms() != terms) {
            self.net.limits.adopt(&terms);
            server.adopt(&self.net.limits);
        }
    }

    /// Links the members that this one exchanges data with: workers and servers, never two of a kind.
    fn relink(&mut self, now: Time) {
        let other = if self.net.me.role == Role::Worker { Role::Server } else { Role::Worker };
        let book = self.client.book();
        for member in book.members.iter().filter(|member| member.peer.role == other) {
            let linked = self.net.incarnation_of(member.peer) == Some(member.incarnation);
            match member.state {
                State::Here if !linked && !member.address.is_empty() => {
                    self.net.connect(member.peer, member.incarnation, &member.address, now);
                    if member.reads {
                        self.net.only_reads(member.peer);
                    }
                }
                State::Lost => self.net.disconnect(member.peer),
                _ => {}
            }
        }
    }
}
