//! Optimizers on the servers: the bits of a local store, and settings from an exact round on.

use std::fmt::Debug;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use kvstore::ErrorKind::{Differs, DtypeMismatch, InvalidArgument, Option as BadOption, Timeout};
use kvstore::{Config, Key, Store, Tensor, bf16};

use super::common::random::Random;
use super::common::scalar::Scalar;
use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(20);
const WORKERS: usize = 4;
const COUNT: usize = 5_003;

/// Numbers around 1 that add up with roundings.
fn numbers<T: Scalar + From32>(rank: usize, round: usize) -> Vec<T> {
    let mut random = Random::new((rank * 100 + round) as u64);
    (0..COUNT).map(|_| T::from32((random.below(400_001) as f32 - 2e5) / 77_777.0)).collect()
}

trait From32 {
    fn from32(value: f32) -> Self;
}

impl From32 for f32 {
    fn from32(value: f32) -> Self {
        value
    }
}

impl From32 for f64 {
    fn from32(value: f32) -> Self {
        f64::from(value) / 3.0
    }
}

impl From32 for bf16 {
    fn from32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

/// The same calls on every rank, and on a local store.
struct Twins<'a> {
    store: &'a Store,
    local: Store,
    rank: usize,
    round: usize,
}

impl<'a> Twins<'a> {
    fn new(store: &'a Store, rank: usize) -> Self {
        let local = Store::open("local", &Config::new()).unwrap();
        Self { store, local, rank, round: 0 }
    }

    fn both(&self, call: impl Fn(&Store)) {
        call(self.store);
        call(&self.local);
    }

    /// All ranks push one value; the local store all of them in one call, in the order of ranks.
    fn round<T: Scalar + From32 + Debug>(&mut self, key: u64) {
        self.round += 1;
        let values: Vec<Vec<T>> = (0..WORKERS).map(|rank| numbers(rank, self.round)).collect();
        self.store.push(key, &values[self.rank]).unwrap();
        let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
        self.local.push_list(&[Key::from(key); WORKERS], &tensors).unwrap();
    }

    fn compare<T: Scalar + Debug>(&self, key: u64, what: &str) {
        let (mut ours, mut theirs) = (vec![T::default(); COUNT], vec![T::default(); COUNT]);
        self.store.pull(key, &mut ours).unwrap();
        self.local.pull(key, &mut theirs).unwrap();
        let different = ours.iter().zip(&theirs).position(|(a, b)| a.bits() != b.bits());
        assert!(different.is_none(), "{what}: {} at {different:?}", T::DTYPE.name());
    }
}

#[test]
fn rules_give_the_bits_of_a_local_store() {
    let rules = [
        ("sgd", "learning_rate=0.1,wd=0.01"),
        ("momentum", "learning_rate=0.1,momentum=0.9,wd=0.001"),
        ("adam", "learning_rate=0.05"),
    ];
    for slice in [8192, 256 << 10] {
        Job::new(WORKERS, 2).with("slice_bytes", slice).run(move |store, rank| {
            let mut twins = Twins::new(store, rank);
            for (first, (rule, params)) in (0u64..).step_by(10).zip(rules) {
                let keys = [first, first + 1, first + 2];
                twins.both(|store| {
                    store.init(keys[0], &numbers::<f32>(0, 77)).unwrap();
                    store.init(keys[1], &numbers::<f64>(0, 78)).unwrap();
                    store.init(keys[2], &numbers::<bf16>(0, 79)).unwrap();
                    store.set_optimizer(rule, params).unwrap();
                });
                for _ in 0..4 {
                    twins.round::<f32>(keys[0]);
                    twins.round::<f64>(keys[1]);
                    twins.round::<bf16>(keys[2]);
                }
                twins.compare::<f32>(keys[0], rule);
                twins.compare::<f64>(keys[1], rule);
                twins.compare::<bf16>(keys[2], rule);
            }
        });
    }
}

#[test]
fn numbers_of_a_rule_change_from_one_round_to_the_next() {
    Job::new(WORKERS, 2).with("slice_bytes", 8192).run(|store, rank| {
        let mut twins = Twins::new(store, rank);
        twins.both(|store| {
            store.init(1u64, &numbers::<f32>(0, 50)).unwrap();
            store.init(2u64, &numbers::<f32>(0, 51)).unwrap();
            store.set_optimizer("momentum", "learning_rate=0.1,momentum=0.9").unwrap();
        });
        for step in 0..4 {
            for _ in 0..2 {
                twins.round::<f32>(1);
                twins.round::<f32>(2);
            }
            // Nobody waits before the change: rounds before it and behind it are on their way.
            match step {
                0 => twins.both(|it| it.set_hyperparameter("learning_rate", 0.37).unwrap()),
                1 => twins.both(|it| it.set_key_hyperparameter(2u64, "lr_mult", 0.5).unwrap()),
                _ => twins.both(|it| it.set_hyperparameter("wd", 0.01).unwrap()),
            }
        }
        twins.compare::<f32>(1, "learning_rate");
        twins.compare::<f32>(2, "lr_mult");
    });
}

#[test]
fn a_rank_that_sets_something_else_is_told_and_the_others_go_on() {
    Job::new(2, 2).with("slice_bytes", 8192).run(|store, rank| {
        store.init(1u64, &[0.0f32; 3]).unwrap();
        store.init(3u64, &vec![1.0f32; COUNT]).unwrap();
        if rank == 0 {
            store.set_optimizer("sgd", "learning_rate=1").unwrap();
        } else {
            let text = failure(store.set_optimizer("sgd", "learning_rate=2"), Differs);
            assert!(text.starts_with("set_optimizer") && text.contains("worker 1"), "{text}");
        }
        store.set_optimizer("sgd", "learning_rate=4").unwrap();
        // The number of the lowest rank counts.
        let result = store.set_hyperparameter("learning_rate", [0.5, 0.25][rank]);
        if rank == 1 {
            failure(result, Differs);
        }
        store.push(1u64, &[1.0f32; 3]).unwrap();
        let mut out = [0.0f32; 3];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [-1.0; 3]);
        if rank == 0 {
            store.set_key_hyperparameter(1u64, "lr_mult", 2.0).unwrap();
            store.set_compression("2bit", "threshold=0.5").unwrap();
        } else {
            failure(store.set_key_hyperparameter(1u64, "lr_mult", 3.0), Differs);
            failure(store.set_compression("2bit", "threshold=0.25"), Differs);
        }
        // Also where the rule needs whole keys, and the ranks go on to make them.
        for [first, second] in [["lars", "sgd"], ["sgd", "lamb"], ["lamb", "lars"]] {
            let result = store.set_optimizer([first, second][rank], "learning_rate=1");
            if rank == 1 {
                failure(result, Differs);
            } else {
                result.unwrap();
            }
            store.init(2u64, &vec![1.0f32; COUNT]).unwrap();
            store.push(2u64, &vec![1.0f32; COUNT]).unwrap();
            store.pull(2u64, &mut vec![0.0f32; COUNT]).unwrap();
            store.remove(&[2u64.into()]).unwrap();
        }
        store.barrier(LIMIT).unwrap();
    });
}

#[test]
fn what_a_rule_cannot_do_is_refused_at_once() {
    Job::new(2, 1).run(|store, _| {
        failure(store.set_hyperparameter("learning_rate", 1.0), InvalidArgument);
        let text = failure(store.set_optimizer("adamm", ""), BadOption);
        assert!(text.contains("adam"), "{text}");
        store.init(1u64, &[1i32; 3]).unwrap();
        let text = failure(store.set_optimizer("sgd", ""), DtypeMismatch);
        assert!(text.contains("key 1"), "{text}");
        store.remove(&[1u64.into()]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        let text = failure(store.init(1u64, &[1i32; 3]), DtypeMismatch);
        assert!(text.contains("key 1"), "{text}");
        store.init(1u64, &[1.0f32; 3]).unwrap();
        store.push(1u64, &[1.0f32; 3]).unwrap();
        let mut out = [0.0f32; 3];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [-1.0; 3]);
        failure(store.set_hyperparameter("nonsense", 1.0), BadOption);
        failure(store.set_key_hyperparameter(1u64, "lr_mult", -1.0), BadOption);
    });
}

#[test]
fn rules_that_measure_whole_keys_get_whole_keys() {
    for rule in ["lamb", "lars"] {
        Job::new(WORKERS, 2).with("slice_bytes", 8192).run(move |store, rank| {
            let mut twins = Twins::new(store, rank);
            twins.both(|store| {
                store.init(1u64, &numbers::<f32>(0, 60)).unwrap();
                store.init(2u64, &[1.0f32; 7]).unwrap();
                store.set_optimizer("momentum", "learning_rate=0.1,momentum=0.9").unwrap();
            });
            // Key 1 has several slices, and what was pushed is under the rule before.
            (0..2).for_each(|_| twins.round::<f32>(1));
            twins.both(|store| {
                store.set_optimizer(rule, "learning_rate=0.1").unwrap();
                store.init(3u64, &numbers::<f32>(0, 61)).unwrap();
            });
            for _ in 0..3 {
                twins.round::<f32>(1);
                twins.round::<f32>(3);
                store.push(2u64, &[rank as f32; 7]).unwrap();
                let values = [0.0f32, 1.0, 2.0, 3.0].map(|value| [value; 7]);
                let tensors = values.each_ref().map(Tensor::from);
                twins.local.push_list(&[2u64.into(); WORKERS], &tensors).unwrap();
            }
            twins.compare::<f32>(1, rule);
            twins.compare::<f32>(3, rule);
            let mut outs = [[0.0f32; 7]; 2];
            store.pull(2u64, &mut outs[0]).unwrap();
            twins.local.pull(2u64, &mut outs[1]).unwrap();
            assert_eq!(outs[0].map(f32::to_bits), outs[1].map(f32::to_bits), "{rule}");
        });
    }
}

#[test]
fn a_codec_counts_on_when_its_key_becomes_whole() {
    Job::new(1, 2).with("slice_bytes", 8192).run(|store, _| {
        let local = Store::open("local", &Config::new()).unwrap();
        let stores = [store, &local];
        for store in stores {
            store.init(1u64, &numbers::<f32>(0, 90)).unwrap();
            store.set_compression("randomk", "ratio=0.1,seed=4").unwrap();
        }
        for rule in [None, Some("lars"), Some("lamb")] {
            for store in stores {
                if let Some(rule) = rule {
                    store.set_optimizer(rule, "learning_rate=0.1").unwrap();
                }
                (0..2).for_each(|round| store.push(1u64, &numbers::<f32>(1, round)).unwrap());
            }
            let mut outs = [vec![0.0f32; COUNT], vec![0.0f32; COUNT]];
            for (store, out) in stores.iter().zip(&mut outs) {
                store.pull(1u64, out).unwrap();
            }
            assert!(outs[0] == outs[1], "{rule:?}");
        }
    });
}

#[test]
fn keys_stay_in_slices_while_a_round_of_theirs_is_open() {
    let job = Job::new(2, 2).with("slice_bytes", 8192).with("timeout_ms", 1500);
    let both_have_failed = Arc::new(Barrier::new(2));
    job.run(move |store, rank| {
        let value = vec![1.0f32; COUNT];
        store.init(1u64, &value).unwrap();
        if rank == 0 {
            store.push(1u64, &value).unwrap();
        }
        let text = failure(store.set_optimizer("lars", "learning_rate=1"), Timeout);
        assert!(text.starts_with("set_optimizer: "), "{text}");
        assert!(rank == 1 || text.contains("key 1") && text.contains("worker 1"), "{text}");
        both_have_failed.wait();
        // The rule is in force, and no part of a key is measured for the whole.
        if rank == 1 {
            store.push(1u64, &value).unwrap();
        }
        let error = store.pull(1u64, &mut vec![0.0f32; COUNT]).unwrap_err();
        assert!(error.message().contains("lars measures whole keys"), "{error}");
        both_have_failed.wait();
        // Rank 1 has come to this one already.
        if rank == 0 {
            store.barrier(LIMIT).unwrap();
        }
        store.set_optimizer("lars", "learning_rate=1").unwrap();
        store.push(1u64, &value).unwrap();
        let mut out = vec![1.0f32; COUNT];
        store.pull(1u64, &mut out).unwrap();
        assert!(out.iter().all(|it| *it < 1.0), "the first rounds are lost, this one counts");
    });
}

#[test]
fn without_rounds_a_setting_of_one_rank_is_in_force_for_all() {
    let results = Job::of("dist_async", 2, 1).run(|store, rank| {
        let soon = std::time::Duration::from_secs(20);
        store.init(1u64, &[1.0f32; 4]).unwrap();
        if rank == 0 {
            store.set_optimizer("test", "").unwrap();
        }
        store.barrier(soon).unwrap();
        if rank == 1 {
            (0..3).for_each(|_| store.push(1u64, &[1.0f32; 4]).unwrap());
            let mut out = [0.0f32; 4];
            store.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [4.0; 4], "each push is added");
        }
        store.barrier(soon).unwrap();
        let mut out = [0.0f32; 4];
        store.pull(1u64, &mut out).unwrap();
        out[0]
    });
    assert_eq!(results, [4.0; 2]);
}
