//! Jobs without processes for servers: each worker's store brings a server, and the first one the scheduler.

use std::net::TcpListener;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{Network, Option as BadOption, PeerLost, Timeout};
use kvstore::{Config, Result, Store};

use super::job::{failure, free_address, has_certificates, join};

const LIMIT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(3);
const ELEMENTS: usize = 3_000;

fn config(rank: usize, workers: usize, root: &str) -> Config {
    let mut config = Config::new();
    let (rank, workers) = (rank.to_string(), workers.to_string());
    for (name, value) in [
        ("servers", "embedded"),
        ("rank", &rank),
        ("num_workers", &workers),
        ("root", root),
        ("start_timeout_ms", "20000"),
        ("timeout_ms", "30000"),
        // Several slices, so that each server has one.
        ("slice_bytes", "4096"),
    ] {
        config.set(name, value).unwrap();
    }
    config
}

fn open(rank: usize, workers: usize, root: &str) -> Result<Store> {
    Store::open("dist_sync", &config(rank, workers, root))
}

/// Runs `program` as each worker, on a thread of its own.
fn run(workers: usize, root: &str, program: impl Fn(Store, usize) + Send + Sync + Clone + 'static) {
    let threads: Vec<_> = (0..workers)
        .map(|rank| {
            let (root, program) = (root.to_string(), program.clone());
            thread::spawn(move || program(open(rank, workers, &root).unwrap(), rank))
        })
        .collect();
    threads.into_iter().for_each(join);
}

/// What rank `rank` pushes at place `at`.
fn pushed(rank: usize, at: usize) -> f32 {
    1.0 / (rank + at + 1) as f32
}

#[test]
fn its_sums_are_those_of_a_loop_in_the_order_of_ranks() {
    if has_certificates() {
        return;
    }
    for workers in [1, 2, 4] {
        run(workers, &free_address(), move |store, rank| {
            assert_eq!((store.rank(), store.num_workers()), (rank as i32, workers as i32));
            store.init(7u64, &vec![0.0f32; ELEMENTS]).unwrap();
            let mine: Vec<f32> = (0..ELEMENTS).map(|at| pushed(rank, at)).collect();
            let mut out = vec![0.0f32; ELEMENTS];
            store.push(7u64, &mine).unwrap();
            store.pull(7u64, &mut out).unwrap();
            for (at, value) in out.iter().enumerate() {
                let sum = (1..workers).fold(pushed(0, at), |sum, rank| sum + pushed(rank, at));
                assert_eq!(value.to_bits(), sum.to_bits(), "{workers} workers, element {at}");
            }
            store.close(LIMIT).unwrap();
        });
    }
}

#[test]
fn one_address_serves_one_job_after_another() {
    if has_certificates() {
        return;
    }
    let root = free_address();
    run(2, &root.clone(), move |store, rank| {
        let mut store = store;
        for turn in 0..5u64 {
            store.init(turn, &[1.0f32; 3]).unwrap();
            let mut out = [0.0f32; 3];
            store.push(turn, &[1.0f32; 3]).unwrap();
            store.pull(turn, &mut out).unwrap();
            assert_eq!(out, [2.0; 3]);
            store.close(LIMIT).unwrap();
            store = open(rank, 2, &root).unwrap();
        }
        store.close(LIMIT).unwrap();
    });
}

#[test]
fn a_close_waits_for_workers_that_need_the_server() {
    if has_certificates() {
        return;
    }
    let both = Arc::new(Barrier::new(2));
    run(2, &free_address(), move |store, rank| {
        store.init(1u64, &[1.0f32; ELEMENTS]).unwrap();
        if rank == 0 {
            let text = failure(store.close(Duration::from_millis(300)), Timeout);
            assert!(text.contains("worker 1 did not close its store"), "{text}");
            both.wait();
            store.close(LIMIT).unwrap();
            store.close(LIMIT).unwrap();
        } else {
            both.wait();
            // The server of the other worker is there as long as this one needs it.
            let mut out = [0.0f32; ELEMENTS];
            store.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [1.0; ELEMENTS]);
            store.close(LIMIT).unwrap();
        }
    });
}

#[test]
fn a_store_that_is_dropped_ends_the_job_of_the_others() {
    if has_certificates() {
        return;
    }
    for leaving in [1, 0] {
        run(2, &free_address(), move |store, rank| {
            store.init(1u64, &[1.0f32; ELEMENTS]).unwrap();
            store.barrier(LIMIT).unwrap();
            let began = Instant::now();
            if rank == leaving {
                drop(store);
            } else {
                let pushed = store.push(1u64, &[1.0f32; ELEMENTS]);
                let pulled = pushed.and_then(|()| store.pull(1u64, &mut [0.0f32; ELEMENTS]));
                let text = failure(pulled, PeerLost);
                assert!(leaving == 1 || text.contains("worker 0"), "{text}");
                drop(store);
            }
            assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        });
    }
}

#[test]
fn a_port_that_is_taken_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = taken.local_addr().unwrap().to_string();
    if has_certificates() {
        return;
    }
    let began = Instant::now();
    let text = failure(open(0, 1, &root), Network);
    assert!(text.contains(&root), "{text}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn what_does_not_fit_is_refused_before_anything_starts() {
    let root = free_address();
    let whole = || config(0, 2, &root);
    let refused = |config: &Config, said: &[&str]| {
        let text = failure(Store::open("dist_sync", config), BadOption);
        assert!(said.iter().all(|part| text.contains(part)), "{text}");
    };
    refused(&whole().with("rank", "2").unwrap(), &["process 2 of 2"]);
    refused(&whole().with("num_servers", "1").unwrap(), &["num_servers is 1", "servers=1"]);
    refused(
        &whole().with("servers", "1").unwrap(),
        &["2 processes are too few", "servers=embedded"],
    );
    refused(&whole().with("tls_ca_file", "ca.pem").unwrap(), &["one role", "token"]);
    let bare = Config::new().with("servers", "embedded").unwrap();
    refused(&bare, &["num_workers is not known", "KV_NUM_WORKERS"]);
    refused(&bare.with("num_workers", "2").unwrap(), &["rank is not known", "KV_RANK"]);
    for value in ["", "0", "65536", "embed", "-1", "1.5"] {
        assert!(Config::new().set("servers", value).is_err(), "{value}");
    }
}
