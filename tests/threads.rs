//! The threads of the library: how many there are, and that they rest when there is nothing to do.
//!
//! One test only: it looks at the threads of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::fs;
use std::thread;
use std::time::Duration;

use common::watchdog::bounded;
use kvstore::{Config, Store};

/// Bytes touched by one push of this many floats are worth waking threads for.
const ELEMENTS: usize = 1 << 20;

/// How many threads the library has, and how much processor time they have used: in ticks, of which
/// there are 100 in a second.
fn library_threads() -> (usize, u64) {
    let (mut threads, mut used) = (0, 0);
    for task in fs::read_dir("/proc/self/task").unwrap() {
        // A thread that ends meanwhile is none of ours.
        let Ok(stat) = fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        if let Some((_, fields)) = stat.split_once("(kvstore-") {
            threads += 1;
            let numbers = fields.split(' ').skip(12).take(2);
            used += numbers.map(|number| number.parse::<u64>().unwrap()).sum::<u64>();
        }
    }
    (threads, used)
}

fn push(store: &Store, times: usize) {
    let value = vec![1.0f32; ELEMENTS];
    (0..times).for_each(|_| store.push(7u64, &value).unwrap());
}

fn open(threads: &str) -> Store {
    let store = Store::open("local", &Config::new().with("threads", threads).unwrap()).unwrap();
    store.init(7u64, &vec![0.0f32; ELEMENTS]).unwrap();
    store
}

#[test]
fn threads_start_for_large_work_and_rest_after_it() {
    bounded("threads", || {
        push(&open("1"), 10);
        assert_eq!(library_threads().0, 0, "one thread is the calling one");

        push(&open("2"), 10);
        push(&open("2"), 10);
        let processors = thread::available_parallelism().unwrap().get();
        assert_eq!(library_threads().0, 1.min(processors - 1), "one helper for both");

        push(&open("2"), 10);
        let before = library_threads().1;
        thread::sleep(Duration::from_millis(300));
        let used = library_threads().1 - before;
        assert!(used < 5, "they have used {used} of 30 ticks");
    });
}
