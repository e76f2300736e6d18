//! The figures of MXNet 1.9.1 in tests/golden/local.json, through the Rust interface.
//!
//! Results match the figures bit for bit, except where a case's field `contract` says how ours
//! differs; and always match a scalar loop bit for bit.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exact bits are compared, and small numbers converted"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::scalar::Scalar;
use kvstore::{Config, DType, Key, Store, Tensor, TensorMut, bf16, f16};
use serde_json::Value;

const CASES: usize = 45;

/// How the figures of a case relate to ours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    /// Another order or another rounding of the same sum.
    Near,
    /// A slip of MXNet that is not repeated.
    Different,
}

impl Relation {
    fn of(case: &Value) -> Self {
        match case["contract"].as_str() {
            // It names no contract, and sums three values on `local` like the cases that do.
            None if case["name"] == "pushpull" => Relation::Near,
            None => Relation::Equal,
            // The comparison takes all NaN as equal, and key() replaces the negative key.
            Some(text) if text.starts_with("NaN") || text.contains("key -4") => Relation::Equal,
            Some(text) if text.starts_with("MXNet") => Relation::Near,
            Some(text) if text.starts_with("not repeated") => Relation::Different,
            Some(text) => panic!("unknown contract {text:?}"),
        }
    }
}

/// An element type of the figures.
trait Figure: Scalar {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    /// The distance between 1 and the next value.
    const EPSILON: f64;

    fn times(self, factor: f64) -> Self {
        Self::from_f64(self.to_f64() * factor)
    }

    fn parse(value: &Value) -> Self {
        let text = value.as_str().map(|text| text.parse().unwrap());
        Self::from_f64(text.or_else(|| value.as_f64()).unwrap())
    }
}

macro_rules! figures {
    ($($type:ty, $epsilon:expr, |$from:ident| $make:expr, |$to:ident| $give:expr);+) => {$(
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            clippy::cast_lossless,
            reason = "figures are small, and written with the digits of their type"
        )]
        impl Figure for $type {
            fn from_f64($from: f64) -> Self { $make }
            fn to_f64(self) -> f64 { let $to = self; $give }
            const EPSILON: f64 = $epsilon;
        }
    )+};
}

figures!(
    f32, f32::EPSILON as f64, |x| x as f32, |x| x.into();
    f64, f64::EPSILON, |x| x, |x| x;
    f16, 0.000_976_562_5, |x| f16::from_f64(x), |x| x.into();
    i8, 0.0, |x| x as i8, |x| x.into();
    u8, 0.0, |x| x as u8, |x| x.into();
    i32, 0.0, |x| x as i32, |x| x.into();
    i64, 0.0, |x| x as i64, |x| x as f64
);

type Updater<T> = fn(stored: T, merged: T) -> T;

fn updater_of<T: Figure>(text: &str) -> Updater<T> {
    match text {
        "stored += 2*merged" => |stored, merged| T::add_up([stored, merged.times(2.0)].into_iter()),
        "stored = 0.5*stored + merged" => {
            |stored, merged| T::add_up([stored.times(0.5), merged].into_iter())
        }
        "stored += merged" | "(after first push) stored += merged" => {
            |stored, merged| T::add_up([stored, merged].into_iter())
        }
        other => panic!("unknown updater {other:?}"),
    }
}

/// The keys and the merged sums that an updater was called with.
type Calls = Arc<Mutex<Vec<(Key, Vec<u64>)>>>;

/// One case: the store, and the scalar loops beside it.
struct Case<'a, T> {
    json: &'a Value,
    relation: Relation,
    store: Store,
    stored: BTreeMap<Key, Vec<T>>,
    shape: Vec<i64>,
    updater: Option<Updater<T>>,
    calls: Calls,
    /// The largest number that went in: what rounding errors are measured by.
    magnitude: f64,
    differed: bool,
}

impl<'a, T: Figure> Case<'a, T> {
    fn new(case: &'a Value) -> Self {
        Self {
            json: case,
            relation: Relation::of(case),
            store: Store::open(case["kv"].as_str().unwrap(), &Config::new()).unwrap(),
            stored: BTreeMap::new(),
            shape: Vec::new(),
            updater: None,
            calls: Arc::default(),
            magnitude: 0.0,
            differed: false,
        }
    }

    fn key(&self, key: &Value) -> Key {
        match key {
            Value::String(name) => self.store.intern(name).unwrap(),
            // Negative keys are refused here; the case says to take 4 instead.
            number if number.as_i64() == Some(-4) => Key::from(4u64),
            number => Key::from(number.as_u64().unwrap()),
        }
    }

    fn array(&mut self, values: &Value) -> Vec<T> {
        let array: Vec<T> = values.as_array().unwrap().iter().map(T::parse).collect();
        let finite = array.iter().map(|it| it.to_f64().abs()).filter(|it| it.is_finite());
        self.magnitude = finite.fold(self.magnitude, f64::max);
        array
    }

    fn arrays(&mut self, values: &Value) -> Vec<Vec<T>> {
        values.as_array().unwrap().iter().map(|array| self.array(array)).collect()
    }

    fn set_updater(&mut self) {
        let updater = updater_of::<T>(self.json["updater"].as_str().unwrap());
        let calls = Arc::clone(&self.calls);
        self.updater = Some(updater);
        let function = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
            let input = input.as_slice::<T>().unwrap();
            calls.lock().unwrap().push((key, input.iter().map(|it| it.bits()).collect()));
            for (stored, &merged) in stored.as_mut_slice::<T>().unwrap().iter_mut().zip(input) {
                *stored = updater(*stored, merged);
            }
            Ok(())
        };
        self.store.set_updater(function).unwrap();
    }

    /// The scalar loops of a push.
    fn model_push(&mut self, keys: &[Key], values: &[Vec<T>]) {
        for (key, stored) in &mut self.stored {
            let mine: Vec<&Vec<T>> =
                keys.iter().zip(values).filter(|(it, _)| *it == key).map(|(_, it)| it).collect();
            if mine.is_empty() {
                continue;
            }
            for (i, stored) in stored.iter_mut().enumerate() {
                let merged = T::add_up(mine.iter().map(|value| value[i]));
                *stored = self.updater.map_or(merged, |updater| updater(*stored, merged));
            }
        }
    }

    fn push(&mut self, keys: &[Key], values: &[Vec<T>]) {
        let tensors: Vec<Tensor<'_>> =
            values.iter().map(|value| Tensor::new(value, &self.shape).unwrap()).collect();
        self.store.push_list(keys, &tensors).unwrap();
        self.model_push(keys, values);
    }

    /// Compares what came out with the scalar loops, and with the figures as the case says.
    fn compare(&mut self, key: Key, found: &[T], figures: &Value) {
        let name = self.json["name"].as_str().unwrap();
        let figures = self.array(figures);
        assert_eq!(found.len(), figures.len(), "{name}");
        // As the contracts say: two units in the last place of the largest number.
        let tolerance = 2.0 * T::EPSILON * self.magnitude;
        for (i, (found, figure)) in found.iter().zip(figures).enumerate() {
            let model = self.stored[&key][i];
            let shown = (found.to_f64(), model.to_f64(), figure.to_f64());
            assert!(found.is_same(model), "{name}: element {i} (ours, loop, figure): {shown:?}");
            let distance = (shown.0 - shown.2).abs();
            match self.relation {
                Relation::Equal => assert!(found.is_same(figure), "{name}: element {i}: {shown:?}"),
                Relation::Near => assert!(distance <= tolerance, "{name}: element {i}: {shown:?}"),
                Relation::Different => self.differed |= distance > 0.0,
            }
        }
    }

    fn run_op(&mut self, op: &Value) {
        let Some(kind) = op["op"].as_str() else {
            assert!(op["note"].is_string(), "{op}");
            return;
        };
        if kind == "set_updater" {
            return self.set_updater();
        }
        if kind == "push_list" {
            return self.push_list(op);
        }
        let key = self.key(&op["key"]);
        match kind {
            "init" | "broadcast" => self.init(key, op, kind == "broadcast"),
            "push" => {
                let given = [&op["values"], &op["values_str"]];
                let values = self.arrays(given.into_iter().find(|it| it.is_array()).unwrap());
                self.push(&vec![key; values.len()], &values);
            }
            "pull" => self.pull(key, op),
            "pushpull" => self.pushpull(key, op),
            "push_then_mutate_pushed_array" => {
                let count = self.stored[&key].len();
                let mut value = vec![T::parse(&op["pushed"]); count];
                self.push(&[key], &[value.clone()]);
                value.fill(T::parse(&op["then_set_to"]));
            }
            other => panic!("unknown operation {other:?}"),
        }
    }

    fn init(&mut self, key: Key, op: &Value, broadcasts: bool) {
        let value = self.array(&op["value"]);
        self.shape =
            op["shape"].as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect();
        let tensor = Tensor::new(&value, &self.shape).unwrap();
        self.stored.insert(key, value.clone());
        if !broadcasts {
            return self.store.init(key, tensor).unwrap();
        }
        let mut out = vec![T::default(); value.len()];
        let outs = &mut [TensorMut::new(&mut out, &self.shape).unwrap()];
        self.store.broadcast_list(&[key], &[tensor], &[key], outs).unwrap();
        self.compare(key, &out, &op["expect"]);
    }

    fn pull(&mut self, key: Key, op: &Value) {
        let figures = [&op["expect"], &op["expect_str"]];
        let figures = figures.into_iter().find(|it| it.is_array()).unwrap();
        let count = usize::try_from(op["n_outs"].as_u64().unwrap_or(1)).unwrap();
        let mut outs = vec![vec![T::default(); self.stored[&key].len()]; count];
        let mut tensors: Vec<TensorMut<'_>> =
            outs.iter_mut().map(|out| TensorMut::new(out, &self.shape).unwrap()).collect();
        self.store.pull_list(&vec![key; count], &mut tensors).unwrap();
        for out in &outs {
            self.compare(key, out, figures);
        }
    }

    fn pushpull(&mut self, key: Key, op: &Value) {
        let values = self.arrays(&op["values"]);
        let keys = vec![key; values.len()];
        self.model_push(&keys, &values);
        let mut out = vec![T::default(); values[0].len()];
        let tensors: Vec<Tensor<'_>> =
            values.iter().map(|value| Tensor::new(value, &self.shape).unwrap()).collect();
        let outs = &mut [TensorMut::new(&mut out, &self.shape).unwrap()];
        self.store.pushpull_list(&keys, &tensors, &[key], outs).unwrap();
        self.compare(key, &out, &op["expect"]);
    }

    /// A push of several keys, whose updater calls are figures too.
    fn push_list(&mut self, op: &Value) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (key, lists) in
            op["keys"].as_array().unwrap().iter().zip(op["values"].as_array().unwrap())
        {
            let lists = self.arrays(lists);
            keys.extend(vec![self.key(key); lists.len()]);
            values.extend(lists);
        }
        self.calls.lock().unwrap().clear();
        self.push(&keys, &values);
        let mut expected = Vec::new();
        for call in op["updater_calls"].as_array().unwrap() {
            let merged: Vec<u64> = self.array(&call[1]).iter().map(|it| it.bits()).collect();
            expected.push((self.key(&call[0]), merged));
        }
        assert_eq!(*self.calls.lock().unwrap(), expected, "{}", self.json["name"]);
    }
}

fn run<T: Figure>(case: &Value) {
    let mut run = Case::<T>::new(case);
    let ops = case["ops"].as_array().unwrap();
    let sets_later = ops.iter().any(|op| op["op"] == "set_updater");
    if case["updater"].is_string() && !sets_later {
        run.set_updater();
    }
    for op in ops {
        run.run_op(op);
    }
    let slip = run.relation == Relation::Different;
    assert_eq!(run.differed, slip, "{}: the figure shows the slip", case["name"]);
}

#[test]
fn every_case_matches_as_its_contract_says() {
    let text = include_str!("golden/local.json");
    let golden: Value = serde_json::from_str(text).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let dtype = case["ops"][0]["dtype"].as_str().unwrap_or("float32");
        match DType::ALL.iter().find(|it| it.name() == dtype).unwrap() {
            DType::F32 => run::<f32>(case),
            DType::F64 => run::<f64>(case),
            DType::F16 => run::<f16>(case),
            DType::I8 => run::<i8>(case),
            DType::U8 => run::<u8>(case),
            DType::I32 => run::<i32>(case),
            DType::I64 => run::<i64>(case),
            other => panic!("no case has {other:?}"),
        }
    }
    assert_eq!(cases.len(), CASES);
}

#[test]
fn bfloat16_has_no_figures_and_follows_the_rule_of_float16() {
    // MXNet 1.9.1 has no bfloat16 on the CPU. 256 + 1 + 1: exact in float32, then a tie to even.
    let store = Store::open("local", &Config::new()).unwrap();
    let key = Key::from(1u64);
    let [large, one] = [[bf16::from_f32(256.0); 3], [bf16::from_f32(1.0); 3]];
    store.init(key, &one).unwrap();
    store
        .push_list(&[key; 4], &[(&large).into(), (&one).into(), (&one).into(), (&one).into()])
        .unwrap();
    let mut out = one;
    store.pull(key, &mut out).unwrap();
    assert_eq!(out, [bf16::from_f32(260.0); 3]);
}
