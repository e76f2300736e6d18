//! Which keys there are: who may use them, what ranks may not disagree about, removal.

use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{DtypeMismatch, InvalidArgument, KeyExists, KeyNotFound, ShapeMismatch};
use kvstore::{DType, Key, Store};

use super::job::{Job, failure};

const SOON: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);

fn pull(store: &Store, key: impl Into<Key>, count: usize) -> Vec<f32> {
    let mut out = vec![0.0; count];
    store.pull(key, &mut out).unwrap();
    out
}

#[test]
fn a_worker_uses_keys_that_only_others_have_initialised() {
    Job::new(3, 2).with("slice_bytes", 8192).run(|store, rank| {
        let name = store.intern("weights").unwrap();
        if rank == 0 {
            store.init(1u64, &vec![4.0f32; 5_000]).unwrap();
            store.init(name, &[5.0f32; 2]).unwrap();
        }
        store.barrier(LIMIT).unwrap();
        let info = store.key_info(1u64).unwrap();
        assert_eq!((info.dtype, &info.shape[..]), (DType::F32, &[5_000][..]));
        assert_eq!(pull(store, name, 2), [5.0; 2]);
        // Not pulled before, by those who have not initialised it.
        store.push(1u64, &vec![rank as f32; 5_000]).unwrap();
        assert_eq!(pull(store, 1u64, 5_000), vec![3.0; 5_000]);
        // One that was only used may be initialised still, and its value stays.
        if rank == 1 {
            store.init(1u64, &vec![9.0f32; 5_000]).unwrap();
            assert_eq!(pull(store, 1u64, 5_000), vec![3.0; 5_000]);
        }
        if rank < 2 {
            let text = failure(store.init(1u64, &vec![9.0f32; 5_000]), KeyExists);
            assert!(text.contains("init: key 1"), "{text}");
        }
        store.push(1u64, &vec![rank as f32 * 2.0; 5_000]).unwrap();
        assert_eq!(pull(store, 1u64, 5_000), vec![6.0; 5_000]);
    });
}

#[test]
fn nobody_knows_a_key_that_was_not_initialised() {
    Job::new(1, 2).run(|store, _| {
        let name = store.intern("nowhere").unwrap();
        let mut out = [0.0f32; 2];
        let text = failure(store.pull(5u64, &mut out), KeyNotFound);
        assert!(text.starts_with("pull: key 5"), "{text}");
        let text = failure(store.push(name, &out), KeyNotFound);
        assert!(text.contains("\"nowhere\""), "{text}");
        failure(store.remove(&[5u64.into()]), KeyNotFound);
        let text = failure(store.key_info(5u64), KeyNotFound);
        assert!(text.contains("key 5"), "{text}");
        store.init(5u64, &[1.0f32; 2]).unwrap();
        assert_eq!(pull(store, 5u64, 2), [1.0; 2]);
    });
}

#[test]
fn the_lowest_rank_decides_and_others_wait_for_it() {
    let results = Job::new(2, 1).run(|store, rank| {
        if rank == 0 {
            thread::sleep(Duration::from_millis(150));
        }
        let began = Instant::now();
        store.init(1u64, &[rank as f32 + 1.0; 3]).unwrap();
        (pull(store, 1u64, 3), began.elapsed())
    });
    assert_eq!([&results[0].0, &results[1].0], [&[1.0f32; 3], &[1.0; 3]]);
    assert!(results[1].1 > Duration::from_millis(50));
}

#[test]
fn the_rank_that_differs_gets_the_error_at_once() {
    Job::new(2, 1).run(|store, rank| {
        let name = store.intern("w").unwrap();
        if rank == 0 {
            store.init(1u64, &[1.0f32; 6]).unwrap();
            store.init(name, &[1.0f32; 6]).unwrap();
            store.barrier(LIMIT).unwrap();
        } else {
            store.barrier(LIMIT).unwrap();
            let began = Instant::now();
            let text = failure(store.init(1u64, &[1.0f32; 5]), ShapeMismatch);
            assert!(text.contains("key 1") && text.contains("float32[5]"), "{text}");
            assert!(text.contains("worker 1") && text.contains("float32[6]"), "{text}");
            let text = failure(store.init(name, &[1.0f64; 6]), DtypeMismatch);
            assert!(text.contains("\"w\"") && text.contains("float64[6]"), "{text}");
            assert!(began.elapsed() < SOON);
            // Nothing has happened: it may still do it right.
            store.init(1u64, &[7.0f32; 6]).unwrap();
        }
        store.push(1u64, &[rank as f32 + 1.0; 6]).unwrap();
        assert_eq!(pull(store, 1u64, 6), [3.0; 6]);
        // A refused init of one rank does not stop it from using the key.
        store.push(name, &[rank as f32 + 2.0; 6]).unwrap();
        assert_eq!(pull(store, name, 6), [5.0; 6]);
    });
}

#[test]
fn a_removed_key_comes_back_with_another_shape() {
    Job::new(2, 2).with("slice_bytes", 8192).run(|store, rank| {
        let keys = [Key::from(1u64), store.intern("again").unwrap()];
        for count in [10, 9_000, 3] {
            for key in keys {
                store.init(key, &vec![count as f32; count]).unwrap();
                assert!(pull(store, key, count).iter().all(|it| *it == count as f32));
                for round in 1..=2 {
                    store.push(key, &vec![(rank + round) as f32; count]).unwrap();
                    let sum = (2 * round + 1) as f32;
                    assert!(pull(store, key, count).iter().all(|it| *it == sum));
                }
            }
            store.remove(&keys).unwrap();
            assert_eq!(store.keys().unwrap(), []);
            let mut out = [0.0f32; 3];
            failure(store.pull(keys[0], &mut out), KeyNotFound);
            // The other rank may not initialise it before.
            store.barrier(LIMIT).unwrap();
        }
    });
}

#[test]
fn a_removal_waits_for_all_workers() {
    Job::new(2, 1).with("timeout_ms", 600).run(|store, rank| {
        store.init(1u64, &[1.0f32; 3]).unwrap();
        if rank == 0 {
            let text = failure(store.remove(&[1u64.into()]), kvstore::ErrorKind::Timeout);
            assert!(text.contains("remove: key 1"), "{text}");
            assert!(text.contains("waiting for worker 1"), "{text}");
        }
        store.barrier(LIMIT).unwrap();
    });
}

/// A message of a connection has at most 1 GiB: a larger slice would never arrive.
#[test]
fn a_key_whose_slices_do_not_fit_in_a_message_is_refused_at_once() {
    // No element is read, so that the value takes no memory.
    let large = || vec![0.0f32; 1 << 28];
    Job::new(1, 1).with("slice_bytes", 1u64 << 30).run(move |store, _| {
        let began = Instant::now();
        let text = failure(store.init(3u64, &large()), InvalidArgument);
        assert!(text.starts_with("init: key 3 has 1073741824 bytes"), "{text}");
        assert!(text.contains("set slice_bytes, which is 1073741824, to less"), "{text}");
        store.init(3u64, &[1.0f32; 4]).unwrap();
        assert!(began.elapsed() < LIMIT);
    });
    Job::new(1, 1).run(move |store, _| {
        let name = store.intern("embedding").unwrap();
        store.set_optimizer("lamb", "").unwrap();
        let text = failure(store.init(name, &large()), InvalidArgument);
        assert!(text.contains("\"embedding\" has 1073741824 bytes"), "{text}");
        assert!(text.contains("split it into smaller keys"), "{text}");
    });
}
