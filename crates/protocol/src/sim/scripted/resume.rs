//! Resumes: workers that were done, and others, go on together, whatever is cut off or begins anew meanwhile.

use super::Job;
use crate::job::{Limits, MS, Mode, OnLoss, Peer, Reason};
use crate::machine::Machine as _;
use crate::membership::Scheduler;
use crate::sim::cluster::SCHEDULER;
use crate::sim::{Random, limits};
use crate::worker::OpId;

const LIMIT: u64 = 200_000 * MS;

fn resume(job: &mut Job, rank: u32) -> OpId {
    let now = job.now;
    let op = job.worker(rank).resume(now, now + LIMIT).unwrap();
    job.settle();
    op
}

/// Waits for an operation, while time passes.
fn succeeds(job: &mut Job, rank: u32, op: OpId) {
    for _ in 0..400 {
        if let Some(result) = job.result(rank, op) {
            return assert_eq!(*result, Ok(()), "worker {rank}");
        }
        job.pass(100 * MS);
    }
    panic!("worker {rank}: operation {op} does not end");
}

/// What disturbs a resume of a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// The scheduler begins anew.
    Restart,
    /// A process stands still for a while.
    Stop,
}

struct Epochs {
    job: Job,
    random: Random,
    limits: Limits,
    keys: u64,
}

impl Epochs {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mode = random.pick(&[Mode::Sync, Mode::Sync, Mode::Async { staleness: None }]);
        let (workers, servers) = (2 + u32::from(random.one_in(2)), 1 + u32::from(random.one_in(2)));
        let max_rounds_ahead = 1 + random.below(3);
        let limits = Limits {
            workers,
            servers,
            mode,
            max_rounds_ahead,
            block_elements: 4,
            slice_bytes: 16,
            hold_bytes: 1 << 20,
            ..limits()
        };
        let mut job = Job::started(&limits);
        let keys = 1 + random.below(3);
        (0..keys).for_each(|key| job.init_all(workers, key, 10));
        Self { job, random, limits, keys }
    }

    /// Each worker pushes some numbers of times, in any order; gives how many rounds of slices close.
    fn train(&mut self) -> u64 {
        let workers = self.limits.workers as usize;
        let mut left = Vec::new();
        let mut rounds = 0;
        for key in 0..self.keys {
            let pushes: Vec<u64> = (0..workers).map(|_| self.random.below(4)).collect();
            // A key of ten elements has three slices.
            rounds += 3 * match self.limits.mode {
                Mode::Sync => *pushes.iter().max().unwrap(),
                Mode::Async { .. } => pushes.iter().sum::<u64>(),
            };
            for (rank, count) in (0..).zip(&pushes) {
                left.extend((0..*count).map(|_| (rank, key)));
            }
        }
        self.random.shuffle(&mut left);
        for (rank, key) in left {
            self.job.push(rank, key, 10).unwrap();
        }
        rounds
    }

    fn trouble(&mut self, trouble: Trouble, turn: u64) {
        match trouble {
            Trouble::None => {}
            Trouble::Restart => {
                let incarnation = 1_000 + turn;
                self.job.scheduler = Scheduler::new(self.limits.clone(), incarnation, self.job.now);
                self.job.pass(100 * MS);
            }
            Trouble::Stop => {
                let names: Vec<_> =
                    self.job.nodes.keys().cloned().chain([SCHEDULER.into()]).collect();
                let name = names[self.random.index(names.len())].clone();
                self.job.stopped.insert(name.clone());
                self.job.pass(200 * MS);
                self.job.stopped.remove(&name);
                let waiting = std::mem::take(&mut self.job.waiting);
                waiting.into_iter().for_each(|frame| self.job.deliver(frame));
                self.job.settle();
            }
        }
    }

    /// All workers resume, in any order; some were done before.
    fn resume(&mut self, epoch: u64) {
        let mut ranks: Vec<u32> = (0..self.limits.workers).collect();
        self.random.shuffle(&mut ranks);
        let all = [Trouble::None, Trouble::None, Trouble::Restart, Trouble::Stop];
        let trouble = self.random.pick(&all);
        let at = self.random.index(ranks.len());
        let mut ops = Vec::new();
        for (place, rank) in ranks.iter().enumerate() {
            if self.random.one_in(2) {
                let now = self.job.now;
                self.job.worker(*rank).finish_pushing(now, now + LIMIT).unwrap();
                self.job.settle();
            }
            if place == at {
                self.trouble(trouble, epoch);
            }
            let op = resume(&mut self.job, *rank);
            let is_last = place + 1 == ranks.len();
            assert!(is_last || self.job.result(*rank, op).is_none(), "it waits for all");
            ops.push((*rank, op));
        }
        for (rank, op) in ops {
            succeeds(&mut self.job, rank, op);
            assert!(!self.job.worker(rank).is_done());
        }
    }
}

#[test]
fn epochs_of_any_pushes_close_their_rounds_and_no_other() {
    for seed in 0..crate::sim::tests::seeds(2_000) {
        let mut epochs = Epochs::new(seed);
        let mut rounds = 0;
        for epoch in 0..4 {
            rounds += epochs.train();
            epochs.resume(epoch);
            assert_eq!(epochs.job.closed, rounds, "seed {seed}, epoch {epoch}");
        }
        // No round closes without the push of each worker; barriers have equal numbers.
        let workers = epochs.limits.workers;
        let ops: Vec<_> = (0..workers)
            .map(|rank| {
                let now = epochs.job.now;
                let op = epochs.job.worker(rank).barrier(now, now + LIMIT).unwrap();
                assert!(epochs.job.result(rank, op).is_none() || rank + 1 == workers);
                op
            })
            .collect();
        (0..).zip(ops).for_each(|(rank, op)| succeeds(&mut epochs.job, rank, op));
        if epochs.limits.mode == Mode::Sync {
            for rank in 0..workers {
                assert_eq!(epochs.job.closed, rounds, "seed {seed}: round {rank} waits");
                epochs.job.push(rank, 0, 10).unwrap();
            }
            epochs.job.settle();
            assert_eq!(epochs.job.closed, rounds + 3, "seed {seed}");
        }
    }
}

#[test]
fn the_missing_workers_are_named_and_a_later_call_joins() {
    let limits = Limits { workers: 3, ..limits() };
    let mut job = Job::started(&limits);
    let now = job.now;
    let op = job.worker(1).resume(now, now + 1_000 * MS).unwrap();
    resume(&mut job, 2);
    job.pass(1_100 * MS);
    let text = job.text(1, op);
    assert_eq!(text, "resume 1: not done within 1000 ms, waiting for worker 0");
    let again = resume(&mut job, 1);
    let last = resume(&mut job, 0);
    assert_eq!(job.result(0, last), Some(&Ok(())));
    assert_eq!(job.result(1, again), Some(&Ok(())));
}

/// A call that is made again joins its resume, also if the others have gone on meanwhile; after a push it is a new one.
#[test]
fn a_later_call_joins_a_resume_that_has_ended_meanwhile() {
    let limits = Limits { workers: 2, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 1, 4);
    for pushes in [false, true] {
        let now = job.now;
        let early = job.worker(1).resume(now, now + 1_000 * MS).unwrap();
        job.pass(1_100 * MS);
        assert_eq!(job.result(1, early).unwrap().as_ref().unwrap_err().reason, Reason::Timeout);
        let last = resume(&mut job, 0);
        assert_eq!(job.result(0, last), Some(&Ok(())));
        assert!(!job.worker(1).is_done());
        if pushes {
            job.push(1, 1, 4).unwrap();
            job.push(0, 1, 4).unwrap();
        }
        let again = resume(&mut job, 1);
        assert_eq!(
            job.result(1, again).is_some(),
            !pushes,
            "it joins the one before, or a new one"
        );
    }
    let last = resume(&mut job, 0);
    assert_eq!(job.result(0, last), Some(&Ok(())));
}

#[test]
fn a_loss_ends_a_resume_or_the_others_go_on() {
    for on_loss in [OnLoss::Fail, OnLoss::Continue] {
        let limits = Limits { workers: 3, on_loss, ..limits() };
        let mut job = Job::started(&limits);
        job.init_all(3, 1, 4);
        let ops = [0, 1].map(|rank| (rank, resume(&mut job, rank)));
        job.push(2, 1, 4).unwrap();
        job.nodes.remove("worker-2");
        job.scheduler.down("worker-2", job.now);
        job.pass(limits.peer_timeout * 3);
        for (rank, op) in ops {
            let result = job.result(rank, op).expect("it has ended").clone();
            match on_loss {
                OnLoss::Continue => assert_eq!(result, Ok(())),
                OnLoss::Fail => {
                    let failure = result.unwrap_err();
                    assert_eq!(failure.reason, Reason::PeerLost);
                    assert!(failure.to_string().contains(&Peer::worker(2).to_string()));
                }
            }
        }
        if on_loss == OnLoss::Continue {
            let before = job.closed;
            job.push(0, 1, 4).unwrap();
            assert_eq!(job.closed, before);
            let op = job.push(1, 1, 4).unwrap();
            assert_eq!(job.result(1, op), Some(&Ok(())));
            assert!(job.closed > before);
        }
    }
}
