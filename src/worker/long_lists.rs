//! Scaling of calls on lists (also called: complexity tests): each call with a list and with one ten times as
//! long. Counted are search steps, messages, and sequential round trips.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::inits::INITS_AT_ONCE;
use crate::config::Config;
use crate::error::Result;
use crate::local::long_lists::{CALLS, Case, LONG, MOST, SHORT, Work, remove};
use crate::search;
use crate::store::Store;

const LIMIT: Duration = Duration::from_secs(60);

/// Cost of a call, for the worker that makes it.
#[derive(Debug, Clone, Copy)]
struct Cost {
    steps: u64,
    messages: u64,
    trips: u64,
}

/// Maximum ratio of messages for the long list; quadratic growth would be 100. A worker that waits for the
/// processor bundles less, and acknowledges more often.
const MOST_MESSAGES: u64 = 30;

/// A job of two workers and two servers.
struct Job {
    root: String,
    others: Vec<JoinHandle<Result<()>>>,
}

impl Job {
    fn start() -> Self {
        let root = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let serve = |role| {
            let config = config(role, &root, "2");
            thread::spawn(move || Store::open("dist_async", &config)?.serve())
        };
        let others = ["scheduler", "server", "server"].map(serve).into();
        Self { root, others }
    }

    fn workers(&self) -> [Store; 2] {
        let open = |rank| {
            let mut config = config("worker", &self.root, "2");
            config.set("rank", rank).unwrap();
            thread::spawn(move || Store::open("dist_async", &config).unwrap())
        };
        ["0", "1"].map(open).map(|thread| thread.join().unwrap())
    }

    fn end(self) {
        self.others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    }
}

/// Options of a process of a job of `count` workers and as many servers.
pub(super) fn config(role: &str, root: &str, count: &str) -> Config {
    let mut config = Config::new();
    let options = [
        ("role", role),
        ("root", root),
        ("num_workers", count),
        ("num_servers", count),
        ("start_timeout_ms", "60000"),
        ("timeout_ms", "60000"),
        ("threads", "1"),
    ];
    options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    config
}

/// Messages that the process of a store has sent and received.
fn messages(store: &Store) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    ["messages_in", "messages_out"].iter().map(|name| stats["node"][name].as_u64().unwrap()).sum()
}

/// Costs of every call on this many keys. For calls on existing keys, the calling worker has not initialised
/// them, and knows none of them at its first call.
fn costs(count: usize, with_names: bool) -> Vec<(&'static str, Cost)> {
    let job = Job::start();
    let [first, second] = job.workers().map(|store| Case::of(store, count, with_names));
    let mut costs = Vec::new();
    for (name, work, there) in CALLS {
        // The lowest rank initialises keys.
        let (caller, other) = if there { (&second, &first) } else { (&first, &second) };
        costs.push((name, cost(work, caller, (name == "remove").then_some(other))));
        if name == "init" {
            thread::scope(|scope| {
                for case in [&first, &second] {
                    scope.spawn(|| remove(case));
                }
            });
        }
    }
    thread::scope(|scope| {
        for case in [&first, &second] {
            scope.spawn(|| case.store.close(LIMIT).unwrap());
        }
    });
    job.end();
    costs
}

/// Cost of one call; for a removal, another worker removes the keys at the same time.
fn cost(work: Work, caller: &Case, other: Option<&Case>) -> Cost {
    let before = messages(&caller.store);
    thread::scope(|scope| {
        other.map(|other| scope.spawn(|| remove(other)));
        let (trips, (steps, ())) = search::trips_of(|| search::steps_of(|| work(caller)));
        Cost { steps, messages: messages(&caller.store) - before, trips }
    })
}

#[test]
fn no_call_on_a_list_costs_the_square_of_it_or_a_round_trip_a_key() {
    for with_names in [false, true] {
        let [short, long] = [SHORT, LONG].map(|count| costs(count, with_names));
        for ((name, short), (_, long)) in short.into_iter().zip(long) {
            let text = format!("{name}, names {with_names}: {short:?} and {long:?}");
            assert!(short.steps >= SHORT as u64 && short.messages >= SHORT as u64 / 100, "{text}");
            assert!(long.steps <= MOST * short.steps, "{text}");
            assert!(long.messages <= MOST_MESSAGES * short.messages, "{text}");
            // A list is initialised in portions; one round trip ends each of them.
            let initialises = name == "init" || name == "broadcast";
            let portions = if initialises { LONG.div_ceil(INITS_AT_ONCE) as u64 } else { 1 };
            assert!((short.trips..short.trips + portions).contains(&long.trips), "{text}");
        }
    }
}
