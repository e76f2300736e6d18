//! A removal of keys that some workers give up: it is taken back, and no worker alone is without them.

use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{KeyExists, KeyNotFound, Timeout};
use kvstore::{Key, Store};

use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(40);
const KEYS: [u64; 2] = [7, 8];

fn keys() -> [Key; 2] {
    KEYS.map(Key::from)
}

/// Every key is there, and its rounds close.
fn use_all(store: &Store, rank: usize, round: usize) {
    for key in KEYS {
        // A push that times out takes effect all the same.
        if let Err(error) = store.push(key, &vec![(rank + round) as f32; 5_000]) {
            assert_eq!(error.kind(), Timeout, "{error}");
        }
        let mut out = vec![0.0f32; 5_000];
        while store.pull(key, &mut out).is_err_and(|it| it.kind() == Timeout) {}
        assert!(out.iter().all(|it| *it == (3 + 3 * round) as f32), "{}", out[0]);
    }
}

fn remove_all(store: &Store) {
    while store.remove(&keys()).is_err_and(|it| it.kind() == Timeout) {}
}

#[test]
fn a_removal_that_times_out_is_taken_back() {
    Job::new(3, 2).with("slice_bytes", 8192).with("timeout_ms", 700).run(|store, rank| {
        let init = |value: f32| {
            for key in KEYS {
                while store.init(key, &vec![value; 5_000]).is_err_and(|it| it.kind() == Timeout) {}
            }
        };
        init(1.0);
        store.barrier(LIMIT).unwrap();
        if rank == 0 {
            for _ in 0..2 {
                let text = failure(store.remove(&keys()), Timeout);
                assert!(text.contains("remove: key 7: ") && text.contains("is kept"), "{text}");
                assert!(text.contains("waiting for worker 1, worker 2"), "{text}");
                assert_eq!(store.keys().unwrap(), keys());
            }
            failure(store.init(KEYS[0], &vec![1.0f32; 5_000]), KeyExists);
        }
        store.barrier(LIMIT).unwrap();
        use_all(store, rank, 0);
        if rank != 0 {
            // Rank 0 has taken it back, so that two of three remove nothing.
            failure(store.remove(&keys()), Timeout);
        }
        store.barrier(LIMIT).unwrap();
        use_all(store, rank, 1);
        remove_all(store);
        assert_eq!(store.keys().unwrap(), []);
        failure(store.pull(KEYS[0], &mut vec![0.0f32; 5_000]), KeyNotFound);
        store.barrier(LIMIT).unwrap();
        init(2.0);
        use_all(store, rank, 2);
    });
}

#[test]
fn a_list_of_which_one_key_was_removed_says_which_are_kept() {
    Job::new(2, 1).with("timeout_ms", 700).run(|store, rank| {
        for key in KEYS {
            while store.init(key, &[1.0f32; 3]).is_err_and(|it| it.kind() == Timeout) {}
        }
        store.barrier(LIMIT).unwrap();
        if rank == 0 {
            thread::sleep(Duration::from_millis(100));
            let text = failure(store.remove(&keys()), Timeout);
            assert!(text.contains("remove: key 8: ") && text.contains("the key is kept"), "{text}");
            assert_eq!(store.keys().unwrap(), [Key::from(8u64)]);
        } else {
            let began = Instant::now();
            while store.remove(&[7u64.into()]).is_err_and(|it| it.kind() == Timeout) {
                assert!(began.elapsed() < LIMIT);
            }
        }
        store.barrier(LIMIT).unwrap();
        while store.remove(&[8u64.into()]).is_err_and(|it| it.kind() == Timeout) {}
        assert_eq!(store.keys().unwrap(), []);
    });
}
