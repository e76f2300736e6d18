//! Groups of workers in a node: a machine of the role for each, and its barriers and resumes, which server 0 keeps.
//!
//! In the machine of a group, workers that are not in it count as workers that were never here, so its rounds,
//! agreements and settings are those of a job of its workers. Their ranks are those in the job.

use std::collections::BTreeMap;

use super::Node;
use super::keeper::GroupKeeper;
use crate::bit_set::BitSet;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, DeliveryToken, Failure, Peer, Reason, Role, Time, list};
use crate::machine::{NodeRole, SchedulerRequest};
use crate::membership::Client;
use crate::message::kinds::{
    Ask, Awaited, Barrier, Failed, Form, Formed, Leave, Released, Resume, Resumed,
};
use crate::message::{Book, Content, GroupTerms, Header, Message, MessageKind, ResumePoint};
use crate::peers::OutgoingMessage;
use crate::stream::{CONTROL, LAST};
use crate::telemetry::{MOST_WAITING, ProcessStats};
use crate::worker::Worker;

/// Maximum number of groups that a server keeps.
const MOST_GROUPS: usize = 4_096;
/// Server that keeps the barriers and resumes of groups.
const KEEPER: Peer = Peer { role: Role::Server, rank: 0 };

/// How a worker ends a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupExit {
    /// After the operation of [`Worker::close`]: the servers know of it.
    Closed,
    /// It was open.
    Dropped,
    /// The operation of [`Worker::form`] has failed.
    NotFormed,
}

/// The groups of a node, by their numbers.
pub(super) struct NodeGroups<R> {
    open: BTreeMap<u64, Group<R>>,
    /// Groups that have ended since the driver asked.
    ended: Vec<u64>,
    /// First operation of a new group: answers to those of an ended one concern none.
    first_operation: u64,
}

/// A group, and its machine.
struct Group<R> {
    terms: GroupTerms,
    part: R,
    /// Workers that have made it known to this server, and those that have left it.
    joined: BitSet,
    left: BitSet,
    /// On a worker: barriers at which it has arrived, and the last resume in which all take part.
    arrived: u64,
    resumed: u64,
    keeper: GroupKeeper,
}

impl<R> Default for NodeGroups<R> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), ended: Vec::new(), first_operation: 1 }
    }
}

impl<R> NodeGroups<R> {
    pub(super) fn part(&self, group: u64) -> Option<&R> {
        self.open.get(&group).map(|it| &it.part)
    }
}

/// The book as a group has it: the servers, and the workers that are in the group.
fn book_of(terms: &GroupTerms, book: &Book) -> Book {
    let mut book = book.clone();
    book.members.retain(|it| it.peer.role != Role::Worker || terms.has(it.peer.rank));
    book
}

impl<R> Group<R> {
    fn new(terms: GroupTerms, part: R) -> Self {
        let (joined, left) = (BitSet::default(), BitSet::default());
        let (arrived, resumed, keeper) = (0, 0, GroupKeeper::default());
        Self { terms, part, joined, left, arrived, resumed, keeper }
    }

    /// Workers of the group that are in the job and have not left it.
    fn workers_here(&self, book: &Book) -> Vec<u32> {
        let is_here = |rank: &u32| !self.left.contains(*rank) && book.is_here(Peer::worker(*rank));
        self.terms.ranks.iter().copied().filter(is_here).collect()
    }

    /// Whether a message of this group is for its machine, and not about barriers, the meeting of a resume, or who is
    /// in it. `is_keeper` says that this node is server 0.
    fn is_of_machine(&self, from: Peer, head: &Header, is_keeper: bool) -> bool {
        match head.kind {
            MessageKind::Barrier | MessageKind::Released | MessageKind::Leave => false,
            MessageKind::Ask => head.generation > 0 || head.round == 0,
            MessageKind::Awaited => head.round == 0,
            MessageKind::Resume => !is_keeper || !self.keeper.is_next(head.round),
            MessageKind::Resumed => from != KEEPER || head.round <= self.resumed,
            _ => true,
        }
    }
}

fn letter<D: Data>(
    group: u64,
    to: Peer,
    message: impl Into<Message<D>>,
    priority: i32,
) -> OutgoingMessage<D> {
    let mut message = message.into();
    message.head.group = group;
    OutgoingMessage { to, message, priority, token: None }
}

#[expect(private_bounds, reason = "only the worker and the server of this crate are roles")]
impl<D: Data, R: NodeRole<D>> Node<D, R> {
    /// The machine of a group; 0 is the one of the job. None if the group is not open.
    pub fn part_of(&mut self, group: u64) -> Option<&mut R> {
        if group == 0 {
            return Some(&mut self.part);
        }
        self.groups.open.get_mut(&group).map(|it| &mut it.part)
    }

    /// Numbers of the open groups.
    pub fn open_groups(&self) -> Vec<u64> {
        self.groups.open.keys().copied().collect()
    }

    /// Calls `visit` with the number and the machine of each open group.
    pub fn each_group(&mut self, mut visit: impl FnMut(u64, &mut R)) {
        self.groups.open.iter_mut().for_each(|(id, group)| visit(*id, &mut group.part));
    }

    /// Numbers of the groups that have ended since the last call: their machines are gone.
    pub fn ended_groups(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.groups.ended)
    }

    fn open_group(&mut self, group: u64, terms: GroupTerms) {
        let mut part = R::of_group(&self.net.limits, group, &terms, self.groups.first_operation);
        part.members(&book_of(&terms, self.client.book()));
        self.groups.open.insert(group, Group::new(terms, part));
    }

    pub(super) fn end_group(&mut self, group: u64) {
        if let Some(ended) = self.groups.open.remove(&group) {
            let next = ended.part.next_operation();
            self.groups.first_operation = self.groups.first_operation.max(next);
            self.groups.ended.push(group);
        }
    }

    /// Takes a message of a group.
    pub(super) fn group_message(&mut self, from: Peer, message: Message<D>) -> Handled {
        let id = message.head.group;
        let kind = message.head.kind;
        if kind == MessageKind::Form {
            return self.form(from, id, message);
        }
        let is_keeper = self.net.me == KEEPER;
        let group = self.groups.open.get_mut(&id).ok_or(DropReason::Late)?;
        if group.is_of_machine(from, &message.head, is_keeper) {
            if from.role == Role::Worker && !group.terms.has(from.rank) {
                return Err(DropReason::Misdirected);
            }
            let handled = group.part.message(from, message);
            if kind == MessageKind::Done {
                self.settle_group(id);
            }
            return handled;
        }
        let is_worker = from.role == Role::Worker && group.terms.has(from.rank);
        match Content::<D>::read(&message.head, message.body)? {
            Content::Barrier(Barrier { number }) if is_worker => {
                group.keeper.arrive(from.rank, number);
            }
            Content::Resume(resume) if is_worker => {
                group.keeper.take_part(from.rank, ResumePoint::from(&resume));
            }
            Content::Ask(Ask { round, setting: Ask::RESUMING, .. }) if is_worker => {
                let here = group.workers_here(self.client.book());
                let (request, peers) = (1, group.keeper.missing(round, &here));
                self.net.post(letter(id, from, Awaited { request, round, peers }, LAST));
            }
            Content::Ask(Ask { round, request, .. }) if is_worker => {
                let peers = group.keeper.late(round, &group.part.active_workers());
                self.net.post(letter(id, from, Awaited { request, round, peers }, LAST));
            }
            // It may be another group of the same name.
            Content::Leave(_) if is_worker && !group.joined.contains(from.rank) => {}
            Content::Leave(Leave { back: true }) if is_worker => {
                group.joined.remove(from.rank);
                if group.joined.is_empty() {
                    self.end_group(id);
                }
                return Ok(());
            }
            Content::Leave(leave) if is_worker => {
                group.left.insert(from.rank);
                group.part.message(from, leave.into())?;
            }
            Content::Released(Released { barrier }) if from == KEEPER => {
                group.part.released(barrier);
            }
            Content::Resumed(resumed) if from == KEEPER => {
                let point = ResumePoint::from(&resumed);
                (group.resumed, group.arrived) = (point.number, point.barriers);
                group.part.resumed(point);
            }
            Content::Awaited(Awaited { round, request: 1, peers }) if from == KEEPER => {
                group.part.resume_awaits(round, &peers);
            }
            Content::Awaited(Awaited { round, peers, .. }) if from == KEEPER => {
                group.part.barrier_awaits(round, &peers);
            }
            _ => return Err(DropReason::Misdirected),
        }
        self.settle_group(id);
        Ok(())
    }

    /// A worker makes a group known to this server.
    fn form(&mut self, from: Peer, id: u64, message: Message<D>) -> Handled {
        let Content::Form(Form { request, terms }) = Content::read(&message.head, message.body)?
        else {
            return Err(DropReason::Misdirected);
        };
        let is_member = from.role == Role::Worker && terms.has(from.rank);
        let is_ours = terms.ranks.last().is_some_and(|last| *last < self.net.limits.workers);
        if R::ROLE != Role::Server || !is_member || !is_ours {
            return Err(DropReason::Misdirected);
        }
        let result = match self.groups.open.get(&id) {
            Some(known) if known.terms != terms => Err(differs(from.rank, &terms, &known.terms)),
            Some(known) if known.left.contains(from.rank) => Err(Failure::new(
                Reason::Invalid,
                "this worker has left it; all its workers leave it before it is made again",
            )),
            Some(_) => Ok(()),
            None if self.groups.open.len() == MOST_GROUPS => {
                Err(Failure::new(Reason::Invalid, format!("there are {MOST_GROUPS} groups")))
            }
            None => {
                self.open_group(id, terms);
                Ok(())
            }
        };
        let answer: Message<D> = match result {
            Ok(()) => {
                if let Some(group) = self.groups.open.get_mut(&id) {
                    group.joined.insert(from.rank);
                }
                Formed { request }.into()
            }
            Err(failure) => Failed { key: 0, generation: 0, slice: 0, request, failure }.into(),
        };
        self.net.post(letter(id, from, answer, CONTROL));
        Ok(())
    }

    /// Opens the barriers of a group that all its active workers have reached, and goes on from a resume in which all
    /// that are here take part; ends one that all have left.
    fn settle_group(&mut self, id: u64) {
        let Some(group) = self.groups.open.get_mut(&id).filter(|_| R::ROLE == Role::Server) else {
            return;
        };
        let here = group.workers_here(self.client.book());
        if here.is_empty() {
            return self.end_group(id);
        }
        for (rank, barrier) in group.keeper.opened(&group.part.active_workers()) {
            self.net.post(letter(id, Peer::worker(rank), Released { barrier }, CONTROL));
        }
        if group.part.is_broken() {
            return;
        }
        if let Some(point) = group.keeper.resumed(&here) {
            for rank in here {
                self.net.post(letter(id, Peer::worker(rank), Resumed::from(point), CONTROL));
            }
        }
    }

    /// Passes messages and requests of the machines of groups on.
    pub(super) fn settle_groups(&mut self) {
        for (id, group) in &mut self.groups.open {
            for mut letter in group.part.letters() {
                letter.message.head.group = *id;
                letter.token = letter.token.map(|token| DeliveryToken { group: *id, ..token });
                self.net.post(letter);
            }
            for request in group.part.requests() {
                match request {
                    SchedulerRequest::Barrier => {
                        group.arrived += 1;
                        let number = group.arrived;
                        self.net.post(letter(*id, KEEPER, Barrier { number }, CONTROL));
                    }
                    SchedulerRequest::AskBarrier(round) => {
                        self.net.post(letter(*id, KEEPER, Ask::about(Ask::ARRIVING, round), LAST));
                    }
                    // The keeper learns of both by the messages to all servers.
                    SchedulerRequest::Done | SchedulerRequest::Leave => {}
                    SchedulerRequest::Listen(address) => self.client.listen(&mut self.net, address),
                    SchedulerRequest::AskMeeting => Client::ask_meeting(&mut self.net),
                    SchedulerRequest::Resume(point) => {
                        self.net.post(letter(*id, KEEPER, Resume::from(point), CONTROL));
                    }
                    SchedulerRequest::AskResume(round) => {
                        self.net.post(letter(*id, KEEPER, Ask::about(Ask::RESUMING, round), LAST));
                    }
                }
            }
        }
    }

    /// The members have changed.
    pub(super) fn tell_groups(&mut self) {
        for id in self.open_groups() {
            if let Some(group) = self.groups.open.get_mut(&id) {
                group.part.members(&book_of(&group.terms, self.client.book()));
            }
            self.settle_group(id);
        }
    }

    /// The machines of all groups.
    pub(super) fn parts_of_groups(&mut self) -> impl Iterator<Item = &mut R> {
        self.groups.open.values_mut().map(|group| &mut group.part)
    }

    /// Adds what the machines of groups hold to the statistics of this process.
    pub(super) fn report_groups(&mut self, facts: &mut ProcessStats) {
        for part in self.parts_of_groups() {
            let mut own = ProcessStats::default();
            part.report(&mut own);
            facts.pending += own.pending;
            facts.waiting.extend(own.waiting);
            let (all, own) = (&mut facts.counters, &own.counters);
            all.keys += own.keys;
            all.slices += own.slices;
            all.stored_bytes += own.stored_bytes;
            all.held_bytes += own.held_bytes;
            all.duplicates += own.duplicates;
            all.failures += own.failures;
        }
        facts.waiting.truncate(MOST_WAITING);
    }

    pub(super) fn wake_groups_at(&self) -> Time {
        self.groups.open.values().map(|group| group.part.wake_at()).min().unwrap_or(Time::MAX)
    }

    /// Maximum queued messages to a peer at which its stream is still taken.
    pub(super) fn room_for(&self, peer: Peer) -> usize {
        let of_groups = self.groups.open.values().map(|group| group.part.room_for(peer));
        of_groups.fold(self.part.room_for(peer), usize::min)
    }
}

/// A worker describes a known group as another one.
fn differs(rank: u32, theirs: &GroupTerms, known: &GroupTerms) -> Failure {
    let members = |terms: &GroupTerms| {
        list(&terms.ranks.iter().copied().map(Peer::worker).collect::<Vec<_>>())
    };
    let text = if theirs.name == known.name {
        format!("worker {rank} gives it {}; it has {}", members(theirs), members(known))
    } else {
        format!("group {:?} has the same hash of its name; rename one of the two", known.name)
    };
    Failure::new(Reason::Differs, text)
}

impl<D: Data> Node<D, Worker<D>> {
    /// Begins a group that this worker is in. Its machine takes requests once the operation of
    /// [`Worker::form`] has ended. False if it is open.
    pub fn begin_group(&mut self, group: u64, terms: GroupTerms) -> bool {
        let is_new = !self.groups.open.contains_key(&group);
        if is_new {
            self.open_group(group, terms);
        }
        is_new
    }

    /// Ends a group on this worker: the machine is gone, and the servers wait no longer for this worker in it.
    pub fn drop_group(&mut self, group: u64, how: GroupExit) {
        let back = how == GroupExit::NotFormed;
        if how != GroupExit::Closed {
            for server in 0..self.net.limits.servers {
                self.net.post(letter(group, Peer::server(server), Leave { back }, LAST));
            }
        }
        self.end_group(group);
    }
}
