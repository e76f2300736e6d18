//! Collective calls, which concern no key: groups, settings, barriers, the end of pushes, leaving.

use super::keys::WorkerKey;
use super::operation::{CatchUpTarget, OpId, Operation, OperationKind};
use super::{DIRECTORY, PushPhase, Worker};
use crate::drops::{DropReason, Handled};
use crate::job::{AT_ONCE, Data, Failure, Peer, Time};
use crate::machine::SchedulerRequest;
use crate::message::kinds::{Declare, Done, Form, Leave};
use crate::message::{Message, Proposal};
use crate::stream::{CONTROL, LAST};

impl<D: Data> Worker<D> {
    /// Starts collective operations, in the order of the requests.
    pub(super) fn pump_collective(&mut self) {
        for id in self.collective.iter().copied().collect::<Vec<_>>() {
            match self.ops.get(id).map(|op| &op.what) {
                Some(OperationKind::Done) if self.is_numbered(id) => self.start_collective(id),
                Some(&OperationKind::Resume { number }) if self.is_numbered(id) => {
                    self.pump_resume(id, number);
                }
                Some(OperationKind::Close) => {
                    if self.pushes != PushPhase::Announced && self.is_numbered(id) {
                        self.announce(id);
                    }
                    // An abandoned call other than a push no longer delays the close.
                    let is_over = |op: &Operation<D>| {
                        op.abandoned && !matches!(op.what, OperationKind::Push { .. })
                    };
                    let is_told = self.announcing.is_none();
                    if is_told && self.ops.before(id).all(is_over) {
                        self.start_collective(id);
                    }
                }
                Some(
                    OperationKind::Set { .. }
                    | OperationKind::Learn(_)
                    | OperationKind::Meet { .. }
                    | OperationKind::Form
                    | OperationKind::Barrier { .. },
                ) => {
                    self.start_collective(id);
                }
                _ => {}
            }
        }
    }

    /// Whether all earlier pushes have their rounds.
    fn is_numbered(&self, id: OpId) -> bool {
        let earlier = self.waiting.range(..id).inspect(|_| self.note_look());
        let mut earlier = earlier.filter_map(|id| self.ops.get(*id));
        !earlier.any(|op| matches!(op.what, OperationKind::Push { .. }))
    }

    pub(super) fn start_collective(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.started = true;
        self.collective.remove(&id);
        match &op.what {
            OperationKind::Barrier { number, .. } if *number <= self.released => {
                return self.finish(id, Ok(()));
            }
            // A barrier that was given up has arrived before.
            OperationKind::Barrier { number, .. } if *number > self.arrived => {
                self.arrived = *number;
                self.wants.push(SchedulerRequest::Barrier);
            }
            OperationKind::Set { version, fields } => {
                let (key, setting, request) = (0, *version, id);
                let (learn, back, proposal) = (false, false, Proposal::Setting(fields.clone()));
                self.post(DIRECTORY, Declare { key, setting, request, learn, back, proposal });
            }
            OperationKind::Learn(of) => {
                let (key, setting) = match *of {
                    CatchUpTarget::Key(from) => (from, 0),
                    CatchUpTarget::Setting(version) => (0, version),
                };
                let (learn, back, proposal) = (true, false, Proposal::Setting(Vec::new()));
                let declare = Declare { key, setting, request: id, learn, back, proposal };
                self.post(DIRECTORY, declare);
            }
            OperationKind::Resume { number } => {
                let number = *number;
                self.take_part(number);
            }
            OperationKind::Meet { .. } => self.start_meeting(),
            OperationKind::Form => self.start_forming(id),
            OperationKind::Done => self.announce(id),
            OperationKind::Close => {
                self.tell_servers(id, &Leave { back: false }.into(), LAST);
            }
            _ => {}
        }
        self.finish_if_complete_leaving(id);
    }

    /// Announces the number of pushes of each key, and their end. Other workers then wait for no more, even
    /// while some of these pushes wait for others.
    pub(super) fn announce(&mut self, id: OpId) {
        if self.pushes == PushPhase::Announced {
            return;
        }
        self.pushes = PushPhase::Announced;
        self.wants.push(SchedulerRequest::Done);
        self.announcing = Some((id, 0));
        self.announce_more();
    }

    /// Continues `announce`, some keys at a time; `tick` continues with the rest.
    pub(super) fn announce_more(&mut self) {
        let Some((id, first)) = self.announcing else { return };
        let of_key = |(key, state): (&u64, &WorkerKey)| {
            let done = Done { key: *key, generation: state.generation(), pushes: state.pushed() };
            state.place().map(|_| done.into())
        };
        let end = (first + AT_ONCE).min(self.keys.len());
        let mut messages: Vec<Message<D>> =
            self.keys.range(first..end).filter_map(of_key).collect();
        let is_last = end == self.keys.len();
        if is_last {
            messages.push(Done { key: 0, generation: 0, pushes: 0 }.into());
        }
        messages.iter().for_each(|message| self.tell_servers(id, message, CONTROL));
        self.announcing = (!is_last).then_some((id, end));
        if is_last {
            self.finish_if_complete(id);
        }
    }

    fn tell_servers(&mut self, id: OpId, message: &Message<D>, priority: i32) {
        for server in 0..self.limits.servers {
            if self.servers_here[server as usize] {
                self.send_awaited(id, Peer::server(server), message.clone(), priority);
            }
        }
    }

    /// Makes the group of this machine known to all servers. Other requests come after it has ended.
    ///
    /// # Errors
    /// The worker is closed, or has ended.
    pub fn form(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.request(OperationKind::Form, 0, now, deadline)
    }

    pub(super) fn start_forming(&mut self, id: OpId) {
        let Some(terms) = self.group.clone() else { return };
        for server in 0..self.limits.servers {
            if let Some(op) = self.ops.get_mut(id) {
                op.unanswered.insert(server);
            }
            let form = Form { request: id, terms: terms.clone() };
            self.send_awaited(id, Peer::server(server), form, CONTROL);
        }
    }

    /// A server knows the group.
    pub(super) fn formed(&mut self, from: Peer, request: OpId) -> Handled {
        let op = self.ops.get_mut(request).ok_or(DropReason::Late)?;
        if !matches!(op.what, OperationKind::Form) {
            return Err(DropReason::Misfit);
        }
        op.unanswered.remove(from.rank);
        self.finish_if_complete(request);
        Ok(())
    }

    /// With no server left, the close is complete.
    fn finish_if_complete_leaving(&mut self, id: OpId) {
        if self.ops.get(id).is_some_and(Operation::is_leaving) {
            self.finish_if_complete(id);
        }
    }
}
