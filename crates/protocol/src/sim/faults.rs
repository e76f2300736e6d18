//! Fault injection: deaths, pauses, cuts, lost connections and restarts while the processes run.

use std::sync::Arc;

use super::cluster::{Cluster, LAST_BIRTH, Machine, Process, SCHEDULER};
use super::network::{Cut, Happening};
use super::scenario::Trouble;
use crate::job::{MS, Peer, Role, Time};
use crate::machine::Machine as _;

/// Maximum duration of a cut: shorter than the timeout of members for an absent scheduler.
const LONGEST_CUT: Time = 30_000 * MS;

/// Maximum time until a lost connection is made again.
const LONGEST_DIAL: Time = 300 * MS;

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
        let scheduler = self.processes.get(SCHEDULER).map(|process| &process.machine);
        if let (Some(Machine::Scheduler(scheduler)), Some(victim)) = (scheduler, self.victim)
            && !scheduler.has_heard(victim)
        {
            self.first_contact = self.scenario.limits.start_timeout;
        }
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

    /// A connection of a member with the scheduler, or of a worker with a server, is lost with all frames in
    /// flight, and is made again a while later; the next one is lost after that.
    pub(super) fn lose_connection(&mut self) {
        let Some((one, other)) = self.any_connection() else {
            // The scheduler is away, or not all processes are started yet.
            let is_over = self.processes.is_empty() && self.network.now > LAST_BIRTH;
            if !is_over {
                self.schedule_loss();
            }
            return;
        };
        let until = self.network.now + self.random.below(LONGEST_DIAL);
        self.met.connections_lost += 1;
        self.met.lost_with_connections += self.network.lose_connection(&one, &other, until);
        self.network.at(until, Happening::Reconnected { one, other });
    }

    /// Ends of a random connection; None without one.
    fn any_connection(&mut self) -> Option<(Arc<str>, Arc<str>)> {
        let is = |address: &Arc<str>, role| address.starts_with(role);
        let all: Vec<_> = self.processes.keys().cloned().collect();
        let pairs = all.iter().flat_map(|one| all.iter().map(move |other| (one, other)));
        let connected = pairs.filter(|(one, other)| {
            let data = is(one, "worker") && is(other, "server");
            data || (is(one, SCHEDULER) && !is(other, SCHEDULER))
        });
        let connected: Vec<_> = connected.collect();
        if connected.is_empty() {
            return None;
        }
        let (one, other) = self.random.pick(&connected);
        Some((one.clone(), other.clone()))
    }

    /// Both ends learn of it, in any order: each retransmits what the connection has lost.
    pub(super) fn reconnected(&mut self, one: &Arc<str>, other: &Arc<str>) {
        let now = self.network.now;
        for (address, peer) in [(one, other), (other, one)] {
            let Some(process) = self.processes.get_mut(address) else { continue };
            match &mut process.machine {
                Machine::Scheduler(scheduler) => scheduler.reconnected(peer, now),
                Machine::Node(node) => node.reconnected(peer, now),
            }
            self.after(address);
        }
        self.schedule_loss();
    }

    /// The next connection is lost after a random time, while processes are left.
    pub(super) fn schedule_loss(&mut self) {
        if self.scenario.connection_lasts > 0 {
            let after = self.random.below(2 * self.scenario.connection_lasts);
            self.network.at(self.network.now + after, Happening::ConnectionLost);
        }
    }

    /// Peer at an address; None when it has ended.
    fn peer_at(&self, address: &Arc<str>) -> Option<Peer> {
        match &self.processes.get(address)?.machine {
            Machine::Scheduler(_) => Some(Peer::SCHEDULER),
            Machine::Node(node) => Some(node.me()),
        }
    }
}
