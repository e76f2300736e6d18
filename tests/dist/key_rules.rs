//! Rules of single keys in jobs: the bits of a local store, on all servers, and in files.

use kvstore::ErrorKind::{Differs, DtypeMismatch};
use kvstore::{Config, Key, Store, Tensor};

use super::job::{Job, failure};

const WORKERS: usize = 2;
const COUNT: usize = 9_001;
const WEIGHT: u64 = 1;
const EMBEDDING: u64 = 2;
const NORM: u64 = 3;
const COUNTER: u64 = 4;
const FLOATS: [u64; 3] = [WEIGHT, EMBEDDING, NORM];

fn gradient(key: u64, rank: usize, round: usize) -> Vec<f32> {
    let value = |at: usize| ((at * 11 + rank * 7 + round * 3 + key as usize) as f32 * 0.17).cos();
    (0..COUNT).map(value).collect()
}

fn begin(store: &Store) {
    for key in FLOATS {
        store.init(key, &gradient(key, 9, 99)).unwrap();
    }
    store.set_optimizer("sgd", "learning_rate=0.1,momentum=0.9").unwrap();
    store.set_optimizer_for(&[Key::from(EMBEDDING)], "adagrad", "learning_rate=0.2").unwrap();
    let none = [Key::from(NORM), Key::from(COUNTER)];
    store.set_optimizer_for(&none, "none", "").unwrap();
    store.init(COUNTER, &[0i64; 3]).unwrap();
}

fn train(store: &Store, rank: usize, rounds: std::ops::Range<usize>) {
    for round in rounds {
        for key in FLOATS {
            store.push(key, &gradient(key, rank, round)).unwrap();
        }
        store.push(COUNTER, &[1i64; 3]).unwrap();
        if round == 2 {
            store.set_key_hyperparameter(EMBEDDING, "learning_rate", 0.05).unwrap();
        }
    }
}

fn train_local(store: &Store, rounds: std::ops::Range<usize>) {
    for round in rounds {
        for key in FLOATS {
            let values: Vec<_> = (0..WORKERS).map(|rank| gradient(key, rank, round)).collect();
            let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
            store.push_list(&[Key::from(key); WORKERS], &tensors).unwrap();
        }
        let ones = [1i64; 3];
        store.push_list(&[Key::from(COUNTER); WORKERS], &[(&ones).into(), (&ones).into()]).unwrap();
        if round == 2 {
            store.set_key_hyperparameter(EMBEDDING, "learning_rate", 0.05).unwrap();
        }
    }
}

fn bits(store: &Store) -> Vec<u32> {
    let mut all = Vec::new();
    for key in FLOATS {
        let mut out = vec![0.0f32; COUNT];
        store.pull(key, &mut out).unwrap();
        all.extend(out.into_iter().map(f32::to_bits));
    }
    let mut counts = [0i64; 3];
    store.pull(COUNTER, &mut counts).unwrap();
    assert_eq!(counts, [WORKERS as i64; 3]);
    all
}

fn file(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("kvstore-{}-{name}.safetensors", std::process::id()))
}

#[test]
fn rules_of_keys_give_the_bits_and_the_file_of_a_local_store() {
    let local = Store::open("local", &Config::new()).unwrap();
    begin(&local);
    train_local(&local, 0..4);
    let whole = file("local-rules");
    local.save(&whole).unwrap();
    let expected_file = std::fs::read(&whole).unwrap();
    train_local(&local, 4..6);
    let expected = bits(&local);
    for (servers, slice, sums) in [(1, 8192, "linear"), (3, 8192, "linear"), (2, 1 << 20, "tree")] {
        let saved = file("job-rules");
        let path = saved.clone();
        let job = Job::new(WORKERS, servers).with("slice_bytes", slice).with("sum_order", sums);
        let results = job.run(move |store, rank| {
            begin(store);
            train(store, rank, 0..4);
            store.save(&path).unwrap();
            train(store, rank, 4..6);
            bits(store)
        });
        assert!(results.iter().all(|it| *it == expected), "{servers} servers");
        assert!(std::fs::read(&saved).unwrap() == expected_file, "{servers} servers");
        // Another job goes on from the file.
        let path = saved.clone();
        let results = Job::new(WORKERS, 2).with("slice_bytes", 16_384).run(move |store, rank| {
            store.load(&path).unwrap();
            train(store, rank, 4..6);
            bits(store)
        });
        assert!(results.iter().all(|it| *it == expected), "from the file of {servers} servers");
        std::fs::remove_file(&saved).unwrap();
    }
    std::fs::remove_file(&whole).unwrap();
}

#[test]
fn a_rule_of_a_key_that_measures_it_gets_it_whole() {
    let expected = {
        let local = Store::open("local", &Config::new()).unwrap();
        begin(&local);
        local.set_optimizer_for(&[Key::from(EMBEDDING)], "lamb", "wd=0.1").unwrap();
        train_local(&local, 3..6);
        bits(&local)
    };
    let results = Job::new(WORKERS, 2).with("slice_bytes", 8192).run(|store, rank| {
        begin(store);
        store.set_optimizer_for(&[Key::from(EMBEDDING)], "lamb", "wd=0.1").unwrap();
        train(store, rank, 3..6);
        bits(store)
    });
    assert!(results.iter().all(|it| *it == expected));
}

#[test]
fn ranks_that_differ_are_told_and_what_does_not_fit_changes_nothing() {
    Job::new(WORKERS, 1).run(|store, rank| {
        begin(store);
        let keys = [Key::from(WEIGHT), Key::from(COUNTER)];
        let text = failure(store.set_optimizer_for(&keys, "adam", ""), DtypeMismatch);
        assert!(text.contains("set_optimizer_for: key 4 is int64[3]"), "{text}");
        let own = [Key::from(if rank == 0 { WEIGHT } else { NORM })];
        let set = store.set_optimizer_for(&own, "test", "");
        if rank == 0 {
            set.unwrap();
        } else {
            failure(set, Differs);
        }
        // The job has the setting of rank 0.
        for _ in 0..2 {
            store.push(WEIGHT, &vec![1.0f32; COUNT]).unwrap();
            store.push(NORM, &vec![1.0f32; COUNT]).unwrap();
        }
        let mut out = vec![0.0f32; COUNT];
        store.pull(NORM, &mut out).unwrap();
        assert_eq!(out[0], 2.0, "the sum alone");
        store.pull(WEIGHT, &mut out).unwrap();
        assert_eq!(out[0], gradient(WEIGHT, 9, 99)[0] + 2.0 + 2.0, "added to");
    });
}
