//! Exchanges of several workers in one thread, over a network that loses, duplicates, delays and reorders frames.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use std::collections::BTreeMap;

use super::{ExchangeAction, ExchangeId, ExchangePlan, ExchangeTerms, Exchanges};
use crate::job::{Data as _, Failure, Limits, MS, Reason, Time};
use crate::machine::Machine as _;
use crate::message::Message;
use crate::sim::{Bytes, limits};
use crate::testing::Random;

const DEADLINE: Time = 60_000 * MS;

/// What the workers do together; lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Each reduces a part, and sends the result to all.
    AllReduce(u64),
    /// All send everything to all, and each reduces it.
    AtOnce(u64),
    /// The root sends something to all others.
    Broadcast { root: u32, len: u64 },
    /// Worker r sends a segment to s, of a length that depends on both.
    AllToAll(u64),
}

/// A group of ranks as a number: a bit for each; 0 is all.
type Ranks = u64;

fn members(group: Ranks, workers: u32) -> Vec<u32> {
    (0..workers).filter(|rank| group == 0 || group >> rank & 1 == 1).collect()
}

struct Worker {
    machine: Exchanges<Bytes>,
    /// Calls of the groups that the worker is in.
    program: Vec<(Ranks, Call)>,
    /// The calls that have begun.
    calls: BTreeMap<ExchangeId, Call>,
    /// By exchange: what is received, by sender and step, and the own result.
    received: BTreeMap<(ExchangeId, u32, bool), Vec<u8>>,
    reduced: BTreeMap<ExchangeId, Vec<u8>>,
    results: Vec<Result<(), Failure>>,
    /// Exchanges under way, at most two.
    open: usize,
    dead: bool,
}

struct Cluster {
    workers: Vec<Worker>,
    now: Time,
    network: Vec<(Time, usize, Message<Bytes>)>,
    random: Random,
    loss: u64,
}

fn contribution(rank: u32, exchange: ExchangeId, to: u32, len: u64) -> Vec<u8> {
    let ExchangeId { group, number } = exchange;
    let seed = u64::from(rank) * 31 + number * 7 + u64::from(to) * 13 + group * 17;
    (0..len).map(|at| (seed + at * at) as u8).collect()
}

/// No order of ranks but the ascending one gives the same.
fn combine(all: &[Vec<u8>]) -> Vec<u8> {
    let at = |index: usize| {
        all.iter().fold(1u8, |sum, part| sum.wrapping_mul(31).wrapping_add(part[index]))
    };
    (0..all[0].len()).map(at).collect()
}

/// The part of an array that a rank reduces.
fn part(rank: u32, members: &[u32], len: u64) -> (u64, u64) {
    let each = len.div_ceil(members.len() as u64);
    let place = members.iter().position(|it| *it == rank).unwrap() as u64;
    let start = (each * place).min(len);
    (start, each.min(len - start))
}

fn segment_of(from: u32, to: u32, len: u64) -> u64 {
    (u64::from(from) * 5 + u64::from(to) * 3 + len) % (len + 1)
}

fn describe(terms: &ExchangeTerms) -> String {
    format!("call {} of {}", terms.what, terms.count)
}

fn plan(call: Call, me: u32, workers: u32, id: ExchangeId, deadline: Time) -> ExchangePlan<Bytes> {
    let ranks = || 0..workers;
    let members = members(id.group, workers);
    let data = |bytes: Vec<u8>| (!bytes.is_empty()).then(|| Bytes::new(&bytes));
    let mut plan = ExchangePlan {
        terms: ExchangeTerms { what: 0, root: 0, dtype: 1, count: 0 },
        deadline,
        sends: ranks().map(|_| None).collect(),
        is_lent: id.number.is_multiple_of(2),
        receives: ranks().map(|_| 0).collect(),
        reduces: 0,
        result_receivers: Vec::new(),
        results: ranks().map(|_| 0).collect(),
    };
    let others = || members.iter().copied().filter(|rank| *rank != me);
    match call {
        Call::AllReduce(len) => {
            (plan.terms.what, plan.terms.count) = (1, len);
            let whole = contribution(me, id, 0, len);
            let own = part(me, &members, len).1;
            plan.reduces = own;
            for rank in others() {
                let (start, bytes) = part(rank, &members, len);
                let piece = whole[start as usize..][..bytes as usize].to_vec();
                plan.sends[rank as usize] = data(piece);
                plan.receives[rank as usize] = own;
                plan.results[rank as usize] = bytes;
            }
            plan.result_receivers = if own > 0 { others().collect() } else { Vec::new() };
        }
        Call::AtOnce(len) => {
            (plan.terms.what, plan.terms.count) = (2, len);
            plan.reduces = len;
            for rank in others() {
                plan.sends[rank as usize] = data(contribution(me, id, 0, len));
                plan.receives[rank as usize] = len;
            }
        }
        Call::Broadcast { root, len } => {
            (plan.terms.what, plan.terms.root, plan.terms.count) = (3, root, len);
            if me == root {
                for rank in others() {
                    plan.sends[rank as usize] = data(contribution(me, id, 0, len));
                }
            } else {
                plan.receives[root as usize] = len;
            }
        }
        Call::AllToAll(len) => {
            plan.terms.what = 4;
            for rank in others() {
                plan.sends[rank as usize] =
                    data(contribution(me, id, rank, segment_of(me, rank, len)));
                plan.receives[rank as usize] = segment_of(rank, me, len);
            }
        }
    }
    plan
}

impl Worker {
    fn begin(&mut self, now: Time, workers: u32, deadline: Time) {
        let me = self.machine.rank();
        while self.open < 2 && self.results.len() + self.open < self.program.len() {
            let (group, call) = self.program[self.results.len() + self.open];
            let id = ExchangeId { group, number: self.machine.last_in(group) + 1 };
            self.calls.insert(id, call);
            assert_eq!(self.machine.begin(group, plan(call, me, workers, id, deadline), now), id);
            self.open += 1;
        }
    }

    fn carry_out(&mut self, workers: u32) {
        loop {
            let actions: Vec<_> = self.machine.actions().collect();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    ExchangeAction::Reduce { exchange, at, pieces } => {
                        self.reduce(exchange, at, &pieces, workers);
                    }
                    ExchangeAction::Fill { exchange, from, is_result, at, data } => {
                        let all = self.received.entry((exchange, from, is_result)).or_default();
                        all.resize(all.len().max(at as usize + data.len() as usize), 0);
                        all[at as usize..][..data.len() as usize].copy_from_slice(data.bytes());
                    }
                    ExchangeAction::Finished { result, .. } => {
                        self.results.push(result);
                        self.open -= 1;
                    }
                }
            }
        }
    }

    fn reduce(&mut self, id: ExchangeId, at: u64, pieces: &[(u32, Bytes)], workers: u32) {
        let me = self.machine.rank();
        let members = members(id.group, workers);
        let (own, start) = match self.calls[&id] {
            Call::AllReduce(len) => (contribution(me, id, 0, len), part(me, &members, len).0),
            Call::AtOnce(len) => (contribution(me, id, 0, len), 0),
            other => panic!("{other:?} reduces nothing"),
        };
        let len = pieces[0].1.len();
        let own = own[(start + at) as usize..][..len as usize].to_vec();
        let mut all: Vec<(u32, Vec<u8>)> =
            pieces.iter().map(|(rank, data)| (*rank, data.bytes().to_vec())).collect();
        assert!(all.is_sorted_by_key(|(rank, _)| *rank));
        let place = members.iter().position(|rank| *rank == me).unwrap();
        all.insert(place, (me, own));
        let result = combine(&all.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>());
        let reduced = self.reduced.entry(id).or_default();
        reduced.resize(reduced.len().max(at as usize + result.len()), 0);
        reduced[at as usize..][..result.len()].copy_from_slice(&result);
        self.machine.reduced(id, at, &Bytes::new(&result));
    }

    /// What the worker has of an exchange equals what it should have.
    fn check(&self, id: ExchangeId, workers: u32) {
        let me = self.machine.rank();
        let members = members(id.group, workers);
        let all = |len: u64| {
            let each: Vec<_> = members.iter().map(|rank| contribution(*rank, id, 0, len)).collect();
            combine(&each)
        };
        let got = |from: u32, is_result: bool| {
            self.received.get(&(id, from, is_result)).cloned().unwrap_or_default()
        };
        match self.calls[&id] {
            Call::AllReduce(len) => {
                let mut whole = Vec::new();
                for &rank in &members {
                    let own = || self.reduced.get(&id).cloned().unwrap_or_default();
                    whole.extend(if rank == me { own() } else { got(rank, true) });
                }
                assert_eq!(whole, all(len), "exchange {id:?} at {me}");
            }
            Call::AtOnce(len) => {
                assert_eq!(self.reduced.get(&id).cloned().unwrap_or_default(), all(len));
            }
            Call::Broadcast { root, len } if root != me => {
                assert_eq!(got(root, false), contribution(root, id, 0, len));
            }
            Call::Broadcast { .. } => {}
            Call::AllToAll(len) => {
                for rank in members.into_iter().filter(|rank| *rank != me) {
                    assert_eq!(
                        got(rank, false),
                        contribution(rank, id, me, segment_of(rank, me, len))
                    );
                }
            }
        }
    }
}

impl Cluster {
    /// The workers make the calls of their groups, in the order of their programs.
    fn of_groups(seed: u64, programs: Vec<Vec<(Ranks, Call)>>) -> Self {
        let workers = programs.len() as u32;
        let limits = Limits { workers, ..limits() };
        let of = |(rank, program)| {
            let machine = Exchanges::new(limits.clone(), rank, 7 + u64::from(rank), describe, 0);
            let (received, reduced) = Default::default();
            let program: Vec<(Ranks, Call)> = program;
            let calls = BTreeMap::new();
            let is_in = |call: &(Ranks, Call)| members(call.0, workers).contains(&rank);
            let program = program.into_iter().filter(is_in).collect();
            Worker {
                machine,
                program,
                calls,
                received,
                reduced,
                results: Vec::new(),
                open: 0,
                dead: false,
            }
        };
        let workers = (0..).zip(programs).map(of).collect();
        Self { workers, now: 0, network: Vec::new(), random: Random::new(seed), loss: 0 }
    }

    /// All workers make all calls.
    fn new(seed: u64, programs: Vec<Vec<Call>>) -> Self {
        let of_all = |program: Vec<Call>| program.into_iter().map(|call| (0, call)).collect();
        Self::of_groups(seed, programs.into_iter().map(of_all).collect())
    }

    fn connect(&mut self, rank: usize) {
        let names: Vec<String> = (0..self.workers.len()).map(|rank| format!("w{rank}")).collect();
        let all =
            (0u32..).zip(&names).map(|(rank, name)| (rank, 7 + u64::from(rank), name.as_str()));
        self.workers[rank].machine.connect(all, self.now);
    }

    /// Runs until all that live have ended their programs.
    fn run(&mut self, deadline: Time) {
        let count = self.workers.len() as u32;
        let starts: Vec<Time> = (0..count).map(|_| self.random.below(50) * MS).collect();
        let mut connected = vec![false; count as usize];
        for _ in 0..400_000 {
            self.now += 200;
            for at in 0..self.workers.len() {
                if !connected[at] && self.now >= starts[at] {
                    connected[at] = true;
                    self.connect(at);
                }
                if !self.workers[at].dead && connected[at] {
                    let now = self.now;
                    self.workers[at].begin(now, count, now + deadline);
                    self.step(at, count);
                }
            }
            self.deliver(count);
            let is_over =
                |worker: &Worker| worker.dead || worker.results.len() == worker.program.len();
            if self.workers.iter().all(is_over) {
                return;
            }
        }
        panic!("an exchange does not end");
    }

    /// A worker handles its timers and actions, and sends.
    fn step(&mut self, at: usize, count: u32) {
        let now = self.now;
        let worker = &mut self.workers[at];
        if worker.machine.wake_at() <= now {
            worker.machine.tick(now);
        }
        worker.carry_out(count);
        let frames: Vec<_> = worker.machine.send(now).collect();
        let _ = worker.machine.news();
        for frame in frames {
            self.transmit(&frame.to, &frame.message);
        }
    }

    /// Time passes, and workers go on with what they have begun.
    fn pass(&mut self, time: Time) {
        let (count, end) = (self.workers.len() as u32, self.now + time);
        while self.now < end {
            self.now += 200;
            (0..self.workers.len()).for_each(|at| self.step(at, count));
            self.deliver(count);
        }
    }

    fn transmit(&mut self, to: &str, message: &Message<Bytes>) {
        let to: usize = to[1..].parse().unwrap();
        let copies = match self.random.below(100) {
            chance if chance < self.loss => 0,
            chance if chance < self.loss * 3 / 2 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = 100 + self.random.below(3_000);
            self.network.push((self.now + delay, to, message.clone()));
        }
    }

    fn deliver(&mut self, workers: u32) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.network).into_iter().partition(|(at, ..)| *at <= now);
        self.network = later;
        for (_, to, message) in due {
            let worker = &mut self.workers[to];
            if !worker.dead {
                worker.machine.receive(message, now);
                worker.carry_out(workers);
            }
        }
    }

    /// The text of the only failure of a worker.
    fn failure(&self, rank: usize) -> (Reason, String) {
        let failures: Vec<_> =
            self.workers[rank].results.iter().filter_map(|it| it.clone().err()).collect();
        assert_eq!(failures.len(), 1, "{failures:?}");
        (failures[0].reason, failures[0].to_string())
    }
}

fn random_call(random: &mut Random, workers: u32) -> Call {
    let len = match random.below(4) {
        0 => random.below(3),
        1 => random.below(20),
        _ => random.below(200),
    };
    match random.below(4) {
        0 => Call::AllReduce(len),
        1 => Call::AtOnce(len),
        2 => Call::Broadcast { root: random.below(u64::from(workers)) as u32, len },
        _ => Call::AllToAll(len),
    }
}

#[test]
fn random_exchanges_give_what_all_have_contributed_in_the_order_of_ranks() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let workers = 2 + random.below(3) as u32;
        let program: Vec<Call> = (0..12).map(|_| random_call(&mut random, workers)).collect();
        let mut cluster = Cluster::new(seed, vec![program; workers as usize]);
        cluster.loss = random.below(20);
        cluster.run(DEADLINE);
        for worker in &cluster.workers {
            assert!(worker.results.iter().all(Result::is_ok), "seed {seed}: {:?}", worker.results);
            worker.calls.keys().for_each(|id| worker.check(*id, workers));
            assert_eq!(worker.machine.early.len(), 0, "seed {seed}");
            assert_eq!(
                worker.machine.ignored().iter().filter(|it| !it.reason.is_harmless()).count(),
                0
            );
        }
    }
}

#[test]
fn exchanges_of_groups_are_counted_for_each_group() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let workers = 3 + random.below(3) as u32;
        // Two workers at least.
        let mut pair = || 3 << random.below(u64::from(workers) - 1);
        let pairs = [pair(), pair(), pair()];
        let groups: Vec<Ranks> =
            pairs.into_iter().map(|pair| pair | random.below(1 << workers)).collect();
        let draw = |random: &mut Random| {
            let group = random.pick(&[0, groups[0], groups[1], groups[2]]);
            let call = match random_call(random, workers) {
                Call::Broadcast { len, .. } => {
                    let all = members(group, workers);
                    Call::Broadcast { root: random.pick(&all), len }
                }
                other => other,
            };
            (group, call)
        };
        let program: Vec<_> = (0..16).map(|_| draw(&mut random)).collect();
        let mut cluster = Cluster::of_groups(seed, vec![program; workers as usize]);
        cluster.loss = random.below(20);
        cluster.run(DEADLINE);
        for worker in &cluster.workers {
            assert!(worker.results.iter().all(Result::is_ok), "seed {seed}: {:?}", worker.results);
            worker.calls.keys().for_each(|id| worker.check(*id, workers));
            assert_eq!(worker.machine.early.len(), 0, "seed {seed}");
        }
    }
}

#[test]
fn a_call_that_differs_fails_for_all_and_names_both() {
    for (first, second) in [
        (Call::AllReduce(80), Call::AllReduce(88)),
        (Call::AllReduce(80), Call::AtOnce(80)),
        (Call::AtOnce(4), Call::Broadcast { root: 0, len: 4 }),
    ] {
        let after = Call::AllReduce(8);
        let mut cluster = Cluster::new(1, vec![vec![first, after], vec![second, after]]);
        cluster.run(DEADLINE);
        for rank in 0..2 {
            let (reason, text) = cluster.failure(rank);
            assert_eq!(reason, Reason::Differs, "{text}");
            assert!(text.contains("worker 0") && text.contains("worker 1"), "{text}");
            assert!(text.contains("call"), "{text}");
            // The next exchange is one of both again.
            cluster.workers[rank].check(ExchangeId { group: 0, number: 2 }, 2);
        }
    }
}

#[test]
fn a_worker_that_does_not_come_is_named_and_learns_that_it_is_too_late() {
    let program = vec![Call::AllReduce(80), Call::AtOnce(8)];
    let mut cluster = Cluster::new(3, vec![program.clone(), program.clone(), program]);
    // The third worker begins later than the others wait.
    cluster.workers[2].open = 2;
    let mut begun = false;
    let count = 3;
    for at in 0..3 {
        cluster.connect(at);
    }
    for _ in 0..20_000 {
        cluster.now += 200;
        let now = cluster.now;
        if now > 2_000 * MS && !begun {
            (begun, cluster.workers[2].open) = (true, 0);
        }
        for at in 0..3 {
            cluster.workers[at].begin(now, count, now + 1_000 * MS);
            cluster.step(at, count);
        }
        cluster.deliver(count);
    }
    for rank in 0..2 {
        let failure = cluster.workers[rank].results[0].clone().unwrap_err();
        assert_eq!(failure.reason, Reason::Timeout);
        assert_eq!(failure.to_string(), "not done within 1000 ms, waiting for worker 2");
    }
    let late = cluster.workers[2].results[0].clone().unwrap_err();
    assert!(late.to_string().contains("has given it up: not done within 1000 ms"), "{late}");
}

#[test]
fn a_worker_that_ends_fails_the_exchanges_that_need_it_and_later_ones_at_once() {
    let program =
        vec![Call::Broadcast { root: 0, len: 8 }, Call::AllReduce(80), Call::AllReduce(16)];
    let mut cluster = Cluster::new(5, vec![program; 3]);
    cluster.workers[2].dead = true;
    cluster.workers[0].machine.down("w2", 0);
    for at in 0..3 {
        cluster.connect(at);
    }
    for at in 0..2 {
        cluster.workers[at].machine.down("w2", 0);
    }
    cluster.run(DEADLINE);
    for rank in 0..2 {
        for result in &cluster.workers[rank].results[1..] {
            let failure = result.clone().unwrap_err();
            assert_eq!(failure.reason, Reason::PeerLost, "{failure}");
            assert!(failure.to_string().contains("worker 2 at w2 has ended"), "{failure}");
        }
    }
    assert!(cluster.now < 1_000 * MS, "they did not wait for a timeout: {}", cluster.now / MS);
}

#[test]
fn what_a_worker_has_sent_before_it_ended_counts_for_a_later_worker() {
    for (calls, text) in [
        ([Call::Broadcast { root: 0, len: 8 }; 2], None),
        ([Call::Broadcast { root: 0, len: 8 }, Call::AtOnce(8)], Some("worker 0")),
    ] {
        let mut cluster = Cluster::new(3, calls.map(|call| vec![call]).to_vec());
        (0..2).for_each(|at| cluster.connect(at));
        cluster.pass(100 * MS);
        let now = cluster.now;
        cluster.workers[0].begin(now, 2, now + DEADLINE);
        cluster.pass(100 * MS);
        cluster.workers[0].machine.leave();
        cluster.pass(100 * MS);
        let now = cluster.now;
        cluster.workers[1].begin(now, 2, now + DEADLINE);
        cluster.pass(100 * MS);
        match text {
            None => cluster.workers[1].check(ExchangeId { group: 0, number: 1 }, 2),
            Some(text) => {
                let (reason, failure) = cluster.failure(1);
                assert_eq!(reason, Reason::Differs, "{failure}");
                assert!(failure.contains(text), "{failure}");
            }
        }
        assert_eq!(
            cluster.workers[1].results.iter().filter(|it| it.is_ok()).count(),
            usize::from(text.is_none())
        );
    }
}

/// Worker 1 sends to worker 2, not to worker 0, and ends; worker 0 closes then.
#[test]
fn a_worker_that_closes_after_a_failure_says_which_one() {
    let mut cluster = Cluster::new(5, vec![vec![Call::AtOnce(8); 2]; 3]);
    (0..3).for_each(|at| cluster.connect(at));
    cluster.pass(100 * MS);
    let begin = |cluster: &mut Cluster, at: usize| {
        let now = cluster.now;
        let begun = cluster.workers[at].results.len() + 1;
        cluster.workers[at].program.truncate(begun);
        cluster.workers[at].begin(now, 3, now + DEADLINE);
    };
    begin(&mut cluster, 1);
    cluster.step(1, 3);
    cluster.network.retain(|(_, to, _)| *to == 2);
    begin(&mut cluster, 0);
    begin(&mut cluster, 2);
    cluster.workers[1].dead = true;
    cluster.pass(20 * MS);
    assert_eq!(cluster.workers[2].results, [Ok(())]);
    let now = cluster.now;
    cluster.workers[0].machine.down("w1", now);
    cluster.pass(20 * MS);
    cluster.workers[0].machine.leave();
    cluster.pass(20 * MS);
    cluster.workers[2].program.push((0, Call::AtOnce(8)));
    begin(&mut cluster, 2);
    cluster.pass(20 * MS);
    let (reason, text) = cluster.failure(2);
    assert_eq!(reason, Reason::PeerLost);
    assert_eq!(text, "worker 0 has closed its store after a failure: worker 1 at w1 has ended");
}

/// A worker of a group may be late: one that was never heard is given up once the driver says that it is gone.
#[test]
fn a_silent_worker_that_was_never_heard_is_waited_for_until_it_is_missed() {
    let mut cluster = Cluster::new(7, vec![vec![Call::AtOnce(8)]; 2]);
    cluster.workers[1].dead = true;
    cluster.connect(0);
    let limits = cluster.workers[0].machine.net.limits.clone();
    let patience = limits.start_timeout.max(limits.peer_timeout) * 2;
    let end = cluster.now + patience;
    cluster.workers[0].begin(cluster.now, 2, end + DEADLINE);
    while cluster.now < end {
        cluster.now += 50 * MS;
        cluster.step(0, 2);
        cluster.network.clear();
    }
    assert_eq!(cluster.workers[0].results, []);
    assert!(cluster.workers[0].machine.take_unheard().contains(&1));
    cluster.workers[0].machine.miss(1);
    cluster.workers[0].carry_out(2);
    let (reason, text) = cluster.failure(0);
    assert_eq!(reason, Reason::PeerLost);
    assert!(text.starts_with("worker 1 at w1 was not heard for"), "{text}");
}
