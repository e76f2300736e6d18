//! Two names with one hash, on different ranks: the second one to come is refused, and shares no value.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{NameCollision, Timeout};
use kvstore::{Config, Key, Store};

use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(20);
/// More than a round trip takes, and far less than a call that waits for its deadline.
const SOON: Duration = Duration::from_secs(5);

/// The pair of docs/use/semantics.md.
const FIRST: &str = "zydjx7v77kn7f";
const SECOND: &str = "57er3422k45qg";

fn pull(store: &Store, key: Key) -> Vec<f32> {
    let mut out = vec![0.0; 2];
    store.pull(key, &mut out).unwrap();
    out
}

/// A failure that names the key, and the rank that has it under another name.
#[track_caller]
fn collides<T>(result: kvstore::Result<T>, own: &str, holder: usize) {
    let text = failure(result, NameCollision);
    assert!(text.contains(&format!("key \"{own}\"")), "{text}");
    assert!(text.contains(&format!("worker {holder}")), "{text}");
    assert!(text.contains("the same 63-bit hash") && text.contains("rename one"), "{text}");
}

#[test]
fn every_call_of_the_second_name_is_refused_and_the_first_keeps_its_value() {
    Job::new(2, 1).run(|store, rank| {
        let key = store.intern([FIRST, SECOND][rank]).unwrap();
        if rank == 0 {
            store.init(key, &[3.0f32; 2]).unwrap();
        }
        store.barrier(LIMIT).unwrap();
        if rank == 1 {
            let began = Instant::now();
            let mut out = [0.0f32; 2];
            collides(store.init(key, &[5.0f32; 2]), SECOND, 0);
            collides(store.push(key, &[5.0f32; 2]), SECOND, 0);
            collides(store.pull(key, &mut out), SECOND, 0);
            let (keys, value) = ([key], [5.0f32; 2]);
            let (values, mut outs) = ([(&value).into()], [(&mut out).into()]);
            collides(store.pushpull_list(&keys, &values, &keys, &mut outs), SECOND, 0);
            collides(store.broadcast_list(&keys, &values, &keys, &mut outs), SECOND, 0);
            collides(store.key_info(key), SECOND, 0);
            collides(store.remove(&[key]), SECOND, 0);
            assert!(began.elapsed() < SOON);
            assert_eq!(out, [0.0; 2]);
            // Another name is as good as ever.
            let other = store.intern("another").unwrap();
            failure(store.key_info(other), kvstore::ErrorKind::KeyNotFound);
        }
        store.barrier(LIMIT).unwrap();
        if rank == 0 {
            assert_eq!(pull(store, key), [3.0; 2]);
        }
    });
}

#[test]
fn the_rank_that_decides_is_refused_when_it_comes_second() {
    Job::new(2, 1).with("timeout_ms", 2_000).run(|store, rank| {
        let key = store.intern([SECOND, FIRST][rank]).unwrap();
        if rank == 1 {
            // It has declared its name when the other one comes, and waits for it.
            let text = failure(store.init(key, &[1.0f32; 2]), Timeout);
            assert!(text.contains(FIRST) && text.contains("worker 0"), "{text}");
        } else {
            thread::sleep(Duration::from_millis(500));
            collides(store.init(key, &[1.0f32; 2]), SECOND, 1);
        }
        store.barrier(LIMIT).unwrap();
    });
}

#[test]
fn of_three_ranks_the_two_with_one_name_share_it() {
    Job::new(3, 2).run(|store, rank| {
        let key = store.intern([FIRST, SECOND, FIRST][rank]).unwrap();
        if rank == 0 {
            store.init(key, &[0.0f32; 2]).unwrap();
        }
        store.barrier(LIMIT).unwrap();
        if rank == 1 {
            collides(store.init(key, &[7.0f32; 2]), SECOND, 0);
            store.done().unwrap();
            collides(store.pull(key, &mut [0.0f32; 2]), SECOND, 0);
            return;
        }
        if rank == 2 {
            store.init(key, &[9.0f32; 2]).unwrap();
        }
        store.push(key, &[rank as f32 + 1.0; 2]).unwrap();
        assert_eq!(pull(store, key), [4.0; 2]);
    });
}

#[test]
fn a_name_is_free_for_the_other_once_its_key_is_removed() {
    Job::new(2, 1).run(|store, rank| {
        let key = store.intern([FIRST, SECOND][rank]).unwrap();
        // The other rank uses it by its number alone, which stands for no name.
        let number = Key::from(key.id());
        let mine = rank == 0;
        if mine {
            store.init(number, &[2.0f32; 2]).unwrap();
        }
        store.barrier(LIMIT).unwrap();
        if !mine {
            collides(store.init(key, &[2.0f32; 2]), SECOND, 0);
            store.done().unwrap();
            return;
        }
        store.remove(&[key]).unwrap();
        store.init(key, &[4.0f32; 2]).unwrap();
        assert_eq!(pull(store, key), [4.0; 2]);
    });
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvstore-{}-{name}", std::process::id()))
}

/// A file with one key of a name.
fn file_with(name: &str, file: &PathBuf) {
    let store = Store::open("local", &Config::new()).unwrap();
    let key = store.intern(name).unwrap();
    store.init(key, &[6.0f32; 2]).unwrap();
    store.save(file).unwrap();
}

#[test]
fn a_file_brings_its_names_and_the_rank_with_the_other_name_is_refused() {
    let file = path("names.safetensors");
    file_with(FIRST, &file);
    let loaded = file.clone();
    Job::new(2, 1).run(move |store, rank| {
        if rank == 1 {
            // Rank 0 has neither name, and learns that of the file.
            let key = store.intern(SECOND).unwrap();
            store.load(&loaded).unwrap();
            collides(store.pull(key, &mut [0.0f32; 2]), SECOND, 0);
            collides(store.init(key, &[0.0f32; 2]), SECOND, 0);
        } else {
            store.load(&loaded).unwrap();
            let key = store.intern(FIRST).unwrap();
            assert_eq!(pull(store, key), [6.0; 2]);
        }
        store.barrier(LIMIT).unwrap();
    });
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_file_is_not_loaded_where_the_job_has_the_other_name() {
    let file = path("taken.safetensors");
    file_with(FIRST, &file);
    let loaded = file.clone();
    Job::new(2, 1).run(move |store, _| {
        let key = store.intern(SECOND).unwrap();
        store.init(key, &[1.0f32; 2]).unwrap();
        let text = failure(store.load(&loaded), NameCollision);
        assert!(text.contains(FIRST) && text.contains(SECOND), "{text}");
        assert_eq!(pull(store, key), [1.0; 2]);
    });
    std::fs::remove_file(file).unwrap();
}
