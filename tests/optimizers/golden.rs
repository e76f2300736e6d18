//! The figures of MXNet 1.9.1 in tests/golden/optimizers.json.
//!
//! Results are within 1e-6 of the largest magnitude of a tensor, float16 within one unit in the
//! last place. Where a case's field `contract` says that ours differs, the test shows how.

use kvstore::{ErrorKind, Key, Store, Tensor, f16};
use serde_json::Value;

use super::open;

const CASES: usize = 36;

/// The numbers of a list.
fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
}

/// A case's options, as a user would write them.
fn options(case: &Value) -> String {
    let option = |(name, value): (&String, &Value)| match value.as_str() {
        // A schedule and its options are one text in the figures.
        Some(text) => format!("{name}={}", text.replace(' ', ",")),
        None => format!("{name}={value}"),
    };
    case["params"].as_object().unwrap().iter().map(option).collect::<Vec<_>>().join(",")
}

fn key(store: &Store, key: &Value) -> Key {
    key.as_u64().map_or_else(|| store.intern(key.as_str().unwrap()).unwrap(), Key::from)
}

/// An element type of the figures.
trait Figure: kvstore::Element + Default {
    fn of(number: f64) -> Self;
    fn agrees(self, figure: Self, magnitude: f64) -> bool;
}

impl Figure for f32 {
    fn of(number: f64) -> Self {
        number as f32
    }

    fn agrees(self, figure: Self, magnitude: f64) -> bool {
        f64::from((self - figure).abs()) <= 1e-6 * magnitude
    }
}

impl Figure for f16 {
    fn of(number: f64) -> Self {
        f16::from_f64(number)
    }

    fn agrees(self, figure: Self, _: f64) -> bool {
        self.to_bits().abs_diff(figure.to_bits()) <= 1
    }
}

/// A case being played: gives each pull with its figures to `compare`.
fn play<T: Figure>(case: &Value, compare: impl Fn(&[T], &[T], f64)) {
    let store = open();
    store.set_optimizer(case["optimizer"].as_str().unwrap(), &options(case)).unwrap();
    let mut shape = Vec::new();
    let mut pulls = 0;
    for op in case["ops"].as_array().unwrap() {
        let key = key(&store, &op["key"]);
        let typed = |list: &Value| numbers(list).into_iter().map(T::of).collect::<Vec<T>>();
        match op["op"].as_str().unwrap() {
            "init" => {
                shape = numbers(&op["shape"]).into_iter().map(|it| it as i64).collect();
                store.init(key, Tensor::new(&typed(&op["value"]), &shape).unwrap()).unwrap();
            }
            "push" => {
                let values: Vec<Vec<T>> =
                    op["values"].as_array().unwrap().iter().map(typed).collect();
                let tensors: Vec<Tensor<'_>> =
                    values.iter().map(|value| Tensor::new(value, &shape).unwrap()).collect();
                store.push_list(&vec![key; tensors.len()], &tensors).unwrap();
            }
            "pull" => {
                let figures = typed(&op["expect"]);
                let mut out = vec![T::default(); figures.len()];
                store.pull(key, kvstore::TensorMut::new(&mut out, &shape).unwrap()).unwrap();
                let magnitude =
                    numbers(&op["expect"]).into_iter().map(f64::abs).fold(0.0, f64::max);
                compare(&out, &figures, magnitude);
                pulls += 1;
            }
            other => panic!("unknown operation {other:?}"),
        }
    }
    assert!(pulls > 0, "{}", case["name"]);
}

fn check<T: Figure + std::fmt::Debug>(case: &Value) {
    play::<T>(case, |found, figures, magnitude| {
        let near = found.iter().zip(figures).all(|(it, figure)| it.agrees(*figure, magnitude));
        assert!(near, "{}: {found:?}, not {figures:?}", case["name"]);
    });
}

/// The figures show that MXNet never updates, because it swallows an exception of its own; ours is
/// what the formula says.
fn check_dcasgd(case: &Value) {
    let mut model: Vec<f64> = numbers(&case["ops"][0]["value"]);
    let first = model.clone();
    let (mut momentum, mut before) = (vec![0.0; model.len()], model.clone());
    let mut expected = Vec::new();
    for op in case["ops"].as_array().unwrap().iter().filter(|op| op["op"] == "push") {
        for (i, gradient) in numbers(&op["values"][0]).into_iter().enumerate() {
            let delay = 0.04 * gradient * gradient * (model[i] - before[i]);
            momentum[i] = 0.9 * momentum[i] - 0.1 * (gradient + delay);
            before[i] = model[i];
            model[i] += momentum[i];
        }
        expected.push(model.clone());
    }
    let pulls = std::cell::Cell::new(0);
    play::<f32>(case, |found, figures, magnitude| {
        let figures: Vec<f64> = figures.iter().map(|it| f64::from(*it)).collect();
        assert!(figures.iter().zip(&first).all(|(it, first)| (it - first).abs() < 1e-6));
        for (found, expected) in found.iter().zip(&expected[pulls.replace(pulls.get() + 1)]) {
            assert!(found.agrees(*expected as f32, magnitude), "{found}, not {expected}");
        }
    });
}

/// Not offered: refused, with what to use instead.
fn check_lbsgd(case: &Value) {
    let error = open().set_optimizer("lbsgd", &options(case)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Option);
    assert!(error.message().contains("use lars, or sgd with warmup_steps"), "{error}");
}

#[test]
fn every_case_matches_as_its_contract_says() {
    let golden: Value = serde_json::from_str(include_str!("../golden/optimizers.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        match case["contract"].as_str() {
            Some(text) if text.starts_with("MXNet never updates") => check_dcasgd(case),
            Some(text) if text.starts_with("not offered") => check_lbsgd(case),
            Some(text) => panic!("unknown contract {text:?}"),
            None if case["ops"][0]["dtype"] == "float16" => check::<f16>(case),
            None => check::<f32>(case),
        }
    }
    assert_eq!(cases.len(), CASES);
}
