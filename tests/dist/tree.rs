//! `sum_order=tree`: the sum of a round is a binary tree over the positions of its values, so that
//! any number of workers gives the same bits.

use std::path::PathBuf;

use kvstore::ErrorKind::{Differs, Option as BadOption, Refused, Unsupported};
use kvstore::{Config, DType, Key, Store, Tensor, TensorMut, bf16, f16};

use super::common::folder::Folder;
use super::common::random::Random;
use super::common::rules::RULES;
use super::common::scalar::{SUMMED, Scalar, convert_bits};
use super::job::{Job, failure, join};
use crate::with_type;

/// Values of each round, over all workers.
const VALUES: usize = 8;
const PROGRAMS: u64 = 60;
const KEYS: u64 = 3;
const STEPS: u64 = 5;
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
const SHAPES: [[i64; 2]; 5] = [[1, 7], [6, 3], [9, 700], [41, 33], [5, 1_000]];

/// The random numbers of one part of a program.
fn part(program: u64, step: u64, value: usize) -> Random {
    Random::new(program << 32 | step << 8 | value as u64)
}

/// A key of a program: its number, its dtype and its shape.
fn key_of(program: u64, key: u64) -> (Key, DType, [i64; 2]) {
    let mut random = part(program, 99, key as usize);
    // Rules take floats only.
    let dtypes = if rule_of(program).is_some() { &FLOATS[..] } else { SUMMED };
    (Key::from(program * KEYS + key), random.pick(dtypes), random.pick(&SHAPES))
}

fn rule_of(program: u64) -> Option<&'static str> {
    // Programs without a rule come first: a rule stays.
    let at = usize::try_from(program).unwrap().checked_sub(12)?;
    Some(RULES[at % RULES.len()])
}

/// Numbers whose sums round, and no NaN: which NaN a sum gives is not specified.
fn numbers<T: Scalar>(random: &mut Random, count: usize) -> Vec<T> {
    let is_common = |number: &T| {
        let bits = convert_bits(T::DTYPE, DType::F64, number.bits());
        !T::DTYPE.is_float() || (0.01..100.0).contains(&f64::from_bits(bits).abs())
    };
    let common = || std::iter::repeat_with(|| T::random(random)).find(is_common);
    std::iter::repeat_with(common).flatten().take(count).collect()
}

/// What a worker pushes in a step: the values of its positions.
fn step<T: Scalar>(store: &Store, program: u64, step: u64, mine: std::ops::Range<usize>) {
    let mut random = part(program, step, 98);
    let (key, _, shape) = key_of(program, step % KEYS);
    let count = (shape[0] * shape[1]) as usize;
    let of_rows = random.one_in(3);
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for position in mine {
        let mut random = part(program, step, position);
        let rows = if of_rows { 1 + random.index(6) } else { shape[0] as usize };
        ids.push((0..rows).map(|_| random.below(shape[0] as u64) as i64).collect::<Vec<_>>());
        values.push(numbers::<T>(&mut random, count / shape[0] as usize * rows));
    }
    let keys = vec![key; values.len()];
    let shapes: Vec<[i64; 2]> = ids.iter().map(|ids| [ids.len() as i64, shape[1]]).collect();
    let tensors: Vec<Tensor<'_>> =
        values.iter().zip(&shapes).map(|(it, shape)| Tensor::new(it, shape).unwrap()).collect();
    if of_rows {
        let lists: Vec<Tensor<'_>> = ids.iter().map(|ids| Tensor::from(&ids[..])).collect();
        store.push_rows_list(&keys, &lists, &tensors).unwrap();
    } else if random.one_in(2) {
        let mut out = vec![T::default(); count];
        let mut outs = [TensorMut::new(&mut out, &shape).unwrap()];
        store.pushpull_list(&keys, &tensors, &[key], &mut outs).unwrap();
    } else {
        store.push_list(&keys, &tensors).unwrap();
    }
}

/// Runs all programs as one of some workers, each of which pushes as many values.
fn run(store: &Store, rank: usize, workers: usize, file: &dyn Fn(u64) -> PathBuf) {
    let each = VALUES / workers;
    for program in 0..PROGRAMS {
        if let Some(rule) = rule_of(program) {
            store.set_optimizer(rule, "learning_rate=0.01").unwrap();
            // Sums of sample counts are exact, so the number of workers changes no bit of a mean either.
            match program % 3 {
                0 => store.set_weight((3 * each) as f64).unwrap(),
                _ => store.clear_weight().unwrap(),
            }
        }
        let keys: Vec<_> = (0..KEYS).map(|key| key_of(program, key)).collect();
        for (at, (key, dtype, shape)) in keys.iter().enumerate() {
            let count = (shape[0] * shape[1]) as usize;
            with_type!(*dtype, T => {
                let first = vec![T::of_bits(part(program, 97, at).next() % 8); count];
                store.init(*key, Tensor::new(&first, shape).unwrap()).unwrap();
            });
        }
        for at in 0..STEPS {
            let (_, dtype, _) = key_of(program, at % KEYS);
            with_type!(dtype, T => {
                step::<T>(store, program, at, rank * each..(rank + 1) * each);
            });
        }
        store.save(file(program)).unwrap();
        store.remove(&keys.iter().map(|it| it.0).collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn any_number_of_workers_gives_the_checkpoints_of_one() {
    let folder = Folder::new("tree");
    let name = |case: &str, program: u64| folder.file(&format!("{case}-{program}"));
    let config = Config::new().with("sum_order", "tree").unwrap();
    let local = Store::open("local", &config).unwrap();
    run(&local, 0, 1, &|program| name("local", program));
    for (workers, servers, slice_bytes) in
        [(1, 1, 4_096), (2, 2, 8_192), (4, 1, 16_384), (8, 3, 4_096)]
    {
        let case = format!("{workers} workers");
        let files: Vec<PathBuf> = (0..PROGRAMS).map(|program| name(&case, program)).collect();
        let job = Job::new(workers, servers).with("sum_order", "tree");
        job.with("slice_bytes", slice_bytes).run(move |store, rank| {
            run(store, rank, workers, &|program| files[program as usize].clone());
        });
        for program in 0..PROGRAMS {
            let read = |case: &str| std::fs::read(name(case, program)).unwrap();
            assert!(read(&case) == read("local"), "{case}, program {program}");
        }
    }
}

#[test]
fn a_checkpoint_with_a_codec_is_not_loaded() {
    let (folder, key) = (Folder::new("tree-with-a-codec"), Key::from(1u64));
    let file = folder.file("codec");
    let linear = Store::open("local", &Config::new()).unwrap();
    linear.init(key, &[1.0f32; 4]).unwrap();
    linear.set_compression("bf16", "").unwrap();
    linear.save(&file).unwrap();
    let by_tree = Store::open("local", &Config::new().with("sum_order", "tree").unwrap()).unwrap();
    let text = failure(by_tree.load(&file), Unsupported);
    assert!(text.contains("load: the codec bf16 and sum_order=tree"), "{text}");
    assert!(by_tree.keys().unwrap().is_empty());
    let loaded = file.clone();
    Job::new(2, 1).with("sum_order", "tree").run(move |store, _| {
        failure(store.load(&loaded), Unsupported);
        assert!(store.keys().unwrap().is_empty());
        store.init(key, &[2.0f32; 4]).unwrap();
    });
}

/// The values of a worker.
fn values_of<T: Scalar>(rank: usize, round: usize, each: usize, count: usize) -> Vec<Vec<T>> {
    let numbers = |value: usize| {
        let mut random = Random::new((rank * 31 + round * 7 + value + 1) as u64);
        (0..count).map(|_| T::random(&mut random)).collect()
    };
    (0..each).map(numbers).collect()
}

/// The tree over the values of some ranks.
fn expected<T: Scalar>(ranks: &[usize], round: usize, each: usize, count: usize) -> Vec<T> {
    let values: Vec<_> =
        ranks.iter().map(|rank| (*rank, values_of::<T>(*rank, round, each, count))).collect();
    let leaves = |i: usize| -> Vec<(u64, T)> {
        let of_rank = |(rank, own): &(usize, Vec<Vec<T>>)| {
            let first = rank * each;
            own.iter().enumerate().map(|(at, it)| ((first + at) as u64, it[i])).collect::<Vec<_>>()
        };
        values.iter().flat_map(of_rank).collect()
    };
    (0..count).map(|i| T::tree(&leaves(i))).collect()
}

/// Elements of a key: several slices.
const COUNT: usize = 3_000;

fn check<T: Scalar>(
    store: &Store,
    rank: usize,
    key: u64,
    (ranks, round): (&[usize], usize),
    each: usize,
) {
    if round == 0 {
        store.init(key, &vec![T::default(); COUNT]).unwrap();
    }
    let values = values_of::<T>(rank, round, each, COUNT);
    let tensors: Vec<Tensor<'_>> = values.iter().map(|it| Tensor::from(&it[..])).collect();
    store.push_list(&vec![Key::from(key); each], &tensors).unwrap();
    let mut out = vec![T::default(); COUNT];
    store.pull(key, &mut out).unwrap();
    let expected = expected::<T>(ranks, round, each, COUNT);
    let same = out.iter().zip(&expected).all(|(ours, loops)| ours.is_same(*loops));
    assert!(same, "{:?}, round {round}, {each} values each", T::DTYPE);
}

fn check_all(store: &Store, rank: usize, ranks: (&[usize], usize), each: usize) {
    check::<f32>(store, rank, 0, ranks, each);
    check::<f64>(store, rank, 1, ranks, each);
    check::<f16>(store, rank, 2, ranks, each);
    check::<bf16>(store, rank, 3, ranks, each);
    check::<i8>(store, rank, 4, ranks, each);
    check::<i64>(store, rank, 5, ranks, each);
}

#[test]
fn a_round_is_the_tree_over_its_values_and_skips_workers_that_are_done() {
    for (each, servers) in [(1, 2), (2, 1), (4, 1)] {
        let job = Job::new(6, servers).with("sum_order", "tree").with("slice_bytes", 8_192);
        job.run(move |store, rank| {
            for round in 0..2 {
                check_all(store, rank, (&[0, 1, 2, 3, 4, 5], round), each);
            }
            let left = [0, 2, 3, 5];
            if left.contains(&rank) {
                check_all(store, rank, (&left, 2), each);
            }
            store.done().unwrap();
        });
    }
}

/// Ranks 0 and 3 push whole values, the others some rows, one of them twice.
fn check_mixed<T: Scalar>(store: &Store, rank: usize, key: u64) {
    const ROWS: usize = 40;
    const LENGTH: usize = 100;
    let ids_of = |rank: usize| match rank {
        0 | 3 => (0..ROWS).collect(),
        rank => vec![3, rank + 4, 9, 3, 17 - rank],
    };
    let values: Vec<Vec<T>> =
        (0..5).map(|rank| values_of(rank, 7, 1, ids_of(rank).len() * LENGTH).remove(0)).collect();
    let shape = [ROWS as i64, LENGTH as i64];
    let zeros = vec![T::default(); ROWS * LENGTH];
    store.init(key, Tensor::new(&zeros, &shape).unwrap()).unwrap();
    let ids: Vec<i64> = ids_of(rank).into_iter().map(|id| id as i64).collect();
    let own_shape = [ids.len() as i64, shape[1]];
    let own = Tensor::new(&values[rank], &own_shape).unwrap();
    if ids.len() == ROWS {
        store.push(key, own).unwrap();
    } else {
        store.push_rows(key, &ids[..], own).unwrap();
    }
    let mut out = zeros.clone();
    store.pull(key, TensorMut::new(&mut out, &shape).unwrap()).unwrap();
    for (at, ours) in out.iter().enumerate() {
        let (row, column) = (at / LENGTH, at % LENGTH);
        let leaves = |rank: usize| {
            let named = ids_of(rank).into_iter().enumerate().filter(move |(_, id)| *id == row);
            let elements = named.map(|(i, _)| values[rank][i * LENGTH + column]);
            ((rank as u64) << 32..).zip(elements).collect::<Vec<_>>()
        };
        let leaves: Vec<(u64, T)> = (0..5).flat_map(leaves).collect();
        assert!(ours.is_same(T::tree(&leaves)), "{:?}, row {row}, column {column}", T::DTYPE);
    }
}

#[test]
fn rows_and_whole_values_of_one_round_make_up_one_tree() {
    for servers in [1, 2] {
        let job = Job::new(5, servers).with("sum_order", "tree").with("slice_bytes", 4_096);
        job.run(|store, rank| {
            check_mixed::<f32>(store, rank, 0);
            check_mixed::<f64>(store, rank, 1);
            check_mixed::<f16>(store, rank, 2);
            check_mixed::<bf16>(store, rank, 3);
            check_mixed::<i32>(store, rank, 4);
        });
    }
}

#[test]
fn values_of_other_dtypes_are_rounded_to_that_of_the_key_first() {
    let ours = f16::from_f32(2048.0);
    // 1.0002 is 1 in float16.
    let results = Job::new(2, 1).with("sum_order", "tree").run(move |store, rank| {
        store.init(1u64, &[f16::from_f32(0.0); 3]).unwrap();
        if rank == 0 {
            store.push(1u64, &[ours; 3]).unwrap();
        } else {
            store.push(1u64, &[1.000_2f32; 3]).unwrap();
        }
        let mut out = [0.0f32; 3];
        store.pull(1u64, &mut out).unwrap();
        out[1]
    });
    assert_eq!(results, [2048.0; 2], "2049 is half way, and rounds to even");
}

#[test]
fn keys_without_elements_have_rounds() {
    Job::new(3, 2).with("sum_order", "tree").run(|store, _| {
        store.init(1u64, &[] as &[f16; 0]).unwrap();
        store.init(2u64, &[] as &[f32; 0]).unwrap();
        for _ in 0..3 {
            store.push(1u64, &[] as &[f16; 0]).unwrap();
            store.push(2u64, &[] as &[f32; 0]).unwrap();
            store.pull(1u64, &mut [] as &mut [f16; 0]).unwrap();
            store.pull(2u64, &mut [] as &mut [f32; 0]).unwrap();
        }
    });
}

#[test]
fn an_asynchronous_push_is_the_tree_over_its_own_values() {
    let job = Job::of("dist_async", 2, 1).with("sum_order", "tree");
    job.run(|store, rank| {
        let key = Key::from(rank as u64);
        store.init(0u64, &[f16::from_f32(0.0); 40]).unwrap();
        store.init(1u64, &[f16::from_f32(0.0); 40]).unwrap();
        let values = values_of::<f16>(rank, 0, 7, 40);
        let tensors: Vec<Tensor<'_>> = values.iter().map(|it| Tensor::from(&it[..])).collect();
        store.push_list(&[key; 7], &tensors).unwrap();
        let mut out = [f16::from_f32(0.0); 40];
        store.pull(key, &mut out).unwrap();
        let leaves = |i: usize| (0..).zip(values.iter().map(|it| it[i])).collect::<Vec<_>>();
        assert!((0..40).all(|i| out[i].is_same(f16::tree(&leaves(i)))));
    });
}

#[test]
fn numbers_of_values_that_make_no_subtree_are_refused_and_change_nothing() {
    Job::new(2, 1).with("sum_order", "tree").run(|store, _| {
        let key = store.intern("conv").unwrap();
        store.init(key, &[1.0f32; 4]).unwrap();
        let value = [2.0f32; 4];
        let values = [Tensor::from(&value), Tensor::from(&value), Tensor::from(&value)];
        let text = failure(store.push_list(&[key; 3], &values), BadOption);
        for word in
            ["push: key \"conv\" has 3 values", "sum_order=tree and 2 workers", "power of two"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        let mut out = [0.0f32; 4];
        let outs = [TensorMut::from(&mut out)];
        let refused = store.pushpull_list(&[key; 3], &values, &[key], &mut { outs });
        failure(refused, BadOption);
        let text = failure(store.set_compression("1bit", ""), Unsupported);
        assert!(
            text.contains("1bit") && text.contains("sum_order=tree exclude each other"),
            "{text}"
        );
        store.push_list(&[key; 2], &values[..2]).unwrap();
        store.pull(key, &mut out).unwrap();
        assert_eq!(out, [8.0; 4]);
    });
    // The tree of one worker is the whole sum.
    Job::new(1, 1).with("sum_order", "tree").run(|store, _| {
        store.init(1u64, &[1.0f32; 4]).unwrap();
        let value = [2.0f32; 4];
        store
            .push_list(&[Key::from(1u64); 3], &[(&value).into(), (&value).into(), (&value).into()])
            .unwrap();
    });
}

/// The positions of a worker follow from its rank and its number of values, so all have as many.
#[test]
fn a_round_of_unequal_numbers_of_values_is_not_merged() {
    Job::new(2, 2).with("sum_order", "tree").with("slice_bytes", 4_096).run(|store, rank| {
        let (value, mut out) = ([2.0f32; 1_500], [0.0f32; 1_500]);
        let (key, table) = (store.intern("conv").unwrap(), store.intern("table").unwrap());
        store.init(key, &[1.0f32; 1_500]).unwrap();
        store.init(table, Tensor::new(&value, &[3, 500]).unwrap()).unwrap();
        let push = |count: usize| store.push_list(&vec![key; count], &vec![(&value).into(); count]);
        push(1 + rank).unwrap();
        let text = failure(store.pull(key, &mut out), Differs);
        let says = "worker 0 pushed 1 values, and worker 1 2: with sum_order=tree all workers push";
        assert!(text.starts_with("pull: key \"conv\", round 1: ") && text.contains(says), "{text}");
        // The round is not merged, and later ones are.
        push(2).unwrap();
        store.pull(key, &mut out).unwrap();
        assert_eq!(out, [8.0; 1_500]);
        let (ids, rows) = ([1i64], Tensor::new(&value[..500], &[1, 500]).unwrap());
        let count = 4 >> rank;
        let (lists, values) = (vec![Tensor::from(&ids); count], vec![rows; count]);
        store.push_rows_list(&vec![table; count], &lists, &values).unwrap();
        let out = TensorMut::new(&mut out[..500], &[1, 500]).unwrap();
        let text = failure(store.pull_rows(table, &ids, out), Differs);
        assert!(text.contains("worker 0 pushed 4 values, and worker 1 2"), "{text}");
    });
}

#[test]
fn workers_with_another_order_are_refused() {
    let job = Job::new(2, 1).with("start_timeout_ms", 2_500);
    let others = job.start();
    let first = {
        let (job, root) = (job.clone().with("sum_order", "tree"), others.root.clone());
        std::thread::spawn(move || job.open(0, &root))
    };
    std::thread::sleep(std::time::Duration::from_millis(500));
    let text = failure(job.clone().open(1, &others.root), Refused);
    assert!(text.contains("sum_order") && text.contains("tree"), "{text}");
    let store = job.with("sum_order", "tree").open(1, &others.root).unwrap();
    let soon = std::time::Duration::from_secs(10);
    store.close(soon).unwrap();
    join(first).unwrap().close(soon).unwrap();
    others.end().into_iter().for_each(std::result::Result::unwrap);
}
