//! Collective calls against scalar loops: every call, dtypes, sizes on both sides of the limits of segments,
//! layouts, and what goes wrong.

use std::time::Duration;

use kvstore::ErrorKind::{
    Differs, DtypeMismatch, InvalidArgument, Overlap, PeerLost, ShapeMismatch, Timeout, Unsupported,
};
use kvstore::{Element, Reduction, Store, Tensor, TensorMut, bf16, f16};
use ndarray::Array2;

use super::job::{Job, failure};

/// Below and above the limits of whole arrays, small segments and pieces of floats.
const COUNTS: [usize; 8] = [1, 3, 64, 4_096, 4_097, 20_000, 70_000, 300_001];

/// An element type, and the type in which it is added.
trait Number: Element + Default + PartialEq + std::fmt::Debug {
    type Wide: Copy + std::ops::Add<Output = Self::Wide> + std::ops::Div<Output = Self::Wide>;
    fn of(number: f64) -> Self;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn divisor(count: f64) -> Self::Wide;
    fn exceeds(self, other: Self) -> bool;
}

macro_rules! numbers {
    ($($type:ty as $wide:ty: $of:expr, $widen:expr;)+) => {$(impl Number for $type {
        type Wide = $wide;
        fn of(number: f64) -> Self { $of(number) }
        fn widen(self) -> $wide { $widen(self) }
        fn narrow(wide: $wide) -> Self { $of(wide.into()) }
        fn divisor(count: f64) -> $wide { count as $wide }
        fn exceeds(self, other: Self) -> bool { self > other }
    })+};
}

numbers! {
    f32 as f32: |it: f64| it as f32, |it| it;
    f64 as f64: |it: f64| it, |it| it;
    f16 as f32: |it: f64| f16::from_f32(it as f32), f16::to_f32;
    bf16 as f32: |it: f64| bf16::from_f32(it as f32), bf16::to_f32;
    i32 as f64: |it: f64| it as i32, f64::from;
    u8 as f64: |it: f64| it as u8, f64::from;
}

/// Numbers whose sums round; of integers small ones.
fn values<T: Number>(rank: usize, count: usize, salt: usize) -> Vec<T> {
    let whole = size_of::<T>() == 1 || T::of(0.5) == T::of(0.0);
    let number = |at: usize| {
        if whole {
            return T::of(((at * 13 + rank * 7 + salt * 3) % 50) as f64);
        }
        let angle = (at * 13 + rank * 7 + salt * 3) as f64 * 0.11;
        T::of(angle.sin() * 10f64.powi(((at + rank) % 5) as i32 - 2))
    };
    (0..count).map(number).collect()
}

/// The reduction of values in their order.
fn reduced<T: Number>(reduction: Reduction, all: &[Vec<T>], of: f64) -> Vec<T> {
    let at = |at: usize| {
        let each = || all.iter().map(|values| values[at]);
        let sum = || each().map(T::widen).reduce(|a, b| a + b).unwrap();
        match reduction {
            Reduction::Sum => T::narrow(sum()),
            Reduction::Mean => T::narrow(sum() / T::divisor(of)),
            Reduction::Max => each().reduce(|a, b| if b.exceeds(a) { b } else { a }).unwrap(),
            Reduction::Min => each().reduce(|a, b| if a.exceeds(b) { b } else { a }).unwrap(),
        }
    };
    (0..all[0].len()).map(at).collect()
}

fn of_all<T: Number>(workers: usize, count: usize, salt: usize) -> Vec<Vec<T>> {
    (0..workers).map(|rank| values(rank, count, salt)).collect()
}

fn all_sizes<T: Number>(store: &Store, rank: usize, workers: usize, reductions: &[Reduction]) {
    for (salt, count) in COUNTS.into_iter().enumerate() {
        for reduction in reductions {
            let (own, mut out) = (values::<T>(rank, count, salt), vec![T::of(1.0); count]);
            store.allreduce(*reduction, &[(&own).into()], &mut [(&mut out).into()]).unwrap();
            let all = reduced(*reduction, &of_all::<T>(workers, count, salt), workers as f64);
            assert!(out == all, "{count} of {:?}, {reduction:?}, {workers} workers", T::DTYPE);
        }
    }
}

#[test]
fn an_allreduce_is_the_reduction_in_the_order_of_ranks() {
    use Reduction::{Max, Mean, Min, Sum};
    for workers in [1, 2, 3] {
        Job::new(workers, 1).run(move |store, rank| {
            all_sizes::<f32>(store, rank, workers, &[Sum, Mean, Max, Min]);
            all_sizes::<f64>(store, rank, workers, &[Sum]);
            all_sizes::<f16>(store, rank, workers, &[Sum, Mean, Max]);
            all_sizes::<bf16>(store, rank, workers, &[Sum, Mean]);
            all_sizes::<i32>(store, rank, workers, &[Sum, Max]);
            all_sizes::<u8>(store, rank, workers, &[Sum, Min]);
        });
    }
}

#[test]
fn several_values_of_a_worker_are_reduced_first_as_in_a_round() {
    Job::new(2, 1).run(|store, rank| {
        for count in COUNTS {
            let own: Vec<Vec<f16>> = (0..3).map(|at| values(rank, count, at)).collect();
            let given: Vec<Tensor> = own.iter().map(Tensor::from).collect();
            let (mut out, mut second) = (vec![f16::ONE; count], vec![f16::ONE; count]);
            store
                .allreduce(Reduction::Sum, &given, &mut [(&mut out).into(), (&mut second).into()])
                .unwrap();
            assert_eq!(out, second);
            // A round of a key adds them up alike.
            let key = 7 + count as u64;
            store.init(key, &vec![f16::ZERO; count]).unwrap();
            store.push_list(&[key.into(); 3], &given).unwrap();
            let mut pulled = vec![f16::ONE; count];
            store.pull(key, &mut pulled).unwrap();
            assert_eq!(out, pulled, "{count}");
            // A mean is divided by the number of all values.
            store.allreduce(Reduction::Mean, &given, &mut [(&mut out).into()]).unwrap();
            let of = |rank| (0..3).map(|at| values(rank, count, at)).collect::<Vec<Vec<f16>>>();
            let sums = [0, 1].map(|rank| reduced(Reduction::Sum, &of(rank), 1.0));
            assert_eq!(out, reduced(Reduction::Mean, &sums, 6.0));
        }
    });
}

#[test]
fn each_other_call_moves_what_it_says() {
    for workers in [2, 3] {
        Job::new(workers, 1).run(move |store, rank| {
            for count in COUNTS {
                let root = count % workers;
                reduce(store, rank, workers, root, count);
                broadcast(store, rank, root, count);
                gather(store, rank, workers, root, count);
                scatter(store, rank, workers, root, count);
            }
        });
    }
}

fn reduce(store: &Store, rank: usize, workers: usize, root: usize, count: usize) {
    let (own, mut out) = (values::<f32>(rank, count, 1), vec![-1.0f32; count]);
    store.reduce(Reduction::Sum, root as u32, &[(&own).into()], &mut [(&mut out).into()]).unwrap();
    let all = reduced(Reduction::Sum, &of_all::<f32>(workers, count, 1), 1.0);
    // Others keep what they have.
    assert_eq!(out, if rank == root { all } else { vec![-1.0; count] });
    // Each worker gets the reduction of what all have for it, of lengths of its own.
    let given: Vec<Vec<f32>> = (0..workers).map(|to| values(rank, count + to, to)).collect();
    let given: Vec<Tensor> = given.iter().map(Tensor::from).collect();
    let mut out = vec![-1.0f32; count + rank];
    store.reduce_scatter(Reduction::Sum, &given, (&mut out).into()).unwrap();
    let for_me: Vec<Vec<f32>> = (0..workers).map(|from| values(from, count + rank, rank)).collect();
    assert_eq!(out, reduced(Reduction::Sum, &for_me, 1.0));
}

fn broadcast(store: &Store, rank: usize, root: usize, count: usize) {
    let (of_root, mut out) = (values::<f64>(root, count, 2), vec![0.0f64; count]);
    let value = (rank == root).then(|| Tensor::from(&of_root));
    store.broadcast_from(root as u32, value, &mut [(&mut out).into()]).unwrap();
    assert_eq!(out, of_root);
}

fn gather(store: &Store, rank: usize, workers: usize, root: usize, count: usize) {
    let own = values::<i32>(rank, count + rank, 3);
    let room = || (0..workers).map(|from| vec![-1i32; count + from]).collect::<Vec<_>>();
    let expected: Vec<_> = (0..workers).map(|from| values::<i32>(from, count + from, 3)).collect();
    let mut outs = room();
    let mut places: Vec<TensorMut> = outs.iter_mut().map(TensorMut::from).collect();
    store.allgather((&own).into(), &mut places).unwrap();
    assert_eq!(outs, expected);
    let mut outs = room();
    let mut places: Vec<TensorMut> = outs.iter_mut().map(TensorMut::from).collect();
    store.gather(root as u32, (&own).into(), &mut places).unwrap();
    assert_eq!(outs, if rank == root { expected } else { room() });
    let own: Vec<Vec<i32>> = (0..workers).map(|to| values(rank, count + rank + to, to)).collect();
    let own: Vec<Tensor> = own.iter().map(Tensor::from).collect();
    let mut outs: Vec<_> = (0..workers).map(|from| vec![-1i32; count + from + rank]).collect();
    let mut places: Vec<TensorMut> = outs.iter_mut().map(TensorMut::from).collect();
    store.all_to_all(&own, &mut places).unwrap();
    for (from, out) in outs.iter().enumerate() {
        assert_eq!(*out, values::<i32>(from, count + from + rank, rank));
    }
}

fn scatter(store: &Store, rank: usize, workers: usize, root: usize, count: usize) {
    let of_root: Vec<Vec<bf16>> = (0..workers).map(|to| values(root, count + to, to)).collect();
    let given: Vec<Tensor> = of_root.iter().map(Tensor::from).collect();
    let given = if rank == root { &given[..] } else { &[] };
    let mut out = vec![bf16::ZERO; count + rank];
    store.scatter(root as u32, given, (&mut out).into()).unwrap();
    assert_eq!(out, of_root[rank]);
}

#[test]
fn layouts_and_places_do_not_matter() {
    Job::new(2, 1).run(|store, rank| {
        for side in [3usize, 40, 300] {
            let array = |rank: usize| {
                let all = values::<f32>(rank, side * side, 1);
                Array2::from_shape_vec((side, side), all).unwrap()
            };
            let (own, expected) = (array(rank), &array(0) + &array(1));
            // Transposed, into every second column.
            let turned = own.t();
            let mut wide = Array2::<f32>::zeros((side, 2 * side));
            let mut out = wide.slice_mut(ndarray::s![.., ..;2]);
            store.allreduce(Reduction::Sum, &[(&turned).into()], &mut [(&mut out).into()]).unwrap();
            assert_eq!(out, expected.t());
            assert!(wide.slice(ndarray::s![.., 1..;2]).iter().all(|it| *it == 0.0));
        }
        // In place: the value is the out.
        for count in COUNTS {
            let mut own = values::<f32>(rank, count, 5);
            let value = unsafe_copy(&own);
            store.allreduce(Reduction::Sum, &[value], &mut [(&mut own).into()]).unwrap();
            assert_eq!(own, reduced(Reduction::Sum, &of_all::<f32>(2, count, 5), 1.0));
        }
        // Nothing.
        store.allreduce(Reduction::Sum, &[Tensor::from(&[0f32; 0])], &mut []).unwrap();
    });
}

/// A view of a vector that is also the out of a call, as C callers have it.
fn unsafe_copy<'a>(of: &[f32]) -> Tensor<'a> {
    // SAFETY: the call allows an out that is exactly its value, and reads it through this view alone.
    Tensor::from(unsafe { std::slice::from_raw_parts(of.as_ptr(), of.len()) })
}

#[test]
fn collectives_and_rounds_go_on_beside_each_other() {
    Job::new(2, 1).run(|store, rank| {
        store.init(1u64, &vec![0f32; 1_000]).unwrap();
        let mut out = vec![0f32; 1_000];
        for round in 0..30 {
            store.push(1u64, &vec![1.0f32; 1_000]).unwrap();
            let own = values::<f32>(rank, 50_000, round);
            let mut all = vec![0f32; 50_000];
            store.allreduce(Reduction::Sum, &[(&own).into()], &mut [(&mut all).into()]).unwrap();
            assert_eq!(all, reduced(Reduction::Sum, &of_all::<f32>(2, 50_000, round), 1.0));
            store.pull(1u64, &mut out).unwrap();
            assert_eq!(out, vec![2.0; 1_000]);
        }
        store.barrier(Duration::from_secs(30)).unwrap();
    });
}

#[test]
fn calls_that_differ_fail_for_all_and_say_how() {
    let texts = Job::new(2, 1).run(|store, rank| {
        let (one, mut out) = (vec![1f32; 5], vec![0f32; 5]);
        let text = if rank == 0 {
            failure(store.allreduce(Reduction::Sum, &[(&one).into()], &mut []), Differs)
        } else {
            failure(store.allreduce(Reduction::Max, &[(&one).into()], &mut []), Differs)
        };
        // A length that others do not expect.
        let other = vec![1f32; 5 + rank];
        let mut outs = [vec![0f32; 5 + rank], vec![0f32; 5 + rank]];
        let [first, second] = &mut outs;
        let result = store.allgather((&other).into(), &mut [first.into(), second.into()]);
        failure(result, Differs);
        // The next one is a good one.
        store.allreduce(Reduction::Sum, &[(&one).into()], &mut [(&mut out).into()]).unwrap();
        assert_eq!(out, [2.0; 5]);
        text
    });
    for text in texts {
        assert!(text.contains("allreduce (sum) of 5 float32"), "{text}");
        assert!(text.contains("allreduce (max) of 5 float32"), "{text}");
        assert!(text.contains("worker 0") && text.contains("worker 1"), "{text}");
    }
}

#[test]
fn a_refused_call_has_sent_nothing() {
    Job::new(2, 1).run(|store, rank| {
        let (one, mut out) = (vec![1f32; 4], vec![0f32; 4]);
        let refused = |kind, result| _ = failure(result, kind);
        refused(InvalidArgument, store.allreduce(Reduction::Sum, &[], &mut [(&mut out).into()]));
        let longer = vec![1f32; 5];
        refused(
            ShapeMismatch,
            store.allreduce(Reduction::Sum, &[(&one).into(), (&longer).into()], &mut []),
        );
        let double = vec![1f64; 4];
        refused(
            DtypeMismatch,
            store.allreduce(Reduction::Sum, &[(&one).into(), (&double).into()], &mut []),
        );
        let whole = vec![1i32; 4];
        refused(Unsupported, store.allreduce(Reduction::Mean, &[(&whole).into()], &mut []));
        let result = store.broadcast_from(2, Some((&one).into()), &mut [(&mut out).into()]);
        refused(InvalidArgument, result);
        refused(InvalidArgument, store.allgather((&one).into(), &mut [(&mut out).into()]));
        let shifted = unsafe_copy(&out[1..]);
        let (head, _) = out.split_at_mut(3);
        refused(Overlap, store.allreduce(Reduction::Sum, &[shifted], &mut [head.into()]));
        if rank == 0 {
            let text = failure(
                store.reduce_scatter(Reduction::Sum, &[(&one).into()], (&mut out).into()),
                InvalidArgument,
            );
            assert!(text.contains("1 values, where this worker gives 2"), "{text}");
        }
        store.allreduce(Reduction::Sum, &[(&one).into()], &mut [(&mut out).into()]).unwrap();
        assert_eq!(out, [2.0; 4]);
    });
}

#[test]
fn a_worker_that_makes_no_call_is_named() {
    let job = Job::new(2, 1).with("timeout_ms", 700);
    let (others, [first, second]) = job.start_with_two();
    let one = vec![1f32; 50_000];
    let call = |store: &Store| store.allreduce(Reduction::Sum, &[(&one).into()], &mut []);
    // The first call waits for all workers to listen.
    let text = failure(call(&first), Timeout);
    assert!(text.contains("allreduce") && text.contains("worker 1"), "{text}");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| call(&second));
        call(&first).unwrap();
        other.join().unwrap().unwrap();
    });
    let text = failure(call(&first), Timeout);
    assert!(text.contains("allreduce: not done within 7"), "{text}");
    assert!(text.contains("waiting for worker 1"), "{text}");
    // Late, it learns that.
    let text = failure(call(&second), Timeout);
    assert!(text.contains("worker 0 has given it up"), "{text}");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| call(&second));
        call(&first).unwrap();
        other.join().unwrap().unwrap();
    });
    std::thread::scope(|scope| {
        let close = |store: &Store| store.close(Duration::from_secs(20)).unwrap();
        scope.spawn(move || close(&first));
        close(&second);
    });
    others.end();
}

#[test]
fn a_worker_that_leaves_ends_the_calls_of_others_at_once() {
    let job = Job::new(2, 1);
    let (others, [first, second]) = job.start_with_two();
    let one = vec![1f32; 8];
    let call = |store: &Store| store.allreduce(Reduction::Sum, &[(&one).into()], &mut []);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| call(&second));
        call(&first).unwrap();
        other.join().unwrap().unwrap();
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| failure(call(&first), PeerLost));
        std::thread::sleep(Duration::from_millis(100));
        second.close(Duration::from_secs(20)).unwrap();
        let text = waits.join().unwrap();
        assert!(text.contains("allreduce: worker 1 has closed its store"), "{text}");
    });
    let text = failure(call(&first), PeerLost);
    assert!(text.contains("worker 1 has closed its store"), "{text}");
    first.close(Duration::from_secs(20)).unwrap();
    others.end();
}

#[test]
fn a_token_lets_workers_exchange() {
    for integrity in ["no", "yes"] {
        let job = Job::new(2, 1).with("token", "0123456789abcdef0123").with("integrity", integrity);
        job.run(|store, rank| {
            for count in [5, 100_000] {
                let (own, mut out) = (values::<f32>(rank, count, 1), vec![0f32; count]);
                store
                    .allreduce(Reduction::Sum, &[(&own).into()], &mut [(&mut out).into()])
                    .unwrap();
                assert_eq!(out, reduced(Reduction::Sum, &of_all::<f32>(2, count, 1), 1.0));
            }
        });
    }
}

#[test]
fn sums_by_a_tree_are_those_of_any_number_of_workers() {
    let sums = |workers: usize| {
        let job = Job::new(workers, 1).with("sum_order", "tree");
        let all = job.run(move |store, rank| {
            let of_each = 4 / workers;
            let own: Vec<Vec<f32>> =
                (0..of_each).map(|at| values(rank * of_each + at, 20_000, 1)).collect();
            let given: Vec<Tensor> = own.iter().map(Tensor::from).collect();
            let mut out = vec![0f32; 20_000];
            store.allreduce(Reduction::Sum, &given, &mut [(&mut out).into()]).unwrap();
            out
        });
        all.into_iter().next().unwrap()
    };
    let expected: Vec<f32> = {
        let all = of_all::<f32>(4, 20_000, 1);
        (0..20_000).map(|at| (all[0][at] + all[1][at]) + (all[2][at] + all[3][at])).collect()
    };
    for workers in [1, 2, 4] {
        assert_eq!(sums(workers), expected, "{workers} workers");
    }
}
