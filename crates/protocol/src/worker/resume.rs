//! Resumes (also: rejoin): all workers meet, done or not, and go on with equal counts. Before that each announces the
//! end of its pushes, so that all rounds close.

use super::operation::{OpId, Operation, OperationKind};
use super::{PushPhase, Worker};
use crate::bit_set::BitSet;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Failure, Peer, Time};
use crate::machine::SchedulerRequest;
use crate::message::kinds::Resume;
use crate::message::{COLLECTIVE, ResumePoint};
use crate::peers::OutgoingMessage;
use crate::stream::CONTROL;

/// State of the resumes of a worker.
#[derive(Debug, Default)]
pub(super) struct Resumption {
    /// Last resume in which this worker takes part, and the last in which all have.
    entered: u64,
    passed: u64,
    /// Number of pushes to each key, at least, with which the last one ended.
    base: u64,
    /// Servers that have not gone on.
    awaited: BitSet,
    /// The last one that the program has given up: the next call joins it, also if all have passed it meanwhile.
    given_up: Option<u64>,
    /// The program was done before the last resume: other workers may have changed keys.
    was_done: bool,
}

impl Resumption {
    /// Pushes to each key, at least, at the end of the last resume: rounds are counted from there.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The program no longer waits for a resume.
    pub(super) fn give_up(&mut self, number: u64) {
        self.given_up = Some(number);
    }

    /// The program pushes, so it has gone on.
    pub(super) fn note_push(&mut self) {
        self.given_up = None;
    }

    /// The program has ended its pushes.
    pub(super) fn note_done(&mut self) {
        self.was_done = true;
    }
}

impl<D: Data> Worker<D> {
    /// Waits until every worker has made the call, whether it is done or not. Then none is done. After a timeout
    /// this worker has entered, and the next call joins the same resume.
    ///
    /// # Errors
    /// The worker is closed, or has ended, or a loss has ended the rounds.
    pub fn resume(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        let number = self.resumption.given_up.unwrap_or(self.resumption.passed + 1);
        let id = self.request(OperationKind::Resume { number }, 0, now, deadline)?;
        self.resumption.given_up = None;
        Ok(id)
    }

    /// Starts a resume that may start.
    pub(super) fn pump_resume(&mut self, id: OpId, number: u64) {
        if number <= self.resumption.passed {
            if self.resumption.awaited.is_empty() {
                self.finish(id, Ok(()));
            }
            return;
        }
        if self.pushes != PushPhase::Announced {
            self.announce(id);
        }
        if self.may_take_part(id) {
            self.start_collective(id);
        }
    }

    /// Whether the pushes of this worker, and the announcement of their end, have arrived at the servers.
    fn may_take_part(&self, id: OpId) -> bool {
        let is_under_way = |op: &Operation<D>| match op.what {
            OperationKind::Push { .. } | OperationKind::Done => true,
            OperationKind::Resume { .. } => !op.undelivered.is_empty(),
            _ => false,
        };
        let own = self.ops.get(id).is_some_and(is_under_way);
        self.announcing.is_none() && !own && !self.ops.before(id).any(is_under_way)
    }

    /// Takes part in a resume, once.
    pub(super) fn take_part(&mut self, number: u64) {
        if number <= self.resumption.entered {
            return;
        }
        self.resumption.entered = number;
        let pushes = self.keys.iter().map(|(_, key)| key.pushed()).max();
        self.wants.push(SchedulerRequest::Resume(ResumePoint {
            number,
            pushes: pushes.unwrap_or(0).max(self.resumption.base),
            barriers: self.barriers,
            agreements: self.agreements - COLLECTIVE,
        }));
    }

    /// All workers take part: goes on from the largest counts, and has the servers do so.
    pub(super) fn go_on_from(&mut self, point: ResumePoint) {
        if point.number <= self.resumption.passed {
            return;
        }
        let Resumption { entered, was_done, given_up, .. } = self.resumption;
        let base = point.pushes;
        (self.barriers, self.arrived, self.released) =
            (point.barriers, point.barriers, point.barriers);
        self.barrier_given_up = None;
        self.agreements = COLLECTIVE + point.agreements;
        self.agreement_given_up = None;
        self.keys.values_mut().for_each(|key| key.go_on_from(base, was_done));
        let here = self.servers_here.iter().zip(0..).filter(|(here, _)| **here);
        let servers: Vec<u32> = here.map(|(_, server)| server).collect();
        let mut awaited = BitSet::default();
        servers.iter().for_each(|server| _ = awaited.insert(*server));
        let (passed, was_done) = (point.number, false);
        self.resumption = Resumption { entered, passed, base, awaited, given_up, was_done };
        for server in servers {
            let (to, message) = (Peer::server(server), Resume::from(point).into());
            self.letters.push(OutgoingMessage { to, message, priority: CONTROL, token: None });
        }
    }

    /// A server has gone on. Once all have, this worker may push.
    pub(super) fn resumed_at(&mut self, server: Peer, number: u64) -> Handled {
        let Resumption { passed, ref mut awaited, .. } = self.resumption;
        if number != passed || !awaited.contains(server.rank) {
            return Err(DropReason::Late);
        }
        awaited.remove(server.rank);
        if !awaited.is_empty() {
            return Ok(());
        }
        self.pushes = PushPhase::Open;
        let ended = |op: &Operation<D>| matches!(op.what, OperationKind::Resume { number: it } if it <= number);
        for id in self.ids(ended) {
            self.finish(id, Ok(()));
        }
        Ok(())
    }
}
