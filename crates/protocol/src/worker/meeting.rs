//! Meetings (also: rendezvous): all workers tell where they listen for each other, for exchanges.

use super::Worker;
use super::operation::{OpId, Operation, OperationKind};
use crate::job::{Data, Failure, MS, Peer, Reason, Role, Time};
use crate::machine::SchedulerRequest;
use crate::message::{Book, ExchangeAddress, MemberState, Standing};

/// Least interval of queries for the workers of a group that listen.
const MEETING: Time = 20 * MS;

/// What a worker knows of where others listen.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    /// Where this worker listens.
    own: Option<ExchangeAddress>,
    /// Where workers listen, by rank.
    known: Vec<(u32, ExchangeAddress)>,
    /// Workers that do not listen.
    missing: Vec<Peer>,
    /// A worker that will never listen.
    gone: Option<Failure>,
}

impl<D: Data> Worker<D> {
    /// Tells the other workers where this one listens for them, and waits until all have made this call.
    ///
    /// # Errors
    /// The worker is closed, or has ended.
    pub fn meet(
        &mut self,
        own: ExchangeAddress,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        self.meeting.own.get_or_insert(own);
        let half = now + deadline.saturating_sub(now) / 2;
        let asks_at = if self.group.is_some() { half.min(now + MEETING) } else { half };
        self.request(OperationKind::Meet { asks_at }, 0, now, deadline)
    }

    /// Where the workers listen that have called [`meet`](Self::meet), by rank; all of them once it has ended.
    pub fn listening_workers(&self) -> &[(u32, ExchangeAddress)] {
        &self.meeting.known
    }

    /// Asks for the book on behalf of a meeting: in a group again after as long as it has waited, else once.
    pub(super) fn ask_for_workers(&mut self, id: OpId, now: Time) {
        let Some(op) = self.ops.get_mut(id) else { return };
        let waited = now.saturating_sub(op.began);
        if let OperationKind::Meet { asks_at } = &mut op.what {
            *asks_at = if self.group.is_some() { now + waited.max(MEETING) } else { op.deadline };
        }
        self.ask(id);
    }

    /// Tells where this worker listens; a later call finds it told.
    pub(super) fn start_meeting(&mut self) {
        if let Some(own) = self.meeting.own.clone() {
            self.wants.push(SchedulerRequest::Listen(own));
        }
        self.end_meetings();
    }

    /// The members have changed, or have told where they listen.
    pub(super) fn look_for_workers(&mut self, book: &Book) {
        let pushes = |member: &&Standing| member.peer.role == Role::Worker && !member.reads;
        let workers = || book.members.iter().filter(pushes);
        let told = workers().filter(|member| member.exchange.is_known());
        let meeting = &mut self.meeting;
        meeting.known = told.map(|it| (it.peer.rank, it.exchange.clone())).collect();
        let missing = workers().filter(|member| !member.exchange.is_known());
        meeting.missing = missing.map(|member| member.peer).collect();
        let gone = workers().find(|member| member.state != MemberState::Here);
        meeting.gone = gone.map(|member| {
            let how = if member.state == MemberState::Lost { "is lost" } else { "has left" };
            let text = format!("{} at {} {how}{}", member.peer, member.address, member.cause());
            Failure::new(Reason::PeerLost, text)
        });
        let is_known = !meeting.missing.is_empty() && !meeting.known.is_empty();
        let missing = is_known.then(|| Box::new(meeting.missing.clone()));
        for op in self.ops.values_mut().filter(|op| matches!(op.what, OperationKind::Meet { .. })) {
            op.awaited.clone_from(&missing);
        }
        self.end_meetings();
    }

    /// Ends the calls that wait for a meeting that is complete, or never will be.
    fn end_meetings(&mut self) {
        let result = match &self.meeting {
            Meeting { gone: Some(failure), .. } => Err(failure.clone()),
            Meeting { missing, known, .. } if missing.is_empty() && !known.is_empty() => Ok(()),
            _ => return,
        };
        let waits = |op: &Operation<D>| op.started && matches!(op.what, OperationKind::Meet { .. });
        for id in self.ids(waits) {
            self.finish(id, result.clone());
        }
    }
}
