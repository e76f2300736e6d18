//! Drives all processes of a job through one scenario.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Bytes;
use super::cancellation::{Haste, Lives};
use super::coverage::Met;
use super::frames::{read_frame, write_frame};
use super::later::{Later, skipped};
use super::model::{Model, part_of, scale_of, weight_of};
use super::network::{Happening, Network};
use super::observer::ONLOOKER;
use super::program::{self, Line};
use super::reader::{self, READER, Reader};
use super::scenario::{Scenario, Trouble};
use crate::drops::DropReason;
use crate::job::{Data, Failure, MS, OnLoss, Peer, Reason, Role, Time};
use crate::machine::Machine as _;
use crate::machine::NodeRole as _;
use crate::membership::Scheduler;
use crate::message::{Message, MessageKind};
use crate::node::{Node, NodeStart};
use crate::peers::{OutgoingFrame, PeerEvent};
use crate::testing::{AnyNode, Random};
use crate::{server, worker};

pub(super) const SCHEDULER: &str = "scheduler";
/// By then all processes are started.
pub(super) const LAST_BIRTH: Time = 2_000 * MS;
const DEADLINE: Time = 120_000 * MS;
/// Maximum virtual time of a job.
const END: Time = 600_000 * MS;

pub(super) enum Machine {
    Scheduler(Box<Scheduler<Bytes>>),
    Node(AnyNode<Bytes>),
}

/// Program of a worker, and its open calls.
#[derive(Default)]
pub(super) struct Program {
    pub(super) lines: Option<VecDeque<Line>>,
    think_until: Time,
    pub(super) open: BTreeMap<worker::OpId, Open>,
    pushed: BTreeMap<u64, u64>,
    sizes: BTreeMap<u64, u64>,
    pub(super) settings: u64,
    pub(super) haste: Haste,
    done: bool,
    failed: bool,
}

pub(super) struct Open {
    line: Line,
    began: Time,
    /// For a call that needs a key: another rank has initialised the key before.
    exists: bool,
    /// Generation of the key at the call.
    generation: u32,
    /// Pushes of this worker so far, including this one; or the number of a barrier.
    round: u64,
    out: Vec<Option<f32>>,
}

pub(super) struct Process {
    pub(super) machine: Machine,
    program: Program,
    pub(super) asleep_until: Time,
    wake: Time,
}

pub(super) struct Cluster {
    pub(super) scenario: Scenario,
    pub(super) network: Network,
    pub(super) random: Random,
    /// Boxed, because each event takes a process out and puts it back.
    pub(super) processes: BTreeMap<Arc<str>, Box<Process>>,
    pub(super) model: Model,
    pub(super) lives: Lives,
    troubled: bool,
    pub(super) restarted: bool,
    /// Servers that have ended before the end of their job.
    deserted: BTreeSet<Arc<str>>,
    /// Target of the trouble.
    pub(super) victim: Option<Peer>,
    pub(super) struck: Time,
    /// More time until the target counts as lost: that of the first contact, before it was made.
    pub(super) first_contact: Time,
    pub(super) met: Met,
    pub(super) reader: Option<Reader>,
    later: Later,
    trace: bool,
}

impl Cluster {
    /// A cluster of the scenario; with `trace`, it prints every frame that arrives.
    pub(super) fn new(scenario: Scenario, trace: bool) -> Self {
        let mut network = Network::new(scenario.seed);
        let mut random = Random::new(scenario.seed ^ 0xc1);
        let reader = scenario.reader.then(|| Reader::new(scenario.seed, &scenario.limits));
        let later = Later::new(scenario.seed);
        let workers = 0..scenario.limits.workers - u32::from(scenario.reader);
        let workers = workers.map(|rank| format!("worker-{rank}"));
        let servers = (0..scenario.limits.servers).map(|rank| format!("server-{rank}"));
        for address in workers.chain(servers).chain([SCHEDULER.to_string()]) {
            network.at(random.below(LAST_BIRTH), Happening::Birth(address.into()));
        }
        network.at(random.below(2_000 * MS), Happening::Look);
        let mut model = Model::new(&scenario);
        if let Some(reader) = &reader {
            model.gone.insert(reader.me().rank);
            network.at(random.below(2_000 * MS), Happening::Attack);
        }
        let mut cluster = Self {
            scenario,
            network,
            random,
            processes: BTreeMap::new(),
            model,
            lives: Lives::default(),
            troubled: false,
            restarted: false,
            deserted: BTreeSet::new(),
            victim: None,
            struck: Time::MAX,
            first_contact: 0,
            met: Met::default(),
            reader,
            later,
            trace,
        };
        cluster.schedule_loss();
        cluster
    }

    /// Runs until no event is left; panics at the first violation.
    pub(super) fn run(mut self) -> Met {
        while let Some(happening) = self.network.next() {
            assert!(self.network.now < END, "the job does not end: {}", self.who_is_left());
            match happening {
                Happening::Birth(address) => self.birth(&address),
                Happening::Frame { from, to, bytes } => self.frame(from, to, bytes),
                Happening::Wake(address) => self.wake(&address),
                Happening::Trouble => self.trouble(),
                Happening::Look => self.look(),
                Happening::Attack => self.attack(),
                Happening::ConnectionLost => self.lose_connection(),
                Happening::Reconnected { one, other } => self.reconnected(&one, &other),
            }
        }
        self.check_end();
        self.met.closed = self.model.closed;
        self.met
    }

    fn birth(&mut self, address: &Arc<str>) {
        let now = self.network.now;
        let mut limits = self.scenario.limits.clone();
        if !address.starts_with("worker") {
            // The other processes learn the terms from the workers.
            limits.adopt(&super::limits().terms());
        }
        // A restarted process has a larger incarnation, and all incarnations differ.
        let incarnation = (now + 1) << 4 | self.processes.len() as u64;
        let machine = match address.split_once('-') {
            None => Machine::Scheduler(Box::new(Scheduler::new(limits, incarnation, now))),
            Some((role, rank)) => {
                let rank = rank.parse().ok().filter(|_| self.scenario.own_ranks);
                let role = if role == "worker" { Role::Worker } else { Role::Server };
                let birth = NodeStart { rank, incarnation, address, scheduler: SCHEDULER };
                Machine::Node(AnyNode::new(role, limits, &birth, now))
            }
        };
        let program = Program::default();
        let process = Process { machine, program, asleep_until: 0, wake: Time::MAX };
        self.processes.insert(address.clone(), Box::new(process));
        self.tick(address);
    }

    fn frame(&mut self, from: Arc<str>, to: Arc<str>, bytes: Vec<u8>) {
        if *to == *ONLOOKER {
            return self.seen(&bytes);
        }
        if *to == *READER {
            return self.reader_hears(&from, &bytes);
        }
        let Some(process) = self.processes.get_mut(&to) else { return };
        if process.asleep_until > self.network.now {
            let at = process.asleep_until;
            return self.network.at(at, Happening::Frame { from, to, bytes });
        }
        let now = self.network.now;
        let message = match read_frame(&bytes) {
            Ok(message) => message,
            Err(bad) => {
                self.met.damaged += 1;
                if let Machine::Node(node) = &mut process.machine {
                    // A corrupted version number looks like another release.
                    if node.has_started() {
                        node.bad_frame(&from, bad, now);
                    }
                }
                return;
            }
        };
        if self.trace {
            println!("{now} {from} -> {to}: {:?}", message.head);
            let bundled =
                message.parts().iter().filter(|_| message.head.kind == MessageKind::Bundle);
            bundled.for_each(|part| println!("{now} {from} -> {to}: {:?}", part.head));
        }
        if let Some(reader) = self.reader.as_ref().filter(|_| *from == *READER) {
            if reader::receive(reader, &mut process.machine, message, now) {
                self.after(&to);
            }
            return;
        }
        self.met.unknown_fields += skipped(&message);
        let is_push = |part: &&Message<_>| part.head.kind == MessageKind::Push;
        let push = message.parts().iter().rfind(is_push);
        let again = push.filter(|_| self.random.per_mille(self.scenario.again)).cloned();
        self.met.bundles += u64::from(message.head.kind == MessageKind::Bundle);
        self.met.grants += u64::from(message.head.kind == MessageKind::Grant);
        match &mut process.machine {
            Machine::Scheduler(scheduler) => scheduler.receive(message, now),
            Machine::Node(node) => {
                node.receive(message, now);
                if let AnyNode::Server(node) = node {
                    again.into_iter().for_each(|copy| node.come_again(copy, now));
                }
            }
        }
        self.after(&to);
    }

    fn wake(&mut self, address: &Arc<str>) {
        let Some(process) = self.processes.get_mut(address) else { return };
        if process.asleep_until > self.network.now {
            let at = process.asleep_until;
            return self.network.at(at, Happening::Wake(address.clone()));
        }
        if process.wake <= self.network.now {
            self.tick(address);
        }
    }

    fn tick(&mut self, address: &Arc<str>) {
        let now = self.network.now;
        let Some(process) = self.processes.get_mut(address) else { return };
        process.wake = Time::MAX;
        match &mut process.machine {
            Machine::Scheduler(scheduler) => scheduler.tick(now),
            Machine::Node(node) => node.tick(now),
        }
        self.after(address);
    }

    /// Carries out the actions of a machine after an event, until it has none.
    pub(super) fn after(&mut self, address: &Arc<str>) {
        let now = self.network.now;
        let Some(mut process) = self.processes.remove(address) else { return };
        if let Machine::Node(node) = &mut process.machine {
            if node.has_started() && !self.troubled {
                self.troubled = true;
                // Often during the first lines of programs, at times after their end.
                let pause = self.random.below(3_000 * MS) >> (2 * self.random.below(3));
                self.network.at(now + pause, Happening::Trouble);
            }
            self.act(node, &mut process.program);
        }
        self.later.speak(address, &mut process.machine);
        self.check_drops(address, &mut process.machine);
        let (frames, wake, ended): (Vec<_>, _, _) = match &mut process.machine {
            Machine::Scheduler(s) => (s.send(now).collect(), s.wake_at(), s.end().is_some()),
            Machine::Node(node) => (node.send(now).collect(), node.wake_at(), node.end().is_some()),
        };
        for OutgoingFrame { to, message, .. } in frames {
            let frame = self.later.frame(address, write_frame(&message));
            self.network.send(address, &to, &frame, &self.scenario);
        }
        if ended {
            return self.farewell(address, &process);
        }
        let think = Some(process.program.think_until).filter(|until| *until > now);
        let own = think.into_iter().chain(process.program.haste.next()).min();
        let wake = wake.min(own.unwrap_or(Time::MAX)).max(now + 1);
        if wake < process.wake {
            process.wake = wake;
            self.network.at(wake, Happening::Wake(address.clone()));
        }
        self.processes.insert(address.clone(), process);
    }

    /// Checks that no machine takes a frame of a correct peer for a violation.
    fn check_drops(&mut self, address: &str, machine: &mut Machine) {
        let news = match machine {
            Machine::Scheduler(scheduler) => scheduler.news(),
            Machine::Node(node) => node.news(),
        };
        for news in news {
            if let PeerEvent::Dropped(peer, kind, why) = news {
                let is_fine = why.is_harmless() || self.scenario.reader;
                self.met.unknown_kinds += u64::from(why == DropReason::UnknownKind);
                assert!(is_fine, "{address} drops a {kind:?} of {peer} {}", why.text());
            }
        }
    }

    /// A process has ended: checks that all its calls have, too.
    fn farewell(&mut self, address: &Arc<str>, process: &Process) {
        match &process.machine {
            Machine::Scheduler(scheduler) => {
                // A restarted scheduler may find that all members have left. One whose last members are a
                // lost server and a finished reader receives no frame.
                let alone = (self.restarted || self.scenario.reader) && self.processes.is_empty();
                let ended = scheduler.end();
                assert!(alone || ended == Some(&Ok(())), "the end of the scheduler: {ended:?}");
            }
            Machine::Node(node) => {
                assert!(process.program.open.is_empty(), "{address}: an operation never ended");
                match (node, node.end()) {
                    (AnyNode::Server(node), Some(Ok(()))) => {
                        self.met.duplicates += node.part.duplicates();
                        let calm = self.fails().is_none();
                        assert!(!calm || node.part.is_at_rest(), "{address} waits for something");
                    }
                    (_, Some(Err(failure))) => {
                        self.met.evictions += u64::from(failure.reason == Reason::Evicted);
                        let victim = self.victim == Some(node.me());
                        let alone = self.is_alone(failure);
                        self.deserted.extend(alone.then(|| address.clone()));
                        let never_met = self.never_met(failure);
                        assert!(victim || alone || never_met, "{address} was not hit: {failure}");
                    }
                    _ => {}
                }
            }
        }
    }

    fn act(&mut self, node: &mut AnyNode<Bytes>, program: &mut Program) {
        loop {
            let me = node.me();
            let busy = match node {
                AnyNode::Server(node) => self.serve(me.rank, &mut node.part),
                AnyNode::Worker(node) => {
                    let actions: Vec<_> = node.part.actions().collect();
                    let busy = !actions.is_empty();
                    for action in actions {
                        self.finish(action, &node.part, program, me);
                    }
                    busy | (node.has_started() && self.step(node, program, me))
                }
            };
            if !busy {
                return;
            }
        }
    }

    fn serve(&mut self, rank: u32, server: &mut server::Server<Bytes>) -> bool {
        let (held, most) = (server.held_bytes(), self.scenario.limits.hold_bytes);
        assert!(held <= most, "{held} bytes are held, {most} are allowed");
        self.met.most_held = self.met.most_held.max(held);
        let actions: Vec<_> = server.actions().collect();
        let busy = !actions.is_empty();
        for action in actions {
            self.model.act(rank, server, action);
        }
        busy
    }

    /// Runs one line of the program; false when it blocks.
    fn step(
        &mut self,
        node: &mut Node<Bytes, worker::Worker<Bytes>>,
        program: &mut Program,
        me: Peer,
    ) -> bool {
        let (now, scenario) = (self.network.now, &self.scenario);
        let worker = &mut node.part;
        program.lines.get_or_insert_with(|| program::write(scenario, me.rank));
        self.cancel(worker, program);
        let Some(lines) = &mut program.lines else { return false };
        if worker.has_ended() || program.think_until > now {
            return false;
        }
        if program.failed && !matches!(lines.front(), Some(Line::Close) | None) {
            lines.pop_front();
            return true;
        }
        let Some(line) = lines.front().cloned() else { return false };
        let waits = match line {
            Line::Wait => !program.open.is_empty(),
            Line::Settle => program.haste.is_busy(),
            _ => false,
        };
        if waits {
            return false;
        }
        lines.pop_front();
        self.request(&line, worker, program, me);
        true
    }

    fn request(
        &mut self,
        line: &Line,
        worker: &mut worker::Worker<Bytes>,
        program: &mut Program,
        me: Peer,
    ) {
        let now = self.network.now;
        let (line, deadline, cancel) = in_time(line, now);
        let hasty = cancel.is_some() || deadline < now + DEADLINE;
        let (mut size, mut barrier) = (0, 0);
        let exists = self.note_call(line, program, me);
        let generation = key_of(line).map_or(0, |key| worker.generation(key));
        if let Line::Think(time) = line {
            program.think_until = now + time;
        }
        let id = match line.clone() {
            Line::Wait | Line::Settle | Line::Hasty(..) | Line::Think(_) => return,
            Line::Init(key, spec, data) => {
                program.sizes.insert(key, data.len() / 4);
                program.pushed.insert(key, 0);
                worker.init(key, spec, data, now, deadline)
            }
            Line::Ask(key, elements) => {
                program.pushed.insert(key, 0);
                size = elements;
                worker.pull(key, 0, now, deadline)
            }
            Line::Probe(key) => {
                size = program.sizes[&key];
                worker.pull(key, 0, now, deadline)
            }
            Line::Push(key, data, priority) => {
                self.count(key, worker, program, me);
                worker.push(key, data, priority, now, deadline)
            }
            Line::Pushpull(key, data, priority) => {
                self.count(key, worker, program, me);
                size = program.sizes[&key];
                worker.pushpull(key, data, priority, now, deadline)
            }
            Line::Pull(key, priority) => {
                size = program.sizes[&key];
                worker.pull(key, priority, now, deadline)
            }
            Line::Remove(key) => worker.remove(key, now, deadline),
            Line::Set(fields) => {
                program.settings += 1;
                worker.set(fields, now, deadline)
            }
            Line::Barrier => {
                let again = std::mem::take(&mut program.haste.same_barrier);
                barrier = self.model.arrive(me.rank, again);
                worker.barrier(now, deadline)
            }
            Line::Done => {
                self.leave(program, me);
                worker.finish_pushing(now, deadline)
            }
            Line::Close => {
                self.leave(program, me);
                worker.close(now, deadline)
            }
        };
        let round = key_of(line).and_then(|key| program.pushed.get(&key)).copied();
        let round = round.unwrap_or(barrier);
        match id {
            Ok(id) => {
                let out = vec![None; usize::try_from(size).unwrap()];
                let open = Open { line: line.clone(), began: now, exists, generation, round, out };
                program.open.insert(id, open);
                if hasty {
                    program.haste.add(id, line.clone(), cancel);
                }
            }
            Err(failure) => self.check_failure(&failure, now, program, me),
        }
    }

    /// A worker leaves: rounds wait for it no longer.
    fn leave(&mut self, program: &mut Program, me: Peer) {
        self.model.gone.insert(me.rank);
        program.done = true;
    }

    /// Counts a push; sets its weight, its part of a tree, and its scale.
    fn count(
        &mut self,
        key: u64,
        worker: &mut worker::Worker<Bytes>,
        program: &mut Program,
        me: Peer,
    ) {
        let count = program.pushed.entry(key).or_default();
        *count += 1;
        self.model.begin_push(key, me.rank, *count, program.settings);
        worker.weigh(weight_of(key, me.rank, *count));
        worker.set_part(part_of(key, me.rank, *count));
        worker.scale(scale_of(key, me.rank, *count));
    }

    fn finish(
        &mut self,
        action: worker::WorkerAction<Bytes>,
        worker: &worker::Worker<Bytes>,
        program: &mut Program,
        me: Peer,
    ) {
        let (op, result) = match action {
            worker::WorkerAction::Told { .. } => return,
            worker::WorkerAction::Fill { op, at, data, .. } => {
                let open = program.open.get_mut(&op).expect("a value for an open operation");
                let at = usize::try_from(at / 4).unwrap();
                // A probed key may be in another generation, of another size. A key that is queried after a
                // failed removal may be, too.
                let other_life = match open.line {
                    Line::Probe(_) => true,
                    Line::Ask(..) => program.failed,
                    _ => false,
                };
                let out = open.out.get_mut(at..);
                assert!(out.is_some() || other_life, "outside of the out");
                for (place, value) in out.into_iter().flatten().zip(data.values()) {
                    // A worker that is done looks up a moved key again, and queries all slices again.
                    assert!(place.replace(value).is_none() || program.done, "a slice came twice");
                }
                return;
            }
            worker::WorkerAction::Finished { op, result, .. } => (op, result),
        };
        let open = program.open.remove(&op).expect("an operation ends once");
        assert!(self.network.now <= open.began + DEADLINE, "an operation ends by its deadline");
        if self.ends_in_haste(op, &result, program) {
            return;
        }
        if let Err(failure) = result {
            if self.may_be_missing(&open.line, open.exists, &failure, program) {
                return;
            }
            return self.check_failure(&failure, open.began, program, me);
        }
        self.note_success(&open.line, program);
        if matches!(open.line, Line::Barrier) {
            self.model.pass(me.rank, open.round);
        }
        let Some(key) = key_of(&open.line) else { return };
        let generation = worker.generation(key);
        if matches!(open.line, Line::Probe(_)) && generation != open.generation {
            // The removal took effect, and other workers are in the next generation.
            return self.check_gone(key, program);
        }
        if matches!(open.line, Line::Ask(..)) && program.failed {
            return;
        }
        if matches!(open.line, Line::Push(..) | Line::Pushpull(..)) {
            self.model.pushed(key, generation, me.rank, open.round);
        }
        if matches!(open.line, Line::Pull(..) | Line::Ask(..) | Line::Probe(_) | Line::Pushpull(..))
        {
            let out: Option<Vec<f32>> = open.out.into_iter().collect();
            let out = out.expect("all slices have come");
            // A push that failed is in no value.
            let finished = || self.model.finished(key, generation, me.rank);
            let round = if program.failed { finished() } else { open.round };
            let exact = !program.done && !program.failed;
            self.model.pulled(key, generation, (me.rank, round), exact, &out);
        }
    }

    /// The lost peer, if its loss may fail operations.
    fn fails(&self) -> Option<Peer> {
        let all = self.scenario.trouble == Trouble::ServerDies
            || self.scenario.limits.on_loss == OnLoss::Fail;
        self.victim.filter(|_| all)
    }

    fn check_failure(&mut self, failure: &Failure, began: Time, program: &mut Program, me: Peer) {
        program.failed = true;
        self.met.failures += 1;
        if self.victim == Some(me) {
            let known = match failure.reason {
                Reason::Evicted | Reason::PeerLost | Reason::Closed => true,
                // The first contact.
                Reason::Timeout => failure.to_string().contains("was not reached"),
                _ => false,
            };
            assert!(known, "{me} was hit and learns: {failure}");
            return;
        }
        let Some(victim) = self.fails() else {
            panic!("{me}: nothing may fail here: {failure}");
        };
        let text = failure.to_string();
        let mut limit = self.struck.max(began) + self.time_for_news();
        if self.never_met(failure) {
            limit += self.scenario.limits.start_timeout;
        } else {
            assert_eq!(failure.reason, Reason::PeerLost, "{failure}");
        }
        assert!(text.contains(&victim.to_string()), "{failure}");
        assert!(text.contains(" at "), "the address is missing: {failure}");
        assert!(self.network.now <= limit, "{} us too late: {failure}", self.network.now - limit);
    }

    /// Whether a process had no contact with the target before the trouble.
    fn never_met(&self, failure: &Failure) -> bool {
        let is_first = failure.reason == Reason::Timeout;
        let text = failure.to_string();
        let names = self.victim.is_some_and(|victim| text.contains(&victim.to_string()));
        is_first && text.contains("was not reached") && names
    }

    /// Maximum time until all processes know of a death; some frames about it may be lost.
    fn time_for_news(&self) -> Time {
        let quarter = self.scenario.limits.peer_timeout / 4;
        let lossy = self.scenario.loss + self.scenario.damage > 0;
        quarter * if lossy { 6 } else { 5 } + self.first_contact
    }

    /// Whether a server may have been left without peers: it has lost its last worker while the scheduler was
    /// restarting. A reader sends no frame after the workers have ended.
    fn is_alone(&self, failure: &Failure) -> bool {
        let works = self.processes.keys().any(|address| address.starts_with("worker"));
        let away = self.restarted || self.scenario.reader;
        failure.reason == Reason::Evicted && away && !works
    }

    fn check_end(&self) {
        assert!(!self.scenario.reader || self.met.attacks >= reader::LEAST);
        assert!(self.processes.is_empty(), "never ended: {}", self.who_is_left());
        if self.fails().is_none() && self.deserted.is_empty() {
            self.model.check_end();
        }
    }

    fn who_is_left(&self) -> String {
        let names: BTreeSet<_> = self.processes.keys().map(ToString::to_string).collect();
        let open = self.processes.values().flat_map(|process| {
            process.program.open.values().map(|open| format!("{:?}", key_of(&open.line)))
        });
        format!("{names:?}, open on keys {:?}", open.collect::<Vec<_>>())
    }
}

fn key_of(line: &Line) -> Option<u64> {
    match line {
        Line::Init(key, ..)
        | Line::Push(key, ..)
        | Line::Pushpull(key, ..)
        | Line::Pull(key, ..)
        | Line::Ask(key, _)
        | Line::Probe(key)
        | Line::Remove(key) => Some(*key),
        Line::Hasty(line, ..) => key_of(line),
        _ => None,
    }
}

/// Call of a line, its deadline, and the time of its cancellation.
fn in_time(line: &Line, now: Time) -> (&Line, Time, Option<Time>) {
    match line {
        Line::Hasty(line, time, true) => (&**line, now + DEADLINE, Some(now + time)),
        Line::Hasty(line, time, false) => (&**line, now + time, None),
        line => (line, now + DEADLINE, None),
    }
}
