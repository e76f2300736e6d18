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
fn what_a_rule_kept_before_another_one_was_set_is_in_no_file() {
    let file = path("changed.safetensors");
    let (saved, straight) = (file.clone(), Job::new(2, 1).with("slice_bytes", 8192));
    let expected = straight.run(move |store, rank| {
        for key in 0..KEYS {
            store.init(key, &vec![0.5f32; count(key)]).unwrap();
        }
        store.set_optimizer("sgd", "learning_rate=0.01,momentum=0.9").unwrap();
        train(store, rank, 0..3);
        store.set_optimizer("adam", "learning_rate=0.01").unwrap();
        store.save(&saved).unwrap();
        train(store, rank, 3..6)
    });
    let saved = file.clone();
    let results = Job::new(2, 2).with("slice_bytes", 8192).run(move |store, rank| {
        store.load(&saved).unwrap();
        train(store, rank, 3..6)
    });
    assert!(results == expected);
    std::fs::remove_file(&file).unwrap();
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

/// What keys are under a codec, before the first round.
fn begin_encoded(store: &Store, (codec, params): (&str, &str)) {
    for key in 0..KEYS {
        store.init(key, &vec![0.5f32; count(key)]).unwrap();
    }
    store.set_optimizer("sgd", "learning_rate=0.01,momentum=0.9").unwrap();
    store.set_compression(codec, params).unwrap();
}

#[test]
fn what_codecs_have_left_unsent_goes_on_with_other_servers() {
    for codec in [("2bit", "threshold=0.75"), ("randomk", "ratio=0.1,seed=3"), ("topk", "")] {
        let file = path(&format!("unsent-{}.safetensors", codec.0));
        let (saved, straight) = (file.clone(), Job::new(3, 1).with("slice_bytes", 8192));
        let expected = straight.run(move |store, rank| {
            begin_encoded(store, codec);
            train(store, rank, 0..3);
            store.save(&saved).unwrap();
            train(store, rank, 3..6)
        });
        for (servers, slice, before) in [(3, 16_384, 0), (2, 1 << 20, 2)] {
            let (saved, job) = (file.clone(), Job::new(3, servers).with("slice_bytes", slice));
            let results = job.run(move |store, rank| {
                if before > 0 {
                    // What other pushes have left does not matter, nor how many there were.
                    begin_encoded(store, codec);
                    train(store, rank, 7..7 + before);
                }
                // Otherwise the other ranks learn of the keys with the file.
                store.load(&saved).unwrap();
                train(store, rank, 3..6)
            });
            assert!(results == expected, "{codec:?}, {servers} servers, slices of {slice}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn what_is_unsent_in_an_asynchronous_job_is_that_of_each_worker() {
    let file = path("unsent-async.safetensors");
    let (saved, job) = (file.clone(), Job::of("dist_async", 2, 2).with("slice_bytes", 8192));
    // Rank 1 has pushed more often; each pushes a key of its own afterwards.
    let last = |store: &Store, rank: usize| {
        let key = 1 + rank as u64;
        store.push(key, &gradient(key, rank, 9)).unwrap();
        store.barrier(std::time::Duration::from_secs(20)).unwrap();
        let mut outs = Vec::new();
        for key in 1..KEYS {
            let mut out = vec![0.0f32; count(key)];
            store.pull(key, &mut out).unwrap();
            outs.extend(out.into_iter().map(f32::to_bits));
        }
        outs
    };
    let codec = ("randomk", "ratio=0.1,seed=3");
    let expected = job.run(move |store, rank| {
        begin_encoded(store, codec);
        for round in 0..2 + rank {
            (1..KEYS).for_each(|key| store.push(key, &gradient(key, rank, round)).unwrap());
        }
        store.save(&saved).unwrap();
        last(store, rank)
    });
    let saved = file.clone();
    let results = Job::of("dist_async", 2, 1).run(move |store, rank| {
        begin_encoded(store, codec);
        store.push(1u64, &gradient(1, rank, 5)).unwrap();
        store.load(&saved).unwrap();
        last(store, rank)
    });
    assert!(results == expected);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn what_is_unsent_is_for_as_many_workers_only() {
    let codec = ("2bit", "threshold=1");
    let push = |store: &Store| {
        store.push(0u64, &[0.75f32; 7]).unwrap();
        let mut out = [0.0f32; 7];
        store.pull(0u64, &mut out).unwrap();
        out[0]
    };
    let save = move |file: PathBuf| {
        move |store: &Store, _: usize| {
            store.init(0u64, &[0.0f32; 7]).unwrap();
            // Of these nothing is encoded.
            store.init(1u64, &[7i32; 3]).unwrap();
            store.init(2u64, &[0.0f32; 0]).unwrap();
            store.set_compression(codec.0, codec.1).unwrap();
            assert!(push(store) == 0.0, "0.75 stays, of each worker");
            store.save(&file).unwrap();
        }
    };
    let (two, one, own) =
        (path("two.safetensors"), path("one.safetensors"), path("own.safetensors"));
    Job::new(2, 1).run(save(two.clone()));
    Job::new(1, 1).run(save(one.clone()));
    let local = || Store::open("local", &Config::new()).unwrap();
    save(own.clone())(&local(), 0);
    // With what was left it is 1.5, of which 1 is sent; without it nothing.
    for (file, alone, two_workers) in [(&two, 0.0, 2.0), (&one, 1.0, 0.0), (&own, 1.0, 0.0)] {
        let store = local();
        store.load(file).unwrap();
        assert_eq!(push(&store), alone, "local, {}", file.display());
        for (workers, expected) in [(1, alone), (2, two_workers)] {
            let file = file.clone();
            let results = Job::new(workers, 1).run(move |store, _| {
                store.load(&file).unwrap();
                push(store)
            });
            assert_eq!(results, vec![expected; workers], "{workers} workers");
        }
    }
    for file in [two, one, own] {
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn keys_become_whole_for_the_rule_of_a_file() {
    let file = path("whole.safetensors");
    let (saved, job) = (file.clone(), Job::new(2, 2).with("slice_bytes", 8192));
    let expected = job.run(move |store, rank| {
        store.set_optimizer("lamb", "learning_rate=0.01").unwrap();
        (0..KEYS).for_each(|key| store.init(key, &vec![0.5f32; count(key)]).unwrap());
        train(store, rank, 0..2);
        store.save(&saved).unwrap();
        train(store, rank, 2..4)
    });
    let saved = file.clone();
    let results = job.run(move |store, rank| {
        // One of the keys in slices comes with the file.
        (0..KEYS - 1).for_each(|key| store.init(key, &vec![0.5f32; count(key)]).unwrap());
        store.set_optimizer("sgd", "learning_rate=0.1").unwrap();
        store.push(1u64, &gradient(1, rank, 8)).unwrap();
        store.load(&saved).unwrap();
        train(store, rank, 2..4)
    });
    assert!(results == expected);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_file_without_a_codec_leaves_nothing_unsent_on_any_rank() {
    let file = path("plain.safetensors");
    let local = Store::open("local", &Config::new()).unwrap();
    local.init(0u64, &[0.0f32; 7]).unwrap();
    local.save(&file).unwrap();
    let (saved, job) = (file.clone(), Job::new(2, 1));
    let results = job.run(move |store, rank| {
        store.init(0u64, &[0.0f32; 7]).unwrap();
        store.set_compression("2bit", "threshold=1").unwrap();
        let push = |value: f32| {
            store.push(0u64, &[value; 7]).unwrap();
            let mut out = [0.0f32; 7];
            store.pull(0u64, &mut out).unwrap();
            out[0]
        };
        let before = push(0.75);
        store.load(&saved).unwrap();
        // What is left of rank 1 is not there any more, and neither is that of rank 0.
        (before, push(0.75), push(if rank == 0 { 0.25 } else { 0.0 }))
    });
    assert_eq!(results, [(0.0, 0.0, 1.0); 2]);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn the_function_of_one_worker_names_the_keys_of_a_file() {
    let file = path("foreign.safetensors");
    let header = "{\"model.a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\
                   \"head\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}";
    let numbers = [1.5f32, -2.0, 3.0].iter().flat_map(|it| it.to_le_bytes());
    let bytes =
        (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(numbers);
    std::fs::write(&file, bytes.collect::<Vec<_>>()).unwrap();
    let model = file.clone();
    let results = Job::new(2, 2).run(move |store, rank| {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let count = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        store
            .load_values(&model, |tensor| {
                count();
                Ok(tensor.strip_prefix("model.").map(str::to_owned))
            })
            .unwrap();
        let key = store.intern("a").unwrap();
        let mut out = [0.0f32; 2];
        store.pull(key, &mut out).unwrap();
        assert_eq!(store.keys().unwrap(), [key]);
        let failed = store
            .load_values(&model, |tensor| Err(format!("{tensor} has no place on {rank}").into()))
            .unwrap_err();
        store.push(key, &[1.0f32; 2]).unwrap();
        store.pull(key, &mut out).unwrap();
        (asked.into_inner(), failed.kind(), failed.to_string(), out)
    });
    for (rank, (asked, kind, text, out)) in results.into_iter().enumerate() {
        assert_eq!((asked, kind, out), ([2, 0][rank], kvstore::ErrorKind::Callback, [2.0; 2]));
        assert!(text.contains("model.a has no place on 0"), "{text}");
    }
    std::fs::remove_file(&file).unwrap();
}

/// Lets all workers do the same at the same time.
fn all(stores: &[Store], work: impl Fn(&Store) + Sync) {
    std::thread::scope(|scope| stores.iter().for_each(|store| _ = scope.spawn(|| work(store))));
}

fn pushed(store: &Store, value: f32, expected: f32) {
    store.push(1u64, &[value; 4_000]).unwrap();
    let mut out = [0.0f32; 4_000];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [expected; 4_000]);
}

/// Also when it is the one that would write the file: the next rank does it.
#[test]
fn a_lost_worker_leaves_nothing_unsent_behind() {
    for lost in 0..3 {
        let file = path("lost.safetensors");
        let job = Job::new(3, 2).with("on_worker_loss", "continue").with("slice_bytes", 8192);
        let others = job.start();
        let mut stores: Vec<Store> =
            job.open_all(&others.root).into_iter().map(kvstore::Result::unwrap).collect();
        all(&stores, |store| {
            store.init(1u64, &[0.0f32; 4_000]).unwrap();
            store.set_compression("2bit", "threshold=1").unwrap();
            pushed(store, 0.75, 0.0);
        });
        drop(stores.remove(lost));
        all(&stores, |store| store.save(&file).unwrap());
        all(&stores, |store| {
            pushed(store, 0.5, 2.0);
            // Of the first push 0.75 is left again, and not 0.25 of both.
            store.load(&file).unwrap();
            pushed(store, 0.25, 2.0);
            // Its keys become whole, which the lowest rank arranges.
            store.set_optimizer("lamb", "learning_rate=0.01").unwrap();
            store.close(std::time::Duration::from_secs(20)).unwrap();
        });
        others.end().into_iter().for_each(std::result::Result::unwrap);
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn workers_that_are_not_done_save_and_load_without_the_first_rank() {
    let file = path("without.safetensors");
    let saved = file.clone();
    Job::new(3, 2).run(move |store, rank| {
        store.init(1u64, &[rank as f32 + 1.0; 5]).unwrap();
        if rank == 0 {
            return store.done().unwrap();
        }
        store.save(&saved).unwrap();
        store.push(1u64, &[rank as f32; 5]).unwrap();
        store.load(&saved).unwrap();
        let mut out = [0.0f32; 5];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [1.0; 5]);
    });
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_file_of_another_program_gives_its_values_to_a_job() {
    let file = path("foreign.safetensors");
    let header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},\
                  \"half\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[12,16]}}";
    let floats = [1.5f32, -2.0, 3.25];
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(floats.iter().flat_map(|it| it.to_le_bytes()));
    bytes.extend([0x80u8, 0x3F, 0x00, 0xC0]);
    std::fs::write(&file, bytes).unwrap();
    let loaded = file.clone();
    Job::new(2, 2).run(move |store, _| {
        let [w, half] = ["w", "half"].map(|name| store.intern(name).unwrap());
        store.set_optimizer("test", "").unwrap();
        store.init(half, &[0.0f32; 2]).unwrap();
        store.load(&loaded).unwrap();
        let (mut of_w, mut of_half) = ([0.0f32; 3], [0.0f32; 2]);
        store.push(w, &[1.0f32; 3]).unwrap();
        store.pull(w, &mut of_w).unwrap();
        store.pull(half, &mut of_half).unwrap();
        assert_eq!(of_w, floats.map(|it| it + 2.0), "both ranks have added 1");
        assert_eq!(of_half, [1.0, -2.0]);
    });
    std::fs::remove_file(&file).unwrap();
}
