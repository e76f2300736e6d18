//! Digests of keys: those of a local store, whatever servers, slices, transports and dtypes.

use std::time::Duration;

use kvstore::{
    Config, ErrorKind, JobDigests, Key, KeyDigest, Observer, Store, Tensor, TensorMut, bf16, f16,
};

use super::common::digest;
use super::common::random::Random;
use super::common::scalar::Scalar;
use super::job::{Job, failure};
use super::other_build;

const WORKERS: usize = 3;
const SHAPES: &[&[i64]] = &[&[], &[0], &[1], &[33], &[7, 1003], &[90, 500]];

fn numbers<T: Scalar>(rank: usize, round: usize, count: usize) -> Vec<T> {
    let mut random = Random::new((rank * 131 + round * 17 + count + 1) as u64);
    // Which NaN a sum gives is not promised.
    let is_number = |value: &T| {
        let twice = |value: T| T::add_up([value, value].into_iter());
        let more = twice(*value);
        !more.is_nan() && !twice(more).is_same(more)
    };
    std::iter::repeat_with(|| T::random(&mut random)).filter(is_number).take(count).collect()
}

fn count(shape: &[i64]) -> usize {
    usize::try_from(shape.iter().product::<i64>()).unwrap()
}

/// Pushes two rounds to a key of each shape: those of one worker, or of all in their order.
fn train<T: Scalar>(store: &Store, ranks: std::ops::Range<usize>, first: u64) -> Vec<Key> {
    let keys: Vec<Key> = (first..).take(SHAPES.len()).map(Key::from).collect();
    for (key, shape) in keys.iter().zip(SHAPES) {
        let start = numbers::<T>(0, 0, count(shape));
        store.init(*key, Tensor::new(&start, shape).unwrap()).unwrap();
        for round in 1..=2 {
            let values: Vec<Vec<T>> =
                ranks.clone().map(|rank| numbers(rank, round, count(shape))).collect();
            let tensors: Vec<_> =
                values.iter().map(|value| Tensor::new(value, shape).unwrap()).collect();
            store.push_list(&vec![*key; tensors.len()], &tensors).unwrap();
        }
    }
    keys
}

/// The digest of a value that is pulled.
fn pulled<T: Scalar>(store: &Store, key: Key, shape: &[i64]) -> u64 {
    let mut out = vec![T::default(); count(shape)];
    store.pull(key, TensorMut::new(&mut out, shape).unwrap()).unwrap();
    digest::of_elements(&out)
}

/// Round and digests of keys of all floats under a rule, and the values of some as they are pulled.
fn digests(store: &Store, ranks: &std::ops::Range<usize>, options: &str) -> Vec<KeyDigest> {
    store.set_optimizer("adam", options).unwrap();
    let mut keys = train::<f32>(store, ranks.clone(), 0);
    keys.extend(train::<f64>(store, ranks.clone(), 100));
    keys.extend(train::<f16>(store, ranks.clone(), 200));
    keys.extend(train::<bf16>(store, ranks.clone(), 300));
    let digests = store.digest(&keys).unwrap();
    for (at, shape) in SHAPES.iter().enumerate() {
        let of = |list: usize| digests[list * SHAPES.len() + at];
        assert_eq!(of(0).value, pulled::<f32>(store, keys[at], shape), "f32{shape:?}");
        let half = keys[2 * SHAPES.len() + at];
        assert_eq!(of(2).value, pulled::<f16>(store, half, shape), "f16{shape:?}");
        assert_eq!(of(0).round, 2);
        assert_eq!(of(0).state == 0, count(shape) == 0, "{shape:?}");
    }
    digests
}

#[test]
fn digests_of_a_job_are_those_of_a_local_store_whatever_the_slices() {
    if other_build::is_used() {
        return;
    }
    let options = "learning_rate=0.01,multi_precision=true";
    let local = Store::open("local", &Config::new()).unwrap();
    let expected = digests(&local, &(0..WORKERS), options);
    for (servers, slice) in [(1, 256 << 10), (2, 8192), (3, 4096)] {
        let job = Job::new(WORKERS, servers).with("slice_bytes", slice);
        let all = job.run(move |store, rank| digests(store, &(rank..rank + 1), options));
        for (rank, digests) in all.iter().enumerate() {
            assert_eq!(*digests, expected, "worker {rank}, {servers} servers, slices of {slice}");
        }
    }
}

#[test]
fn a_digest_waits_for_the_round_of_this_worker_and_names_what_is_missing() {
    if other_build::is_used() {
        return;
    }
    let job = Job::new(2, 2).with("slice_bytes", 4096).with("timeout_ms", 300);
    let (others, [first, second]) = job.start_with_two();
    let value = vec![1.0f32; 5_000];
    super::job::both([&first, &second], |store| store.init(1u64, &value).unwrap());
    let key = [Key::from(1u64)];
    let before = second.digest(&key).unwrap();
    assert_eq!(before[0].round, 0);
    first.push(1u64, &value).unwrap();
    let late = failure(first.digest(&key), ErrorKind::Timeout);
    assert!(late.contains("worker 1"), "{late}");
    assert_eq!(second.digest(&key).unwrap(), before, "its own round is the one before");
    second.push(1u64, &value).unwrap();
    let both = [first.digest(&key).unwrap(), second.digest(&key).unwrap()];
    assert_eq!(both[0], both[1]);
    assert_eq!(
        (both[0][0].round, both[0][0].value),
        (1, digest::of_elements(&vec![2.0f32; 5_000]))
    );
    let unknown = failure(first.digest(&[Key::from(9u64)]), ErrorKind::KeyNotFound);
    assert!(unknown.contains("key 9"), "{unknown}");
    super::job::both([&first, &second], |store| store.close(Duration::from_secs(20)).unwrap());
    others.end().into_iter().for_each(Result::unwrap);
}

/// What an observer sees of a job that has had `rounds` rounds of some keys, and the digests of its worker.
fn observed(job: &Job, rounds: usize) -> (JobDigests, Vec<KeyDigest>) {
    let others = job.start();
    let store = job.open(0, &others.root).unwrap();
    store.set_optimizer("adam", "learning_rate=0.01").unwrap();
    let keys: Vec<Key> = (5u64..).take(SHAPES.len()).map(Key::from).collect();
    for (key, shape) in keys.iter().zip(SHAPES) {
        let start = numbers::<f32>(0, 0, count(shape));
        store.init(*key, Tensor::new(&start, shape).unwrap()).unwrap();
        for round in 1..=rounds {
            let value = numbers::<f32>(0, round, count(shape));
            store.push(*key, Tensor::new(&value, shape).unwrap()).unwrap();
        }
    }
    // A key without a round.
    store.init(99u64, &[1.0f32; 4]).unwrap();
    let expected = store.digest(&keys).unwrap();
    let config = job.config("worker", None, &others.root);
    let seen = Observer::digests(&config, Duration::from_secs(20)).unwrap();
    store.close(Duration::from_secs(20)).unwrap();
    others.end().into_iter().for_each(Result::unwrap);
    (seen, expected)
}

#[test]
fn an_observer_sees_the_digests_of_workers_and_those_of_common_rounds() {
    if other_build::is_used() {
        return;
    }
    let job = |servers, slice: usize, scope| {
        Job::new(1, servers).with("slice_bytes", slice).with("digests", scope)
    };
    let (all, expected) = observed(&job(2, 4096, "all"), 5);
    let of_keys: Vec<_> =
        all.keys.iter().map(|it| (it.key, it.round, it.value, it.state)).collect();
    let keys = (5..).zip(&expected);
    let whole = keys.map(|(key, it)| (key, it.round, Some(it.value), Some(it.state)));
    assert_eq!(of_keys, whole.collect::<Vec<_>>());
    assert_eq!(all.scope, "all");
    let rounds: Vec<_> = all.rounds.iter().map(|it| (it.round, it.keys)).collect();
    assert_eq!(rounds, [1, 2, 4].map(|round| (round, SHAPES.len())));
    // Other servers, slices and numbers of rounds: the digests of common rounds are the same.
    let (values, expected) = observed(&job(3, 8192, "values"), 4);
    assert_eq!((values.scope, &values.rounds), ("values", &all.rounds));
    for ((key, other), expected) in values.keys.iter().zip(&all.keys).zip(&expected) {
        assert_eq!((key.round, key.value, key.state), (4, Some(expected.value), None));
        assert_eq!(key.earlier, other.earlier);
        assert_eq!(key.earlier.last(), Some(&(4, expected.value)));
    }
    let bytes = values.keys.iter().flat_map(|key| [key.key, key.value.unwrap()]);
    let bytes: Vec<u8> = bytes.flat_map(u64::to_le_bytes).collect();
    assert_eq!(values.rounds.last().unwrap().digest, digest::of(&bytes));
    let (off, _) = observed(&job(1, 8192, "off"), 1);
    assert_eq!(off, JobDigests { scope: "off", ..JobDigests::default() });
}

#[test]
fn an_observer_sees_all_pages_of_many_keys() {
    if other_build::is_used() {
        return;
    }
    let job = Job::new(1, 2).with("digests", "values");
    let others = job.start();
    let store = job.open(0, &others.root).unwrap();
    let keys: Vec<Key> = (0..5_000u64).map(Key::from).collect();
    let values: Vec<f32> = (0..5_000u16).map(f32::from).collect();
    let tensors: Vec<_> = values.chunks(1).map(|it| Tensor::new(it, &[1]).unwrap()).collect();
    store.init_list(&keys, &tensors).unwrap();
    store.push_list(&keys, &tensors).unwrap();
    let expected = store.digest(&keys).unwrap();
    let config = job.config("worker", None, &others.root);
    let look = || Observer::digests(&config, Duration::from_secs(20)).unwrap();
    let seen = look();
    let found: Vec<_> = seen.keys.iter().map(|it| (it.key, it.value)).collect();
    let expected = (0..).zip(&expected).map(|(key, it)| (key, Some(it.value)));
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(seen.rounds.len(), 1);
    // A key that is removed is seen no more; its next life begins with its first round.
    store.remove(&keys[..1]).unwrap();
    store.init(0u64, &[3.0f32]).unwrap();
    let seen = look();
    assert_eq!((seen.keys.len(), seen.keys[0].key), (4_999, 1));
    store.close(Duration::from_secs(20)).unwrap();
    others.end().into_iter().for_each(Result::unwrap);
}
