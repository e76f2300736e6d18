//! Single stories on a perfect network: refusals, texts of errors, deadlines, credit.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::program::F32;
use super::random::Random;
use super::{Bytes, limits};
use crate::cluster::common::{Failure, Limits, MS, OnLoss, Peer, Reason, Role, Time};
use crate::cluster::facts::Facts;
use crate::cluster::members::Scheduler;
use crate::cluster::net::Frame;
use crate::cluster::node::{Birth, Node, Part};
use crate::cluster::wire::{BadFrame, Body, Header, Kind, Message, Spec, failed};
use crate::cluster::worker::{OpId, Worker};
use crate::cluster::{server, worker};

type Results = BTreeMap<OpId, Result<(), Failure>>;

/// A job whose frames arrive at once; values are not calculated, only counted.
struct Job {
    now: Time,
    scheduler: Scheduler<Bytes>,
    nodes: BTreeMap<Arc<str>, Node<Bytes>>,
    results: BTreeMap<Arc<str>, Results>,
    closed: u64,
    most_held: u64,
}

impl Job {
    fn new(limits: &Limits) -> Self {
        Self {
            now: 1,
            scheduler: Scheduler::new(limits.clone(), 1, 1),
            nodes: BTreeMap::new(),
            results: BTreeMap::new(),
            closed: 0,
            most_held: 0,
        }
    }

    /// A job that has started.
    fn started(limits: &Limits) -> Self {
        let mut job = Self::new(limits);
        (0..limits.workers).for_each(|rank| job.join(limits, Role::Worker, rank));
        (0..limits.servers).for_each(|rank| job.join(limits, Role::Server, rank));
        assert!(job.nodes.values().all(Node::has_started));
        job
    }

    fn join(&mut self, limits: &Limits, role: Role, rank: u32) {
        let address = format!("{role:?}-{rank}").to_lowercase();
        self.join_at(&address, limits, role, rank);
    }

    fn join_at(&mut self, address: &str, limits: &Limits, role: Role, rank: u32) {
        let incarnation = self.now + 1 + self.nodes.len() as u64;
        let birth = Birth { role, rank: Some(rank), incarnation, address, scheduler: "scheduler" };
        let mut node = Node::new(limits.clone(), &birth, self.now);
        node.tick(self.now);
        self.nodes.insert(address.into(), node);
        self.settle();
    }

    fn worker(&mut self, rank: u32) -> &mut Worker<Bytes> {
        match &mut self.nodes.get_mut(&*format!("worker-{rank}")).unwrap().part {
            Part::Worker(worker) => worker,
            Part::Server(_) => panic!("a server"),
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
        self.result(rank, op).expect("it has ended").as_ref().unwrap_err().text.clone()
    }

    fn init(&mut self, rank: u32, key: u64, elements: u64) -> OpId {
        let (now, spec) = (self.now, Spec { dtype: F32, shape: vec![elements], whole: false });
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

    /// Lets time pass, and wakes everybody who wants to be woken.
    fn pass(&mut self, time: Time) {
        let end = self.now + time;
        loop {
            let nodes = self.nodes.values().map(Node::wake_at);
            let next = nodes.chain([self.scheduler.wake_at()]).min().unwrap();
            self.now = next.max(self.now + 1).min(end);
            self.scheduler.tick(self.now);
            self.nodes.values_mut().for_each(|node| node.tick(self.now));
            self.settle();
            if self.now == end {
                return;
            }
        }
    }

    /// Carries frames until there are none.
    fn settle(&mut self) {
        loop {
            let now = self.now;
            let mut frames = self.scheduler.send(now);
            for (address, node) in &mut self.nodes {
                match &mut node.part {
                    Part::Worker(worker) => {
                        note(worker, self.results.entry(address.clone()).or_default());
                    }
                    Part::Server(server) => {
                        self.most_held = self.most_held.max(server.held_bytes());
                        self.closed += serve(server);
                    }
                }
                frames.extend(node.send(now));
            }
            if frames.is_empty() {
                return;
            }
            for Frame { to, message, .. } in frames {
                match self.nodes.get_mut(&to) {
                    Some(node) => node.receive(message, now),
                    None if &*to == "scheduler" => self.scheduler.receive(message, now),
                    None => {}
                }
            }
        }
    }
}

fn note(worker: &mut Worker<Bytes>, results: &mut Results) {
    for action in worker.actions() {
        if let worker::Action::Finished { op, result, .. } = action {
            assert!(results.insert(op, result).is_none(), "an operation ends once");
        }
    }
}

/// The rounds that closed.
fn serve(server: &mut server::Server<Bytes>) -> u64 {
    let mut closed = 0;
    for action in server.actions() {
        match action {
            server::Action::Close { .. } => closed += 1,
            server::Action::Answer(answer) => server.value(&answer, Bytes::of(&[0.0; 4])),
            _ => {}
        }
    }
    closed
}

#[test]
fn a_process_that_expects_another_job_is_refused_at_once() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&Limits { workers: 3, ..limits.clone() }, Role::Worker, 0);
    let failure = job.end_of("worker-0");
    assert_eq!(failure.reason, Reason::Refused);
    assert_eq!(
        failure.text,
        "worker 0 at worker-0 expects 3 workers and 1 servers; the job has 2 and 1: start all \
         processes with the same num_workers and num_servers"
    );
    job.join(&limits, Role::Worker, 5);
    assert!(job.end_of("worker-5").text.contains("room for 2"));
}

#[test]
fn a_second_process_of_one_rank_is_refused_and_the_first_stays() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 1);
    job.join_at("elsewhere", &limits, Role::Worker, 1);
    let text = &job.end_of("elsewhere").text;
    assert_eq!(
        text,
        "there is a worker 1 already, at worker-1; give every process a rank of its own"
    );
    assert!(job.nodes["worker-1"].end().is_none());
}

#[test]
fn another_version_of_the_protocol_is_refused_on_both_sides() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.scheduler.bad_frame("tcp/old:1", BadFrame::Version(7));
    let frames = job.scheduler.send(job.now);
    assert_eq!((&*frames[0].to, frames[0].message.head.kind), ("tcp/old:1", Kind::Refused));
    let birth = Birth {
        role: Role::Worker,
        rank: None,
        incarnation: 1,
        address: "new",
        scheduler: "scheduler",
    };
    let mut node = Node::<Bytes>::new(limits, &birth, 0);
    node.bad_frame("somebody", BadFrame::Version(7), 1);
    assert!(node.end().is_none(), "only the scheduler decides about the job");
    node.bad_frame("scheduler", BadFrame::Version(7), 1);
    let failure = node.end().unwrap().as_ref().unwrap_err();
    assert!(failure.text.contains("speaks version 7"), "{}", failure.text);
}

#[test]
fn a_flood_of_strangers_is_refused_little_by_little_and_members_get_in() {
    let limits = limits();
    let mut job = Job::new(&limits);
    let flood = |job: &mut Job| {
        let strangers = (0..10_000).map(|number| format!("stranger-{number}"));
        strangers.for_each(|name| job.scheduler.bad_frame(&name, BadFrame::Version(7)));
        job.scheduler.send(job.now).len()
    };
    assert!((100..300).contains(&flood(&mut job)));
    assert_eq!(flood(&mut job), 0);
    (0..limits.workers).for_each(|rank| job.join(&limits, Role::Worker, rank));
    (0..limits.servers).for_each(|rank| job.join(&limits, Role::Server, rank));
    assert!(job.nodes.values().all(Node::has_started));
    // Who asks again is answered when some time has passed.
    job.join(&limits, Role::Worker, 5);
    assert!(job.nodes["worker-5"].end().is_none());
    job.pass(2_000 * MS);
    assert!(job.end_of("worker-5").text.contains("room for 2"));
    assert!((100..300).contains(&flood(&mut job)));
}

#[test]
fn who_does_not_come_is_named_when_the_time_to_start_is_over() {
    let limits = Limits { workers: 3, ..limits() };
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 1);
    job.join(&limits, Role::Server, 0);
    job.pass(limits.start_timeout - 2);
    assert!(job.nodes.values().all(|node| node.end().is_none()));
    job.pass(1_000 * MS);
    let end = job.scheduler.end().unwrap().as_ref().unwrap_err();
    assert_eq!(end.text, "the job did not start within 60000 ms: worker 0, worker 2 did not come");
    for address in ["worker-1", "server-0"] {
        assert!(job.end_of(address).text.contains("worker 0, worker 2 did not come"));
    }
}

#[test]
fn a_scheduler_that_does_not_answer_is_named() {
    let limits = limits();
    let birth = Birth {
        role: Role::Server,
        rank: Some(0),
        incarnation: 1,
        address: "here",
        scheduler: "tcp/nobody:9",
    };
    let mut node = Node::<Bytes>::new(limits.clone(), &birth, 0);
    let mut hellos = 0;
    while node.end().is_none() {
        let now = node.wake_at();
        assert!(now <= limits.start_timeout);
        node.tick(now);
        hellos += node.send(now).len();
    }
    assert!(hellos > 50, "it goes on asking");
    let text = &node.end().unwrap().as_ref().unwrap_err().text;
    assert!(text.contains("the scheduler at tcp/nobody:9 does not answer"), "{text}");
}

#[test]
fn a_pull_overtakes_pushes_unless_values_are_to_wait() {
    for one_way_at_a_time in [false, true] {
        let limits = Limits { workers: 1, one_way_at_a_time, ..limits() };
        let mut job = Job::started(&limits);
        job.init_all(1, 7, 8);
        let (now, end) = (job.now, job.now + 10_000 * MS);
        let push = job.worker(0).push(7, Bytes::of(&[1.0; 8]), 0, now, end).unwrap();
        let pulls = [0, 1].map(|priority| job.worker(0).pull(7, priority, now, end).unwrap());
        let frames = job.nodes.get_mut("worker-0").unwrap().send(now);
        let sent = frames.iter().flat_map(|frame| frame.message.parts());
        let sent: Vec<_> = sent.map(|message| (message.head.kind, message.head.request)).collect();
        // Two slices of each.
        let pushed = [(Kind::Push, push); 2];
        let [pulled, urgent] = pulls.map(|op| [(Kind::Pull, op); 2]);
        let expected =
            if one_way_at_a_time { [urgent, pushed, pulled] } else { [pulled, urgent, pushed] };
        assert_eq!(sent, expected.concat());
    }
}

#[test]
fn whom_a_call_waits_for_is_asked_behind_its_values() {
    let limits = Limits { workers: 1, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(1, 7, 8);
    let now = job.now;
    job.worker(0).pushpull(7, Bytes::of(&[1.0; 8]), 0, now, now + 10_000 * MS).unwrap();
    // As often as somebody looks at the job.
    job.worker(0).report(&mut Facts::default());
    let frames = job.nodes.get_mut("worker-0").unwrap().send(now);
    let sent = frames.iter().flat_map(|frame| frame.message.parts());
    let sent: Vec<_> = sent.map(|message| message.head.kind).collect();
    // Two slices.
    assert_eq!(sent, [Kind::Push, Kind::Push, Kind::Ask]);
}

#[test]
fn a_lost_connection_is_news_at_once() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    let pull = {
        job.push(0, 7, 8).unwrap();
        job.pull(0, 7)
    };
    assert_eq!(job.result(0, pull), None);
    let barrier = {
        let now = job.now;
        job.worker(0).barrier(now, now + 10_000 * MS).unwrap()
    };
    job.nodes.remove("worker-1");
    // The engines of several processes may notice.
    let now = job.now;
    job.nodes.get_mut("server-0").unwrap().down("worker-1", now);
    job.scheduler.down("worker-1");
    let text = job.text(0, pull);
    assert_eq!(text, "pull: key 7, round 1: the round cannot close: worker 1 at worker-1 is lost");
    assert_eq!(job.text(0, barrier), "barrier 1: worker 1 at worker-1 is lost");
    let refused = job.push(0, 7, 8).unwrap_err();
    assert_eq!(refused.text, "push: key 7: worker 1 at worker-1 is lost");
}

#[test]
fn a_loss_that_a_server_knows_of_counts_before_the_scheduler_says_so() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    job.push(0, 7, 8).unwrap();
    let pull = job.pull(0, 7);
    let failure = Failure::new(Reason::PeerLost, "worker 1 at worker-1 is lost");
    let mut message = Message::of_key(Kind::Failed, 7, 1, failed::encode(&failure));
    message.head.request = pull;
    job.worker(0).message(Peer::server(0), message);
    let refused = job.push(0, 7, 8).unwrap_err();
    assert_eq!(refused.text, "push: key 7: worker 1 at worker-1 is lost");
}

#[test]
fn a_value_of_a_life_that_is_over_is_nobodys() {
    let mut job = Job::started(&limits());
    job.init_all(2, 7, 4);
    let (now, end) = (job.now, job.now + 10_000 * MS);
    job.worker(1).finish_pushing(now, end).unwrap();
    job.settle();
    let pull = job.worker(1).pull(7, 0, now, end).unwrap();
    let place = job.worker(1).place_of(7).unwrap().encode();
    // As if the others had moved the key: what was asked for before still comes.
    let failure = Failure::new(Reason::KeyNotFound, "the server does not have slice 0");
    let gone = Message::of_key(Kind::Failed, 7, 1, failed::encode(&failure));
    let mut late = Message::of_key(Kind::Value, 7, 1, Vec::new());
    late.body = Body::Data(Bytes::of(&[3.0; 4]));
    for mut message in [gone, Message::of_key(Kind::Place, 7, 2, place), late] {
        message.head.request = pull;
        job.worker(1).message(Peer::server(0), message);
    }
    // Nobody has told the server of another life, so that it does not know it.
    assert_eq!(job.text(1, pull), "pull: key 7: the server does not have slice 0");
}

#[test]
fn the_job_goes_on_without_a_lost_worker_when_it_shall() {
    let limits = Limits { on_loss: OnLoss::Continue, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    job.push(0, 7, 8).unwrap();
    let pull = job.pull(0, 7);
    job.nodes.remove("worker-1");
    job.pass(limits.peer_timeout);
    assert_eq!(job.result(0, pull), Some(&Ok(())));
}

#[test]
fn what_is_overdue_names_whom_it_waits_for() {
    let limits = Limits { workers: 3, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(3, 7, 8);
    job.push(0, 7, 8).unwrap();
    let pull = job.pull(0, 7);
    let now = job.now;
    let barrier = job.worker(0).barrier(now, now + 10_000 * MS).unwrap();
    let init = job.init(2, 8, 4);
    job.pass(10_001 * MS);
    assert_eq!(
        job.text(0, pull),
        "pull: key 7, round 1: not done within 10000 ms, waiting for worker 1, worker 2"
    );
    assert_eq!(
        job.text(0, barrier),
        "barrier 1: not done within 10000 ms, waiting for worker 1, worker 2"
    );
    assert_eq!(job.text(2, init), "init: key 8: not done within 10000 ms, waiting for worker 0");
}

#[test]
fn what_can_never_succeed_is_refused() {
    let limits = limits();
    let mut job = Job::started(&limits);
    let mine = job.init(0, 7, 8);
    let other = job.init(1, 7, 9);
    assert_eq!(job.result(0, mine), Some(&Ok(())));
    assert_eq!(
        job.text(1, other),
        "init: key 7: float32[9] on worker 1, the key is float32[8]; use one shape and dtype on all \
         ranks"
    );
    let again = job.init(0, 7, 8);
    assert_eq!(job.text(0, again), "init: key 7 exists already");
    let unknown = job.pull(0, 99);
    assert_eq!(job.text(0, unknown), "pull: key 99: no worker has initialised the key");
    let short = job.push(0, 7, 5).unwrap();
    assert_eq!(job.text(0, short), "push: key 7: the value has 20 bytes, the key has 32");
    let now = job.now;
    job.worker(0).finish_pushing(now, now + MS).unwrap();
    let refused = job.push(0, 7, 8).unwrap_err();
    assert_eq!(refused.text, "push: key 7: this worker is done; it may only pull and close");
    job.worker(0).close(now, now + MS).unwrap();
    assert_eq!(job.worker(0).barrier(now, now + MS).unwrap_err().reason, Reason::Closed);
}

/// Two workers push two large keys in opposite order, one of them a round ahead: credit that can
/// only come in turn must come.
#[test]
fn pushes_in_opposite_order_with_hardly_any_credit_go_through() {
    let limits = Limits { hold_bytes: 64, max_rounds_ahead: 2, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 0, 400);
    job.init_all(2, 1, 400);
    let mut pushes = Vec::new();
    for (rank, key) in [(0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (1, 1), (1, 0), (1, 0)] {
        pushes.push((rank, job.push(rank, key, 400).unwrap()));
    }
    for (rank, push) in pushes {
        assert_eq!(job.result(rank, push), Some(&Ok(())));
    }
    assert_eq!(job.closed, 2 * 2 * 100);
    assert!(job.most_held > 0 && job.most_held <= limits.hold_bytes, "{}", job.most_held);
}

#[test]
fn a_push_too_far_ahead_waits_for_the_round_before_it() {
    let limits = Limits { max_rounds_ahead: 1, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 4);
    let first = job.push(0, 7, 4).unwrap();
    let second = job.push(0, 7, 4).unwrap();
    assert_eq!(job.result(0, first), Some(&Ok(())));
    assert_eq!(job.result(0, second), None);
    job.push(1, 7, 4).unwrap();
    assert_eq!(job.result(0, second), Some(&Ok(())));
}

/// Whoever speaks for a linked peer may say anything: nothing panics, and nobody else is hurt.
#[test]
fn messages_of_any_content_are_survived() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let limits = limits();
        let mut job = Job::started(&limits);
        job.init_all(2, 0, 12);
        job.push(0, 0, 12).unwrap();
        let (to, from) = match random.below(3) {
            0 => ("server-0", Peer::worker(1)),
            1 => ("worker-0", Peer::server(0)),
            _ => ("scheduler", Peer::worker(1)),
        };
        let address = format!("{from}").replace(' ', "-");
        let mut hostile = job.nodes.remove(&*address).unwrap();
        for sequence in 1..40 {
            let message = any_message(&mut random, sequence);
            // The stream is the real one: only what is in it is not.
            hostile.say(if to == "scheduler" { Peer::SCHEDULER } else { peer_of(to) }, message);
            for Frame { to: receiver, message, .. } in hostile.send(job.now) {
                match job.nodes.get_mut(&receiver) {
                    Some(node) => node.receive(message, job.now),
                    None if &*receiver == "scheduler" => job.scheduler.receive(message, job.now),
                    None => {}
                }
            }
            job.settle();
        }
        job.pass(limits.peer_timeout * 2);
    }
}

fn peer_of(address: &str) -> Peer {
    match address {
        "server-0" => Peer::server(0),
        _ => Peer::worker(0),
    }
}

fn any_message(random: &mut Random, request: u64) -> Message<Bytes> {
    let kind = Kind::ALL[usize::try_from(random.below(Kind::ALL.len() as u64)).unwrap()];
    if kind == Kind::Bundle {
        return Message::bundle(
            (0..random.below(4)).map(|_| any_message(random, request)).collect(),
        );
    }
    let small = |random: &mut Random| match random.below(8) {
        0 => u64::MAX,
        _ => random.below(4),
    };
    let head = Header {
        kind,
        key: small(random),
        generation: u32::try_from(random.below(3)).unwrap(),
        slice: u32::try_from(small(random) & 0xffff_ffff).unwrap(),
        round: small(random),
        offset: small(random),
        total: small(random),
        request: if random.below(2) == 0 { request } else { small(random) },
        setting: random.below(3),
        flags: u16::try_from(random.below(8)).unwrap(),
        ..Header::default()
    };
    let bytes: Vec<u8> =
        (0..random.below(40)).map(|_| u8::try_from(random.below(4)).unwrap()).collect();
    let body =
        if kind.carries_data() { Body::Data(Bytes::new(&bytes)) } else { Body::Fields(bytes) };
    Message { head, body }
}
