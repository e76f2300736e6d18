//! Groups of workers: keys, rounds, settings and barriers of their own, losses, and how they end.

use super::Job;
use crate::job::{Failure, Limits, MS, OnLoss, Reason};
use crate::message::{ExchangeAddress, GroupTerms, KeySpec};
use crate::node::GroupExit;
use crate::sim::program::F32;
use crate::sim::{Bytes, limits};
use crate::testing::{AnyNode, Random};
use crate::worker::{OpId, Worker};

const LIMIT: u64 = 10_000 * MS;
const EVENS: u64 = 77;
const TAIL: u64 = 78;

fn terms(name: &str, ranks: &[u32]) -> GroupTerms {
    GroupTerms { name: name.into(), ranks: ranks.to_vec() }
}

impl Job {
    fn begin(&mut self, rank: u32, group: u64, terms: GroupTerms) -> OpId {
        let now = self.now;
        let Some(AnyNode::Worker(node)) = self.nodes.get_mut(&*format!("worker-{rank}")) else {
            panic!("no worker {rank}");
        };
        assert!(node.begin_group(group, terms));
        self.ask(rank, group, |worker| worker.form(now, now + LIMIT)).unwrap()
    }

    fn ask<T>(&mut self, rank: u32, group: u64, ask: impl FnOnce(&mut Worker<Bytes>) -> T) -> T {
        let Some(AnyNode::Worker(node)) = self.nodes.get_mut(&*format!("worker-{rank}")) else {
            panic!("no worker {rank}");
        };
        let asked = ask(node.part_of(group).expect("an open group"));
        self.settle();
        asked
    }

    fn drop_group(&mut self, rank: u32, group: u64, how: GroupExit) {
        let Some(AnyNode::Worker(node)) = self.nodes.get_mut(&*format!("worker-{rank}")) else {
            panic!("no worker {rank}");
        };
        node.drop_group(group, how);
        self.settle();
    }

    fn of_group(&mut self, rank: u32, group: u64, op: OpId) -> Option<Result<(), Failure>> {
        self.settle();
        self.of_groups.get(&(format!("worker-{rank}").into(), group))?.get(&op).cloned()
    }

    pub(super) fn form_all(&mut self, group: u64, name: &str, ranks: &[u32]) {
        for rank in ranks {
            let op = self.begin(*rank, group, terms(name, ranks));
            assert_eq!(self.of_group(*rank, group, op), Some(Ok(())));
        }
    }

    fn init_in(&mut self, rank: u32, group: u64, key: u64) -> OpId {
        let (now, spec) = (self.now, KeySpec { dtype: F32, shape: vec![4], whole: false });
        self.ask(rank, group, |it| it.init(key, spec, Bytes::of(&[0.0; 4]), now, now + LIMIT))
            .unwrap()
    }

    fn push_in(&mut self, rank: u32, group: u64, key: u64) -> OpId {
        let now = self.now;
        self.ask(rank, group, |it| it.pushpull(key, Bytes::of(&[1.0; 4]), 0, now, now + LIMIT))
            .unwrap()
    }

    fn barrier_in(&mut self, rank: u32, group: u64) -> OpId {
        let now = self.now;
        self.ask(rank, group, |it| it.barrier(now, now + LIMIT)).unwrap()
    }

    fn resume_in(&mut self, rank: u32, group: u64) -> OpId {
        let now = self.now;
        self.ask(rank, group, |it| it.resume(now, now + LIMIT)).unwrap()
    }

    fn finish_in(&mut self, rank: u32, group: u64) {
        let now = self.now;
        let op = self.ask(rank, group, |it| it.finish_pushing(now, now + LIMIT)).unwrap();
        assert_eq!(self.of_group(rank, group, op), Some(Ok(())), "worker {rank}");
    }

    /// Number of groups that a server has.
    fn groups_at_server(&self, rank: u32) -> usize {
        match &self.nodes[&*format!("server-{rank}")] {
            AnyNode::Server(node) => node.open_groups().len(),
            AnyNode::Worker(_) => panic!("a worker"),
        }
    }
}

/// Three workers, two servers, and two groups that share worker 2.
fn two_groups(limits: &Limits) -> Job {
    let mut job = Job::started(&Limits { workers: 3, servers: 2, ..limits.clone() });
    job.form_all(EVENS, "evens", &[0, 2]);
    job.form_all(TAIL, "tail", &[1, 2]);
    for (group, ranks) in [(EVENS, [0, 2]), (TAIL, [1, 2])] {
        let ops = ranks.map(|rank| (rank, job.init_in(rank, group, 7)));
        for (rank, op) in ops {
            assert_eq!(job.of_group(rank, group, op), Some(Ok(())), "worker {rank}");
        }
    }
    job
}

#[test]
fn rounds_of_groups_wait_for_their_workers_and_for_no_others() {
    let mut job = two_groups(&limits());
    // The same key of the job is another one.
    job.init_all(3, 7, 4);
    for _ in 0..3 {
        let first = job.push_in(0, EVENS, 7);
        assert_eq!(job.of_group(0, EVENS, first), None);
        let last = job.push_in(2, EVENS, 7);
        assert_eq!(job.of_group(0, EVENS, first), Some(Ok(())));
        assert_eq!(job.of_group(2, EVENS, last), Some(Ok(())));
    }
    let first = job.push_in(2, TAIL, 7);
    assert_eq!(job.of_group(2, TAIL, first), None);
    job.pass(LIMIT + MS);
    let late = job.of_group(2, TAIL, first).unwrap().unwrap_err();
    assert!(late.to_string().contains("waiting for worker 1;"), "{late}");
}

/// Workers with other numbers of pushes and of barriers meet, done or not, and go on together; the other group and the
/// job take no part in it.
#[test]
fn a_group_resumes_by_itself_from_equal_counts() {
    let mut job = two_groups(&limits());
    for epoch in 0..3 {
        let both = [job.push_in(0, EVENS, 7), job.push_in(2, EVENS, 7)];
        assert_eq!(job.of_group(0, EVENS, both[0]), Some(Ok(())), "epoch {epoch}");
        // One worker has more pushes, whose rounds close without the other one.
        job.finish_in(0, EVENS);
        let alone = [job.push_in(2, EVENS, 7), job.push_in(2, EVENS, 7)];
        assert_eq!(job.of_group(2, EVENS, alone[1]), Some(Ok(())), "epoch {epoch}");
        let barrier = job.barrier_in(2, EVENS);
        assert_eq!(job.of_group(2, EVENS, barrier), Some(Ok(())), "none but worker 2 is not done");
        let first = job.resume_in(0, EVENS);
        assert_eq!(job.of_group(0, EVENS, first), None, "it waits for worker 2");
        let last = job.resume_in(2, EVENS);
        for (rank, op) in [(0, first), (2, last)] {
            assert_eq!(job.of_group(rank, EVENS, op), Some(Ok(())), "epoch {epoch}");
        }
        // Rounds and barriers wait for both again.
        let (early, barrier) = (job.push_in(2, EVENS, 7), job.barrier_in(2, EVENS));
        assert_eq!([job.of_group(2, EVENS, early), job.of_group(2, EVENS, barrier)], [None, None]);
        let (push, other) = (job.push_in(0, EVENS, 7), job.barrier_in(0, EVENS));
        for (rank, op) in [(2, early), (2, barrier), (0, push), (0, other)] {
            assert_eq!(job.of_group(rank, EVENS, op), Some(Ok(())), "epoch {epoch}, worker {rank}");
        }
    }
    let one = job.push_in(2, TAIL, 7);
    assert_eq!(job.of_group(2, TAIL, one), None, "the other group waits for worker 1");
}

/// Any members, pushes, ends of pushes and orders of resumes.
#[test]
fn groups_resume_after_any_epochs() {
    for seed in 0..crate::sim::tests::seeds(300) {
        let mut random = Random::new(seed);
        let mut job = Job::started(&Limits { workers: 4, servers: 2, ..limits() });
        let mut ranks = vec![0, 1, 2, 3];
        random.shuffle(&mut ranks);
        ranks.truncate(2 + random.index(3));
        ranks.sort_unstable();
        job.form_all(EVENS, "evens", &ranks);
        let mut ops: Vec<_> =
            ranks.iter().map(|rank| (*rank, job.init_in(*rank, EVENS, 7))).collect();
        for _ in 0..3 {
            let mut pushes = Vec::new();
            for rank in &ranks {
                pushes.extend((0..random.index(4)).map(|_| *rank));
            }
            random.shuffle(&mut pushes);
            ops.extend(pushes.into_iter().map(|rank| (rank, job.push_in(rank, EVENS, 7))));
            let mut order = ranks.clone();
            random.shuffle(&mut order);
            for (place, rank) in order.iter().enumerate() {
                if random.one_in(2) {
                    let now = job.now;
                    let end = |it: &mut Worker<Bytes>| it.finish_pushing(now, now + LIMIT);
                    ops.push((*rank, job.ask(*rank, EVENS, end).unwrap()));
                }
                let resume = job.resume_in(*rank, EVENS);
                let is_last = place + 1 == order.len();
                assert!(is_last || job.of_group(*rank, EVENS, resume).is_none(), "seed {seed}");
                ops.push((*rank, resume));
            }
            for (rank, op) in ops.drain(..) {
                assert_eq!(job.of_group(rank, EVENS, op), Some(Ok(())), "seed {seed}, {rank}");
            }
        }
        let barriers: Vec<_> = ranks.iter().map(|rank| job.barrier_in(*rank, EVENS)).collect();
        for (rank, op) in ranks.iter().zip(barriers) {
            assert_eq!(job.of_group(*rank, EVENS, op), Some(Ok(())), "seed {seed}, {rank}");
        }
    }
}

#[test]
fn the_resume_of_a_group_names_who_is_missing_and_is_joined() {
    let mut job = two_groups(&limits());
    let first = job.resume_in(2, EVENS);
    job.pass(LIMIT + MS);
    let late = job.of_group(2, EVENS, first).unwrap().unwrap_err();
    assert_eq!(late.to_string(), "resume 1: not done within 10000 ms, waiting for worker 0");
    let (again, last) = (job.resume_in(2, EVENS), job.resume_in(0, EVENS));
    assert_eq!(job.of_group(2, EVENS, again), Some(Ok(())));
    assert_eq!(job.of_group(0, EVENS, last), Some(Ok(())));
}

/// A worker that has left is done for good.
#[test]
fn a_group_resumes_without_workers_that_have_left_or_are_lost() {
    let limits = Limits { on_loss: OnLoss::Continue, ..limits() };
    for leaves in [true, false] {
        let mut job = two_groups(&limits);
        if !leaves {
            job.nodes.remove("worker-0");
            job.pass(60_000 * MS);
        }
        let first = job.resume_in(2, EVENS);
        if leaves {
            assert_eq!(job.of_group(2, EVENS, first), None);
            job.drop_group(0, EVENS, GroupExit::Dropped);
        }
        assert_eq!(job.of_group(2, EVENS, first), Some(Ok(())));
        let (push, barrier) = (job.push_in(2, EVENS, 7), job.barrier_in(2, EVENS));
        assert_eq!(job.of_group(2, EVENS, push), Some(Ok(())));
        assert_eq!(job.of_group(2, EVENS, barrier), Some(Ok(())));
    }
}

#[test]
fn barriers_of_groups_are_their_own_and_name_who_is_late() {
    let mut job = two_groups(&limits());
    let (one, two) = (job.barrier_in(2, EVENS), job.barrier_in(2, TAIL));
    assert_eq!((job.of_group(2, EVENS, one), job.of_group(2, TAIL, two)), (None, None));
    let other = job.barrier_in(1, TAIL);
    assert_eq!(job.of_group(2, TAIL, two), Some(Ok(())));
    assert_eq!(job.of_group(1, TAIL, other), Some(Ok(())));
    job.pass(LIMIT + MS);
    let late = job.of_group(2, EVENS, one).unwrap().unwrap_err();
    assert_eq!(late.to_string(), "barrier 1: not done within 10000 ms, waiting for worker 0");
    // The barrier that was given up is joined.
    let (again, last) = (job.barrier_in(2, EVENS), job.barrier_in(0, EVENS));
    assert_eq!(job.of_group(2, EVENS, again), Some(Ok(())));
    assert_eq!(job.of_group(0, EVENS, last), Some(Ok(())));
}

#[test]
fn settings_of_groups_are_agreed_on_by_their_workers() {
    let mut job = two_groups(&limits());
    let now = job.now;
    let set = |job: &mut Job, rank, group, value: u8| {
        job.ask(rank, group, |it| it.set(vec![value], now, now + LIMIT)).unwrap()
    };
    let (one, two) = (set(&mut job, 2, EVENS, 1), set(&mut job, 2, TAIL, 2));
    assert_eq!(job.of_group(2, EVENS, one), None);
    let (three, four) = (set(&mut job, 0, EVENS, 1), set(&mut job, 1, TAIL, 3));
    assert_eq!(job.of_group(2, EVENS, one), Some(Ok(())));
    assert_eq!(job.of_group(0, EVENS, three), Some(Ok(())));
    assert_eq!(job.of_group(1, TAIL, four), Some(Ok(())));
    let differs = job.of_group(2, TAIL, two).unwrap().unwrap_err();
    assert_eq!(differs.reason, Reason::Differs);
}

#[test]
fn a_lost_worker_ends_the_rounds_of_its_groups_only() {
    let mut job = two_groups(&Limits { on_loss: OnLoss::Fail, ..limits() });
    let waits = job.push_in(2, EVENS, 7);
    let barrier = job.barrier_in(2, EVENS);
    job.nodes.remove("worker-0");
    job.pass(60_000 * MS);
    let lost = job.of_group(2, EVENS, waits).unwrap().unwrap_err();
    assert_eq!(lost.reason, Reason::PeerLost);
    assert!(lost.to_string().contains("worker 0"), "{lost}");
    assert!(job.of_group(2, EVENS, barrier).unwrap().is_err());
    // The other group knows nothing of it.
    for _ in 0..2 {
        let (one, two) = (job.push_in(1, TAIL, 7), job.push_in(2, TAIL, 7));
        assert_eq!(job.of_group(1, TAIL, one), Some(Ok(())));
        assert_eq!(job.of_group(2, TAIL, two), Some(Ok(())));
    }
    let (one, two) = (job.barrier_in(1, TAIL), job.barrier_in(2, TAIL));
    assert_eq!(job.of_group(1, TAIL, one), Some(Ok(())));
    assert_eq!(job.of_group(2, TAIL, two), Some(Ok(())));
    let (one, two) = (job.init_in(1, TAIL, 8), job.init_in(2, TAIL, 8));
    assert_eq!(job.of_group(1, TAIL, one), Some(Ok(())));
    assert_eq!(job.of_group(2, TAIL, two), Some(Ok(())));
}

#[test]
fn a_group_that_another_worker_describes_otherwise_is_refused_with_both() {
    let mut job = Job::started(&Limits { workers: 3, servers: 2, ..limits() });
    let first = job.begin(0, EVENS, terms("evens", &[0, 2]));
    assert_eq!(job.of_group(0, EVENS, first), Some(Ok(())));
    let other = job.begin(2, EVENS, terms("evens", &[1, 2]));
    let failure = job.of_group(2, EVENS, other).unwrap().unwrap_err();
    assert_eq!(failure.reason, Reason::Differs);
    let text = "group: worker 2 gives it worker 1, worker 2; it has worker 0, worker 2";
    assert_eq!(failure.to_string(), text);
    job.drop_group(2, EVENS, GroupExit::NotFormed);
    let collides = job.begin(2, EVENS, terms("odds", &[0, 2]));
    let failure = job.of_group(2, EVENS, collides).unwrap().unwrap_err();
    assert!(failure.to_string().contains("\"evens\" has the same hash"), "{failure}");
}

#[test]
fn a_group_goes_on_without_a_worker_that_leaves_and_ends_with_the_last() {
    let mut job = two_groups(&limits());
    let waits = job.push_in(2, EVENS, 7);
    let now = job.now;
    let close = job.ask(0, EVENS, |it| it.close(now, now + LIMIT)).unwrap();
    assert_eq!(job.of_group(0, EVENS, close), Some(Ok(())));
    assert_eq!(job.of_group(2, EVENS, waits), Some(Ok(())));
    assert_eq!((job.groups_at_server(0), job.groups_at_server(1)), (2, 2));
    // Before all have left, the group is not made again.
    job.drop_group(0, EVENS, GroupExit::Closed);
    let early = job.begin(0, EVENS, terms("evens", &[0, 2]));
    let failure = job.of_group(0, EVENS, early).unwrap().unwrap_err();
    assert!(failure.to_string().contains("this worker has left it"), "{failure}");
    job.drop_group(0, EVENS, GroupExit::NotFormed);
    job.drop_group(2, EVENS, GroupExit::Dropped);
    assert_eq!((job.groups_at_server(0), job.groups_at_server(1)), (1, 1));
    job.form_all(EVENS, "evens", &[0, 2]);
    // Its keys are gone.
    let (one, two) = (job.init_in(0, EVENS, 7), job.init_in(2, EVENS, 7));
    assert_eq!(job.of_group(0, EVENS, one), Some(Ok(())));
    assert_eq!(job.of_group(2, EVENS, two), Some(Ok(())));
}

#[test]
fn the_end_of_a_process_ends_its_groups() {
    let mut job = two_groups(&limits());
    let now = job.now;
    for rank in 0..3 {
        let close = job.worker(rank).close(now, now + LIMIT).unwrap();
        assert_eq!(job.result(rank, close), Some(&Ok(())));
    }
    job.pass(1_000 * MS);
    assert_eq!((job.groups_at_server(0), job.groups_at_server(1)), (0, 0));
}

#[test]
fn a_group_that_was_not_formed_may_be_formed_otherwise() {
    let mut job = Job::started(&Limits { workers: 3, servers: 2, ..limits() });
    let first = job.begin(0, EVENS, terms("evens", &[0, 1]));
    assert_eq!(job.of_group(0, EVENS, first), Some(Ok(())));
    // The program of worker 0 finds that it has made the wrong one.
    job.drop_group(0, EVENS, GroupExit::NotFormed);
    assert_eq!(job.groups_at_server(0), 0);
    job.form_all(EVENS, "evens", &[0, 2]);
    // A worker whose terms are refused leaves the group of the others alone.
    let other = job.begin(1, EVENS, terms("evens", &[1, 2]));
    assert!(job.of_group(1, EVENS, other).unwrap().is_err());
    job.drop_group(1, EVENS, GroupExit::NotFormed);
    let (one, two) = (job.init_in(0, EVENS, 7), job.init_in(2, EVENS, 7));
    assert_eq!(job.of_group(0, EVENS, one), Some(Ok(())));
    assert_eq!(job.of_group(2, EVENS, two), Some(Ok(())));
}

#[test]
fn a_barrier_opens_when_the_last_worker_that_it_waits_for_is_done() {
    let mut job = two_groups(&limits());
    let barrier = job.barrier_in(2, EVENS);
    assert_eq!(job.of_group(2, EVENS, barrier), None);
    let now = job.now;
    let done = job.ask(0, EVENS, |it| it.finish_pushing(now, now + LIMIT)).unwrap();
    assert_eq!(job.of_group(0, EVENS, done), Some(Ok(())));
    assert_eq!(job.of_group(2, EVENS, barrier), Some(Ok(())));
}

#[test]
fn statistics_have_the_keys_and_the_calls_of_groups() {
    let mut job = two_groups(&limits());
    let _ = job.push_in(2, EVENS, 7);
    let now = job.now;
    let facts = |job: &mut Job, address: &str| match job.nodes.get_mut(address).unwrap() {
        AnyNode::Worker(node) => node.facts(now),
        AnyNode::Server(node) => node.facts(now),
    };
    let worker = facts(&mut job, "worker-2");
    assert_eq!((worker.pending, worker.waiting.len(), worker.counters.keys), (1, 1, 2));
    let servers = ["server-0", "server-1"].map(|it| facts(&mut job, it).counters.stored_bytes);
    assert_eq!(servers.iter().sum::<u64>(), 32);
}

#[test]
fn a_meeting_of_a_group_waits_for_its_workers_alone_and_learns_of_them_soon() {
    let mut job = two_groups(&limits());
    let meet = |job: &mut Job, rank: u32| {
        let own =
            ExchangeAddress { incarnation: 70 + u64::from(rank), address: format!("x-{rank}") };
        let now = job.now;
        job.ask(rank, TAIL, |it| it.meet(own, now, now + LIMIT)).unwrap()
    };
    let first = meet(&mut job, 1);
    job.pass(1_000 * MS);
    assert_eq!(job.of_group(1, TAIL, first), None);
    let last = meet(&mut job, 2);
    job.pass(1_100 * MS);
    assert_eq!(job.of_group(2, TAIL, last), Some(Ok(())), "worker 0 does not listen");
    assert_eq!(job.of_group(1, TAIL, first), Some(Ok(())));
    let known = job.ask(1, TAIL, |it| it.listening_workers().to_vec());
    assert_eq!(known.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1, 2]);
}
