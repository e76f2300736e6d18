//! What the scheduler tells those who look at the job. It keeps nothing of them, and nobody waits
//! for what they want.

use std::collections::BTreeMap;

use super::scheduler::Scheduler;
use crate::cluster::common::{Data, MS, Peer, Time};
use crate::cluster::facts::Facts;
use crate::cluster::wire::{Kind, Look, MOST_REPORT, Message, Seen, Sight, State};

/// Members are asked no more often, however many look.
const ASK_AGAIN: Time = 100 * MS;
/// Members in one answer.
const PAGE: usize = 64;

/// What the members last said of themselves.
#[derive(Debug, Default)]
pub(super) struct Watch {
    asked: Option<Time>,
    reports: BTreeMap<Peer, (Time, Facts)>,
    /// The clock of the machine at some moment of ours.
    clock: (u64, Time),
}

impl<D: Data> Scheduler<D> {
    /// What the clock of the machine says now, in microseconds since 1970.
    pub(crate) fn tell_time(&mut self, clock: u64, now: Time) {
        self.watch.clock = (clock, now);
    }

    /// Somebody, of whatever job, wants to see this one.
    pub(super) fn look(&mut self, message: &Message<D>, now: Time) {
        let Some(look) = Look::decode(message.fields()) else { return };
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
    pub(crate) fn ask_for_reports(&mut self, now: Time) {
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
    pub(crate) fn has_reports_since(&self, since: Time) -> bool {
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
    pub(crate) fn seen(&self, skip: usize, most: usize, now: Time) -> Seen {
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
