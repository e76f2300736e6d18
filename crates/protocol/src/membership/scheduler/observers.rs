//! What the scheduler tells those who look at the job. It keeps nothing of them, and nobody waits
//! for what they want.

use std::collections::BTreeMap;

use super::Scheduler;
use crate::job::{Data, MS, Peer, Time};
use crate::message::{Kind, Look, MOST_REPORT, Message, Seen, Sight, State};
use crate::peers::Why;
use crate::telemetry::Facts;

/// Members are asked no more often, however many look.
const ASK_AGAIN: Time = 100 * MS;
/// Members in one answer.
const PAGE: usize = 64;
/// Looks that are answered in that time; who gets no answer asks again.
const MOST_LOOKS: u32 = 256;

/// What the members last said of themselves.
#[derive(Debug, Default)]
pub(super) struct Watch {
    asked: Option<Time>,
    /// How many looks were answered since when.
    answered: (Time, u32),
    reports: BTreeMap<Peer, (Time, Facts)>,
    /// The clock of the machine at some moment of ours.
    clock: (u64, Time),
}

impl Watch {
    /// Whether one more look can be answered now: a flood of them costs a bounded time and memory.
    fn may_answer(&mut self, now: Time) -> bool {
        if now >= self.answered.0 + ASK_AGAIN {
            self.answered = (now, 0);
        }
        self.answered.1 += 1;
        self.answered.1 <= MOST_LOOKS
    }
}

impl<D: Data> Scheduler<D> {
    /// What the clock of the machine says now, in microseconds since 1970.
    pub fn tell_time(&mut self, clock: u64, now: Time) {
        self.watch.clock = (clock, now);
    }

    /// Somebody, of whatever job, wants to see this one.
    pub(super) fn look(&mut self, message: &Message<D>, now: Time) {
        let Some(look) = Look::decode(message.fields()) else {
            let from = Peer { role: message.head.role, rank: message.head.rank };
            return self.net.note_drop(from, Why::Unreadable);
        };
        if !self.watch.may_answer(now) {
            return;
        }
        if self.net.echo(message) {
            return;
        }
        // Who wants to see nobody measures the way, or compares clocks.
        if look.skip != u32::MAX {
            self.ask_for_reports(now);
        }
        let skip = usize::try_from(look.skip).unwrap_or(usize::MAX);
        let mut answer = Message::new(Kind::Seen, self.seen(skip, PAGE, now).encode());
        answer.head.request = message.head.request;
        let (job, incarnation) = (message.head.job, message.head.incarnation);
        self.net.cast_into(job, &look.address, incarnation, answer);
    }

    /// Asks all members to say something of themselves, unless that has just happened.
    pub fn ask_for_reports(&mut self, now: Time) {
        if self.watch.asked.is_some_and(|at| now < at + ASK_AGAIN) {
            return;
        }
        self.watch.asked = Some(now);
        let here = self.book.members.iter().filter(|member| member.state == State::Here);
        for member in here.cloned().collect::<Vec<_>>() {
            let message = Message::new(Kind::Report, Vec::new());
            self.net.cast(&member.address, member.incarnation, message);
        }
    }

    /// Whether everybody who is here has said something of itself since then.
    #[must_use]
    pub fn has_reports_since(&self, since: Time) -> bool {
        // Those that were not asked again have answered just before.
        let since = since.saturating_sub(ASK_AGAIN);
        let mut here = self.book.members.iter().filter(|member| member.state == State::Here);
        here.all(|member| self.watch.reports.get(&member.peer).is_some_and(|(at, _)| *at >= since))
    }

    /// A member, in the life that is linked, says something of itself.
    pub(super) fn report(&mut self, from: Peer, message: &Message<D>, now: Time) {
        if self.net.incarnation_of(from) != Some(message.head.incarnation) {
            return;
        }
        let fields = Some(message.fields()).filter(|fields| fields.len() <= MOST_REPORT);
        if let Some(facts) = fields.and_then(Facts::decode) {
            self.watch.reports.insert(from, (now, facts));
        }
    }

    /// The job, and a part of its members in the order of the book.
    #[must_use]
    pub fn seen(&self, skip: usize, most: usize, now: Time) -> Seen {
        let limits = &self.net.limits;
        let sights = self.book.members.iter().skip(skip).take(most);
        Seen {
            clock: self.watch.clock.0 + now.saturating_sub(self.watch.clock.1),
            job: limits.job,
            workers: limits.workers,
            servers: limits.servers,
            epoch: self.book.epoch,
            terms: self.book.terms,
            facts: Facts { age: now, traffic: self.net.traffic(), ..Facts::default() },
            members: u32::try_from(self.book.members.len()).unwrap_or(u32::MAX),
            sights: sights.map(|member| self.sight(member.peer, now)).collect(),
        }
    }

    fn sight(&self, peer: Peer, now: Time) -> Sight {
        let member = self.book.find(peer);
        let report = self.watch.reports.get(&peer);
        Sight {
            peer,
            state: member.map_or(State::Lost, |member| member.state),
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
    use crate::membership::Scheduler;
    use crate::message::{Header, Kind, Look, Message};
    use crate::sim::{Bytes, limits};

    #[test]
    fn a_flood_of_looks_is_answered_in_part_and_the_next_look_again() {
        let mut scheduler = Scheduler::<Bytes>::new(limits(), 1, 1);
        let mut flood = |now| {
            for request in 0..10 * u64::from(MOST_LOOKS) {
                let look = Look { address: format!("a-{request}"), skip: 0 };
                let mut message = Message::new(Kind::Look, look.encode(0));
                let head = Header { role: Role::Worker, rank: NO_RANK, ..message.head };
                message.head = Header { request, incarnation: 3, ..head };
                scheduler.receive(message, now);
            }
            let frames = scheduler.send(now);
            assert!(frames.iter().all(|frame| frame.message.head.kind == Kind::Seen));
            frames.len()
        };
        assert_eq!(flood(5), MOST_LOOKS as usize);
        assert_eq!(flood(5 + ASK_AGAIN / 2), 0);
        assert_eq!(flood(5 + ASK_AGAIN), MOST_LOOKS as usize);
    }
}
