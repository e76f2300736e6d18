//! A call that timed out or was cancelled, and is called again: it is the one of before, no later call
//! waits for it, and when the other workers come, all of them end right.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{KeyNotFound, Timeout};
use kvstore::{Result, Store, Tensor, TensorMut};

use super::job::{Job, both, failure};

const KEY: u64 = 7;
const LIMIT: Duration = Duration::from_secs(40);
/// The time limit of the worker that calls first, in milliseconds.
const SHORT: u64 = 250;
/// One that is over before a call of many steps is done.
const SHORTER: u64 = 40;

type Call = fn(&Store, &Path) -> Result<()>;

/// What one worker calls first and again, and what the other one does when it comes.
struct Case {
    name: &'static str,
    /// The rank that calls first.
    first: usize,
    call: Call,
    other: Call,
    /// Every call counts, also one that was given up.
    pushes: bool,
}

const CASES: [Case; 14] = [
    Case { name: "init", first: 1, call: init, other: init, pushes: false },
    Case { name: "pull", first: 0, call: pull, other: push, pushes: false },
    Case { name: "pull", first: 1, call: pull, other: push, pushes: false },
    Case { name: "push", first: 0, call: push, other: push, pushes: true },
    Case { name: "push", first: 1, call: push, other: push, pushes: true },
    Case { name: "pushpull", first: 0, call: pushpull, other: push, pushes: true },
    Case { name: "pull_rows", first: 1, call: pull_rows, other: push, pushes: false },
    Case { name: "remove", first: 0, call: remove, other: remove, pushes: false },
    Case { name: "remove", first: 1, call: remove, other: remove, pushes: false },
    Case { name: "set_optimizer", first: 1, call: set, other: set, pushes: false },
    Case { name: "barrier", first: 0, call: barrier, other: barrier, pushes: false },
    Case { name: "save", first: 0, call: save, other: save, pushes: false },
    Case { name: "save", first: 1, call: save, other: save, pushes: false },
    Case { name: "load", first: 1, call: load, other: load, pushes: false },
];

fn init(store: &Store, _: &Path) -> Result<()> {
    store.init(99u64, &[3.0f32; 4])
}

fn pull(store: &Store, _: &Path) -> Result<()> {
    store.pull(KEY, &mut [0.0f32; 4])
}

fn push(store: &Store, _: &Path) -> Result<()> {
    store.push(KEY, &[1.0f32; 4])
}

fn pushpull(store: &Store, _: &Path) -> Result<()> {
    let (value, mut out) = ([1.0f32; 4], [0.0f32; 4]);
    let (values, mut outs) = ([Tensor::from(&value)], [TensorMut::from(&mut out)]);
    store.pushpull_list(&[KEY.into()], &values, &[KEY.into()], &mut outs)
}

fn pull_rows(store: &Store, _: &Path) -> Result<()> {
    store.pull_rows(KEY, &[0i64, 3][..], &mut [0.0f32; 2])
}

fn remove(store: &Store, _: &Path) -> Result<()> {
    store.remove(&[KEY.into()])
}

fn set(store: &Store, _: &Path) -> Result<()> {
    store.set_optimizer("sgd", "learning_rate=0.5")
}

fn barrier(store: &Store, _: &Path) -> Result<()> {
    // A worker has time enough in a call that says itself how much.
    store.barrier(Duration::from_millis(SHORT))
}

fn save(store: &Store, path: &Path) -> Result<()> {
    store.save(path)
}

fn load(store: &Store, path: &Path) -> Result<()> {
    store.load(path)
}

fn until_done(mut call: impl FnMut() -> Result<()>) {
    loop {
        match call() {
            Err(error) if error.kind() == Timeout => {}
            other => return other.unwrap(),
        }
    }
}

/// Opens two workers, of which one has little time.
fn open(job: &Job, root: &str, (short, time): (usize, u64)) -> [Store; 2] {
    let open = |rank| {
        let (job, root) = (job.clone(), root.to_string());
        let job = if rank == short { job.with("timeout_ms", time) } else { job };
        thread::spawn(move || job.open(rank, &root).unwrap())
    };
    [0, 1].map(open).map(super::job::join)
}

/// Gives a call up; says how often it took effect all the same.
fn give_up(case: &Case, store: &Store, path: &Path) -> usize {
    // More pushes than one may be ahead.
    let calls = if case.pushes { 2 } else { 1 };
    let gave_up = (0..calls).map(|_| (case.call)(store, path)).fold(Ok(()), Result::and);
    let text = failure(gave_up, Timeout);
    assert!(text.starts_with(case.name.trim_end_matches("_rows")), "{}: {text}", case.name);
    if case.pushes { calls } else { 0 }
}

/// The value of the key after so many rounds.
fn value(rounds: usize) -> f32 {
    if rounds == 0 { 1.0 } else { 2.0 }
}

fn run(case: &Case, cancelled: bool, path: &Path) {
    let job = Job::new(2, 2);
    let others = job.start();
    let stores = open(&job, &others.root, (case.first, SHORT));
    both([&stores[0], &stores[1]], |store| until_done(|| store.init(KEY, &[1.0f32; 4])));
    let (caller, other) = (&stores[case.first], &stores[1 - case.first]);
    let waits_for_a_round = case.name.starts_with("pull");
    if waits_for_a_round {
        until_done(|| caller.push(KEY, &[1.0f32; 4]));
    }
    let mut rounds = usize::from(waits_for_a_round);
    rounds += if cancelled { cancel(case, caller) } else { give_up(case, caller, path) };
    thread::scope(|scope| {
        let again = scope.spawn(|| {
            if case.pushes {
                // It counts once more, whatever becomes of it.
                let _ = (case.call)(caller, path);
            } else {
                until_done(|| (case.call)(caller, path));
            }
        });
        if case.pushes {
            again.join().unwrap();
            rounds += 1;
            (0..rounds).for_each(|_| (case.other)(other, path).unwrap());
        } else {
            thread::sleep(Duration::from_millis(SHORT / 4));
            until_done(|| (case.other)(other, path));
            again.join().unwrap();
        }
    });
    all_is_right(&stores, case, rounds);
    end(&stores, others);
}

/// What both do afterwards ends, and has the right values.
fn all_is_right(stores: &[Store; 2], case: &Case, rounds: usize) {
    both([&stores[0], &stores[1]], |store| {
        let mut out = [0.0f32; 4];
        if case.name == "remove" {
            failure(store.pull(KEY, &mut out), KeyNotFound);
            store.barrier(LIMIT).unwrap();
            until_done(|| store.init(KEY, &[1.0f32; 4]));
        }
        until_done(|| store.pull(KEY, &mut out));
        assert_eq!(out, [value(rounds); 4], "{}", case.name);
        store.barrier(LIMIT).unwrap();
        let (stored, lr) =
            if case.name == "set_optimizer" { (value(rounds), 0.5) } else { (0.0, -1.0) };
        // A push that times out takes effect all the same.
        let _ = store.push(KEY, &[4.0f32; 4]);
        until_done(|| store.pull(KEY, &mut out));
        assert_eq!(out, [stored - lr * 8.0; 4], "{}", case.name);
        store.barrier(LIMIT).unwrap();
        until_done(|| store.set_compression("fp16", ""));
        until_done(|| store.remove(&[KEY.into()]));
    });
}

/// Cancels a call that has a ticket.
fn cancel(case: &Case, store: &Store) -> usize {
    let (value, mut out, mut rows) = ([1.0f32; 4], [0.0f32; 4], [0.0f32; 2]);
    let stop = || Err::<(), _>(store.key_info(12_345u64).unwrap_err());
    let stopped = store.scope(LIMIT, |scope| match case.name {
        "pull" => scope.pull_list(&[KEY.into()], vec![TensorMut::from(&mut out)], 0).and(stop()),
        "pull_rows" => {
            let out = vec![TensorMut::from(&mut rows)];
            scope.pull_rows_list(&[KEY.into()], &[Tensor::from(&[0i64, 3])], out, 0).and(stop())
        }
        _ => {
            let values = [Tensor::from(&value)];
            (0..2).try_for_each(|_| scope.push_list(&[KEY.into()], &values, 0)).and(stop())
        }
    });
    failure(stopped, KeyNotFound);
    if case.pushes { 2 } else { 0 }
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvstore-{}-again-{name}", std::process::id()))
}

fn run_all(cancelled: bool, cases: impl Iterator<Item = &'static Case>) {
    for (number, case) in cases.enumerate() {
        let path = path(&format!("{cancelled}-{number}-{}", case.name));
        if case.name == "load" {
            Job::new(1, 1).run({
                let path = path.clone();
                move |store, _| {
                    store.init(KEY, &[1.0f32; 4]).unwrap();
                    store.save(&path).unwrap();
                }
            });
        }
        run(case, cancelled, &path);
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn a_call_that_timed_out_is_the_same_when_it_is_called_again() {
    run_all(false, CASES.iter());
}

/// Calls a collective call of many steps until it is done, as one worker has too little time for all of
/// them; gives how often its time was over.
fn calls_until_done(mut call: impl FnMut() -> Result<()>) -> usize {
    let began = Instant::now();
    for calls in 0.. {
        match call() {
            Err(error) if error.kind() == Timeout => {
                assert!(began.elapsed() < LIMIT, "after {calls} calls: {error}");
            }
            other => {
                other.unwrap();
                return calls;
            }
        }
    }
    0
}

/// Both workers make a call, of which one has too little time; says that its time was over.
fn both_until_done(stores: &[Store; 2], call: impl Fn(&Store) -> Result<()> + Sync) {
    let over = AtomicUsize::new(0);
    both([&stores[0], &stores[1]], |store| {
        over.fetch_add(calls_until_done(|| call(store)), Ordering::SeqCst);
    });
    assert!(over.into_inner() > 0, "one worker has too little time");
}

/// A push, which takes effect also if its time is over.
fn push_once(store: &Store, key: u64, value: &[f32]) {
    if let Err(error) = store.push(key, value) {
        assert_eq!(error.kind(), Timeout, "{error}");
    }
}

#[test]
fn a_save_and_a_load_that_time_out_go_on_where_they_stopped() {
    const KEYS: u64 = 600;
    for short in [0, 1] {
        let path = path(&format!("steps-{short}"));
        let job = Job::new(2, 2);
        let others = job.start();
        let stores = open(&job, &others.root, (short, SHORTER));
        both([&stores[0], &stores[1]], |store| {
            for key in 0..KEYS {
                calls_until_done(|| store.init(key, &[7.0f32; 4]));
            }
            calls_until_done(|| store.set_compression("2bit", "threshold=0.5"));
            // `2bit` sends nothing of it.
            (0..KEYS).for_each(|key| push_once(store, key, &[0.3; 4]));
        });
        both_until_done(&stores, |store| store.save(&path));
        end(&stores, others);

        let others = job.start();
        let stores = open(&job, &others.root, (short, SHORTER));
        both_until_done(&stores, |store| store.load(&path));
        both([&stores[0], &stores[1]], |store| {
            // It sends 0.5 of that and of what was left before.
            (0..KEYS).for_each(|key| push_once(store, key, &[0.3; 4]));
            let mut out = [0.0f32; 4];
            for key in 0..KEYS {
                calls_until_done(|| store.pull(key, &mut out));
                assert_eq!(out, [1.0; 4], "key {key}: what was left, once, of each worker");
            }
        });
        end(&stores, others);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_rule_that_makes_keys_whole_goes_on_where_it_stopped() {
    const KEYS: u64 = 150;
    const ELEMENTS: usize = 3_000;
    for short in [0, 1] {
        let job = Job::new(2, 2).with("slice_bytes", 4_096);
        let others = job.start();
        let stores = open(&job, &others.root, (short, SHORTER));
        let start: Vec<f32> = (0..ELEMENTS).map(|i| i as f32).collect();
        both([&stores[0], &stores[1]], |store| {
            for key in 0..KEYS {
                calls_until_done(|| store.init(key, &start[..]));
            }
        });
        both_until_done(&stores, |store| store.set_optimizer("lamb", "learning_rate=0"));
        both([&stores[0], &stores[1]], |store| {
            let mut out = vec![0.0f32; ELEMENTS];
            for key in 0..KEYS {
                push_once(store, key, &start);
                calls_until_done(|| store.pull(key, &mut out[..]));
                assert_eq!(out, start, "key {key}");
            }
        });
        end(&stores, others);
    }
}

fn end(stores: &[Store; 2], others: super::job::Others) {
    both([&stores[0], &stores[1]], |store| until_done(|| store.close(LIMIT)));
    others.end().into_iter().for_each(std::result::Result::unwrap);
}

#[test]
fn a_call_that_was_cancelled_is_the_same_when_it_is_called_again() {
    let with_ticket = ["pull", "push", "pull_rows"];
    run_all(true, CASES.iter().filter(|case| with_ticket.contains(&case.name)));
}
