//! What a worker that has called `done` can still do.

use std::path::Path;
use std::thread;
use std::time::Duration;

use kvstore::ErrorKind::{InvalidArgument, KeyNotFound, Role, Timeout};
use kvstore::{Config, Store, Tensor, TensorMut};

use super::common::folder::Folder;
use super::common::wait::soon;
use super::job::{Job, both, failure};

const LIMIT: Duration = Duration::from_secs(60);
const A_WHILE: Duration = Duration::from_millis(150);

/// Elements of keys: one of one slice, and one of some.
const COUNTS: [usize; 2] = [7, 20_000];

fn gradient(key: u64, rank: usize, round: usize) -> Vec<f32> {
    let at = |i: usize| ((i * 13 + rank * 7 + round * 3) as f32 * 0.11 + key as f32).cos();
    (0..COUNTS[key as usize]).map(at).collect()
}

fn push_all(store: &Store, rank: usize, round: usize) {
    (0..2).for_each(|key| store.push(key, &gradient(key, rank, round)).unwrap());
}

fn values(store: &Store) -> Vec<u32> {
    let value = |key: u64| {
        let mut value = vec![0f32; COUNTS[key as usize]];
        store.pull(key, &mut value).unwrap();
        value
    };
    (0..2).flat_map(value).map(f32::to_bits).collect()
}

/// Two keys, and a rule.
fn begin(store: &Store) {
    (0u64..).zip(COUNTS).for_each(|(key, count)| store.init(key, &vec![0.5f32; count]).unwrap());
    store.set_optimizer("sgd", "learning_rate=0.1,momentum=0.9").unwrap();
}

/// What a local store makes of a file, and of one more push.
fn goes_on(file: &Path) -> (Vec<u32>, Vec<u32>) {
    let store = Store::open("local", &Config::new()).unwrap();
    store.load(file).unwrap();
    let (loaded, mut late) = (values(&store), [0f32; 3]);
    store.pull(7u64, &mut late).unwrap();
    assert_eq!(late, [1.5; 3], "a key that was initialised afterwards");
    push_all(&store, 5, 5);
    (loaded, values(&store))
}

#[test]
fn whoever_is_done_saves_what_the_others_have_made_of_it() {
    for kind in ["dist_sync", "dist_async"] {
        let folder = Folder::new(&format!("done-{kind}"));
        let (early, other) = (folder.file("early"), folder.file("other"));
        let job = Job::of(kind, 2, 2).with("slice_bytes", 8192);
        let (others, [first, second]) = job.start_with_two();
        both([&first, &second], begin);
        let local = Store::open("local", &Config::new()).unwrap();
        begin(&local);
        push_all(&first, 0, 0);
        first.done().unwrap();
        push_all(&second, 1, 0);
        if kind == "dist_sync" {
            (0..2).for_each(|key| {
                let (mine, theirs) = (gradient(key, 0, 0), gradient(key, 1, 0));
                let keys = [key.into(); 2];
                local
                    .push_list(&keys, &[mine.as_slice().into(), theirs.as_slice().into()])
                    .unwrap();
            });
        } else {
            push_all(&local, 0, 0);
            push_all(&local, 1, 0);
        }
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| first.save(&early));
            // Nobody meets the first one for any of this.
            second.set_hyperparameter("learning_rate", 0.01).unwrap();
            push_all(&second, 1, 1);
            second.set_optimizer("adam", "learning_rate=0.03").unwrap();
            second.set_key_hyperparameter(1u64, "lr_mult", 0.5).unwrap();
            second.init(7u64, &[1.5f32; 3]).unwrap();
            (2..4).for_each(|round| push_all(&second, 1, round));
            assert!(!early.exists(), "it waits for whoever may push");
            second.done().unwrap();
            waiting.join().unwrap()
        });
        waiting.unwrap();
        second.save(&other).unwrap();
        assert!(std::fs::read(&early).unwrap() == std::fs::read(&other).unwrap(), "{kind}");
        local.set_hyperparameter("learning_rate", 0.01).unwrap();
        push_all(&local, 1, 1);
        local.set_optimizer("adam", "learning_rate=0.03").unwrap();
        local.set_key_hyperparameter(1u64, "lr_mult", 0.5).unwrap();
        (2..4).for_each(|round| push_all(&local, 1, round));
        let here = values(&local);
        push_all(&local, 5, 5);
        assert!(goes_on(&early) == (here, values(&local)), "{kind}");
        first.close(LIMIT).unwrap();
        second.close(LIMIT).unwrap();
        drop(others.end());
    }
}

#[test]
fn whoever_may_still_push_is_named() {
    let folder = Folder::new("done-late");
    let file = folder.file("state");
    let job = Job::new(3, 2).with("timeout_ms", 700);
    let others = job.start();
    let stores: Vec<Store> = job.open_all(&others.root).into_iter().map(Result::unwrap).collect();
    thread::scope(|scope| {
        stores.iter().for_each(|store| _ = scope.spawn(|| store.init(3u64, &[1f32]).unwrap()));
    });
    stores[0].done().unwrap();
    stores[1].done().unwrap();
    let text = failure(stores[0].save(&file), Timeout);
    let expected = "save: pull: key 3, behind all pushes: not done within ";
    assert!(text.starts_with(expected) && text.ends_with(" ms, waiting for worker 2"), "{text}");
    let none: &[&str] = &[];
    assert_eq!(folder.names(), none);
    // It leaves with a push that nobody waits for any more.
    stores[2].push(3u64, &[4f32]).unwrap();
    stores[2].close(LIMIT).unwrap();
    stores[1].save(&file).unwrap();
    let local = Store::open("local", &Config::new()).unwrap();
    local.load(&file).unwrap();
    let mut value = [0f32];
    local.pull(3u64, &mut value).unwrap();
    assert_eq!(value, [4.0]);
    stores[..2].iter().for_each(|store| store.close(LIMIT).unwrap());
    drop(others.end());
}

#[test]
fn keys_that_went_or_came_since_are_those_of_the_job() {
    let folder = Folder::new("done-keys");
    let file = folder.file("state");
    let job = Job::new(2, 2);
    let (others, [first, second]) = job.start_with_two();
    both([&first, &second], |store| {
        (0u64..4).for_each(|key| store.init(key, &[key as f32; 4]).unwrap());
    });
    first.done().unwrap();
    second.remove(&[1u64.into(), 2u64.into()]).unwrap();
    second.init(2u64, &[5f64, 6.0]).unwrap();
    let name = second.intern("late").unwrap();
    second.init(name, &[7f32]).unwrap();
    let text = failure(first.save(&file), InvalidArgument);
    assert!(text.contains("intern its name here as well"), "{text}");
    first.intern("late").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.save(&file));
        thread::sleep(A_WHILE);
        // It is asked for this one.
        second.remove(&[0u64.into()]).unwrap();
        thread::sleep(A_WHILE);
        second.done().unwrap();
        waiting.join().unwrap().unwrap();
    });
    let local = Store::open("local", &Config::new()).unwrap();
    local.load(&file).unwrap();
    assert_eq!(local.keys().unwrap(), [2u64.into(), 3u64.into(), name]);
    let (mut kept, mut other, mut late) = ([0f32; 4], [0f64; 2], [0f32]);
    local.pull(3u64, &mut kept).unwrap();
    local.pull(2u64, &mut other).unwrap();
    local.pull(name, &mut late).unwrap();
    assert_eq!((kept, other, late), ([3.0; 4], [5.0, 6.0], [7.0]));
    first.close(LIMIT).unwrap();
    second.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn a_reader_is_refused_every_call_that_changes_the_job() {
    let (others, [worker, reader]) = Job::new(2, 1).start_with_reader();
    worker.init(1u64, &[3.0f32; 4]).unwrap();
    let (keys, values, mut out) = ([1u64.into()], [3.0f32; 4], [0.0f32; 4]);
    let folder = Folder::new("reads");
    let file = folder.file("state");
    let pushed = [Tensor::from(&values)];
    let rows = Tensor::new(&values, &[1, 4]).unwrap();
    let refused = [
        ("init", reader.init(2u64, &values)),
        ("push", reader.push(1u64, &values)),
        ("push", reader.push_owned(1u64, values.to_vec(), 0).map(drop)),
        ("pushpull", reader.pushpull_list(&keys, &pushed, &keys, &mut [(&mut out).into()])),
        ("broadcast", reader.broadcast_list(&keys, &pushed, &keys, &mut [(&mut out).into()])),
        ("push_rows", reader.push_rows(1u64, &[0i64][..], rows)),
        ("remove", reader.remove(&keys)),
        ("barrier", reader.barrier(LIMIT)),
        ("save", reader.save(&file)),
        ("load", reader.load(&file)),
        ("set_optimizer", reader.set_optimizer("sgd", "")),
        ("set_hyperparameter", reader.set_hyperparameter("learning_rate", 1.0)),
        ("set_key_hyperparameter", reader.set_key_hyperparameter(1u64, "lr_mult", 1.0)),
        ("set_compression", reader.set_compression("2bit", "")),
    ];
    for (call, result) in refused {
        let text = failure(result, Role);
        let expected =
            format!("{call}: this process is worker 1; it is a reader, which only pulls");
        assert_eq!(text, expected);
    }
    assert!(!file.exists(), "nothing is written");
    reader.done().unwrap();
    reader.pull(1u64, &mut out).unwrap();
    assert_eq!(out, values);
    worker.close(LIMIT).unwrap();
    reader.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn keys_that_the_others_have_made_whole_are_found() {
    const ROWS: usize = 3_000;
    for readers in [false, true] {
        let job = Job::new(2, 2).with("slice_bytes", 8192);
        let others = job.start();
        let role = if readers { "reader" } else { "worker" };
        let (root, other) = (others.root.clone(), job.clone().with("role", role));
        let opening = thread::spawn(move || other.open(1, &root).unwrap());
        let first = job.open(0, &others.root).unwrap();
        let second = opening.join().unwrap();
        let start: Vec<f32> = (0..4 * ROWS).map(|i| i as f32 * 0.25).collect();
        let shape = [ROWS as i64, 4];
        thread::scope(|scope| {
            scope.spawn(|| first.init(3u64, Tensor::new(&start, &shape).unwrap()).unwrap());
            if !readers {
                second.init(3u64, Tensor::new(&start, &shape).unwrap()).unwrap();
                second.done().unwrap();
            }
        });
        let rows = [0i64, 1_999, 2_999];
        let look = |store: &Store| {
            let (mut all, mut some) = (vec![0f32; 4 * ROWS], [0f32; 12]);
            store.pull(3u64, TensorMut::new(&mut all, &shape).unwrap()).unwrap();
            store.pull_rows(3u64, &rows[..], TensorMut::new(&mut some, &[3, 4]).unwrap()).unwrap();
            let few: Vec<f32> =
                rows.iter().flat_map(|row| all[4 * *row as usize..][..4].to_vec()).collect();
            assert_eq!(few, some);
            all
        };
        assert_eq!(look(&second), start);
        first.set_optimizer("lamb", "learning_rate=0.01").unwrap();
        // The rows first: they lie in other slices now.
        let mut some = [0f32; 12];
        second.pull_rows(3u64, &rows[..], TensorMut::new(&mut some, &[3, 4]).unwrap()).unwrap();
        assert_eq!(some[..4], start[..4]);
        first.push(3u64, Tensor::new(&vec![1f32; 4 * ROWS], &shape).unwrap()).unwrap();
        assert_eq!(look(&first), look(&second));
        first.remove(&[3u64.into()]).unwrap();
        let mut out = vec![0f32; 4 * ROWS];
        let mut pull = || second.pull(3u64, TensorMut::new(&mut out, &shape).unwrap());
        // The servers may hear of it after `first` has returned.
        assert!(soon(LIMIT, || pull().is_err()));
        let text = failure(pull(), KeyNotFound);
        assert!(text.starts_with("pull: key 3"), "{text}");
        first.close(LIMIT).unwrap();
        second.close(LIMIT).unwrap();
        drop(others.end());
    }
}

#[test]
fn a_loss_is_an_end_as_well() {
    let folder = Folder::new("done-loss");
    let file = folder.file("state");
    let job = Job::new(2, 2).with("slice_bytes", 8192);
    let (others, [first, second]) = job.start_with_two();
    both([&first, &second], begin);
    push_all(&first, 0, 0);
    first.done().unwrap();
    push_all(&second, 1, 0);
    second.set_optimizer("adam", "learning_rate=0.03").unwrap();
    push_all(&second, 1, 1);
    let seen = values(&second);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.save(&file));
        thread::sleep(A_WHILE);
        drop(second);
        waiting.join().unwrap().unwrap();
    });
    let local = Store::open("local", &Config::new()).unwrap();
    local.load(&file).unwrap();
    assert!(values(&local) == seen);
    let text = std::fs::read(&file).unwrap();
    assert!(String::from_utf8_lossy(&text).contains("\"kvstore.optimizer\":\"adam\""));
    first.close(LIMIT).unwrap();
    drop(others.end());
}
