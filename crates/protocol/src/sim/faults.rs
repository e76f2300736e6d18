//! What happens to the processes of a job while they run.

use std::sync::Arc;

use super::cluster::{Cluster, Machine, Process, SCHEDULER};
use super::network::{Cut, Happening};
use super::scenario::Trouble;
use crate::job::{MS, MemberRole, Peer, Time};

/// Less than members wait for a scheduler that is away.
const LONGEST_CUT: Time = 30_000 * MS;

impl Cluster {
    pub(super) fn trouble(&mut self) {
        let now = self.network.now;
        // Who is hit has a name by then; a scheduler may die while others still wait for theirs.
        let named = |process: &Process| match &process.machine {
            Machine::Scheduler(_) => true,
            Machine::Node(node) => node.has_started(),
        };
        let alone = self.scenario.trouble == Trouble::SchedulerRestarts;
        if !alone && !self.processes.values().map(|it| &**it).all(named) {
            return self.network.at(now + 50 * MS, Happening::Trouble);
        }
        self.struck = now;
        if self.strike(self.scenario.trouble) {
            *self.met.troubles.entry(self.scenario.trouble).or_default() += 1;
        }
        if let Some(victim) = self.victim.filter(|victim| victim.role == MemberRole::Worker) {
            self.model.gone.insert(victim.rank);
        }
    }

    /// False when everything that could be hit has ended already.
    fn strike(&mut self, trouble: Trouble) -> bool {
        let (now, lease) = (self.network.now, self.scenario.limits.peer_timeout);
        let worker = u32::try_from(self.random.below(self.scenario.limits.workers.into())).unwrap();
        let server = u32::try_from(self.random.below(self.scenario.limits.servers.into())).unwrap();
        let (worker, server) =
            (format!("worker-{worker}").into(), format!("server-{server}").into());
        match trouble {
            Trouble::Network => true,
            Trouble::WorkerDies => self.kill(&worker),
            Trouble::ServerDies => self.kill(&server),
            Trouble::SchedulerRestarts => self.restart_scheduler(),
            Trouble::SchedulerAndWorker => self.restart_scheduler() & self.kill(&worker),
            Trouble::ShortSilence => {
                // Where no frame is lost, a silence may be as long as it may.
                let lossy = self.scenario.loss + self.scenario.damage > 0;
                let time = now + self.random.below(if lossy { lease / 2 } else { lease });
                match self.random.below(3) {
                    0 => self.sleep(&worker, time),
                    1 => self.sleep(&server, time),
                    _ => self.cut(&worker, &server, time),
                }
            }
            Trouble::WorkerSleeps => {
                self.victim = self.peer_at(&worker);
                self.sleep(&worker, now + lease * 3)
            }
            Trouble::WorkerCutOff => {
                self.victim = self.peer_at(&worker);
                self.cut(&worker, &server, now + lease * 3)
            }
            Trouble::SchedulerCutOff => {
                let until = now + self.random.below(LONGEST_CUT);
                match self.random.below(3) {
                    0 => self.sleep(&SCHEDULER.into(), until),
                    _ => self.cut_from_all(&SCHEDULER.into(), until),
                }
            }
        }
    }

    fn kill(&mut self, address: &Arc<str>) -> bool {
        self.victim = self.peer_at(address);
        self.processes.remove(address).is_some()
    }

    fn restart_scheduler(&mut self) -> bool {
        self.restarted = true;
        let was_alive = self.processes.remove(SCHEDULER).is_some();
        // Often a while; at times so short that frames of the old one are still on their way.
        let pause = self.random.below(8_000 * MS) >> (6 * self.random.below(3));
        self.network.at(self.network.now + pause, Happening::Birth(SCHEDULER.into()));
        was_alive
    }

    fn sleep(&mut self, address: &Arc<str>, until: Time) -> bool {
        let process = self.processes.get_mut(address);
        process.map(|process| process.asleep_until = until).is_some()
    }

    fn cut(&mut self, one: &Arc<str>, other: &Arc<str>, until: Time) -> bool {
        let both = self.processes.contains_key(one) && self.processes.contains_key(other);
        let (one, other) = (one.clone(), other.clone());
        self.network.cuts.push(Cut { one, other, until });
        both
    }

    fn cut_from_all(&mut self, one: &Arc<str>, until: Time) -> bool {
        let others: Vec<_> = self.processes.keys().filter(|other| *other != one).cloned().collect();
        others.iter().filter(|other| self.cut(one, other, until)).count() > 0
    }

    /// None when it has ended already.
    fn peer_at(&self, address: &Arc<str>) -> Option<Peer> {
        match &self.processes.get(address)?.machine {
            Machine::Scheduler(_) => Some(Peer::SCHEDULER),
            Machine::Node(node) => Some(node.me()),
        }
    }
}
