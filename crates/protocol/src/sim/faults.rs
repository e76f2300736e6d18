//! Fault injection: deaths, pauses, cuts and restarts while the processes run.

use std::sync::Arc;

use super::cluster::{Cluster, Machine, Process, SCHEDULER};
use super::network::{Cut, Happening};
use super::scenario::Trouble;
use crate::job::{MS, Peer, Role, Time};

/// Maximum duration of a cut: shorter than the timeout of members for an absent scheduler.
const LONGEST_CUT: Time = 30_000 * MS;

impl Cluster {
    pub(super) fn trouble(&mut self) {
        let now = self.network.now;
        // A process is struck after it has a rank; a scheduler may die while processes still wait for theirs.
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
        if let Some(victim) = self.victim.filter(|victim| victim.role == Role::Worker) {
            self.model.gone.insert(victim.rank);
        }
    }

    /// Injects the trouble; false when every possible target has ended.
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
                // Without frame loss, a silence may last almost the whole lease.
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
        // Often seconds; at times so short that frames of the old scheduler are still in flight.
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

    /// Peer at an address; None when it has ended.
    fn peer_at(&self, address: &Arc<str>) -> Option<Peer> {
        match &self.processes.get(address)?.machine {
            Machine::Scheduler(_) => Some(Peer::SCHEDULER),
            Machine::Node(node) => Some(node.me()),
        }
    }
}
