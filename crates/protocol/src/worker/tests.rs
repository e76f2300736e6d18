//! Cost of calls on long lists for each key, in looks at operations, messages and round trips. A worker's
//! machine and a server's exchange messages without links.

use super::{OpId, Worker, WorkerAction};
use crate::drops::DropReason;
use crate::job::{Limits, MS, Peer, Role, Time};
use crate::machine::NodeRole as _;
use crate::message::{Book, KeySpec, MemberState, Standing};
use crate::peers::OutgoingMessage;
use crate::server::{Server, ServerAction};
use crate::sim::{Length, limits};

const F32: u32 = 2 | 32 << 8 | 1 << 16;
const WORKERS: u32 = 2;
const END: Time = 60_000 * MS;

/// Cost of a call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Cost {
    looks: u64,
    messages: u64,
    trips: u64,
}

struct Job {
    workers: Vec<Worker<Length>>,
    server: Server<Length>,
    keys: u64,
    ended: u64,
}

impl Job {
    fn new(keys: u64) -> Self {
        let limits = Limits { workers: WORKERS, hold_bytes: 1 << 40, ..limits() };
        let here = |peer: Peer| Standing {
            peer,
            incarnation: 1,
            state: MemberState::Here,
            reads: false,
            address: peer.to_string(),
            features: 0,
            cause: String::new(),
            exchange: crate::message::ExchangeAddress::default(),
        };
        let members = (0..WORKERS).map(|rank| here(Peer::worker(rank)));
        let members = members.chain([here(Peer::server(0))]).collect();
        let terms = Some(limits.terms().into());
        let book = Book { epoch: 1, terms, features: 0, members };
        let workers = (0..WORKERS).map(|_| {
            let mut worker = Worker::new(&limits);
            worker.members(&book);
            worker
        });
        let workers = workers.collect();
        Self { workers, server: Server::new(&limits), keys, ended: 0 }
    }

    /// Runs until all operations of the workers have ended.
    fn settle(&mut self) -> Cost {
        let mut cost = Cost::default();
        self.workers.iter_mut().for_each(|worker| cost.looks += worker.take_looks());
        while self.trip(&mut cost) {
            cost.trips += 1;
        }
        for worker in &mut self.workers {
            cost.looks += worker.take_looks();
            for action in worker.actions() {
                if let WorkerAction::Finished { result, .. } = action {
                    result.unwrap();
                    self.ended += 1;
                }
            }
        }
        cost
    }

    /// Delivers all messages to the server, and its answers to the workers.
    fn trip(&mut self, cost: &mut Cost) -> bool {
        let mut any = false;
        for rank in 0..WORKERS {
            let worker = &mut self.workers[rank as usize];
            for OutgoingMessage { message, token, .. } in worker.letters().collect::<Vec<_>>() {
                (any, cost.messages) = (true, cost.messages + 1);
                assert_eq!(self.server.message(Peer::worker(rank), message), Ok(()));
                token.into_iter().for_each(|token| worker.delivered(0, token));
            }
        }
        for action in self.server.actions().collect::<Vec<_>>() {
            if let ServerAction::Answer(answer) = action {
                self.server.value(&answer, Length(4));
            }
        }
        for OutgoingMessage { to, message, .. } in self.server.letters() {
            assert_eq!(to.role, Role::Worker);
            (any, cost.messages) = (true, cost.messages + 1);
            let handled = self.workers[to.rank as usize].message(Peer::server(0), message);
            assert!(handled.err().is_none_or(DropReason::is_harmless));
        }
        any
    }

    /// Runs a call of some workers on every key.
    fn call(&mut self, ranks: &[u32], ask: impl Fn(&mut Worker<Length>, u64) -> OpId) -> Cost {
        self.ask(ranks, ask);
        let cost = self.settle();
        let asked = ranks.len() as u64 * self.keys;
        assert_eq!(std::mem::take(&mut self.ended), asked, "every operation ends");
        cost
    }

    fn ask(&mut self, ranks: &[u32], ask: impl Fn(&mut Worker<Length>, u64) -> OpId) {
        for rank in ranks {
            (0..self.keys).for_each(|key| _ = ask(&mut self.workers[*rank as usize], key));
        }
    }
}

/// Cost of every call, on a number of keys.
fn costs(keys: u64) -> Vec<(&'static str, Cost)> {
    let mut job = Job::new(keys);
    let spec = || KeySpec { dtype: F32, shape: vec![1], whole: false };
    let value = || Length(4);
    let push = |it: &mut Worker<Length>, key| it.push(key, value(), 0, 1, END).unwrap();
    let pull = |it: &mut Worker<Length>, key| it.pull(key, 0, 1, END).unwrap();
    let mut costs = vec![
        ("init", job.call(&[0], |it, key| it.init(key, spec(), value(), 1, END).unwrap())),
        ("find", job.call(&[1], |it, key| it.find(key, 1, END).unwrap())),
        ("push", job.call(&[0, 1], push)),
        ("pull", job.call(&[0, 1], pull)),
    ];
    let both = |it: &mut Worker<Length>, key| it.pushpull(key, value(), 0, 1, END).unwrap();
    costs.push(("pushpull", job.call(&[0, 1], both)));
    // Pushes that wait behind pulls of the same keys, with a barrier behind all of them.
    job.ask(&[0, 1], pull);
    job.ask(&[0, 1], push);
    let ids: Vec<OpId> =
        job.workers.iter_mut().map(|worker| worker.barrier(1, END).unwrap()).collect();
    costs.push(("push behind pull", job.settle()));
    assert_eq!(std::mem::take(&mut job.ended), 4 * keys, "{ids:?} wait still");
    job.workers.iter_mut().for_each(|worker| worker.released(1));
    // Calls that are given up, one after the other, while the round is open.
    job.ask(&[0], push);
    job.ask(&[0], pull);
    let ids: Vec<OpId> = (0..keys).map(|key| pull(&mut job.workers[0], key)).collect();
    ids.into_iter().for_each(|id| job.workers[0].abandon(id));
    job.ask(&[1], push);
    costs.push(("cancel", job.settle()));
    job.ended = 0;
    costs.push(("remove", job.call(&[0, 1], |it, key| it.remove(key, 1, END).unwrap())));
    costs
}

#[test]
fn lists_cost_the_same_for_each_key_and_no_more_round_trips_however_long_they_are() {
    let (few, many) = (costs(4_000), costs(40_000));
    for ((call, few), (_, many)) in few.into_iter().zip(many) {
        assert_eq!(few.trips, many.trips, "{call}: {few:?}, {many:?}");
        assert!(many.messages <= 12 * few.messages, "{call}: {few:?}, {many:?}");
        assert!(many.looks <= 12 * few.looks.max(1), "{call}: {few:?}, {many:?}");
    }
}
