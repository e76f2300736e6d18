//! The worker as the role of its node: what events of the node change in it.

use std::collections::BTreeSet;
use std::vec::Drain;

use super::credit::FlowControl;
use super::meeting::Meeting;
use super::operation::{Operation, OperationKind};
use super::resume::Resumption;
use super::touched::TouchedKeys;
use super::{MOST_DUE, PushPhase, Worker};
use crate::drops::Handled;
use crate::job::{
    Data, DeliveryToken, Failure, Limits, OnLoss, Peer, Reason, Role, Time, take_all,
};
use crate::machine::{NodeRole, SchedulerRequest};
use crate::message::{Book, COLLECTIVE, GroupTerms, MemberState, Message, ResumePoint};
use crate::peers::OutgoingMessage;
use crate::placement::SharedPlaces;
use crate::sequence_map::SequenceMap;
use crate::table::Table;
use crate::telemetry::ProcessStats;

impl<D: Data> NodeRole<D> for Worker<D> {
    const ROLE: Role = Role::Worker;
    const PARTNERS: Role = Role::Server;

    fn new(limits: &Limits) -> Self {
        let servers = limits.servers as usize;
        Self {
            limits: limits.clone(),
            started: false,
            ops: SequenceMap::default(),
            waiting: BTreeSet::new(),
            collective: BTreeSet::new(),
            changes: BTreeSet::new(),
            touched: TouchedKeys::default(),
            next_op: 1,
            wake: Time::MAX,
            keys: Table::default(),
            places: SharedPlaces::default(),
            flows: (0..servers).map(|_| FlowControl::new(limits.credit())).collect(),
            servers_here: vec![true; servers],
            workers_lost: BTreeSet::new(),
            queue: Vec::new(),
            barriers: 0,
            arrived: 0,
            released: 0,
            barrier_given_up: None,
            setting_given_up: None,
            settings: 0,
            weight: 0,
            part: 0,
            scale: 0,
            agreement_given_up: None,
            agreements: COLLECTIVE,
            setting: 0,
            pushes: PushPhase::Open,
            announcing: None,
            resumption: Resumption::default(),
            meeting: Meeting::default(),
            group: None,
            closing: false,
            ended: false,
            rounds_lost: None,
            all_lost: None,
            letters: Vec::new(),
            wants: Vec::new(),
            actions: Vec::new(),
            tally: Box::default(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    fn of_group(limits: &Limits, _: u64, terms: &GroupTerms, first: u64) -> Self {
        Self { group: Some(terms.clone()), next_op: first, ..Self::new(limits) }
    }

    fn next_operation(&self) -> u64 {
        self.next_op
    }

    fn tell_time(&mut self, now: Time) {
        self.tally.now = now;
    }

    /// Ends overdue operations, and queries the members that others wait for.
    fn tick(&mut self, now: Time) {
        if self.announcing.is_some() && !self.ended {
            self.announce_more();
            self.go_on();
        }
        if now < self.wake {
            return;
        }
        let due = |op: &Operation<D>| !op.abandoned && op.next_moment() <= now;
        for id in self.ids(due).into_iter().take(MOST_DUE) {
            let Some(op) = self.ops.get_mut(id) else { continue };
            if now < op.deadline {
                self.look_after(id, now);
                continue;
            }
            self.overdue(id, now);
        }
        let live = self.ops.iter().map(|(_, op)| op).filter(|op| !op.abandoned);
        self.wake = live.map(Operation::next_moment).min().unwrap_or(Time::MAX);
        self.go_on();
    }

    fn wake_at(&self) -> Time {
        if self.announcing.is_some() && !self.ended { 0 } else { self.wake }
    }

    fn letters(&mut self) -> Drain<'_, OutgoingMessage<D>> {
        take_all(&mut self.letters)
    }

    fn report(&mut self, facts: &mut ProcessStats) {
        self.report(facts);
    }

    fn members(&mut self, book: &Book) {
        self.started = true;
        for gone in book.members.iter().filter(|member| member.state != MemberState::Here) {
            let is_lost = gone.state == MemberState::Lost;
            let how = if is_lost { "is lost" } else { "has left, as the job is over" };
            let text = format!("{} at {} {how}{}", gone.peer, gone.address, gone.cause());
            let failure = Failure::new(Reason::PeerLost, text);
            match gone.peer.role {
                Role::Server => {
                    self.lose_all(&failure);
                    self.stop_waiting_for(gone.peer);
                }
                Role::Worker if !is_lost => {}
                Role::Worker => {
                    self.workers_lost.insert(gone.peer.rank);
                    if self.limits.on_loss == OnLoss::Fail && !gone.reads {
                        self.lose_rounds(&failure);
                    }
                }
                Role::Scheduler => {}
            }
        }
        self.look_for_workers(book);
        self.pump_all();
    }

    fn message(&mut self, from: Peer, message: Message<D>) -> Handled {
        Worker::message(self, from, message)
    }

    fn delivered(&mut self, server: u32, token: DeliveryToken) {
        let id = token.operation;
        if let Some(op) = self.ops.get_mut(id) {
            op.undelivered.arrive(server, token.attempt);
            self.touched.add(op.key);
            self.finish_if_complete(id);
            self.go_on();
        }
    }

    fn requests(&mut self) -> Vec<SchedulerRequest> {
        std::mem::take(&mut self.wants)
    }

    /// Every operation fails.
    fn fatal(&mut self, failure: &Failure) {
        self.all_lost = Some(failure.clone());
        self.fail_where(|_| true, failure);
        self.letters.clear();
        self.wants.clear();
        self.ended = true;
    }

    fn released(&mut self, barrier: u64) {
        self.released = self.released.max(barrier);
        let open = |op: &Operation<D>| matches!(op.what, OperationKind::Barrier { number, .. } if number <= barrier);
        for id in self.ids(open) {
            self.finish(id, Ok(()));
        }
        self.go_on();
    }

    fn barrier_awaits(&mut self, barrier: u64, peers: &[Peer]) {
        for op in self.ops.values_mut() {
            if matches!(op.what, OperationKind::Barrier { number, .. } if number == barrier) {
                op.awaited = Some(Box::new(peers.to_vec()));
            }
        }
    }

    fn resumed(&mut self, point: ResumePoint) {
        self.go_on_from(point);
    }

    fn resume_awaits(&mut self, resume: u64, peers: &[Peer]) {
        for op in self.ops.values_mut() {
            if matches!(op.what, OperationKind::Resume { number } if number == resume) {
                op.awaited = Some(Box::new(peers.to_vec()));
            }
        }
    }

    fn is_closing(&self) -> bool {
        self.ops.iter().any(|(_, op)| op.started && matches!(op.what, OperationKind::Close))
    }

    /// The close ends, and with it the worker.
    fn left(&mut self) {
        self.ended = true;
        let closing = |op: &Operation<D>| matches!(op.what, OperationKind::Close);
        let close = self.ops.iter().find(|(_, op)| closing(op)).map(|(id, _)| id);
        close.into_iter().for_each(|id| self.finish(id, Ok(())));
    }

    fn has_ended(&self) -> bool {
        self.ended
    }
}
