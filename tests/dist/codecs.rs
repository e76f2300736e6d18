//! Compressed pushes: what each worker's codec makes of its sums, added in the order of ranks.

use kvstore::{Config, ErrorKind, Key, Store, Tensor};

use super::common::random::Random;
use super::job::{Job, failure};

const CODECS: &[(&str, &str)] = &[
    ("1bit", "threshold=0.25"),
    ("2bit", "threshold=0.75"),
    ("fp16", ""),
    ("bf16", ""),
    ("int8", ""),
    ("int8", "feedback=true"),
    ("topk", "ratio=0.1"),
];
const CHANCE: (&str, &str) = ("randomk", "ratio=0.1,seed=5");
const WORKERS: usize = 3;
const COUNT: usize = 7_001;
const ROUNDS: usize = 3;

fn numbers(rank: usize, round: usize, value: usize) -> Vec<f32> {
    let mut random = Random::new((rank * 100 + round * 10 + value) as u64);
    (0..COUNT).map(|_| (random.below(4001) as f32 - 2000.0) / 1000.0).collect()
}

fn add(values: &[Vec<f32>]) -> Vec<f32> {
    (0..COUNT).map(|i| values.iter().map(|it| it[i]).reduce(|a, b| a + b).unwrap()).collect()
}

/// What arrives of one worker's sums, by the scalar loops of the documents.
fn bits_of(codec: &str, sum: &[f32], residual: &mut [f32]) -> Vec<f32> {
    let sent = |rest: f32| match codec {
        "1bit" if rest > 0.25 => 1.0,
        "1bit" => -1.0,
        _ if rest >= 0.75 => 0.75,
        _ if rest <= -0.75 => -0.75,
        _ => 0.0,
    };
    let pairs = sum.iter().zip(residual);
    pairs
        .map(|(x, rest)| {
            *rest += x;
            let sent = sent(*rest);
            *rest -= sent;
            sent
        })
        .collect()
}

/// The stored values of all rounds. Codecs with a loop of their own here are checked against it;
/// for the others a local store tells what comes out of a codec, for each rank.
fn expected(codec: &str, params: &str, workers: usize) -> Vec<Vec<f32>> {
    let mut residuals = vec![vec![0.0f32; COUNT]; WORKERS];
    let local = Store::open("local", &Config::new()).unwrap();
    local.init(1u64, &vec![0.0f32; COUNT]).unwrap();
    local.set_compression(codec, params).unwrap();
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let sums: Vec<Vec<f32>> = (0..workers)
            .map(|rank| add(&[numbers(rank, round, 0), numbers(rank, round, 1)]))
            .collect();
        let arrived = if ["1bit", "2bit"].contains(&codec) {
            let sums = sums.iter().zip(&mut residuals);
            let each: Vec<_> = sums.map(|(sum, rest)| bits_of(codec, sum, rest)).collect();
            add(&each)
        } else {
            // The values of one call have residuals of their own, like ranks.
            let tensors: Vec<Tensor<'_>> = sums.iter().map(Tensor::from).collect();
            local.push_list(&vec![Key::from(1u64); workers], &tensors).unwrap();
            let mut out = vec![0.0f32; COUNT];
            local.pull(1u64, &mut out).unwrap();
            out
        };
        rounds.push(arrived);
    }
    rounds
}

/// What all ranks see of all rounds under one codec.
fn train(store: &Store, rank: usize, (codec, params): (&str, &str)) -> Vec<Vec<f32>> {
    let key = Key::from(1u64);
    store.init(key, &vec![0.0f32; COUNT]).unwrap();
    store.set_compression(codec, params).unwrap();
    let rounds = (0..ROUNDS).map(|round| {
        let values = [numbers(rank, round, 0), numbers(rank, round, 1)];
        let values = values.each_ref().map(Tensor::from);
        let mut out = vec![0.0f32; COUNT];
        let outs = &mut [(&mut out).into()];
        store.pushpull_list(&[key; 2], &values, &[key], outs).unwrap();
        out
    });
    let rounds = rounds.collect();
    store.remove(&[key]).unwrap();
    rounds
}

#[track_caller]
fn compare(ours: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    for (round, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        let different = ours.iter().zip(expected).position(|(a, b)| a != b);
        assert!(different.is_none(), "{what}, round {round}: at {different:?}");
    }
}

#[test]
fn every_codec_sends_the_same_whatever_the_slices() {
    let mut by_chance = Vec::new();
    for (servers, slice) in [(2, 8192), (1, 16_384), (2, 1 << 20)] {
        let job = Job::new(WORKERS, servers).with("slice_bytes", slice);
        let results = job.run(move |store, rank| {
            for (codec, params) in CODECS {
                let ours = train(store, rank, (codec, params));
                compare(&ours, &expected(codec, params, WORKERS), &format!("{codec}, {slice}"));
            }
            train(store, rank, CHANCE)
        });
        by_chance.extend(results);
    }
    // What is sent by chance depends on the rank, and on nothing else that differs here.
    by_chance.iter().for_each(|ours| compare(ours, &by_chance[0], "by chance"));
    Job::new(1, 2).with("slice_bytes", 8192).run(|store, rank| {
        let ours = train(store, rank, CHANCE);
        compare(&ours, &expected(CHANCE.0, CHANCE.1, 1), "by chance, alone");
    });
}

#[test]
fn codecs_go_with_rules_and_leave_integers_and_inits_alone() {
    let results = Job::new(2, 2).run(|store, rank| {
        store.set_compression("2bit", "threshold=0.5").unwrap();
        store.init(1u64, &[0.3f32; 3]).unwrap();
        store.init(2u64, &[5i32; 3]).unwrap();
        let (mut out, mut whole) = ([0.0f32; 3], [0i32; 3]);
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [0.3; 3]);
        store.push(2u64, &[rank as i32 * 1_000 - 7; 3]).unwrap();
        store.pull(2u64, &mut whole).unwrap();
        assert_eq!(whole, [986; 3]);
        store.remove(&[2u64.into()]).unwrap();
        store.set_optimizer("sgd", "learning_rate=0.5").unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            store.push(1u64, &[0.4f32; 3]).unwrap();
            store.pull(1u64, &mut out).unwrap();
            seen.push(out[0]);
        }
        // Without a codec again; what was left unsent is forgotten.
        store.set_compression("none", "").unwrap();
        store.push(1u64, &[1.0f32; 3]).unwrap();
        store.pull(1u64, &mut out).unwrap();
        seen.push(out[0]);
        seen
    });
    // 0.4 is not sent; 0.8 sends 0.5 and leaves 0.3; 0.7 sends 0.5.
    let mut stored = 0.3f32;
    let expected = [0.0f32, 1.0, 1.0, 2.0].map(|sum| {
        stored -= 0.5 * sum;
        stored
    });
    assert_eq!(results, [expected, expected]);
}

#[test]
fn a_codec_that_cannot_take_a_key_is_refused() {
    Job::new(2, 1).run(|store, _| {
        store.init(1u64, &[0.0f64; 3]).unwrap();
        let text = failure(store.set_compression("2bit", ""), ErrorKind::DtypeMismatch);
        assert!(text.contains("key 1") && text.contains("2bit"), "{text}");
        store.set_compression("fp16", "").unwrap();
        store.push(1u64, &[1.5f64; 3]).unwrap();
        let mut out = [0.0f64; 3];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [3.0; 3]);
        let text = failure(store.set_compression("3bit", ""), ErrorKind::Option);
        assert!(text.contains("2bit"), "{text}");
    });
}
