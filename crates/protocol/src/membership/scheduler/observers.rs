//! Observation (also: monitoring) of the job at the scheduler. Observers are stateless clients: the scheduler
//! keeps no session for them, and no member waits for their queries.

use std::collections::BTreeMap;

use super::Scheduler;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, MS, Peer, Time};
use crate::message::kinds::Report;
use crate::message::{
    Content, JobView, Look, MemberReport, MemberState, Message, MessageKind, echo_of,
};
use crate::telemetry::ProcessStats;

/// Minimum interval of requests for reports, and interval of the limit on Looks.
const ASK_AGAIN: Time = 100 * MS;
/// Maximum members in one answer.
const PAGE: usize = 64;
/// Maximum answered Looks in each `ASK_AGAIN`; an observer without an answer repeats its Look.
const MOST_LOOKS: u32 = 256;

/// Last reports of the members, and the limits on Looks.
#[derive(Debug, Default)]
pub(super) struct MemberReports {
    asked: Option<Time>,
    /// Start of the current interval, and Looks answered since.
    answered: (Time, u32),
    reports: BTreeMap<Peer, (Time, ProcessStats)>,
    /// Clock of the machine, and the moment at which it was set.
    clock: (u64, Time),
}

impl MemberReports {
    /// Rate limit of Looks: a flood of them costs a bounded time and memory.
    fn may_answer(&mut self, now: Time) -> bool {
        if now >= self.answered.0 + ASK_AGAIN {
            self.answered = (now, 0);
        }
        self.answered.1 += 1;
        self.answered.1 <= MOST_LOOKS
    }
}

impl<D: Data> Scheduler<D> {
    /// Sets the clock of the machine, in microseconds since 1970, for observers and traces. Called before
    /// [`receive`](crate::Machine::receive).
    pub fn tell_time(&mut self, clock: u64, now: Time) {
        self.watch.clock = (clock, now);
    }

    /// Answers a Look, of any job.
    pub(super) fn look(&mut self, message: Message<D>, now: Time) -> Handled {
        let (head, echo) = (message.head, Look::echo(message.body.fields()));
        let content = Content::read(&head, message.body)?;
        let Content::Look(look) = content else { return Err(DropReason::Misdirected) };
        if !self.watch.may_answer(now) {
            return Err(DropReason::TooMany);
        }
        // A Look at no members probes the path, or compares clocks.
        if echo.is_none() && look.skip != u32::MAX {
            self.ask_for_reports(now);
        }
        let answer = if let Some(bytes) = echo {
            Message::new(MessageKind::Seen, echo_of(bytes))
        } else {
            let skip = usize::try_from(look.skip).unwrap_or(usize::MAX);
            Box::new(self.seen(skip, PAGE, now)).into()
        };
        self.net.answer_look(&head, &look, answer);
        Ok(())
    }

    /// Asks all members for reports, at most every 100 ms. The answers change [`seen`](Self::seen).
    pub fn ask_for_reports(&mut self, now: Time) {
        if self.watch.asked.is_some_and(|at| now < at + ASK_AGAIN) {
            return;
        }
        self.watch.asked = Some(now);
        let here = self.book.members.iter().filter(|member| member.state == MemberState::Here);
        for member in here.cloned().collect::<Vec<_>>() {
            self.net.cast(&member.address, member.incarnation, Report { facts: None }.into());
        }
    }

    /// Whether every member that takes part has sent a report since a moment, or in the 100 ms before it.
    #[must_use]
    pub fn has_reports_since(&self, since: Time) -> bool {
        // Within ASK_AGAIN members are not asked again: their last reports count.
        let since = since.saturating_sub(ASK_AGAIN);
        let mut here = self.book.members.iter().filter(|member| member.state == MemberState::Here);
        here.all(|member| self.watch.reports.get(&member.peer).is_some_and(|(at, _)| *at >= since))
    }

    /// Keeps the report of a member, in the linked incarnation.
    pub(super) fn report(
        &mut self,
        from: Peer,
        incarnation: u64,
        report: Report,
        now: Time,
    ) -> Handled {
        if self.net.incarnation_of(from) != Some(incarnation) {
            return Err(DropReason::Stranger);
        }
        let facts = report.facts.ok_or(DropReason::Misdirected)?;
        self.watch.reports.insert(from, (now, *facts));
        Ok(())
    }

    /// State of the job, with at most `most` members behind `skip` of them, in the order of the address book.
    #[must_use]
    pub fn seen(&self, skip: usize, most: usize, now: Time) -> JobView {
        let limits = &self.net.limits;
        let sights = self.book.members.iter().skip(skip).take(most);
        JobView {
            clock: self.watch.clock.0 + now.saturating_sub(self.watch.clock.1),
            job: limits.job,
            workers: limits.workers,
            servers: limits.servers,
            epoch: self.book.epoch,
            terms: self.book.terms.as_ref().map(|terms| terms.known),
            facts: ProcessStats {
                age: now,
                counters: self.net.traffic(),
                ..ProcessStats::default()
            },
            members: u32::try_from(self.book.members.len()).unwrap_or(u32::MAX),
            sights: sights.map(|member| self.sight(member.peer, now)).collect(),
        }
    }

    fn sight(&self, peer: Peer, now: Time) -> MemberReport {
        let member = self.book.find(peer);
        let report = self.watch.reports.get(&peer);
        MemberReport {
            peer,
            state: member.map_or(MemberState::Lost, |member| member.state),
            address: member.map_or_else(String::new, |member| member.address.clone()),
            heard: self.net.heard_at(peer).map(|at| now.saturating_sub(at)),
            report: report.map(|(at, facts)| (now.saturating_sub(*at), facts.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ASK_AGAIN, MOST_LOOKS};
    use crate::job::{NO_RANK, Role};
    use crate::machine::Machine as _;
    use crate::membership::Scheduler;
    use crate::message::{Header, Look, Message, MessageKind};
    use crate::sim::{Bytes, limits};

    #[test]
    fn a_flood_of_looks_is_answered_in_part_and_the_next_look_again() {
        let mut scheduler = Scheduler::<Bytes>::new(limits(), 1, 1);
        let mut flood = |now| {
            for request in 0..10 * u64::from(MOST_LOOKS) {
                let look = Look { address: format!("a-{request}"), skip: 0 };
                let mut message = Message::new(MessageKind::Look, look.encode(0));
                let head = Header { role: Role::Worker, rank: NO_RANK, ..message.head };
                message.head = Header { request, incarnation: 3, ..head };
                scheduler.receive(message, now);
            }
            let frames = scheduler.send(now);
            let count = frames.len();
            frames.for_each(|it| assert_eq!(it.message.head.kind, MessageKind::Seen));
            count
        };
        assert_eq!(flood(5), MOST_LOOKS as usize);
        assert_eq!(flood(5 + ASK_AGAIN / 2), 0);
        assert_eq!(flood(5 + ASK_AGAIN), MOST_LOOKS as usize);
    }
}
