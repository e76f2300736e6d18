//! A checkpoint of a whole job: it is the file of a local store, and a job of another size goes on
//! from it with the same bits.

use std::path::PathBuf;

use kvstore::{Config, Key, Store};

use super::job::Job;

const KEYS: u64 = 3;

fn count(key: u64) -> usize {
    [7, 5_000, 20_000][key as usize]
}

fn gradient(key: u64, rank: usize, round: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 13 + rank * 7 + round * 3 + key as usize) as f32 * 0.11).cos();
    (0..count(key)).map(value).collect()
}

fn train(store: &Store, rank: usize, rounds: std::ops::Range<usize>) -> Vec<u32> {
    let mut bits = Vec::new();
    for round in rounds {
        bits.clear();
        for key in 0..KEYS {
            store.push(key, &gradient(key, rank, round)).unwrap();
            let mut out = vec![0.0f32; count(key)];
            store.pull(key, &mut out).unwrap();
            bits.extend(out.into_iter().map(f32::to_bits));
        }
    }
    bits
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvstore-{}-{name}", std::process::id()))
}

fn begin(store: &Store) {
    for key in 0..KEYS {
        store.init(key, &vec![0.5f32; count(key)]).unwrap();
    }
    store.set_optimizer("adam", "learning_rate=0.01").unwrap();
    store.set_key_hyperparameter(1u64, "lr_mult", 0.5).unwrap();
}

#[test]
fn a_job_goes_on_from_a_checkpoint_with_other_servers() {
    let file = path("job.safetensors");
    let (saved, straight) = (file.clone(), Job::new(2, 1).with("slice_bytes", 8192));
    let expected = straight.run(move |store, rank| {
        begin(store);
        train(store, rank, 0..3);
        store.save(&saved).unwrap();
        train(store, rank, 3..6)
    });
    for (servers, slice) in [(3, 16_384), (2, 1 << 20)] {
        let (saved, job) = (file.clone(), Job::new(2, servers).with("slice_bytes", slice));
        let results = job.run(move |store, rank| {
            if rank == 0 {
                // Some keys are there, others come with the file.
                store.init(0u64, &[9.0f32; 7]).unwrap();
            }
            store.load(&saved).unwrap();
            train(store, rank, 3..6)
        });
        assert!(results == expected, "{servers} servers, slices of {slice}");
    }
    // The file is what a local store reads, too.
    let local = Store::open("local", &Config::new()).unwrap();
    local.load(&file).unwrap();
    for round in 3..6 {
        for key in 0..KEYS {
            let values: Vec<Vec<f32>> = (0..2).map(|rank| gradient(key, rank, round)).collect();
            let tensors: Vec<kvstore::Tensor<'_>> =
                values.iter().map(|value| value.as_slice().into()).collect();
            local.push_list(&[Key::from(key); 2], &tensors).unwrap();
        }
    }
    let mut bits = Vec::new();
    for key in 0..KEYS {
        let mut out = vec![0.0f32; count(key)];
        local.pull(key, &mut out).unwrap();
        bits.extend(out.into_iter().map(f32::to_bits));
    }
    assert!(bits == expected[0], "a local store goes on alike");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_or_read_is_an_error_on_every_rank() {
    let results = Job::new(3, 2).run(|store, rank| {
        begin(store);
        train(store, rank, 0..1);
        let save = store.save("/nowhere/at/all").unwrap_err();
        let load = store.load("/nowhere/at/all").unwrap_err();
        train(store, rank, 1..2);
        (save.kind(), load.kind(), load.to_string())
    });
    for (save, load, text) in results {
        assert_eq!((save, load), (kvstore::ErrorKind::Io, kvstore::ErrorKind::Io), "{text}");
        assert!(text.contains("/nowhere/at/all"), "{text}");
    }
}
