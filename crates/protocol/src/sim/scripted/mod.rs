//! Scripted cases (also: directed tests) on a perfect network: refusals, texts of errors, deadlines, credit,
//! losses.

mod calls;
mod cuts;
mod groups;
mod hostile;
mod losses;
mod meetings;
mod order;
mod removals;
mod resume;
mod starting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Bytes;
use super::cluster::SCHEDULER;
use super::model::Model;
use super::program::F32;
use crate::job::{Failure, Limits, MS, NO_RANK, Role, Time};
use crate::machine::Machine as _;
use crate::membership::Scheduler;
use crate::message::{ExitNotice, Header, KeySpec, Message};
use crate::node::NodeStart;
use crate::peers::OutgoingFrame;
use crate::testing::AnyNode;
use crate::worker::{OpId, Worker};
use crate::{server, worker};

type Results = BTreeMap<OpId, Result<(), Failure>>;

/// A job whose frames arrive at once; without a model, values are only counted.
struct Job {
    now: Time,
    scheduler: Scheduler<Bytes>,
    nodes: BTreeMap<Arc<str>, AnyNode<Bytes>>,
    results: BTreeMap<Arc<str>, Results>,
    /// Decisions that workers were told.
    told: BTreeMap<Arc<str>, BTreeMap<OpId, Vec<u8>>>,
    /// Results in groups, by address and group.
    of_groups: BTreeMap<(Arc<str>, u64), Results>,
    closed: u64,
    most_held: u64,
    /// Reference model that checks the servers.
    model: Option<Model>,
    /// Cuts: no frame passes from the first to the second.
    cuts: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Stopped processes; frames to them are queued.
    stopped: BTreeSet<Arc<str>>,
    waiting: Vec<OutgoingFrame<Bytes>>,
}

/// The number that the launcher of a process gives to it: the end of its address.
fn launch_of(address: &str) -> u128 {
    address.bytes().fold(0, |number, byte| number << 8 | u128::from(byte))
}

impl Job {
    fn new(limits: &Limits) -> Self {
        Self {
            now: 1,
            scheduler: Scheduler::new(limits.clone(), 1, 1),
            nodes: BTreeMap::new(),
            results: BTreeMap::new(),
            told: BTreeMap::new(),
            of_groups: BTreeMap::new(),
            closed: 0,
            most_held: 0,
            model: None,
            cuts: BTreeSet::new(),
            stopped: BTreeSet::new(),
            waiting: Vec::new(),
        }
    }

    /// A job that has started.
    fn started(limits: &Limits) -> Self {
        let mut job = Self::new(limits);
        (0..limits.workers).for_each(|rank| job.join(limits, Role::Worker, rank));
        (0..limits.servers).for_each(|rank| job.join(limits, Role::Server, rank));
        assert!(job.nodes.values().all(|node| node.has_started()));
        job
    }

    fn join(&mut self, limits: &Limits, role: Role, rank: u32) {
        let address = format!("{role:?}-{rank}").to_lowercase();
        self.join_at(&address, limits, role, rank);
    }

    fn join_at(&mut self, address: &str, limits: &Limits, role: Role, rank: u32) {
        self.enter(address, limits, role, Some(rank), false);
    }

    /// A process joins, with a requested rank or none; a reader joins as one.
    fn enter(
        &mut self,
        address: &str,
        limits: &Limits,
        role: Role,
        rank: Option<u32>,
        reads: bool,
    ) {
        let incarnation = self.now + 1 + self.nodes.len() as u64;
        let birth = NodeStart { rank, incarnation, address, scheduler: "scheduler" };
        let mut node = AnyNode::new(role, limits.clone(), &birth, self.now);
        match &mut node {
            AnyNode::Worker(node) => node.set_launch(launch_of(address)),
            AnyNode::Server(node) => node.set_launch(launch_of(address)),
        }
        if let (AnyNode::Worker(node), true) = (&mut node, reads) {
            node.only_read();
        }
        node.tick(self.now);
        self.nodes.insert(address.into(), node);
        self.settle();
    }

    /// A launcher says that the process that it started at an address has ended.
    fn exit_notice(&mut self, address: &str, how: &str) {
        let word = ExitNotice { launch: launch_of(address), how: how.into() };
        let mut message = Message::from(word);
        let head = Header { role: Role::Worker, rank: NO_RANK, ..message.head };
        message.head = Header { incarnation: 99, ..head };
        self.scheduler.receive(message, self.now);
        self.settle();
    }

    fn worker(&mut self, rank: u32) -> &mut Worker<Bytes> {
        match self.nodes.get_mut(&*format!("worker-{rank}")).unwrap() {
            AnyNode::Worker(node) => &mut node.part,
            AnyNode::Server(_) => panic!("a server"),
        }
    }

    fn end_of(&self, address: &str) -> &Failure {
        self.nodes[address].end().unwrap().as_ref().unwrap_err()
    }

    fn result(&mut self, rank: u32, op: OpId) -> Option<&Result<(), Failure>> {
        self.settle();
        self.results.get(&*format!("worker-{rank}"))?.get(&op)
    }

    fn text(&mut self, rank: u32, op: OpId) -> String {
        self.result(rank, op).expect("it has ended").as_ref().unwrap_err().to_string()
    }

    fn init(&mut self, rank: u32, key: u64, elements: u64) -> OpId {
        let (now, spec) = (self.now, KeySpec { dtype: F32, shape: vec![elements], whole: false });
        let zeros = vec![0.0; usize::try_from(elements).unwrap()];
        let data = Bytes::of(&zeros);
        self.worker(rank).init(key, spec, data, now, now + 10_000 * MS).unwrap()
    }

    fn init_all(&mut self, workers: u32, key: u64, elements: u64) {
        let ops: Vec<_> = (0..workers).map(|rank| self.init(rank, key, elements)).collect();
        for (rank, op) in (0..).zip(ops) {
            assert_eq!(self.result(rank, op), Some(&Ok(())));
        }
    }

    fn push(&mut self, rank: u32, key: u64, elements: usize) -> Result<OpId, Failure> {
        let now = self.now;
        let data = Bytes::of(&vec![1.0; elements]);
        let op = self.worker(rank).push(key, data, 0, now, now + 10_000 * MS);
        self.settle();
        op
    }

    fn pull(&mut self, rank: u32, key: u64) -> OpId {
        let now = self.now;
        let op = self.worker(rank).pull(key, 0, now, now + 10_000 * MS).unwrap();
        self.settle();
        op
    }

    /// Advances virtual time, and wakes every process that is due.
    fn pass(&mut self, time: Time) {
        let end = self.now + time;
        loop {
            let awake = self.nodes.iter().filter(|(address, _)| !self.stopped.contains(*address));
            let wakes = awake.map(|(_, node)| node.wake_at());
            let scheduler = Some(&self.scheduler).filter(|_| !self.stopped.contains(SCHEDULER));
            let next = wakes.chain(scheduler.map(Scheduler::wake_at)).min().unwrap_or(Time::MAX);
            self.now = next.max(self.now + 1).min(end);
            if !self.stopped.contains(SCHEDULER) {
                self.scheduler.tick(self.now);
            }
            for (address, node) in &mut self.nodes {
                if !self.stopped.contains(address) {
                    node.tick(self.now);
                }
            }
            self.settle();
            if self.now == end {
                return;
            }
        }
    }

    /// Delivers frames until there are none.
    fn settle(&mut self) {
        loop {
            let frames = self.frames();
            if frames.is_empty() {
                return;
            }
            for (from, frame) in frames {
                if self.stopped.contains(&frame.to) {
                    self.waiting.push(frame);
                } else if !self.cuts.contains(&(from, frame.to.clone())) {
                    self.deliver(frame);
                }
            }
        }
    }

    fn deliver(&mut self, OutgoingFrame { to, message, .. }: OutgoingFrame<Bytes>) {
        match self.nodes.get_mut(&to) {
            Some(node) => node.receive(message, self.now),
            None if &*to == SCHEDULER => self.scheduler.receive(message, self.now),
            None => {}
        }
    }

    /// Frames of all processes, with their senders.
    fn frames(&mut self) -> Vec<(Arc<str>, OutgoingFrame<Bytes>)> {
        let (now, mut frames) = (self.now, Vec::new());
        if !self.stopped.contains(SCHEDULER) {
            let sent = self.scheduler.send(now);
            frames.extend(sent.map(|frame| (SCHEDULER.into(), frame)));
        }
        for (address, node) in &mut self.nodes {
            if self.stopped.contains(address) {
                continue;
            }
            let me = node.me();
            match node {
                AnyNode::Worker(node) => {
                    let results = self.results.entry(address.clone()).or_default();
                    note(&mut node.part, results, self.told.entry(address.clone()).or_default());
                    for group in node.open_groups() {
                        let results = self.of_groups.entry((address.clone(), group)).or_default();
                        let part = node.part_of(group).unwrap();
                        note(part, results, &mut BTreeMap::new());
                    }
                }
                AnyNode::Server(node) => {
                    self.most_held = self.most_held.max(node.part.held_bytes());
                    self.closed += serve(&mut node.part, me.rank, self.model.as_mut());
                    for group in node.open_groups() {
                        self.closed += serve(node.part_of(group).unwrap(), me.rank, None);
                    }
                }
            }
            frames.extend(node.send(now).map(|frame| (address.clone(), frame)));
        }
        frames
    }
}

fn note(worker: &mut Worker<Bytes>, results: &mut Results, told: &mut BTreeMap<OpId, Vec<u8>>) {
    for action in worker.actions() {
        match action {
            worker::WorkerAction::Finished { op, result, .. } => {
                assert!(results.insert(op, result).is_none(), "an operation ends once");
            }
            worker::WorkerAction::Told { op, fields } => {
                assert!(told.insert(op, fields).is_none(), "a decision is told once");
            }
            worker::WorkerAction::Fill { .. } => {}
        }
    }
}

/// Carries out the actions of a server; gives the number of closed rounds.
fn serve(server: &mut server::Server<Bytes>, rank: u32, mut model: Option<&mut Model>) -> u64 {
    let mut closed = 0;
    for action in server.actions().collect::<Vec<_>>() {
        closed += u64::from(matches!(action, server::ServerAction::Close { .. }));
        match (model.as_deref_mut(), action) {
            (Some(model), action) => model.act(rank, server, action),
            (None, server::ServerAction::Answer(answer)) => {
                server.value(&answer, Bytes::of(&[0.0; 4]));
            }
            (None, _) => {}
        }
    }
    closed
}
