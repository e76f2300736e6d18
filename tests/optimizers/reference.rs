//! Hundreds of random pushes with random options against the loops of model.rs.

use std::collections::HashMap;

use kvstore::{Element, Key, Store, Tensor, TensorMut};

use super::common::random::Random;
use super::model::Model;
use super::{RULES, open};

pub const ROWS: usize = 3;
pub const ROW: usize = 7;
const COUNT: usize = ROWS * ROW;
pub const SHAPE: &[i64] = &[ROWS as i64, ROW as i64];

/// What an option of a rule may be in these tests.
type Choices = &'static [(&'static str, &'static [f64])];

const COMMON: Choices = &[
    ("wd", &[0.0, 0.01, 0.1]),
    ("rescale_grad", &[1.0, 0.5, -2.0]),
    ("clip_gradient", &[f64::INFINITY, 0.4, 1.5]),
];

const MOMENTUM: (&str, &[f64]) = ("momentum", &[0.0, 0.9, 0.5]);
const MOMENTS: [(&str, &[f64]); 3] =
    [("beta1", &[0.9, 0.6, 0.0]), ("beta2", &[0.999, 0.9]), ("epsilon", &[1e-8, 1e-3])];

/// The learning rates of a rule, and its own options.
fn choices(rule: &str) -> (&'static [f64], Choices) {
    match rule {
        "sgd" | "momentum" | "nag" => (&[0.1, 0.01], const { &[MOMENTUM] }),
        "adam" | "adamw" | "ftml" => (&[0.01, 0.001], &MOMENTS),
        "adamax" => (&[0.01, 0.002], const { &[MOMENTS[0], MOMENTS[1]] }),
        "nadam" => {
            const OWN: Choices =
                &[MOMENTS[0], MOMENTS[1], MOMENTS[2], ("schedule_decay", &[0.004, 0.1])];
            (&[0.01, 0.001], OWN)
        }
        "adagrad" | "groupadagrad" => (&[0.1, 0.01], &[("eps", &[1e-7, 1e-3])]),
        "rmsprop" => (
            &[0.01, 0.001],
            &[
                ("gamma1", &[0.9, 0.95]),
                ("gamma2", &[0.9, 0.5]),
                ("epsilon", &[1e-8, 1e-4]),
                ("clip_weights", &[f64::INFINITY, 0.5]),
                ("centered", &[0.0, 1.0]),
            ],
        ),
        "adadelta" => (&[1.0], &[("rho", &[0.9, 0.95]), ("epsilon", &[1e-5, 1e-3])]),
        "ftrl" => (&[0.1, 0.5], &[("lamda1", &[0.01, 0.3]), ("beta", &[1.0, 0.1])]),
        "signum" => (&[0.01, 0.001], const { &[MOMENTUM, ("wd_lh", &[0.0, 0.1])] }),
        "lamb" => {
            const OWN: Choices = &[
                MOMENTS[0],
                MOMENTS[1],
                MOMENTS[2],
                ("lower_bound", &[0.0, 0.2]),
                ("upper_bound", &[f64::INFINITY, 1.0]),
                ("bias_correction", &[1.0, 0.0]),
            ];
            (&[0.01, 0.001], OWN)
        }
        "lars" => {
            const OWN: Choices = &[
                MOMENTUM,
                ("eta", &[0.1, 0.001]),
                ("eps", &[0.0, 1e-3]),
                ("momentum_correction", &[1.0, 0.0]),
            ];
            (&[0.5, 0.1], OWN)
        }
        "dcasgd" => (&[0.1, 0.01], const { &[MOMENTUM, ("lamda", &[0.04, 1.0])] }),
        "lion" => (&[0.01, 0.001], &[("beta1", &[0.9, 0.5]), ("beta2", &[0.99, 0.9])]),
        "test" => (&[1.0], &[]),
        other => panic!("no options of {other}"),
    }
}

pub fn pick_options(rule: &str, random: &mut Random) -> HashMap<&'static str, f64> {
    let (rates, own) = choices(rule);
    let chosen = COMMON.iter().chain(own).map(|(name, from)| (*name, random.pick(from)));
    let mut options: HashMap<_, _> = chosen.collect();
    options.insert("learning_rate", random.pick(rates));
    options
}

/// Near 0, with both signs.
pub fn small(random: &mut Random) -> f64 {
    let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    4.0 * uniform - 2.0
}

/// An element type whose rules are compared.
pub trait Float: Element + Default + Into<f64> {
    fn of(number: f64) -> Self;
    /// What hundreds of roundings may add up to, of the largest magnitude.
    const TOLERANCE: f64;
}

impl Float for f32 {
    fn of(number: f64) -> Self {
        number as f32
    }
    const TOLERANCE: f64 = 1e-5;
}

impl Float for f64 {
    fn of(number: f64) -> Self {
        number
    }
    const TOLERANCE: f64 = 1e-12;
}

/// A push of one value or two, to the store and to the model.
fn push<T: Float>(store: &Store, key: Key, model: &mut Model, random: &mut Random) {
    let values: Vec<Vec<T>> =
        (0..=random.below(2)).map(|_| (0..COUNT).map(|_| T::of(small(random))).collect()).collect();
    let tensors: Vec<Tensor<'_>> =
        values.iter().map(|value| Tensor::new(value, SHAPE).unwrap()).collect();
    store.push_list(&vec![key; tensors.len()], &tensors).unwrap();
    let sum = |i: usize| values.iter().map(|value: &Vec<T>| value[i].into()).sum::<f64>();
    // The store rounds a sum to the dtype of the key.
    let sums: Vec<f64> = (0..COUNT).map(|i| T::of(sum(i)).into()).collect();
    model.push(&sums);
}

pub fn compare<T: Float>(store: &Store, key: Key, model: &Model, case: &str) {
    let mut out = vec![T::default(); COUNT];
    store.pull(key, TensorMut::new(&mut out, SHAPE).unwrap()).unwrap();
    let magnitude = model.value.iter().map(|it| it.abs()).fold(0.1, f64::max);
    for (i, (found, expected)) in out.into_iter().zip(&model.value).enumerate() {
        let distance = (found.into() - expected).abs() / magnitude;
        assert!(distance <= T::TOLERANCE, "{case}, element {i}: {distance:e} off {expected}");
    }
}

fn check<T: Float>(rule: &'static str, random: &mut Random) {
    let (store, key) = (open(), Key::from(1u64));
    let first: Vec<T> = (0..COUNT).map(|_| T::of(small(random))).collect();
    let mut model = Model::new(rule, first.iter().map(|it| (*it).into()).collect(), ROW);
    model.options = pick_options(rule, random);
    let options: Vec<String> =
        model.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let options = options.join(", ");
    store.init(key, Tensor::new(&first, SHAPE).unwrap()).unwrap();
    store.set_optimizer(rule, &options).unwrap();
    for number in 1..=200 {
        if number == 150 {
            // State goes on under another learning rate.
            let rate = model.options["learning_rate"] * 0.7;
            store.set_hyperparameter("learning_rate", rate).unwrap();
            model.options.insert("learning_rate", rate);
        }
        push::<T>(&store, key, &mut model, random);
        let case = || format!("{rule} of {} with {options}, push {number}", T::DTYPE.name());
        if number % 10 == 1 {
            compare::<T>(&store, key, &model, &case());
        }
    }
}

#[test]
fn every_rule_does_what_a_plain_loop_does() {
    let mut random = Random::new(4);
    for &rule in RULES {
        for _ in 0..6 {
            check::<f64>(rule, &mut random);
            check::<f32>(rule, &mut random);
        }
    }
}
