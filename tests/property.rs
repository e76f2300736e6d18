//! Random sequences of operations against a plain scalar model.
//!
//! `KV_TEST_SEED` repeats a run; `KV_TEST_OPERATIONS` sets how many operations it has.
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

use std::time::Duration;

use common::folder::Folder;
use common::memory::{Memory, array};
use common::model::{Call, Mode, Model, Outcome, Value};
use common::random::{self, Random, operations, reduction};
use common::scalar::{SUMMED, Scalar, same_bits};
use common::watchdog::bounded;
use kvstore::{Config, DType, Error, ErrorKind, Key, Result, Scope, Store, Tensor, TensorMut};

/// Longer than anything here takes; tests assert no times.
const PATIENCE: Duration = Duration::from_secs(120);

const INTEGERS: &[u64] =
    &[0, 1, 2, 63, 64, 1 << 16, (1 << 22) - 1, 1 << 22, 1 << 40, (1 << 63) - 1];
const NAMES: &[&str] = &["w", "fc1.weight", "", "gr\u{f6}\u{df}e"];
const SHAPES: &[&[usize]] =
    &[&[], &[1], &[5], &[0], &[2, 3], &[3, 0, 2], &[4, 1, 3], &[2, 3, 4], &[7, 9], &[33], &[130]];

/// One call: what it is given, and what it must do.
struct Step {
    call: Call,
    keys: Vec<Key>,
    values: Vec<Box<dyn Memory>>,
    value_bits: Vec<Vec<u64>>,
    out_keys: Vec<Key>,
    outs: Vec<Box<dyn Memory>>,
    out_types: Vec<DType>,
    expected: Outcome,
}

/// Makes calls, and plays them on the model.
struct Player<'a> {
    folder: &'a Folder,
    random: Random,
    model: Model,
    keys: Vec<Key>,
    operations: usize,
}

impl Step {
    fn run(&mut self, store: &Store) -> Result<()> {
        let values: Vec<Tensor<'_>> = self.values.iter().map(|value| value.tensor()).collect();
        let mut outs: Vec<TensorMut<'_>> =
            self.outs.iter_mut().map(|out| out.tensor_mut()).collect();
        match self.call {
            Call::Init => store.init_list(&self.keys, &values),
            Call::Push => store.push_list(&self.keys, &values),
            Call::Pull => store.pull_list(&self.out_keys, &mut outs),
            Call::PushPull => store.pushpull_list(&self.keys, &values, &self.out_keys, &mut outs),
            Call::Broadcast => store.broadcast_list(&self.keys, &values, &self.out_keys, &mut outs),
        }
    }

    /// Queues a push or a pull; gives whether that was possible.
    fn queue<'env>(&'env mut self, scope: &Scope<'_, 'env>, priority: i32) -> Result<()> {
        if self.call == Call::Push {
            let values: Vec<Tensor<'env>> =
                self.values.iter().map(|value| value.tensor()).collect();
            return scope.push_list(&self.keys, &values, priority);
        }
        let outs = self.outs.iter_mut().map(|out| out.tensor_mut()).collect();
        scope.pull_list(&self.out_keys, outs, priority)
    }

    /// Compares the memory with what the model says, once the call is done.
    fn check_memory(&self) {
        for (value, bits) in self.values.iter().zip(&self.value_bits) {
            assert!(value.bits() == *bits && value.is_intact(), "{:?} changed a value", self.call);
        }
        for (i, out) in self.outs.iter().enumerate() {
            assert!(out.is_intact(), "{:?} wrote between the elements of an out", self.call);
            let Some(expected) = &self.expected.outs[i] else { continue };
            let same = |(&a, &b)| same_bits(self.out_types[i], a, b);
            let found = out.bits();
            assert!(
                found.iter().zip(expected).all(same),
                "{:?} of {:?}: out {i} is {found:x?}, not {expected:x?}",
                self.call,
                self.out_keys,
            );
        }
    }
}

/// Compares the result of a call with the expected one.
fn check_result(what: &dyn std::fmt::Debug, result: &Result<()>, expected: Option<ErrorKind>) {
    let found = result.as_ref().err().map(Error::kind);
    assert_eq!(found, expected, "{what:?}: {result:?}");
}

/// A faulty pair that a call may get: exactly one, so that the error is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    UnknownKey,
    Shape,
    DType,
}

impl Player<'_> {
    fn value(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let count = shape.iter().product();
        let random = &mut self.random;
        let bits = with_type!(dtype, T => {
            (0..count).map(|_| T::random(random).bits()).collect()
        });
        Value { dtype, shape: shape.to_vec(), bits }
    }

    fn living_key(&mut self) -> Option<Key> {
        let keys = self.model.keys();
        (!keys.is_empty()).then(|| self.random.pick(&keys))
    }

    fn absent_key(&mut self) -> Option<Key> {
        let absent: Vec<Key> =
            self.keys.iter().copied().filter(|key| !self.model.entries.contains_key(key)).collect();
        (!absent.is_empty()).then(|| self.random.pick(&absent))
    }

    /// A pair that fits a living key, in its own or another float type.
    fn good_pair(&mut self) -> Option<(Key, Value)> {
        let key = self.living_key()?;
        let stored = &self.model.entries[&key].value;
        let (mut dtype, shape) = (stored.dtype, stored.shape.clone());
        if dtype.is_float() && self.random.one_in(4) {
            dtype = self.random.pick(&[DType::F16, DType::BF16, DType::F32, DType::F64]);
        }
        Some((key, self.value(dtype, &shape)))
    }

    fn bad_pair(&mut self) -> Option<(Key, Value)> {
        let fault = self.random.pick(&[Fault::UnknownKey, Fault::Shape, Fault::DType]);
        let key = if fault == Fault::UnknownKey { self.absent_key()? } else { self.living_key()? };
        let (mut dtype, mut shape) = match self.model.entries.get(&key) {
            Some(entry) => (entry.value.dtype, entry.value.shape.clone()),
            None => (DType::F32, vec![2]),
        };
        match fault {
            Fault::UnknownKey => {}
            Fault::Shape => shape.push(1),
            Fault::DType if dtype == DType::I32 => dtype = DType::F32,
            Fault::DType => dtype = DType::I32,
        }
        Some((key, self.value(dtype, &shape)))
    }

    /// Pairs of living keys with repeats; one in twelve lists has one bad pair.
    fn pairs(&mut self) -> Vec<(Key, Value)> {
        let longest = self.random.pick(&[1, 2, 5, 18]);
        let count = self.random.index(longest) + 1;
        let mut pairs: Vec<(Key, Value)> = (0..count).filter_map(|_| self.good_pair()).collect();
        if self.random.one_in(12) {
            let bad = self.bad_pair();
            pairs.extend(bad);
            self.random.shuffle(&mut pairs);
        }
        pairs
    }

    /// Fresh values; one in eight lists repeats a key or has one that exists.
    fn fresh_pairs(&mut self) -> Vec<(Key, Value)> {
        let mut pairs: Vec<(Key, Value)> = Vec::new();
        for _ in 0..=self.random.below(3) {
            let Some(key) = self.absent_key() else { break };
            let (dtype, shape) = (self.random.pick(SUMMED), self.random.pick(SHAPES));
            if !pairs.iter().any(|(other, _)| *other == key) {
                let value = self.value(dtype, shape);
                pairs.push((key, value));
            }
        }
        if self.random.one_in(8) {
            let again =
                if self.random.one_in(2) { pairs.first().cloned() } else { self.good_pair() };
            pairs.extend(again);
        }
        pairs
    }

    /// Makes a call and plays it on the model.
    fn step(&mut self, call: Call) -> Step {
        let values = match call {
            Call::Init | Call::Broadcast => self.fresh_pairs(),
            Call::Push | Call::PushPull => self.pairs(),
            Call::Pull => Vec::new(),
        };
        let outs = match call {
            Call::Init | Call::Push => Vec::new(),
            Call::Pull => self.pairs(),
            Call::PushPull => self.outs_after(&values),
            Call::Broadcast => self.outs_of(&values),
        };
        self.step_of(call, values, outs)
    }

    /// Plays a call on the model and lays its tensors out in memory.
    fn step_of(&mut self, call: Call, values: Vec<(Key, Value)>, outs: Vec<(Key, Value)>) -> Step {
        self.operations += 1;
        let expected = self.model.apply(call, &values, &outs);
        let random = &mut self.random;
        let mut memory = |pairs: &[(Key, Value)]| -> Vec<Box<dyn Memory>> {
            pairs.iter().map(|(_, it)| array(it.dtype, &it.shape, &it.bits, random)).collect()
        };
        Step {
            call,
            values: memory(&values),
            outs: memory(&outs),
            keys: values.iter().map(|(key, _)| *key).collect(),
            value_bits: values.into_iter().map(|(_, value)| value.bits).collect(),
            out_types: outs.iter().map(|(_, out)| out.dtype).collect(),
            out_keys: outs.into_iter().map(|(key, _)| key).collect(),
            expected,
        }
    }

    /// Outs of a pushpull: of any keys, and faultless if a value may be at fault already.
    fn outs_after(&mut self, values: &[(Key, Value)]) -> Vec<(Key, Value)> {
        let faultless = self.model_accepts(values);
        if faultless { self.pairs() } else { self.good_pair().into_iter().collect() }
    }

    fn model_accepts(&self, values: &[(Key, Value)]) -> bool {
        values.iter().all(|(key, value)| {
            self.model.entries.get(key).is_some_and(|entry| {
                let converts = value.dtype.is_float() && entry.value.dtype.is_float();
                entry.value.shape == value.shape && (entry.value.dtype == value.dtype || converts)
            })
        })
    }

    /// Outs of a broadcast: of its own keys, and of one that was there before.
    fn outs_of(&mut self, values: &[(Key, Value)]) -> Vec<(Key, Value)> {
        let mut outs = Vec::new();
        for (key, value) in values {
            let shape = value.shape.clone();
            outs.push((*key, self.value(value.dtype, &shape)));
        }
        // A key that stands twice, or was there before, is refused whatever its outs are.
        outs.extend(self.good_pair());
        outs
    }

    fn any_call(&mut self) -> Call {
        let calls = [
            Call::Init,
            Call::Push,
            Call::Push,
            Call::Push,
            Call::Pull,
            Call::Pull,
            Call::Pull,
            Call::PushPull,
            Call::PushPull,
            Call::Broadcast,
        ];
        self.random.pick(&calls)
    }

    fn call_now(&mut self, store: &Store) {
        let call = self.any_call();
        let mut step = self.step(call);
        let result = step.run(store);
        check_result(&step.call, &result, step.expected.error);
        step.check_memory();
    }

    fn remove(&mut self, store: &Store) {
        let mut keys: Vec<Key> =
            (0..=self.random.below(2)).filter_map(|_| self.living_key()).collect();
        if self.random.one_in(6) {
            keys.extend(self.absent_key());
        }
        self.operations += 1;
        let expected = self.model.remove(&keys);
        check_result(&"remove", &store.remove(&keys), expected);
    }

    fn set_updater(&mut self, store: &Store) {
        let key = self.random.pick(&self.keys);
        let mode = self.random.pick(&[Mode::Assign, Mode::Add, Mode::Add, Mode::FailAt(key)]);
        self.operations += 1;
        self.model.mode = mode;
        if mode == Mode::Assign {
            return store.clear_updater().unwrap();
        }
        let updater = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
            with_type!(stored.dtype(), T => {
                let input = input.as_slice::<T>().expect("the key's type, without gaps");
                let stored = stored.as_mut_slice::<T>().expect("the key's type, without gaps");
                assert_eq!(input.len(), stored.len());
                for (stored, &input) in stored.iter_mut().zip(input) {
                    *stored = T::add_up([*stored, input].into_iter());
                }
            });
            if mode == Mode::FailAt(key) { Err("as the test wants".into()) } else { Ok(()) }
        };
        store.set_updater(updater).unwrap();
    }

    /// Queues operations that borrow their buffers, with calls without tickets in between.
    fn scope(&mut self, store: &Store) {
        let count = self.random.index(12) + 1;
        let calls: Vec<Call> = (0..count).map(|_| self.any_call()).collect();
        let mut steps: Vec<(Step, Option<i32>)> = Vec::new();
        for call in calls {
            let queued = matches!(call, Call::Push | Call::Pull) && !self.random.one_in(5);
            let priority = self.random.pick(&[-1, 0, 0, 7]);
            steps.push((self.step(call), queued.then_some(priority)));
        }
        let late = |(step, priority): &(Step, Option<i32>)| {
            priority.is_some() && step.expected.error.is_some() && !step.expected.refused
        };
        let failure = steps.iter().any(late).then_some(ErrorKind::Callback);
        let borrowed = &mut steps;
        let result = store.scope(PATIENCE, move |scope| {
            for (step, priority) in borrowed.iter_mut() {
                let call = step.call;
                let expected = step.expected.error;
                if let Some(priority) = *priority {
                    let refused = step.expected.refused.then_some(expected).flatten();
                    check_result(&call, &step.queue(scope, priority), refused);
                } else {
                    check_result(&call, &step.run(store), expected);
                }
            }
            Ok(())
        });
        check_result(&"scope", &result, failure);
        for (step, _) in &steps {
            step.check_memory();
        }
    }

    /// Queues operations that own their buffers, and waits for them in any order.
    fn owned(&mut self, store: &Store) {
        let mut waits: Vec<Box<dyn FnOnce() + '_>> = Vec::new();
        for _ in 0..=self.random.below(5) {
            let Some((key, value)) = self.good_pair() else { return };
            let priority = self.random.pick(&[-3, 0, 5]);
            let call = self.random.pick(&[Call::Push, Call::Pull]);
            let pair = [(key, value)];
            let (expected, value) = if call == Call::Push {
                (self.model.apply(call, &pair, &[]), &pair[0].1)
            } else {
                (self.model.apply(call, &[], &pair), &pair[0].1)
            };
            self.operations += 1;
            with_type!(value.dtype, T => {
                let buffer: Vec<T> = value.bits.iter().map(|&bits| Scalar::of_bits(bits)).collect();
                let pending = if call == Call::Push {
                    store.push_owned(key, buffer, priority)
                } else {
                    store.pull_owned(key, buffer, priority)
                }.unwrap();
                let (dtype, bits) = (value.dtype, value.bits.clone());
                waits.push(Box::new(move || {
                    let buffer = pending.wait(PATIENCE);
                    assert_eq!(buffer.as_ref().err().map(Error::kind), expected.error);
                    let Ok(buffer) = buffer else { return };
                    let expected = expected.outs.first().cloned().flatten().unwrap_or(bits);
                    let found = buffer.iter().map(|&it| it.bits());
                    assert!(found.zip(expected).all(|(a, b)| same_bits(dtype, a, b)), "{call:?}");
                }));
            });
        }
        self.random.shuffle(&mut waits);
        for wait in waits {
            wait();
        }
    }

    /// Compares everything that can be asked.
    fn check_all(&mut self, store: &Store) {
        let keys = self.model.keys();
        assert_eq!(store.keys().unwrap(), keys);
        let mut bytes = 0;
        for key in keys {
            let value = &self.model.entries[&key].value;
            let info = store.key_info(key).unwrap();
            let shape: Vec<i64> =
                value.shape.iter().map(|&it| i64::try_from(it).unwrap()).collect();
            assert_eq!((info.dtype, &*info.shape), (value.dtype, &*shape));
            bytes += value.bits.len() * value.dtype.size();
            let mut out = array(value.dtype, &value.shape, &value.bits, &mut self.random);
            store.pull(key, out.tensor_mut()).unwrap();
            let same = |(&a, &b)| same_bits(value.dtype, a, b);
            assert!(out.bits().iter().zip(&value.bits).all(same), "{key:?}");
        }
        let stats: serde_json::Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
        assert_eq!(stats["bytes"], bytes);
        assert_eq!(stats["pending"], 0);
    }

    /// Saves the store and loads it again: nothing changes.
    fn reload(&mut self, store: &Store) {
        let path = self.folder.file("file");
        self.operations += 1;
        store.save(&path).unwrap();
        store.load(&path).unwrap();
    }

    /// A while in the life of one store.
    fn play(&mut self, store: &Store, steps: usize) {
        for _ in 0..steps {
            match self.random.below(20) {
                0 => self.set_updater(store),
                1 if self.random.one_in(50) => self.reload(store),
                1 => self.remove(store),
                2..5 => self.scope(store),
                5..7 => self.owned(store),
                _ => self.call_now(store),
            }
        }
        self.check_all(store);
    }

    /// A call with this many values of the only key.
    fn call_list(&mut self, store: &Store, call: Call, count: usize) {
        let values: Vec<(Key, Value)> = (0..count).filter_map(|_| self.good_pair()).collect();
        let outs: Vec<(Key, Value)> =
            (0..2).filter(|_| call == Call::PushPull).filter_map(|_| self.good_pair()).collect();
        let mut step = self.step_of(call, values, outs);
        let result = step.run(store);
        check_result(&step.call, &result, step.expected.error);
        step.check_memory();
    }
}

fn open(random: &mut Random) -> (Store, Model) {
    let undo = random.pick(&["yes", "no"]);
    let mut config = Config::new();
    config.set("threads", random.pick(&["1", "2", "3"])).unwrap();
    config.set("updater_undo", undo).unwrap();
    config.set("isa", random.pick(&["auto", "scalar"])).unwrap();
    let order = random.pick(&["linear", "tree"]);
    config.set("sum_order", order).unwrap();
    let store = Store::open(random.pick(&["local", "device"]), &config).unwrap();
    (store, Model::new(undo == "yes", order == "tree"))
}

#[test]
fn random_sequences_do_what_the_model_does() {
    bounded("property", || {
        let (total, folder) = (operations(100_000), Folder::new("property-of-calls"));
        let mut random = random::from_environment("property");
        let mut done = 0;
        while done < total {
            let (store, model) = open(&mut random);
            let mut keys: Vec<Key> = INTEGERS.iter().map(|&id| Key::from(id)).collect();
            keys.extend(NAMES.iter().map(|name| store.intern(name).unwrap()));
            let player = Random::new(random.next());
            let mut player = Player { folder: &folder, random: player, model, keys, operations: 0 };
            for _ in 0..20 {
                player.play(&store, 50);
            }
            store.close(PATIENCE).unwrap();
            done += player.operations;
        }
        assert!(done >= total);
    });
}

#[test]
fn values_that_several_threads_share_do_what_the_model_does() {
    bounded("property of large values", || {
        let mut random = random::from_environment("property of large values");
        let folder = Folder::new("property-of-large-values");
        for dtype in SUMMED.iter().copied().cycle().take(SUMMED.len() * 2 / reduction().min(4)) {
            let order = random.pick(&["linear", "tree"]);
            let config = Config::new().with("threads", "4").unwrap();
            let config = config.with("sum_order", order).unwrap();
            let store = Store::open("local", &config).unwrap();
            let key = Key::from(random.next() >> 1);
            let keys = vec![key];
            let random = Random::new(random.next());
            let model = Model::new(false, order == "tree");
            let mut player = Player { folder: &folder, random, model, keys, operations: 0 };
            // Above the size from which the work is split, with a border inside a row.
            let value = player.value(dtype, &[3, 700_001 / dtype.size()]);
            let value = [(key, value)];
            player.model.apply(Call::Init, &value, &[]);
            let memory = array(dtype, &value[0].1.shape, &value[0].1.bits, &mut player.random);
            store.init(key, memory.tensor()).unwrap();
            player.call_list(&store, Call::Push, 5);
            player.set_updater(&store);
            player.call_list(&store, Call::PushPull, 2);
            player.check_all(&store);
        }
    });
}
