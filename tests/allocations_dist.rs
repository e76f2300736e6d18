//! A call of a job on contiguous tensors allocates nothing in steady state, on any thread of its workers, its
//! server and its scheduler, which all run in this process.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(clippy::print_stdout, reason = "counts for readers")]

mod common;
#[path = "common/counting_all.rs"]
mod counting_all;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::wait::free_address;
use kvstore::{Config, Key, Store, Tensor, TensorMut};

const LIMIT: Duration = Duration::from_secs(60);
/// Rounds after which buffers and tables have their final sizes.
const WARM: usize = 100;
/// Rounds of one measurement.
const ROUNDS: usize = 20;
/// Bytes from which on fewer rounds are made: each takes long.
const LARGE: usize = 1 << 20;
const FEW_ROUNDS: usize = 5;
/// Measurements of a call, of which one must be within the bound: a list may still grow when threads of a busy
/// machine run in a new order, and what two threads drop at the same moment is not reused.
const MEASUREMENTS: usize = 30;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wire {
    Shm,
    Tcp,
    Tls,
}

/// What its values are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Values {
    Dense,
    /// Dense, added up by a tree.
    ByTree,
    Compressed(&'static str),
    /// Rows of 8 floats, of a table of as many bytes as a key has.
    Rows,
}

/// A job of so many workers with so many keys of this size.
#[derive(Debug, Clone, Copy)]
struct Case {
    wire: Wire,
    workers: usize,
    keys: u64,
    bytes: usize,
    rule: Option<&'static str>,
    values: Values,
}

/// Where the workers of a job meet.
#[derive(Clone, Copy)]
struct Meeting<'a> {
    workers: &'a Barrier,
    /// Whether the measurements of a call are over.
    ends: &'a AtomicBool,
    failures: &'a Mutex<Vec<String>>,
}

impl Case {
    fn config(self, role: &str, rank: Option<usize>, root: &str) -> Config {
        let mut config = Config::new();
        let mut set = |name: &str, value: &str| config.set(name, value).unwrap();
        set("role", role);
        set("root", root);
        set("job", root);
        set("num_workers", &self.workers.to_string());
        set("num_servers", "1");
        set("timeout_ms", "60000");
        set("threads", "2");
        set("transport", if self.wire == Wire::Shm { "shm" } else { "tcp" });
        set("shm", if self.wire == Wire::Shm { "yes" } else { "no" });
        if self.wire == Wire::Tls {
            let name = if role == "scheduler" { role.into() } else { format!("any-{role}") };
            let file = |name: &str| format!("{}/tests/certs/{name}", env!("CARGO_MANIFEST_DIR"));
            set("tls_ca_file", &file("ca.pem"));
            set("tls_cert_file", &file(&format!("{name}.pem")));
            set("tls_key_file", &file(&format!("{name}.key")));
        }
        if self.values == Values::ByTree {
            set("sum_order", "tree");
        }
        if let Some(rank) = rank {
            set("rank", &rank.to_string());
        }
        config
    }

    /// Most allocations of one round. A socket that takes no more leaves the rest of a message to its
    /// connection, which owns each part of it for itself.
    fn bound(self) -> usize {
        if self.wire != Wire::Shm && self.bytes >= LARGE { 16 } else { 0 }
    }

    fn check(self) {
        let root = free_address();
        let (meeting, ends) = (Barrier::new(self.workers), AtomicBool::new(false));
        let failures = Mutex::default();
        thread::scope(|scope| {
            for role in ["scheduler", "server"] {
                let config = self.config(role, None, &root);
                let serve = move || Store::open("dist_sync", &config).unwrap().serve().unwrap();
                scope.spawn(serve);
            }
            for rank in 0..self.workers {
                let config = self.config("worker", Some(rank), &root);
                let meeting = Meeting { workers: &meeting, ends: &ends, failures: &failures };
                scope.spawn(move || self.work(rank, &config, meeting));
            }
        });
        let failures = failures.into_inner().unwrap();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    fn work(self, rank: usize, config: &Config, meeting: Meeting<'_>) {
        let store = Store::open("dist_sync", config).unwrap();
        if let Some(rule) = self.rule {
            store.set_optimizer(rule, "learning_rate=0.1").unwrap();
        }
        match self.values {
            Values::Rows => self.work_on_rows(rank, &store, meeting),
            Values::Compressed(codec) => {
                store.set_compression(codec, "").unwrap();
                self.work_on_keys(rank, &store, meeting);
            }
            Values::Dense | Values::ByTree => self.work_on_keys(rank, &store, meeting),
        }
        store.close(LIMIT).unwrap();
    }

    fn work_on_keys(self, rank: usize, store: &Store, meeting: Meeting<'_>) {
        let keys: Vec<Key> = (0..self.keys).map(Key::from).collect();
        let value = vec![1.0f32; self.bytes / size_of::<f32>()];
        let values: Vec<Tensor<'_>> = keys.iter().map(|_| Tensor::from(&value)).collect();
        let mut outs = vec![value.clone(); keys.len()];
        let mut outs: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
        store.init_list(&keys, &values).unwrap();
        for call in ["push, then pull", "pull", "pushpull"] {
            let mut round = || match call {
                "pull" => store.pull_list(&keys, &mut outs).unwrap(),
                "pushpull" => store.pushpull_list(&keys, &values, &keys, &mut outs).unwrap(),
                _ => {
                    store.push_list(&keys, &values).unwrap();
                    store.pull_list(&keys, &mut outs).unwrap();
                }
            };
            self.measure(rank, call, meeting, &mut round);
        }
    }

    fn work_on_rows(self, rank: usize, store: &Store, meeting: Meeting<'_>) {
        const WIDTH: i64 = 8;
        let table = vec![1.0f32; self.bytes / size_of::<f32>()];
        let count = i64::try_from(table.len()).unwrap() / WIDTH;
        store.init(1u64, Tensor::new(&table, &[count, WIDTH]).unwrap()).unwrap();
        // Half of the rows, in an order of their own, and two of them twice.
        let ids = (0..count / 2).map(|place| place * 37 % count).chain([3, 3]);
        let ids: Vec<i64> = ids.collect();
        let shape = [i64::try_from(ids.len()).unwrap(), WIDTH];
        let mut rows = vec![0.5f32; ids.len() * usize::try_from(WIDTH).unwrap()];
        for call in ["push of rows, then pull", "pull of rows"] {
            let mut round = || {
                if call != "pull of rows" {
                    let rows = Tensor::new(&rows, &shape).unwrap();
                    store.push_rows(1u64, &ids, rows).unwrap();
                }
                let rows = TensorMut::new(&mut rows, &shape).unwrap();
                store.pull_rows(1u64, &ids, rows).unwrap();
            };
            self.measure(rank, call, meeting, &mut round);
        }
    }

    /// Measures rounds, which all workers make, until the bound holds once, after some without a measurement.
    fn measure(
        self,
        rank: usize,
        call: &str,
        Meeting { workers, ends, failures }: Meeting<'_>,
        round: &mut dyn FnMut(),
    ) {
        let is_large = self.bytes >= LARGE;
        let (warm, rounds) = if is_large { (FEW_ROUNDS, FEW_ROUNDS) } else { (WARM, ROUNDS) };
        (0..warm).for_each(|_| round());
        let bound = self.bound() * rounds;
        let (mut counts, mut found) = (Vec::new(), String::new());
        loop {
            workers.wait();
            if rank == 0 {
                counting_all::begin();
            }
            workers.wait();
            (0..rounds).for_each(|_| round());
            workers.wait();
            if rank == 0 {
                let (count, text) = counting_all::end();
                counts.push(count);
                found = text;
                let is_over = count <= bound || counts.len() == MEASUREMENTS;
                ends.store(is_over, Ordering::SeqCst);
            }
            workers.wait();
            if ends.load(Ordering::SeqCst) {
                break;
            }
        }
        if rank == 0 {
            println!("{self:?}, {call}: {counts:?}");
            let least = counts.iter().min().copied().unwrap_or(usize::MAX);
            if least > bound {
                let failure = format!("{self:?}, {call}: {counts:?} allocations\n{found}");
                failures.lock().unwrap().push(failure);
            }
        }
    }
}

/// The count is of the whole process: one test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks calls over one transport.
fn check(wire: Wire) {
    let _turn = turn();
    let one = Case { wire, workers: 1, keys: 1, bytes: 1 << 10, rule: None, values: Values::Dense };
    one.check();
    Case { bytes: 64 << 10, ..one }.check();
    Case { bytes: 16 << 20, ..one }.check();
    Case { keys: 1_000, ..one }.check();
    Case { workers: 2, ..one }.check();
    Case { workers: 2, keys: 1_000, rule: Some("momentum"), ..one }.check();
    Case { workers: 3, bytes: 64 << 10, values: Values::ByTree, ..one }.check();
    Case { bytes: 64 << 10, values: Values::Rows, ..one }.check();
    // In several slices.
    Case { bytes: 1 << 20, values: Values::Rows, ..one }.check();
    Case { workers: 2, bytes: 64 << 10, values: Values::Rows, rule: Some("adagrad"), ..one }
        .check();
    for codec in ["2bit", "fp16", "topk"] {
        Case { workers: 2, bytes: 64 << 10, values: Values::Compressed(codec), ..one }.check();
    }
}

#[test]
fn calls_allocate_nothing_in_steady_state_over_shared_memory() {
    check(Wire::Shm);
}

#[test]
fn calls_allocate_nothing_in_steady_state_over_tcp() {
    check(Wire::Tcp);
}

#[test]
fn calls_allocate_nothing_in_steady_state_over_tls() {
    check(Wire::Tls);
}

#[test]
fn the_counter_counts_other_threads_and_names_the_place() {
    let _turn = turn();
    let (started, goes_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            drop(std::hint::black_box(vec![1u8; 100]));
            goes_on.wait();
        });
        counting_all::begin();
        started.wait();
        goes_on.wait();
    });
    let (count, text) = counting_all::end();
    assert!(count > 0 && text.contains("tests/allocations_dist.rs"), "{count}: {text}");
}
