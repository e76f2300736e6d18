//! Training that goes on from a file, beside training that never stopped.

use kvstore::{DType, Key, Store, Tensor};

use super::common::folder::Folder;
use super::common::random::Random;
use super::common::scalar::Scalar;
use super::{RULES, open_with, snapshot};
use crate::with_type;

const SCHEDULES: &[&str] = &[
    "",
    "lr_scheduler=factor,step=2,factor=0.7,stop_factor_lr=1e-7",
    "lr_scheduler=multifactor,steps=[2,4,1000000],factor=0.3",
    "lr_scheduler=poly,max_update=9,final_lr=1e-4,pwr=1.5,warmup_steps=4,warmup_begin_lr=1e-5",
    "lr_scheduler=cosine,max_update=11,warmup_steps=5,warmup_mode=constant,begin_num_update=1",
];

/// The n-th number of these tests, between -1 and 1.
fn number(n: usize) -> f64 {
    (Random::new(n as u64).next() >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// Tensors of one training: an integer key, and names whose order of init is not theirs.
struct Model {
    dtype: DType,
    shapes: Vec<Vec<i64>>,
}

impl Model {
    fn keys(store: &Store) -> [Key; 3] {
        [7u64.into(), store.intern("weight").unwrap(), store.intern("bias").unwrap()]
    }

    /// Calls `work` with tensors of the numbers from the n-th on.
    fn with_values(&self, n: usize, work: impl FnOnce(&[Tensor<'_>])) {
        with_type!(self.dtype, T => {
            let values: Vec<Vec<T>> = self.shapes.iter().enumerate().map(|(i, shape)| {
                let count = shape.iter().product::<i64>() as usize;
                (0..count).map(|at| {
                    let bits = number(n * 31 + i * 17 + at).to_bits();
                    T::of_bits(super::common::scalar::convert_bits(DType::F64, self.dtype, bits))
                }).collect()
            }).collect();
            let tensors: Vec<Tensor<'_>> = values.iter().zip(&self.shapes)
                .map(|(value, shape)| Tensor::new(value, shape).unwrap()).collect();
            work(&tensors);
        });
    }

    fn init(&self, store: &Store) {
        self.with_values(1000, |values| store.init_list(&Self::keys(store), values).unwrap());
    }

    /// Pushes some steps; the first key twice as often as the others.
    fn train(&self, store: &Store, steps: std::ops::Range<usize>) {
        let keys = Self::keys(store);
        for step in steps {
            self.with_values(step, |values| {
                store.push_list(&keys, values).unwrap();
                store.push_list(&keys[..1], &values[..1]).unwrap();
            });
        }
    }

    /// Trains with a stop in the middle and without, on other threads and instructions.
    fn check(&self, folder: &Folder, set: impl Fn(&Store), change: impl Fn(&Store), what: &str) {
        let (half, end) = (folder.file("half"), folder.file("end"));
        let straight = open_with("1", "scalar");
        self.init(&straight);
        set(&straight);
        self.train(&straight, 0..3);
        change(&straight);
        straight.save(&half).unwrap();
        self.train(&straight, 3..7);
        let resumed = open_with("3", "auto");
        resumed.load(&half).unwrap();
        assert_eq!(resumed.keys().unwrap(), Self::keys(&straight));
        assert!(snapshot(&resumed, &end) == std::fs::read(&half).unwrap(), "{what}: not the same");
        self.train(&resumed, 3..7);
        assert!(
            snapshot(&resumed, &end) == snapshot(&straight, &half),
            "{what}: went on otherwise"
        );
    }
}

#[test]
fn training_goes_on_as_if_it_had_not_stopped() {
    let folder = Folder::new("training");
    for rule in RULES {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let model = Model { dtype, shapes: vec![vec![3, 4], vec![5], vec![]] };
            for (schedule, multi) in
                SCHEDULES.iter().flat_map(|it| [(it, false), (it, dtype.size() == 2)])
            {
                let options = format!("wd=0.01,multi_precision={multi},{schedule}");
                let set = |store: &Store| {
                    store.set_optimizer(rule, &options).unwrap();
                    store.set_key_hyperparameter(7u64, "lr_mult", 1.0 / 3.0).unwrap();
                    store.set_key_hyperparameter(99u64, "wd_mult", 0.0).unwrap();
                    let bias = store.intern("bias").unwrap();
                    store.set_key_hyperparameter(bias, "wd_mult", 1e-300).unwrap();
                };
                let what = format!("{rule} {} {options}", dtype.name());
                model.check(&folder, set, |_| (), &what);
            }
        }
    }
}

#[test]
fn options_changed_on_the_way_are_kept() {
    let folder = Folder::new("changed-options");
    let model = Model { dtype: DType::BF16, shapes: vec![vec![2, 2], vec![3], vec![0, 4]] };
    for (rule, options, name, value) in [
        ("sgd", "momentum=0.9", "momentum", 0.0),
        ("sgd", "", "momentum", 0.9),
        ("rmsprop", "", "centered", 1.0),
        ("adam", "multi_precision=true", "multi_precision", 0.0),
        ("adam", "", "multi_precision", 1.0),
        ("lamb", "upper_bound=10", "upper_bound", f64::INFINITY),
        ("ftrl", "", "rescale_grad", -1.0 / 7.0),
        ("nadam", "", "learning_rate", 5e-324),
    ] {
        let set = |store: &Store| store.set_optimizer(rule, options).unwrap();
        let change = |store: &Store| store.set_hyperparameter(name, value).unwrap();
        model.check(&folder, set, change, &format!("{rule} {name}={value}"));
    }
}

/// What a codec has not sent goes on with the next push, and so do its draws.
#[test]
fn compressed_training_goes_on_as_if_it_had_not_stopped() {
    let folder = Folder::new("compressed");
    let shapes = vec![vec![3, 1400], vec![5], vec![]];
    for (codec, options) in [
        ("1bit", ""),
        ("2bit", "threshold=0.3333333333333333"),
        ("fp16", "feedback=true"),
        ("bf16", ""),
        ("int8", "feedback=true"),
        ("topk", "ratio=0.1"),
        ("randomk", "ratio=0.1,seed=9007199254740993"),
        ("randomk", "feedback=false"),
    ] {
        for rule in [None, Some("adam")] {
            let model = Model { dtype: DType::F32, shapes: shapes.clone() };
            let set = |store: &Store| {
                store.set_compression(codec, options).unwrap();
                rule.iter().for_each(|rule| store.set_optimizer(rule, "").unwrap());
            };
            model.check(&folder, set, |_| (), &format!("{codec} {options}, {rule:?}"));
        }
    }
}

/// A file without a codec leaves the one that is set, whose residuals of the loaded keys begin anew.
#[test]
fn a_file_without_a_codec_leaves_the_one_that_is_set() {
    let folder = Folder::new("no-codec");
    let path = folder.file("file");
    let plain = open_with("1", "auto");
    plain.init(1u64, &[0f32; 4]).unwrap();
    plain.save(&path).unwrap();
    let store = open_with("1", "auto");
    store.init(1u64, &[0f32; 4]).unwrap();
    store.set_compression("2bit", "threshold=1").unwrap();
    let pushed = [0.75f32; 4];
    store.push(1u64, &pushed).unwrap();
    store.load(&path).unwrap();
    // 0.75 and what was left of the first push would be above the threshold.
    let pull = || {
        let mut out = [9f32; 4];
        store.push(1u64, &pushed).unwrap();
        store.pull(1u64, &mut out).unwrap();
        out
    };
    assert_eq!(pull(), [0f32; 4]);
    assert_eq!(pull(), [1f32; 4]);
}

#[test]
fn keys_without_a_push_begin_after_a_load() {
    let folder = Folder::new("not-pushed");
    let model = Model { dtype: DType::F32, shapes: vec![vec![4], vec![1, 3], vec![2]] };
    for rule in RULES {
        let path = folder.file("file");
        let straight = open_with("1", "auto");
        model.init(&straight);
        straight.set_optimizer(rule, "").unwrap();
        straight.save(&path).unwrap();
        let resumed = super::loaded(&path);
        model.train(&straight, 0..2);
        model.train(&resumed, 0..2);
        assert!(snapshot(&straight, &path) == snapshot(&resumed, &path), "{rule}");
    }
}

#[test]
fn large_keys_go_on_with_any_number_of_threads() {
    let folder = Folder::new("large-keys");
    for dtype in [DType::F32, DType::F16] {
        let model = Model { dtype, shapes: vec![vec![1100, 701], vec![3], vec![130_001]] };
        for rule in ["momentum", "adam", "groupadagrad", "lamb", "lars"] {
            let set = |store: &Store| store.set_optimizer(rule, "multi_precision=1").unwrap();
            model.check(&folder, set, |_| (), rule);
        }
    }
}
