//! Lists of keys, several values and outs of a key, all layouts, other float dtypes.

use kvstore::{DType, Key, Store, Tensor, TensorMut, bf16, f16};
use ndarray::{Array2, s};

use super::common::scalar::{Scalar, convert_bits};
use super::job::Job;

const ROWS: usize = 61;
const COLUMNS: usize = 83;
const WORKERS: usize = 2;

/// Small numbers whose sums round in 16 bits, and not in 32.
fn number(rank: usize, round: usize, value: usize, at: usize) -> f32 {
    let mixed = (rank * 131 + round * 31 + value * 17 + at * 7) % 1021;
    (mixed as f32 - 500.0) / 64.0
}

fn array(rank: usize, round: usize, value: usize) -> Array2<f32> {
    Array2::from_shape_fn((ROWS, COLUMNS), |(row, column)| {
        number(rank, round, value, row * COLUMNS + column)
    })
}

/// The same elements as every second column of a wider array.
fn spread(array: &Array2<f32>) -> Array2<f64> {
    let mut wide = Array2::from_elem((ROWS, 2 * COLUMNS), 99.0);
    wide.slice_mut(s![.., ..;2]).assign(&array.mapv(f64::from));
    wide
}

/// What the sums of a round are, of a key of float32 with three values and one of float16 with two.
fn expected(round: usize) -> (Vec<f32>, Vec<f16>) {
    let count = ROWS * COLUMNS;
    let wide = |at| {
        let own = |rank| f32::add_up((0..3).map(|value| number(rank, round, value, at)));
        f32::add_up((0..WORKERS).map(own))
    };
    let half = |value: f32| f16::from_bits(convert(DType::F32, DType::F16, value.to_bits()) as u16);
    let narrow = |at| {
        let own = |rank| f16::add_up((3..5).map(|value| half(number(rank, round, value, at))));
        f16::add_up((0..WORKERS).map(own))
    };
    ((0..count).map(wide).collect(), (0..count).map(narrow).collect())
}

fn convert(from: DType, to: DType, bits: u32) -> u64 {
    convert_bits(from, to, bits.into())
}

/// One call with values of both keys, mixed, and outs of every kind.
fn exchange(store: &Store, keys: [Key; 2], rank: usize, round: usize, in_one_call: bool) {
    let [wide, narrow] = keys;
    let values: Vec<Array2<f32>> = (0..5).map(|value| array(rank, round, value)).collect();
    let (second, last) = (spread(&values[1]), spread(&values[4]));
    let turned = values[2].t().as_standard_layout().into_owned();
    let value_keys = [narrow, wide, wide, narrow, wide];
    let views = (second.slice(s![.., ..;2]), last.slice(s![.., ..;2]), turned.t());
    let halves = values[3].mapv(f16::from_f32);
    let values: [Tensor<'_>; 5] = [
        (&halves).into(),
        (&values[0]).into(),
        (&views.0).into(),
        (&views.1).into(),
        (&views.2).into(),
    ];

    let mut plain = Array2::<f32>::zeros((ROWS, COLUMNS));
    let mut doubles = Array2::<f64>::zeros((ROWS, 3 * COLUMNS));
    let mut brains = Array2::<bf16>::from_elem((ROWS, COLUMNS), bf16::ZERO);
    let mut columns = Array2::<f16>::from_elem((COLUMNS, ROWS), f16::ZERO);
    let mut floats = Array2::<f32>::zeros((ROWS, COLUMNS));
    {
        let mut thirds = doubles.slice_mut(s![.., ..;3]);
        let mut turned = columns.view_mut().reversed_axes();
        let out_keys = [wide, narrow, wide, narrow, wide];
        let mut outs: [TensorMut<'_>; 5] = [
            (&mut plain).into(),
            (&mut turned).into(),
            (&mut thirds).into(),
            (&mut floats).into(),
            (&mut brains).into(),
        ];
        if in_one_call {
            store.pushpull_list(&value_keys, &values, &out_keys, &mut outs).unwrap();
        } else {
            store.push_list(&value_keys, &values).unwrap();
            store.pull_list(&out_keys, &mut outs).unwrap();
        }
    }

    let (sums, halves) = expected(round);
    assert_eq!(plain.as_slice().unwrap(), sums);
    for (at, (sum, half)) in sums.into_iter().zip(halves).enumerate() {
        let (row, column) = (at / COLUMNS, at % COLUMNS);
        assert_eq!(doubles[(row, 3 * column)], f64::from(sum));
        assert_eq!(doubles[(row, 3 * column + 1)], 0.0);
        assert_eq!(
            u64::from(brains[(row, column)].to_bits()),
            convert(DType::F32, DType::BF16, sum.to_bits())
        );
        assert_eq!(columns[(column, row)], half);
        assert_eq!(floats[(row, column)], half.to_f32());
    }
}

#[test]
fn lists_of_mixed_keys_layouts_and_dtypes_are_served() {
    Job::new(WORKERS, 2).with("slice_bytes", 8192).run(|store, rank| {
        let narrow = store.intern("narrow").unwrap();
        let keys = [Key::from(7u64), narrow];
        let (first, halves) = (array(rank, 9, 0), array(rank, 9, 1).mapv(f16::from_f32));
        // What rank 0 offers is the value, in both outs and in another dtype.
        let mut outs = (first.clone(), first.mapv(f64::from), halves.clone());
        let tensors = &mut [(&mut outs.0).into(), (&mut outs.1).into(), (&mut outs.2).into()];
        let values = [(&halves).into(), (&first).into()];
        let out_keys = [keys[0], keys[0], narrow];
        store.broadcast_list(&[narrow, keys[0]], &values, &out_keys, tensors).unwrap();
        assert_eq!(outs.0, array(0, 9, 0));
        assert_eq!(outs.1, array(0, 9, 0).mapv(f64::from));
        assert_eq!(outs.2, array(0, 9, 1).mapv(f16::from_f32));
        for round in 0..4 {
            exchange(store, keys, rank, round, round % 2 == 0);
        }
    });
}

#[test]
fn a_call_that_is_refused_pushes_nothing() {
    use kvstore::ErrorKind::{DtypeMismatch, InvalidArgument, KeyNotFound, ShapeMismatch};
    let results = Job::new(2, 1).run(|store, rank| {
        store
            .init_list(&[1u64.into(), 2u64.into()], &[(&[0.0f32; 3]).into(), (&[0i32; 3]).into()])
            .unwrap();
        let (good, whole) = ([1.0f32; 3], [1i32; 3]);
        let refused = [
            (2u64, Tensor::from(&good), DtypeMismatch, "key 2"),
            (1, Tensor::from(&whole), DtypeMismatch, "key 1"),
            (1, Tensor::new(&good[..2], &[2]).unwrap(), ShapeMismatch, "float32[3]"),
            (9, Tensor::from(&good), KeyNotFound, "key 9"),
        ];
        for (key, value, kind, text) in refused {
            let error =
                store.push_list(&[1u64.into(), key.into()], &[(&good).into(), value]).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(text), "{error}");
        }
        let error = store.push_list(&[1u64.into()], &[]).unwrap_err();
        assert_eq!(error.kind(), InvalidArgument);
        store.push(1u64, &[rank as f32 + 1.0; 3]).unwrap();
        let mut out = [0.0f32; 3];
        store.pull(1u64, &mut out).unwrap();
        out[2]
    });
    assert_eq!(results, [3.0, 3.0]);
}

#[test]
fn one_out_for_several_keys_holds_one_of_them() {
    Job::new(1, 2).with("slice_bytes", 8192).run(|store, _| {
        let count = 9_000;
        let keys = [1u64, 2, 3].map(Key::from);
        for (key, number) in keys.into_iter().zip([1.0f32, 2.0, 3.0]) {
            store.init(key, &vec![number; count]).unwrap();
        }
        for _ in 0..20 {
            let mut out = vec![0.0f32; count];
            for key in keys {
                store.pull(key, &mut out).unwrap();
            }
            assert!(out.iter().all(|it| *it == 3.0));
        }
    });
}

/// Small whole numbers, which every codec of 16 bits sends as they are.
fn whole(rank: usize, round: usize, key: usize, value: usize) -> f32 {
    ((rank * 5 + round * 3 + key * 7 + value * 11) % 17) as f32
}

/// How many values of a key a worker pushes, and of how many elements.
fn shape_of(key: usize) -> (usize, usize) {
    (key % 4, if key.is_multiple_of(50) { 70_000 } else { 1 + key % 600 })
}

fn exchange_many(store: &Store, rank: usize, round: usize, sums: &mut [Vec<f32>]) {
    let all = 0..sums.len();
    let pushed = all.clone().flat_map(|key| (0..shape_of(key).0).map(move |value| (key, value)));
    let arrays: Vec<(usize, Vec<f32>)> = pushed
        .map(|(key, value)| (key, vec![whole(rank, round, key, value); shape_of(key).1]))
        .collect();
    let keys: Vec<Key> = arrays.iter().map(|(key, _)| Key::from(*key as u64)).collect();
    let values: Vec<Tensor<'_>> = arrays.iter().map(|(_, array)| array.as_slice().into()).collect();
    let out_keys: Vec<Key> = all.clone().map(|key| Key::from(key as u64)).collect();
    let mut outs: Vec<Vec<f32>> = all.map(|key| vec![-1.0; shape_of(key).1]).collect();
    let mut tensors: Vec<TensorMut<'_>> =
        outs.iter_mut().map(|out| out.as_mut_slice().into()).collect();
    store.pushpull_list(&keys, &values, &out_keys, &mut tensors).unwrap();
    for (key, (out, sum)) in outs.iter().zip(sums).enumerate() {
        let (values, elements) = shape_of(key);
        let ranks = (0..WORKERS).flat_map(|rank| (0..values).map(move |value| (rank, value)));
        let added: f32 = ranks.map(|(rank, value)| whole(rank, round, key, value)).sum();
        sum.resize(elements, 0.0);
        sum.iter_mut().for_each(|sum| *sum += added);
        assert_eq!(out, sum, "key {key} in round {round}");
    }
}

#[test]
fn long_lists_of_several_values_come_out_as_a_scalar_loop_says() {
    for codec in [None, Some("fp16")] {
        Job::new(WORKERS, 2).with("slice_bytes", 65_536).run(move |store, rank| {
            let mut sums = vec![Vec::new(); 300];
            for key in 0..sums.len() {
                store.init(key as u64, &vec![0.0f32; shape_of(key).1]).unwrap();
            }
            store.set_optimizer("test", "").unwrap();
            if let Some(codec) = codec {
                store.set_compression(codec, "").unwrap();
            }
            for round in 0..4 {
                exchange_many(store, rank, round, &mut sums);
            }
        });
    }
}

/// Keys of a list that is worked on in many pieces; a million in the long suite.
fn very_many() -> usize {
    if std::env::var_os("KV_TEST_OPERATIONS").is_some() { 1_000_000 } else { 30_000 }
}

/// Every call on so many keys of 16 bytes; prints how long each takes, and how late a heartbeat was.
#[allow(clippy::print_stdout, reason = "figures of the long suite")]
fn call_with(store: &Store, count: usize, workers: usize) {
    const ELEMENTS: usize = 4;
    let keys: Vec<Key> = (0..count as u64).map(Key::from).collect();
    let data = vec![1.0f32; ELEMENTS];
    let values: Vec<Tensor<'_>> = keys.iter().map(|_| Tensor::from(&data)).collect();
    let mut into = vec![0.0f32; keys.len() * ELEMENTS];
    let mut timed = |what: &str, work: &mut dyn FnMut(&mut [TensorMut<'_>])| {
        let mut outs: Vec<TensorMut<'_>> = into.chunks_mut(ELEMENTS).map(TensorMut::from).collect();
        let began = std::time::Instant::now();
        work(&mut outs);
        println!("{workers} workers: {what} of {count} keys: {:?}", began.elapsed());
        drop(outs);
        let pulls = what.contains("pull");
        assert!(!pulls || into.iter().all(|value| *value == workers as f32), "{what}");
        into.fill(0.0);
    };
    timed("init", &mut |_| store.init_list(&keys, &values).unwrap());
    timed("push", &mut |_| store.push_list(&keys, &values).unwrap());
    timed("pull", &mut |outs| store.pull_list(&keys, outs).unwrap());
    timed("pushpull", &mut |outs| {
        store.pushpull_list(&keys, &values, &keys, outs).unwrap();
    });
    timed("remove", &mut |_| store.remove(&keys).unwrap());
    assert_eq!(store.keys().unwrap(), []);
    let stats = store.stats().unwrap();
    let delay = stats.split("\"heartbeat_delay_us\":").nth(1).expect("how late it was");
    println!("heartbeat_delay_us {}", delay.split([',', '}']).next().unwrap());
}

#[test]
fn calls_on_very_many_keys_keep_no_process_from_its_heartbeats() {
    for (workers, servers) in [(1, 1), (2, 2)] {
        Job::new(workers, servers).with("timeout_ms", 90_000).run(move |store, _| {
            for count in [very_many() / 10, very_many()] {
                call_with(store, count, workers);
            }
        });
    }
}
