//! Dtypes whose values are never added: moved over servers and slices, replaced where nothing is added,
//! and refused in the call where a round would add them.

use std::time::Duration;

use kvstore::ErrorKind::{Differs, DtypeMismatch, Unsupported};
use kvstore::{DType, Error, Key, Store, Tensor};

use super::common::folder::Folder;
use super::common::opaque::{Elements, opaque};
use super::job::Job;

const PATIENCE: Duration = Duration::from_secs(60);
const SHAPES: [[i64; 2]; 4] = [[0, 3], [1, 1], [7, 5], [37, 301]];

/// A key of each opaque dtype and shape.
fn keys() -> impl Iterator<Item = (Key, DType, [i64; 2])> {
    let pairs = opaque().flat_map(|dtype| SHAPES.map(|shape| (dtype, shape)));
    (0u64..).zip(pairs).map(|(key, (dtype, shape))| (key.into(), dtype, shape))
}

/// Asserts that a worker pulls the elements of a seed.
fn expect(store: &Store, (key, dtype, shape): (Key, DType, [i64; 2]), seed: u64) {
    let mut out = Elements::zeroed(dtype, &shape);
    store.pull(key, out.tensor_mut()).unwrap();
    let wanted = Elements::random(dtype, &shape, seed);
    assert!(out.bytes() == wanted.bytes(), "{dtype:?} {shape:?}, elements of {seed}");
}

fn init_all(store: &Store, rank: usize) {
    for (key, dtype, shape) in keys() {
        store.init(key, Elements::random(dtype, &shape, rank as u64).tensor()).unwrap();
        assert_eq!(store.key_info(key).unwrap().dtype, dtype);
    }
}

#[test]
fn the_value_of_the_lowest_rank_is_given_to_all_over_slices_and_servers() {
    for (servers, slice) in [(2, 8192), (1, 256 << 10)] {
        Job::new(3, servers).with("slice_bytes", slice).run(|store, rank| {
            init_all(store, rank);
            keys().for_each(|key| expect(store, key, 0));
            let ids = [36i64, 0, 20];
            let (key, dtype, shape) = keys().find(|it| it.2[0] == 37).unwrap();
            let mut rows = Elements::zeroed(dtype, &[3, 301]);
            store.pull_rows(key, &ids, rows.tensor_mut()).unwrap();
            let (whole, length) = (Elements::random(dtype, &shape, 0), 301 * dtype.size());
            for (row, id) in rows.bytes().chunks(length).zip(ids) {
                assert!(row == &whole.bytes()[id as usize * length..][..length]);
            }
        });
    }
}

fn check_refused(error: &Error, dtype: DType) {
    assert_eq!(error.kind(), Unsupported, "{error}");
    let text = error.message();
    for part in ["key ", dtype.name(), "not added", "of 2 workers", "remove"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_push_is_refused_on_every_rank_in_the_call_and_changes_nothing() {
    for kind in ["dist_sync", "dist_device_sync"] {
        for order in ["linear", "tree"] {
            Job::of(kind, 2, 1).with("sum_order", order).run(|store, rank| {
                init_all(store, rank);
                let other = Key::from(1_000u64);
                store.init(other, &[1i32]).unwrap();
                for (key, dtype, shape) in keys() {
                    let value = Elements::random(dtype, &shape, 7);
                    check_refused(&store.push(key, value.tensor()).unwrap_err(), dtype);
                    let list = store.push_list(&[other, key], &[(&[5i32]).into(), value.tensor()]);
                    check_refused(&list.unwrap_err(), dtype);
                    let ticket = store
                        .scope(PATIENCE, |scope| scope.push_list(&[key], &[value.tensor()], 0));
                    check_refused(&ticket.unwrap_err(), dtype);
                    let row = Elements::random(dtype, &[1, shape[1]], 7);
                    if shape[0] > 0 {
                        let rows = store.push_rows(key, &[0i64], row.tensor());
                        check_refused(&rows.unwrap_err(), dtype);
                    }
                }
                store.barrier(PATIENCE).unwrap();
                keys().for_each(|key| expect(store, key, 0));
                // No round has begun, of the other key of the lists neither.
                store.push(other, &[3i32]).unwrap();
                let mut out = [0i32];
                store.pull(other, &mut out).unwrap();
                assert_eq!(out, [6]);
                // What the text advises.
                let all: Vec<Key> = keys().map(|it| it.0).collect();
                store.remove(&all).unwrap();
                for (key, dtype, shape) in keys() {
                    store.init(key, Elements::random(dtype, &shape, 9).tensor()).unwrap();
                }
                keys().for_each(|key| expect(store, key, 9));
            });
        }
    }
}

#[test]
fn the_only_worker_replaces_values_and_rows() {
    for (kind, order) in [("dist_sync", "linear"), ("dist_sync", "tree"), ("dist_async", "linear")]
    {
        Job::of(kind, 1, 2).with("sum_order", order).with("slice_bytes", 8192).run(
            |store, rank| {
                init_all(store, rank);
                for (key, dtype, shape) in keys() {
                    let value = Elements::random(dtype, &shape, 4);
                    store.push(key, value.tensor()).unwrap();
                    expect(store, (key, dtype, shape), 4);
                    let two = store.push_list(&[key, key], &[value.tensor(), value.tensor()]);
                    assert_eq!(two.unwrap_err().kind(), Unsupported);
                    if shape[0] < 2 {
                        continue;
                    }
                    let last = shape[0] - 1;
                    let rows = Elements::random(dtype, &[2, shape[1]], 5);
                    let twice = store.push_rows(key, &[last, last], rows.tensor()).unwrap_err();
                    assert!(twice.message().contains("twice"), "{twice}");
                    store.push_rows(key, &[last, 0], rows.tensor()).unwrap();
                    let mut out = Elements::zeroed(dtype, &shape);
                    store.pull(key, out.tensor_mut()).unwrap();
                    let row = shape[1] as usize * dtype.size();
                    let (mut wanted, pushed) = (value.bytes().to_vec(), rows.bytes());
                    let from = wanted.len() - row;
                    wanted[from..].copy_from_slice(&pushed[..row]);
                    wanted[..row].copy_from_slice(&pushed[row..]);
                    assert!(out.bytes() == wanted, "{dtype:?} {shape:?}");
                }
            },
        );
    }
}

#[test]
fn pushes_of_several_workers_that_are_no_round_replace_the_value() {
    Job::of("dist_async", 2, 1).run(|store, rank| {
        init_all(store, rank);
        store.barrier(PATIENCE).unwrap();
        for turn in 0..2 {
            if turn == rank {
                for (key, dtype, shape) in keys() {
                    let value = Elements::random(dtype, &shape, 10 + turn as u64);
                    store.push(key, value.tensor()).unwrap();
                    expect(store, (key, dtype, shape), 10 + turn as u64);
                }
            }
            store.barrier(PATIENCE).unwrap();
            keys().for_each(|key| expect(store, key, 10 + turn as u64));
            store.barrier(PATIENCE).unwrap();
        }
    });
}

#[test]
fn checkpoints_of_jobs_and_local_stores_are_equal() {
    let folder = Folder::new("opaque");
    let (path, local_path) = (folder.file("job"), folder.file("local"));
    let of_job = path.clone();
    Job::new(2, 2).with("slice_bytes", 8192).run(move |store, rank| {
        init_all(store, rank);
        store.save(&of_job).unwrap();
        let removed: Vec<Key> = keys().map(|it| it.0).step_by(2).collect();
        store.remove(&removed).unwrap();
        store.load(&of_job).unwrap();
        keys().for_each(|key| expect(store, key, 0));
        let digests = store.digest(&keys().map(|it| it.0).collect::<Vec<_>>()).unwrap();
        assert!(digests.iter().zip(keys()).all(|(it, key)| (it.value == 0) == (key.2[0] == 0)));
    });
    let store = Store::open("local", &kvstore::Config::new()).unwrap();
    init_all(&store, 0);
    store.save(&local_path).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&local_path).unwrap());
    store.load(&path).unwrap();
    keys().for_each(|key| expect(&store, key, 0));
}

#[test]
fn another_dtype_on_a_rank_is_named_on_that_rank() {
    let results = Job::new(2, 1).run(|store, rank| {
        let dtype = if rank == 0 { DType::Bool } else { DType::F8E5M2 };
        let outcome = store.init(1u64, Elements::random(dtype, &[3], 0).tensor());
        let text =
            outcome.as_ref().map_or_else(|error| error.message().to_owned(), |()| String::new());
        store.barrier(PATIENCE).unwrap();
        (outcome.map_err(|error| error.kind()), text)
    });
    assert!(results[0].0.is_ok());
    assert!(matches!(results[1].0, Err(DtypeMismatch | Differs)), "{:?}", results[1]);
    assert!(
        results[1].1.contains("bool[3]") && results[1].1.contains("float8_e5m2[3]"),
        "{}",
        results[1].1
    );
}

#[test]
fn an_optimizer_is_refused_on_all_ranks() {
    Job::new(2, 1).run(|store, _| {
        store.init(1u64, Tensor::from(&[true, false][..])).unwrap();
        let error = store.set_optimizer("sgd", "").unwrap_err();
        assert!(error.message().contains("bool"), "{error}");
        store.set_optimizer_for(&[1u64.into()], "none", "").unwrap();
        store.set_optimizer("sgd", "learning_rate=0.5").unwrap();
    });
}
