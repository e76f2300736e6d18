//! The store by the words of the documents: a plain map, one element after the other.

use std::collections::HashMap;

use kvstore::{DType, ErrorKind, Key};

use super::scalar::{convert_bits, sum_bits, tree_bits};

/// How a model merges pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Assign,
    /// stored = stored + input
    Add,
    /// As `Add`, and fails at this key after it has changed the stored value.
    FailAt(Key),
}

/// A tensor of a call.
#[derive(Debug, Clone)]
pub struct Value {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bits: Vec<u64>,
}

/// The data calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Init,
    Push,
    Pull,
    PushPull,
    Broadcast,
}

/// What a call must do.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub error: Option<ErrorKind>,
    /// Whether the checks refused the call, so that it has changed nothing.
    pub refused: bool,
    /// What each out holds afterwards; None if that is not specified.
    pub outs: Vec<Option<Vec<u64>>>,
}

pub struct Entry {
    pub value: Value,
    /// Integers come before names, and names by the order of their init.
    order: (bool, u64),
}

pub struct Model {
    pub entries: HashMap<Key, Entry>,
    pub mode: Mode,
    undo: bool,
    /// Whether sums are those of a tree.
    by_tree: bool,
    inits: u64,
}

pub type Pairs<'a> = &'a [(Key, Value)];

impl Model {
    pub fn new(undo: bool, by_tree: bool) -> Self {
        Self { entries: HashMap::new(), mode: Mode::Assign, undo, by_tree, inits: 0 }
    }

    /// The keys in processing order.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.entries.keys().copied().collect();
        keys.sort_by_key(|key| self.entries[key].order);
        keys
    }

    pub fn apply(&mut self, call: Call, values: Pairs<'_>, outs: Pairs<'_>) -> Outcome {
        if let Some(error) = self.check(call, values, outs) {
            let outs = outs.iter().map(|(_, out)| Some(out.bits.clone())).collect();
            return Outcome { error: Some(error), refused: true, outs };
        }
        if matches!(call, Call::Init | Call::Broadcast) {
            for (key, value) in values {
                self.inits += 1;
                let order = (key.is_name(), if key.is_name() { self.inits } else { key.id() });
                self.entries.insert(*key, Entry { value: value.clone(), order });
            }
        }
        let mut outcome = Outcome { outs: vec![None; outs.len()], ..Outcome::default() };
        for key in self.keys() {
            let mine: Vec<&Value> =
                values.iter().filter(|(it, _)| *it == key).map(|(_, value)| value).collect();
            let pushes = matches!(call, Call::Push | Call::PushPull) && !mine.is_empty();
            if pushes && let Err(error) = self.push(key, &mine) {
                outcome.error = Some(error);
                return outcome;
            }
            for (index, (_, out)) in outs.iter().enumerate().filter(|(_, (it, _))| *it == key) {
                outcome.outs[index] = Some(self.pull(key, out.dtype));
            }
        }
        outcome
    }

    pub fn remove(&mut self, keys: &[Key]) -> Option<ErrorKind> {
        let twice = (1..keys.len()).any(|i| keys[..i].contains(&keys[i]));
        if twice || keys.iter().any(|key| !self.entries.contains_key(key)) {
            return Some(ErrorKind::KeyNotFound);
        }
        for key in keys {
            self.entries.remove(key);
        }
        None
    }

    /// Why a call is refused. Calls of the tests have one fault at most, so that it does not matter
    /// which is found first.
    fn check(&self, call: Call, values: Pairs<'_>, outs: Pairs<'_>) -> Option<ErrorKind> {
        let fresh: Pairs<'_> =
            if matches!(call, Call::Init | Call::Broadcast) { values } else { &[] };
        for (index, (key, _)) in fresh.iter().enumerate() {
            let twice = fresh[..index].iter().any(|(other, _)| other == key);
            if twice || self.entries.contains_key(key) {
                return Some(ErrorKind::KeyExists);
            }
        }
        let checked = if fresh.is_empty() { values } else { &[] };
        checked.iter().chain(outs).find_map(|(key, given)| {
            let coming = || fresh.iter().find(|(other, _)| other == key).map(|(_, value)| value);
            let Some(stored) = self.entries.get(key).map(|entry| &entry.value).or_else(coming)
            else {
                return Some(ErrorKind::KeyNotFound);
            };
            let converts = given.dtype.is_float() && stored.dtype.is_float();
            if given.shape != stored.shape {
                Some(ErrorKind::ShapeMismatch)
            } else if given.dtype != stored.dtype && !converts {
                Some(ErrorKind::DtypeMismatch)
            } else {
                None
            }
        })
    }

    fn push(&mut self, key: Key, pushed: &[&Value]) -> Result<(), ErrorKind> {
        let entry = self.entries.get_mut(&key).expect("checked before");
        let dtype = entry.value.dtype;
        let merged: Vec<u64> = (0..entry.value.bits.len())
            .map(|i| {
                let values: Vec<u64> =
                    pushed.iter().map(|it| convert_bits(it.dtype, dtype, it.bits[i])).collect();
                if self.by_tree {
                    return tree_bits(dtype, &(0..).zip(values).collect::<Vec<_>>());
                }
                sum_bits(dtype, &values)
            })
            .collect();
        if self.mode == Mode::Assign {
            entry.value.bits = merged;
            return Ok(());
        }
        let fails = self.mode == Mode::FailAt(key);
        if !(fails && self.undo) {
            for (stored, &input) in entry.value.bits.iter_mut().zip(&merged) {
                *stored = sum_bits(dtype, &[*stored, input]);
            }
        }
        if fails { Err(ErrorKind::Callback) } else { Ok(()) }
    }

    fn pull(&self, key: Key, dtype: DType) -> Vec<u64> {
        let value = &self.entries[&key].value;
        value.bits.iter().map(|&bits| convert_bits(value.dtype, dtype, bits)).collect()
    }
}
