//! Data-parallel training on a whole cluster of the real machines, over network cards of a given
//! speed. Values have a length and no content.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::Length;
use super::bandwidth::{Event, Nanos, Network};
use super::cluster::SCHEDULER;
use super::trainer::{Stage, Trainer};
use crate::job::{Limits, Role, Time};
use crate::machine::Machine as _;
use crate::membership::Scheduler;
use crate::message::SliceName;
use crate::message::{HEADER, Message};
use crate::node::NodeStart;
use crate::peers::OutgoingFrame;
use crate::server::{ServerAction, ValueRequest};
use crate::testing::AnyNode;

/// Configuration of a training job, and its length.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) limits: Limits,
    pub(super) gbits: u64,
    /// Worker i and server i share a machine and its card.
    pub(super) together: bool,
    /// Bytes that a server adds in a nanosecond, one slice after the other; None if sums take no time.
    pub(super) adds: Option<u64>,
    /// Layers, in the order of the forward pass.
    pub(super) stages: Rc<Vec<Stage>>,
    pub(super) iterations: usize,
}

/// Result of a training job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    /// Duration of an iteration, without the first, which waits for no weights.
    pub(super) iteration: Nanos,
    /// Retransmitted frames: they were not acknowledged in time.
    pub(super) resent: u64,
}

enum Machine {
    Scheduler(Box<Scheduler<Length>>),
    Worker(AnyNode<Length>, Trainer),
    Server(AnyNode<Length>, Adder),
}

/// Arithmetic of a server, which takes time.
#[derive(Default)]
struct Adder {
    free_at: Nanos,
    sizes: HashMap<SliceName, u64>,
    /// Answers, and the times at which their sums are complete.
    answers: VecDeque<(Nanos, ValueRequest<Length>)>,
}

impl Adder {
    fn act(&mut self, action: &ServerAction<Length>, adds: Option<u64>, now: Nanos) {
        match action {
            ServerAction::Install { slice, data, .. } => {
                self.sizes.insert(*slice, data.0);
            }
            ServerAction::Add { data, .. } => {
                let time = adds.map_or(0, |adds| data.0 / adds);
                self.free_at = self.free_at.max(now) + time;
            }
            ServerAction::Answer(answer) => {
                self.answers.push_back((self.free_at.max(now), answer.clone()));
            }
            ServerAction::Close { .. }
            | ServerAction::Restore { .. }
            | ServerAction::Setting { .. }
            | ServerAction::Drop { .. } => {}
        }
    }

    fn next(&self) -> Nanos {
        self.answers.front().map_or(Nanos::MAX, |(time, _)| *time)
    }
}

struct Process {
    machine: Machine,
    alarm: Nanos,
}

pub(super) struct Job {
    setup: Setup,
    network: Network<Message<Length>>,
    processes: Vec<Process>,
    addresses: HashMap<Arc<str>, usize>,
    /// Last sequence of each stream.
    sent: HashMap<(usize, usize), u64>,
    resent: u64,
}

impl Job {
    pub(super) fn new(setup: Setup) -> Self {
        let (workers, servers) = (setup.limits.workers, setup.limits.servers);
        let mut processes = Vec::new();
        let (mut places, mut addresses) = (Vec::new(), HashMap::new());
        let mut add = |address: String, place: u32, machine| {
            addresses.insert(address.into(), processes.len());
            places.push(place as usize);
            processes.push(Process { machine, alarm: Nanos::MAX });
        };
        let scheduler = Scheduler::new(setup.limits.clone(), 1, 0);
        add(SCHEDULER.into(), workers + servers, Machine::Scheduler(Box::new(scheduler)));
        for rank in 0..servers {
            let address = format!("server-{rank}");
            let node = node(&setup, Role::Server, rank, &address);
            let place = if setup.together { rank } else { workers + rank };
            add(address, place, Machine::Server(node, Adder::default()));
        }
        for rank in 0..workers {
            let address = format!("worker-{rank}");
            let node = node(&setup, Role::Worker, rank, &address);
            let trainer = Trainer::new(setup.stages.clone(), setup.iterations);
            add(address, rank, Machine::Worker(node, trainer));
        }
        let network = Network::new(setup.gbits, places);
        Self { setup, network, processes, addresses, sent: HashMap::new(), resent: 0 }
    }

    /// Runs the training, and measures it.
    pub(super) fn run(mut self) -> Outcome {
        for process in 0..self.processes.len() {
            self.tick(process);
        }
        while self.ends().any(|ends| ends.len() < self.setup.iterations) {
            match self.network.next() {
                Some(Event::Frame { to, frame }) => self.frame(to, frame),
                Some(Event::Alarm(process))
                    if self.processes[process].alarm <= self.network.now =>
                {
                    self.tick(process);
                }
                Some(Event::Alarm(_)) => {}
                None => panic!("nothing happens any more"),
            }
        }
        let last = self.setup.iterations - 1;
        let at = |iteration: usize| self.ends().map(|ends| ends[iteration]).max().unwrap_or(0);
        Outcome { iteration: (at(last) - at(0)) / last as u64, resent: self.resent }
    }

    fn ends(&self) -> impl Iterator<Item = &[Nanos]> {
        self.processes.iter().filter_map(|process| match &process.machine {
            Machine::Worker(_, trainer) => Some(trainer.ends()),
            _ => None,
        })
    }

    fn micros(&self) -> Time {
        self.network.now / 1_000
    }

    fn frame(&mut self, to: usize, message: Message<Length>) {
        let now = self.micros();
        match &mut self.processes[to].machine {
            Machine::Scheduler(scheduler) => scheduler.receive(message, now),
            Machine::Worker(node, _) | Machine::Server(node, _) => node.receive(message, now),
        }
        self.after(to);
    }

    fn tick(&mut self, process: usize) {
        let now = self.micros();
        self.processes[process].alarm = Nanos::MAX;
        match &mut self.processes[process].machine {
            Machine::Scheduler(scheduler) => scheduler.tick(now),
            Machine::Worker(node, _) | Machine::Server(node, _) => node.tick(now),
        }
        self.after(process);
    }

    /// Carries out the actions of a machine after an event, and sends its frames.
    fn after(&mut self, from: usize) {
        let (now, micros) = (self.network.now, self.micros());
        let process = &mut self.processes[from];
        let (frames, wake, own) = match &mut process.machine {
            Machine::Scheduler(scheduler) => {
                (scheduler.send(micros).collect::<Vec<_>>(), scheduler.wake_at(), Nanos::MAX)
            }
            Machine::Worker(node, trainer) => {
                let started = node.has_started();
                if let (AnyNode::Worker(node), true) = (&mut *node, started) {
                    trainer.act(&mut node.part, now);
                }
                (node.send(micros).collect(), node.wake_at(), trainer.next(now))
            }
            Machine::Server(node, adder) => {
                if let AnyNode::Server(node) = node {
                    let server = &mut node.part;
                    let actions = server.actions();
                    actions.for_each(|action| adder.act(&action, self.setup.adds, now));
                    while adder.next() <= now {
                        let Some((_, answer)) = adder.answers.pop_front() else { break };
                        server.value(&answer, Length(adder.sizes[&answer.slice]));
                    }
                }
                (node.send(micros).collect(), node.wake_at(), adder.next())
            }
        };
        let wake = wake.saturating_mul(1_000).min(own).max(now + 1);
        if wake < process.alarm {
            process.alarm = wake;
            self.network.alarm(wake, from);
        }
        for OutgoingFrame { to, message, .. } in frames {
            let to = self.addresses[&to];
            if message.head.sequence > 0 {
                let last = self.sent.entry((from, to)).or_default();
                self.resent += u64::from(message.head.sequence <= *last);
                *last = message.head.sequence.max(*last);
            }
            let bytes = HEADER as u64 + message.body.len();
            self.network.send(from, to, message, bytes);
        }
    }
}

fn node(setup: &Setup, role: Role, rank: u32, address: &str) -> AnyNode<Length> {
    // The scheduler tells processes of a role apart by their incarnations.
    let incarnation = u64::from(rank) + 1;
    let birth = NodeStart { rank: Some(rank), incarnation, address, scheduler: SCHEDULER };
    AnyNode::new(role, setup.limits.clone(), &birth, 0)
}
