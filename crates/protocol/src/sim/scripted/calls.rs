//! Results of a worker's calls.

use super::Job;
use crate::drops::DropReason;
use crate::job::{Failure, Limits, MS, OnLoss, Peer, Reason};
use crate::machine::Machine as _;
use crate::message::{Body, Field as _, Message, MessageKind, failed};
use crate::sim::{Bytes, limits};

#[test]
fn a_value_of_a_life_that_is_over_is_nobodys() {
    let mut job = Job::started(&limits());
    job.init_all(2, 7, 4);
    let (now, end) = (job.now, job.now + 10_000 * MS);
    job.worker(1).finish_pushing(now, end).unwrap();
    job.settle();
    let pull = job.worker(1).pull(7, 0, now, end).unwrap();
    let place = job.worker(1).place_of(7).unwrap().encode();
    // As after a move of the key by another worker: the answer to the first query still arrives.
    let failure = Failure::new(Reason::KeyNotFound, "the server does not have slice 0");
    let gone = Message::of_key(MessageKind::Failed, 7, 1, failed::encode(&failure));
    let mut late = Message::of_key(MessageKind::Value, 7, 1, Vec::new());
    late.body = Body::Data(Bytes::of(&[3.0; 4]));
    let place = Message::of_key(MessageKind::Place, 7, 2, place);
    let outdated = Err(DropReason::Late);
    for (mut message, handled) in [(gone, Ok(())), (place, Ok(())), (late, outdated)] {
        message.head.request = pull;
        assert_eq!(job.worker(1).message(Peer::server(0), message), handled);
    }
    // No worker has announced another generation to the server, so the server does not know it.
    assert_eq!(job.text(1, pull), "pull: key 7: the server does not have slice 0");
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
        "pull: key 7, round 1: not done within 10000 ms, waiting for worker 1, worker 2; workers that call \
         keys in different orders wait for each other: call keys in the same order, in one list, or with \
         tickets"
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
    assert_eq!(refused.to_string(), "push: key 7: this worker is done; it may only pull and close");
    job.worker(0).close(now, now + MS).unwrap();
    assert_eq!(job.worker(0).barrier(now, now + MS).unwrap_err().reason, Reason::Closed);
}

/// What a worker was told in the answer to a request, once it has ended.
fn told(job: &mut Job, rank: u32, op: u64) -> (Result<(), Reason>, Option<Vec<u8>>) {
    let result = job.result(rank, op).expect("it has ended").clone();
    let told = job.told.get(&*format!("worker-{rank}")).and_then(|told| told.get(&op)).cloned();
    (result.map_err(|failure| failure.reason), told)
}

#[test]
fn workers_agree_on_collective_calls_beside_their_settings() {
    let mut job = Job::started(&Limits { servers: 2, workers: 3, ..limits() });
    job.init_all(3, 7, 4);
    let (now, end) = (job.now, job.now + 10_000 * MS);
    let agree = |job: &mut Job, rank: u32, fields: &[u8]| {
        let op = job.worker(rank).agree(fields.to_vec(), now, end).unwrap();
        job.settle();
        op
    };
    // Pushes do not wait for it, and the other server gets nothing of it.
    let early = [agree(&mut job, 2, b"two"), agree(&mut job, 1, b"one")];
    let pushes: Vec<_> = (0..3).map(|rank| (rank, job.push(rank, 7, 4).unwrap())).collect();
    assert!(pushes.into_iter().all(|(rank, push)| job.result(rank, push) == Some(&Ok(()))));
    assert_eq!(job.closed, 1);
    assert_eq!(job.result(1, early[1]), None);
    let first = agree(&mut job, 0, b"zero");
    assert_eq!(told(&mut job, 0, first), (Ok(()), None));
    for (rank, op) in [(2, early[0]), (1, early[1])] {
        let decided = (Err(Reason::Differs), Some(b"zero".to_vec()));
        assert_eq!(told(&mut job, rank, op), decided, "worker {rank}");
    }
    // An empty proposal accepts; the numbers of settings are others.
    let set = job.worker(0).set(b"rule".to_vec(), now, end).unwrap();
    let second = agree(&mut job, 0, b"more");
    assert_eq!(told(&mut job, 0, second), (Ok(()), None));
    assert_eq!(told(&mut job, 0, set), (Ok(()), None));
    for rank in 1..3 {
        let op = agree(&mut job, rank, b"");
        assert_eq!(told(&mut job, rank, op), (Ok(()), Some(b"more".to_vec())), "worker {rank}");
        let set = job.worker(rank).set(b"rule".to_vec(), now, end).unwrap();
        assert_eq!(told(&mut job, rank, set), (Ok(()), None), "worker {rank}");
    }
}

#[test]
fn the_next_rank_decides_for_a_lost_one_and_a_call_that_was_given_up_is_joined() {
    let mut job = Job::started(&Limits { workers: 3, on_loss: OnLoss::Continue, ..limits() });
    let (now, end) = (job.now, job.now + 10_000 * MS);
    let heard = job.worker(1).agree(Vec::new(), now, end).unwrap();
    // Worker 2 gives up, and makes the call again.
    let given_up = job.worker(2).agree(b"two".to_vec(), now, end).unwrap();
    job.settle();
    job.worker(2).abandon(given_up);
    let again = job.worker(2).agree(b"two".to_vec(), now, end).unwrap();
    assert_eq!(job.result(1, heard), None);
    assert_eq!(job.result(2, again), None);
    job.nodes.remove("worker-0");
    job.scheduler.down("worker-0", now);
    // Worker 1 decides, and proposes nothing.
    assert_eq!(told(&mut job, 1, heard), (Ok(()), None));
    assert_eq!(told(&mut job, 2, again), (Err(Reason::Differs), None));
    let next = job.worker(2).agree(b"more".to_vec(), now, end).unwrap();
    assert_eq!(job.result(2, next), None);
    let decides = job.worker(1).agree(b"more".to_vec(), now, end).unwrap();
    assert_eq!(told(&mut job, 1, decides), (Ok(()), None));
    assert_eq!(told(&mut job, 2, next), (Ok(()), None));
}
