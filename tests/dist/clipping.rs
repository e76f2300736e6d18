//! Clipping by the norm of the gradients of a round: norms and steps against scalar loops, equal bits for any servers
//! and slices, rounds that are skipped, and what is refused.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use kvstore::ErrorKind::{Differs, InvalidArgument, PeerLost, Timeout, Unsupported};
use kvstore::{Error, Key, NonFinite, Reduction, Store, Tensor, TensorMut, bf16, f16};

use super::common::folder::Folder;
use super::common::norms::{factor, squares};
use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(60);

/// Around the blocks of 2,048 elements, and a key on several servers.
const SIZES: [usize; 7] = [1, 7, 2_047, 2_048, 2_049, 6_145, 30_001];
const STEPS: usize = 4;
const LR: f64 = 0.1;

fn number(rank: usize, step: usize, key: usize, at: usize) -> f32 {
    let angle = (at * 13 + rank * 7 + step * 5 + key * 3) as f32 * 0.11;
    // Every other step has a small norm.
    let size = if step.is_multiple_of(2) { 3.0 } else { 0.001 };
    angle.sin() * size * 10f32.powi(((at + rank) % 4) as i32 - 2)
}

/// Values of a worker for a key; some keys have two.
fn values(rank: usize, step: usize, key: usize) -> Vec<Vec<f32>> {
    let of = |which: usize| {
        (0..SIZES[key]).map(|at| number(rank, step + 2 * STEPS * which, key, at)).collect()
    };
    (0..=key % 2).map(of).collect()
}

fn sum<'a>(arrays: impl IntoIterator<Item = &'a Vec<f32>>) -> Vec<f32> {
    let add = |sum: Vec<f32>, more: &Vec<f32>| sum.iter().zip(more).map(|(a, b)| a + b).collect();
    let mut arrays = arrays.into_iter();
    let first = arrays.next().unwrap().clone();
    arrays.fold(first, add)
}

/// The gradient of a round: the values of each worker, then the workers by rank.
fn gradient(workers: usize, step: usize, key: usize) -> Vec<f32> {
    let own: Vec<Vec<f32>> = (0..workers).map(|rank| sum(&values(rank, step, key))).collect();
    sum(&own)
}

fn doubles(numbers: impl Iterator<Item = f32>) -> Vec<f64> {
    numbers.map(f64::from).collect()
}

fn norm(workers: usize, step: usize, rescale: f64) -> f64 {
    let of_key =
        |key| rescale * rescale * squares(&doubles(gradient(workers, step, key).into_iter()));
    (0..SIZES.len()).map(of_key).fold(0.0, |all, sum| all + sum).sqrt()
}

fn keys() -> Vec<Key> {
    (0..SIZES.len()).map(|key| Key::from(10 + key as u64)).collect()
}

thread_local! {
    /// Whether the calls of this thread are made while it rounds upwards.
    static ROUNDS_UP: Cell<bool> = const { Cell::new(false) };
}

/// Makes a call while this thread rounds upwards.
#[cfg(target_arch = "x86_64")]
fn upwards<T>(call: impl FnOnce() -> T) -> T {
    use std::arch::asm;

    let mut before = 0_u32;
    // SAFETY: a valid value of MXCSR: the one before with another rounding, and that one again.
    unsafe {
        asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack));
        let upward = (before & !0x6000) | 0x4000;
        asm!("ldmxcsr [{}]", in(reg) &raw const upward, options(nostack));
    }
    let result = call();
    // SAFETY: as above.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const before, options(nostack)) };
    result
}

#[cfg(not(target_arch = "x86_64"))]
fn upwards<T>(call: impl FnOnce() -> T) -> T {
    call()
}

fn in_rounding<T>(call: impl FnOnce() -> T) -> T {
    if ROUNDS_UP.get() { upwards(call) } else { call() }
}

/// Pushes all keys, in another order on each worker, and gives their values.
fn pushpull(store: &Store, rank: usize, step: usize) -> Result<Vec<Vec<f32>>, Error> {
    let mut order: Vec<usize> = (0..SIZES.len()).collect();
    order.rotate_left(rank);
    let all: Vec<(Key, Vec<f32>)> = order
        .into_iter()
        .flat_map(|key| values(rank, step, key).into_iter().map(move |it| (keys()[key], it)))
        .collect();
    let pushed: Vec<Key> = all.iter().map(|(key, _)| *key).collect();
    let tensors: Vec<Tensor<'_>> = all.iter().map(|(_, it)| Tensor::from(it)).collect();
    if step == 1 {
        in_rounding(|| store.push_list(&pushed, &tensors))?;
        return Ok(pulled(store));
    }
    let mut outs: Vec<Vec<f32>> = SIZES.iter().map(|size| vec![0.0; *size]).collect();
    let mut into: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
    in_rounding(|| store.pushpull_list(&pushed, &tensors, &keys(), &mut into))?;
    drop(into);
    Ok(outs)
}

fn pulled(store: &Store) -> Vec<Vec<f32>> {
    let mut outs: Vec<Vec<f32>> = SIZES.iter().map(|size| vec![0.0; *size]).collect();
    let mut into: Vec<TensorMut<'_>> = outs.iter_mut().map(TensorMut::from).collect();
    store.pull_list(&keys(), &mut into).unwrap();
    drop(into);
    outs
}

fn first(key: usize) -> Vec<f32> {
    (0..SIZES[key]).map(|at| ((at + key) as f32 * 0.37).cos()).collect()
}

fn init(store: &Store) {
    for (at, key) in keys().into_iter().enumerate() {
        store.init(key, &first(at)).unwrap();
    }
}

/// An element with its states, changed by a gradient in f64.
type Rule = fn(f64, f64, &mut [f64; 2], i32) -> f64;

fn momentum(value: f64, gradient: f64, states: &mut [f64; 2], _: i32) -> f64 {
    states[0] = 0.9 * states[0] - LR * gradient;
    value + states[0]
}

fn adam(value: f64, gradient: f64, states: &mut [f64; 2], step: i32) -> f64 {
    states[0] = 0.9 * states[0] + 0.1 * gradient;
    states[1] = 0.999 * states[1] + 0.001 * gradient * gradient;
    let lr = LR * (1.0 - 0.999f64.powi(step)).sqrt() / (1.0 - 0.9f64.powi(step));
    value - lr * states[0] / (states[1].sqrt() + 1e-8)
}

/// Values after all steps, by key.
fn expected(workers: usize, rule: Rule, max_norm: f64, rescale: f64) -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<(f64, [f64; 2])>> = (0..SIZES.len())
        .map(|key| first(key).into_iter().map(|value| (value.into(), [0.0; 2])).collect())
        .collect();
    for step in 0..STEPS {
        let scale = rescale * factor(max_norm, norm(workers, step, rescale));
        for (key, elements) in all.iter_mut().enumerate() {
            for ((value, states), sum) in elements.iter_mut().zip(gradient(workers, step, key)) {
                *value = rule(*value, scale * f64::from(sum), states, step as i32 + 1);
            }
        }
    }
    all.into_iter().map(|elements| elements.into_iter().map(|it| it.0).collect()).collect()
}

fn check_close(values: &[Vec<f32>], expected: &[Vec<f64>]) {
    for (values, expected) in values.iter().zip(expected) {
        for (value, expected) in values.iter().zip(expected) {
            let far = (f64::from(*value) - expected).abs();
            assert!(far <= 1e-6 * expected.abs().max(1.0), "{value} for {expected}");
        }
    }
}

fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|it| it.iter().map(|it| it.to_bits()).collect()).collect()
}

/// Values and norms of one worker.
fn trained(store: &Store, rank: usize, params: &str, max_norm: f64) -> (Vec<Vec<f32>>, Vec<u64>) {
    init(store);
    let (name, options) = params.split_once(' ').unwrap();
    store.set_optimizer(name, options).unwrap();
    assert!(store.last_norm().unwrap().norm.is_nan());
    store.set_clipping(max_norm, NonFinite::Skip).unwrap();
    let (mut values, mut norms) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        values = pushpull(store, rank, step).unwrap();
        norms.push(store.last_norm().unwrap().norm.to_bits());
    }
    assert_eq!(store.last_norm().unwrap().skips, 0);
    (values, norms)
}

/// Values and norms of one job, checked against each other on all workers.
fn train(job: &Job, params: &'static str, max_norm: f64) -> (Vec<Vec<f32>>, Vec<u64>) {
    let mut results = job.run(move |store, rank| trained(store, rank, params, max_norm));
    let (values, norms) = results.pop().unwrap();
    for (other, its_norms) in results {
        assert_eq!((bits(&other), its_norms), (bits(&values), norms.clone()));
    }
    (values, norms)
}

fn steps_of(workers: usize, rule: Rule, params: &'static str, rescale: f64) {
    let max_norm = 5.0 * rescale;
    let expected = expected(workers, rule, max_norm, rescale);
    let norms: Vec<u64> = (0..STEPS).map(|step| norm(workers, step, rescale).to_bits()).collect();
    let clipped = norms.iter().filter(|norm| f64::from_bits(**norm) > max_norm).count();
    assert_eq!(clipped, STEPS / 2, "steps of both kinds");
    let mut known = None;
    for (servers, slice_bytes) in [(1, 1 << 20), (3, 8_192), (3, 1 << 20)] {
        let job = Job::new(workers, servers).with("slice_bytes", slice_bytes);
        let (values, measured) = train(&job, params, max_norm);
        assert_eq!(measured, norms, "{servers} servers, {slice_bytes}");
        check_close(&values, &expected);
        let bits = bits(&values);
        assert_eq!(*known.get_or_insert_with(|| bits.clone()), bits, "{servers} servers");
    }
}

#[test]
fn the_rounding_of_a_caller_changes_no_bit() {
    let params = "sgd learning_rate=0.1,momentum=0.9,rescale_grad=0.3";
    let usual = train(&Job::new(2, 1), params, 1.5);
    let job = Job::new(2, 1);
    let results = job.run(move |store, rank| {
        // The nearest f32 is below five thirds.
        let thirds = || black_box(black_box(5.0_f32) / black_box(3.0));
        let nearest = in_rounding(thirds);
        ROUNDS_UP.set(true);
        assert_eq!(in_rounding(thirds) > nearest, cfg!(target_arch = "x86_64"));
        trained(store, rank, params, 1.5)
    });
    for (values, norms) in results {
        assert_eq!((bits(&values), norms), (bits(&usual.0), usual.1.clone()));
    }
}

#[test]
fn norms_and_steps_are_those_of_scalar_loops_on_any_servers() {
    for workers in [1, 2, 3] {
        let params = "sgd learning_rate=0.1,momentum=0.9,rescale_grad=0.125";
        steps_of(workers, momentum, params, 0.125);
    }
    for workers in [2, 3] {
        steps_of(workers, adam, "adam learning_rate=0.1", 1.0);
    }
}

/// A job's bits are those of a local store that gets the values of all workers.
#[test]
fn a_round_has_the_bits_of_a_local_store() {
    let local = Store::open("local", &kvstore::Config::new()).unwrap();
    let run = |store: &Store, ranks: &[usize]| {
        store.init(1u64, &vec![1f32; SIZES[6]]).unwrap();
        store.init(2u64, &vec![2f32; SIZES[4]]).unwrap();
        store.set_optimizer("adam", "learning_rate=0.1").unwrap();
        store.set_clipping(2.0, NonFinite::Skip).unwrap();
        let mut outs = (vec![0f32; SIZES[6]], vec![0f32; SIZES[4]]);
        for step in 0..STEPS {
            let of = |key: usize| ranks.iter().map(move |rank| sum(&values(*rank, step, key)));
            let all: Vec<_> = of(6).zip(of(4)).collect();
            let keys: Vec<Key> = all.iter().flat_map(|_| [1u64.into(), 2u64.into()]).collect();
            let tensors: Vec<Tensor<'_>> =
                all.iter().flat_map(|(a, b)| [Tensor::from(a), Tensor::from(b)]).collect();
            let mut into = [(&mut outs.0).into(), (&mut outs.1).into()];
            store.pushpull_list(&keys, &tensors, &[1u64.into(), 2u64.into()], &mut into).unwrap();
        }
        (bits(&[outs.0, outs.1]), store.last_norm().unwrap().norm.to_bits())
    };
    let expected = run(&local, &[0, 1, 2]);
    let job = Job::new(3, 2).with("slice_bytes", 8_192);
    assert!(job.run(move |store, rank| run(store, &[rank])).iter().all(|it| *it == expected));
}

#[test]
fn keys_without_a_rule_are_neither_counted_nor_scaled() {
    Job::new(2, 2).with("slice_bytes", 8_192).run(|store, rank| {
        let big = vec![[3f32, 4.0][rank]; 5_000];
        store.init(1u64, &vec![0f32; 5_000]).unwrap();
        store.init(2u64, &[1f32, 1.0]).unwrap();
        store.init(3u64, &[1i64]).unwrap();
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        // There is no rule: values are replaced, and no norm is measured.
        store.push(1u64, &big).unwrap();
        let mut out = vec![0f32; 5_000];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, vec![7f32; 5_000]);
        assert!(store.last_norm().unwrap().norm.is_nan());
        store.set_optimizer_for(&[2u64.into()], "sgd", "learning_rate=1").unwrap();
        let keys = [1u64.into(), 2u64.into(), 3u64.into()];
        let own = [[30f32, 0.0], [0.0, 40.0]][rank];
        let values = [Tensor::from(&big), Tensor::from(&own), Tensor::from(&[5i64])];
        let (mut two, mut whole) = ([0f32; 2], [0i64]);
        let mut outs = [(&mut out).into(), (&mut two).into(), (&mut whole).into()];
        store.pushpull_list(&keys, &values, &keys, &mut outs).unwrap();
        assert_eq!((out[4_999], whole), (7.0, [10]));
        assert_eq!(store.last_norm().unwrap().norm, 50.0);
        let scale = factor(1.0, 50.0) as f32;
        assert_eq!(two, [1.0 - scale * 30.0, 1.0 - scale * 40.0]);
        store.set_clipping(0.0, NonFinite::Skip).unwrap();
        store.push(2u64, &own).unwrap();
        store.pull(2u64, &mut two).unwrap();
        assert_eq!(two, [-29.0 - scale * 30.0, -39.0 - scale * 40.0]);
    });
}

/// Sums of 16 bits are measured as the round rounds them, once.
#[test]
fn gradients_of_all_float_types_count() {
    Job::new(3, 2).with("slice_bytes", 8_192).run(|store, rank| {
        let count = 5_000;
        let real = |at: usize, rank: usize| ((at * 7 + rank * 3) as f32 * 0.21).sin();
        let half = |rank| (0..count).map(|at| f16::from_f32(real(at, rank))).collect::<Vec<_>>();
        let brain = |rank| (0..count).map(|at| bf16::from_f32(real(at, rank))).collect::<Vec<_>>();
        let double = |rank| (0..count).map(|at| f64::from(real(at, rank))).collect::<Vec<_>>();
        store.init(1u64, &half(0)).unwrap();
        store.init(2u64, &double(0)).unwrap();
        store.init(3u64, &brain(0)).unwrap();
        store.set_optimizer("sgd", "learning_rate=0.5").unwrap();
        store.set_clipping(f64::INFINITY, NonFinite::Skip).unwrap();
        let keys = [3u64.into(), 1u64.into(), 2u64.into()];
        let (a, b, c) = (brain(rank), half(rank), double(rank));
        store.push_list(&keys, &[(&a).into(), (&b).into(), (&c).into()]).unwrap();
        let ranks = [0, 1, 2];
        let rounded = |of: &dyn Fn(usize) -> Vec<f32>, round: &dyn Fn(f32) -> f32| {
            let sum = sum(&ranks.map(of));
            squares(&doubles(sum.into_iter().map(round)))
        };
        let halves = rounded(&|rank| half(rank).into_iter().map(f16::to_f32).collect(), &|it| {
            f16::from_f32(it).to_f32()
        });
        let brains = rounded(&|rank| brain(rank).into_iter().map(bf16::to_f32).collect(), &|it| {
            bf16::from_f32(it).to_f32()
        });
        let all = ranks.map(double);
        let sums = (0..count).map(|at| all[0][at] + all[1][at] + all[2][at]);
        let doubles = squares(&sums.collect::<Vec<f64>>());
        let norm = (halves + doubles + brains).sqrt();
        assert_eq!(store.last_norm().unwrap().norm.to_bits(), norm.to_bits());
    });
}

#[test]
fn a_norm_that_is_not_finite_skips_the_round_on_all_workers_or_fails_it() {
    for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
        Job::new(3, 2).with("slice_bytes", 8_192).run(move |store, rank| {
            init(store);
            store.set_optimizer("sgd", "learning_rate=0.1,momentum=0.9").unwrap();
            store.set_clipping(5.0, NonFinite::Skip).unwrap();
            let before = pushpull(store, rank, 0).unwrap();
            let mut odd = vec![1f32; SIZES[6]];
            if rank > 0 {
                odd[29_000] = bad;
            }
            let (key, all) = (keys()[6], [keys()[0], keys()[6]]);
            let mut out = vec![0f32; SIZES[6]];
            let pushed = [(&[1f32]).into(), (&odd).into()];
            store.pushpull_list(&all, &pushed, &[key], &mut [(&mut out).into()]).unwrap();
            assert_eq!(out, before[6]);
            store.push_list(&all, &pushed).unwrap();
            assert_eq!(bits(&pulled(store)), bits(&before));
            let last = store.last_norm().unwrap();
            assert!(!last.norm.is_finite() && last.skips == 2, "{last:?}");
            assert_eq!(store.last_round(key).unwrap().round, 1);
            store.set_clipping(5.0, NonFinite::Fail).unwrap();
            let text = failure(store.push_list(&all, &pushed), InvalidArgument);
            assert!(text.contains("key 16") && text.contains("nothing has changed"), "{text}");
            assert_eq!(bits(&pulled(store)), bits(&before));
            // The next round is as good as any.
            pushpull(store, rank, 1).unwrap();
            let last = store.last_norm().unwrap();
            assert_eq!((last.norm.to_bits(), last.skips), (norm(3, 1, 1.0).to_bits(), 2));
        });
    }
}

#[test]
fn a_factor_of_zero_is_one_too() {
    Job::new(2, 1).run(|store, _| {
        store.init(1u64, &[1f64]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        store.set_clipping(f64::MIN_POSITIVE, NonFinite::Skip).unwrap();
        store.push(1u64, &[1e153f64]).unwrap();
        let mut out = [0f64];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [1.0]);
    });
}

#[test]
fn workers_that_clip_differently_are_told_and_clip_as_the_job_does() {
    let results = Job::new(2, 1).run(|store, rank| {
        store.init(1u64, &[0f32]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        let set = store.set_clipping([1.0, 2.0][rank], NonFinite::Skip);
        let text = set.err().map(|error| (error.kind(), error.to_string()));
        store.push(1u64, &[4f32]).unwrap();
        let mut out = [0f32];
        store.pull(1u64, &mut out).unwrap();
        (text, out[0])
    });
    let [(None, one), (Some((kind, text)), other)] = &results[..] else { panic!("{results:?}") };
    assert_eq!((*kind, one), (Differs, other));
    assert_eq!(*one, -(factor(1.0, 8.0) as f32 * 8.0));
    assert!(text.contains("set_clipping"), "{text}");
}

#[test]
fn workers_that_push_other_lists_are_told_before_anything_is_pushed() {
    Job::new(2, 1).run(|store, rank| {
        store.init(1u64, &[0f32; 4]).unwrap();
        store.init(2u64, &[0f32; 4]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        store.set_clipping(100.0, NonFinite::Skip).unwrap();
        let text = failure(store.push([1u64, 2][rank], &[1f32; 4]), Differs);
        assert!(text.contains("push: worker") && text.contains("a clipped push"), "{text}");
        let other = if rank == 0 {
            store.push(1u64, &[1f32; 4])
        } else {
            store.allreduce(Reduction::Sum, &[(&[1f32; 4]).into()], &mut [])
        };
        let text = failure(other, Differs);
        assert!(text.contains("allreduce (sum)") && text.contains("a clipped push"), "{text}");
        let mut out = [1f32; 4];
        for key in [1u64, 2] {
            store.pull(key, &mut out).unwrap();
            assert_eq!(out, [0.0; 4]);
            assert_eq!(store.last_round(key).unwrap().round, 0);
        }
        store.push(1u64, &[1f32; 4]).unwrap();
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [-2.0; 4]);
    });
}

#[test]
fn a_worker_that_is_gone_fails_the_pushes_of_others_with_its_name() {
    let job = Job::new(2, 1);
    let (others, [first, second]) = job.start_with_two();
    let setup = |store: &Store| {
        store.init(1u64, &[1f32; 4]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        store.push(1u64, &[1f32; 4]).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| setup(&second));
        setup(&first);
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| failure(first.push(1u64, &[1f32; 4]), PeerLost));
        std::thread::sleep(Duration::from_millis(100));
        drop(second);
        let text = waits.join().unwrap();
        assert!(text.contains("worker 1") && text.contains("has pushed nothing"), "{text}");
    });
    drop(first);
    others.end();
}

/// Also of a worker that has given a push up the exchanges are counted.
#[test]
fn a_worker_that_does_not_push_is_named_in_time_and_its_next_push_is_one_of_all() {
    for count in [4, 50_000] {
        Job::new(2, 1).with("timeout_ms", 2_000).run(move |store, rank| {
            store.init(1u64, &vec![1f32; count]).unwrap();
            store.set_optimizer("sgd", "learning_rate=1").unwrap();
            store.set_clipping(1.0, NonFinite::Skip).unwrap();
            let push = || store.push(1u64, &vec![1f32; count]);
            push().unwrap();
            if rank == 0 {
                let text = failure(push(), Timeout);
                assert!(text.contains("worker 1"), "{text}");
                // Worker 1 has learnt of it then.
                std::thread::sleep(Duration::from_millis(500));
            }
            store.barrier(LIMIT).unwrap();
            if rank == 1 {
                let text = failure(push(), Timeout);
                assert!(text.contains("worker 0 has given it up"), "{text}");
            }
            store.barrier(LIMIT).unwrap();
            push().unwrap();
            let mut out = vec![0f32; count];
            store.pull(1u64, &mut out).unwrap();
            let step = 2.0 * factor(1.0, 2.0 * (count as f64).sqrt());
            assert!((f64::from(out[count - 1]) - (1.0 - 2.0 * step)).abs() < 1e-6, "{}", out[0]);
            assert_eq!(store.last_round(1u64).unwrap().round, 2);
        });
    }
}

/// Workers may intern and initialise names in any order.
#[test]
fn names_are_measured_in_one_order() {
    let norms = Job::new(2, 2).run(|store, rank| {
        let mut names: Vec<(usize, String)> = (0..9).map(|at| (at, format!("layer{at}"))).collect();
        if rank == 1 {
            names.reverse();
        }
        let keys: Vec<Key> = names.iter().map(|(_, name)| store.intern(name).unwrap()).collect();
        let values: Vec<[f32; 3]> = names
            .iter()
            .map(|(at, _)| [1.0, 0.1, 7.0].map(|it| it * 0.3f32.powi(*at as i32)))
            .collect();
        let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
        // A worker waits for the key's first value of worker 0, so both have one order here.
        for at in 0..9 {
            let key = store.intern(&format!("layer{at}")).unwrap();
            store.init(key, &[0f32; 3]).unwrap();
        }
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        store.push_list(&keys, &tensors).unwrap();
        store.last_norm().unwrap().norm
    });
    assert_eq!(norms[0].to_bits(), norms[1].to_bits());
    let squares = (0..9).map(|at| 200.04 * 0.09f64.powi(at));
    assert!((norms[0] - squares.sum::<f64>().sqrt()).abs() < 1e-5, "{norms:?}");
}

#[test]
fn workers_in_other_rounds_are_told_until_a_resume() {
    Job::new(2, 1).run(|store, rank| {
        store.init(1u64, &[1f32; 2]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        if rank == 0 {
            store.push(1u64, &[0.5f32; 2]).unwrap();
        }
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        for _ in 0..2 {
            failure(store.push(1u64, &[[3f32, 0.0], [0.0, 4.0]][rank]), Differs);
        }
        store.resume(LIMIT).unwrap();
        store.push(1u64, &[[3f32, 0.0], [0.0, 4.0]][rank]).unwrap();
        let mut out = [0f32; 2];
        store.pull(1u64, &mut out).unwrap();
        let scale = factor(1.0, 5.0) as f32;
        assert_eq!(out, [0.5 - 3.0 * scale, 0.5 - 4.0 * scale]);
    });
}

#[test]
fn groups_clip_by_themselves() {
    Job::new(3, 2).run(|store, rank| {
        if rank == 1 {
            return;
        }
        let group = store.group("odd", &[0, 2]).unwrap();
        group.init(1u64, &[0f32; 2]).unwrap();
        group.set_optimizer("sgd", "learning_rate=1").unwrap();
        group.set_clipping(1.0, NonFinite::Skip).unwrap();
        group.push(1u64, &[[3f32, 0.0], [0.0, 4.0]][rank / 2]).unwrap();
        let mut out = [0f32; 2];
        group.pull(1u64, &mut out).unwrap();
        let scale = factor(1.0, 5.0) as f32;
        assert_eq!(out, [-3.0 * scale, -4.0 * scale]);
        assert_eq!(group.last_norm().unwrap().norm, 5.0);
        assert!(store.last_norm().unwrap().norm.is_nan());
    });
}

#[test]
fn what_is_not_clipped_in_jobs_is_refused_with_the_way_around() {
    let asynchronous = |store: &Store| store.set_clipping(1.0, NonFinite::Skip);
    Job::of("dist_async", 2, 1).run(move |store, _| {
        let text = failure(asynchronous(store), Unsupported);
        assert!(text.contains("dist_async") && text.contains("dist_sync"), "{text}");
    });
    Job::new(2, 1).with("sum_order", "tree").run(|store, _| {
        let text = failure(store.set_clipping(1.0, NonFinite::Skip), Unsupported);
        assert!(text.contains("sum_order=tree") && text.contains("allreduce"), "{text}");
    });
    Job::new(2, 1).run(|store, rank| {
        store.init(1u64, &[1f32; 4]).unwrap();
        store.init(2u64, Tensor::new(&[1f32; 4], &[2, 2]).unwrap()).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        failure(store.set_clipping(-1.0, NonFinite::Skip), InvalidArgument);
        store.set_compression("fp16", "").unwrap();
        let text = failure(store.set_clipping(1.0, NonFinite::Skip), Unsupported);
        assert!(text.contains("codec"), "{text}");
        store.set_compression("none", "").unwrap();
        store.set_weight(2.0).unwrap();
        let text = failure(store.set_clipping(1.0, NonFinite::Skip), Unsupported);
        assert!(text.contains("weight"), "{text}");
        store.clear_weight().unwrap();
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        let text = failure(store.set_compression("fp16", ""), Unsupported);
        assert!(text.contains("codec"), "{text}");
        let text = failure(store.set_weight(2.0), Unsupported);
        assert!(text.contains("weight") && text.contains("rescale_grad"), "{text}");
        let text = failure(store.push_owned(1u64, vec![1f32; 4], 0).map(drop), Unsupported);
        assert!(text.contains("ticket") && text.contains("the call that waits"), "{text}");
        let rows = Tensor::new(&[1f32; 2], &[1, 2]).unwrap();
        let text = failure(store.push_rows(2u64, &[1i64], rows), Unsupported);
        assert!(text.contains("rows are not clipped"), "{text}");
        assert_eq!(store.last_round(2u64).unwrap().round, 0);
        if rank == 1 {
            store.done().unwrap();
            failure(store.push(1u64, &[1f32; 4]), kvstore::ErrorKind::InvalidArgument);
        }
    });
}

#[test]
fn an_updater_of_a_server_gets_no_gradient_that_was_not_measured() {
    let add = |store: &Store| store.set_updater(|_, _, _| Ok(())).unwrap();
    Job::new(2, 1).run_with(add, |store, _| {
        store.init(1u64, &[1f32]).unwrap();
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        store.push(1u64, &[5f32]).unwrap();
        let text = failure(store.pull(1u64, &mut [0f32]), InvalidArgument);
        assert!(text.contains("updater") && text.contains("set an optimizer"), "{text}");
    });
}

/// A checkpoint has no clipping, and a file with a codec is refused while the job clips.
#[test]
fn a_file_with_a_codec_is_refused_while_a_job_clips() {
    let folder = Folder::new("clipping-codec");
    let path = folder.path().join("file");
    Job::new(2, 1).run(move |store, _| {
        store.init(1u64, &[1f32; 4]).unwrap();
        store.set_optimizer("sgd", "learning_rate=1").unwrap();
        store.set_compression("fp16", "").unwrap();
        store.save(&path).unwrap();
        store.set_compression("none", "").unwrap();
        store.set_clipping(1.0, NonFinite::Skip).unwrap();
        let text = failure(store.load(&path), Unsupported);
        assert!(text.contains("codec"), "{text}");
        store.push(1u64, &[2f32; 4]).unwrap();
        let mut out = [0f32; 4];
        store.pull(1u64, &mut out).unwrap();
        assert!((out[0] - 0.5).abs() < 1e-6, "{out:?}");
    });
}

#[test]
fn transactions_in_jobs_are_refused() {
    Job::new(2, 1).run(|store, _| {
        let refused = [store.begin(), store.commit().map(|_| ()), store.rollback()]
            .map(|it| failure(it, Unsupported));
        for (text, call) in refused.iter().zip(["begin", "commit", "rollback"]) {
            assert!(text.starts_with(call) && text.contains("use a local store"), "{text}");
        }
    });
}
