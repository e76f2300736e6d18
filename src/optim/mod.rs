//! Optimizers: how a merged gradient changes a stored value, by name and options.
//!
//! Each file but these holds one rule: its options, its states, its formula. A rule knows neither
//! where it runs nor how its arrays lie in memory; the kernels see to that.
#![allow(
    clippy::inline_always,
    reason = "formulas are built inside the entry point of each instruction set"
)]

mod adam;
mod method;
mod options;
mod sgd;
mod state;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use state::{Arrays, State};

use crate::error::{Error, Result, fail};
use crate::kernel::{Isa, Rule};
use crate::key::Key;
use crate::suggest;
use crate::tensor::{Array, DType};

use method::{Method, Push};
use options::{Options, Spec};

/// Every rule there is.
const METHODS: &[&dyn Method] = &[&sgd::Sgd, &sgd::Momentum, &adam::Adam];

/// Counts optimizers, so that a key's state is known to be another one's.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A rule with its options; changing one makes another of the same serial number.
#[derive(Clone)]
pub(crate) struct Optimizer {
    serial: u64,
    method: &'static dyn Method,
    options: Options,
    /// What differs for single keys.
    multipliers: HashMap<Key, Multipliers>,
}

/// By what a key's learning rate and weight decay are multiplied.
#[derive(Clone, Copy)]
struct Multipliers {
    lr: f64,
    wd: f64,
}

impl Default for Multipliers {
    fn default() -> Self {
        Self { lr: 1.0, wd: 1.0 }
    }
}

impl Optimizer {
    /// The rule of a name, with options as `name=value,...`.
    ///
    /// # Errors
    /// `Option`: an unknown name, or a value out of range.
    pub(crate) fn new(name: &str, params: &str) -> Result<Self> {
        let known = METHODS.iter().find(|method| method.name() == name.to_ascii_lowercase());
        let Some(&method) = known else {
            let names = METHODS.iter().map(|method| method.name());
            let hint = suggest::near(name, "optimizers", names);
            return Err(fail!(Option, "there is no optimizer {name:?}; {hint}"));
        };
        let mut options = Options::new(method.options());
        options.parse(params).map_err(|error| prefix(method, &error))?;
        let serial = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Self { serial, method, options, multipliers: HashMap::new() })
    }

    /// The canonical name of the rule.
    pub(crate) fn name(&self) -> &'static str {
        self.method.name()
    }

    /// The same with one option changed.
    ///
    /// # Errors
    /// `Option`, as for [`Optimizer::new`].
    pub(crate) fn with(&self, name: &str, value: f64) -> Result<Self> {
        let mut changed = self.clone();
        changed.options.set(name, value).map_err(|error| prefix(self.method, &error))?;
        Ok(changed)
    }

    /// The same with a multiplier of one key changed.
    ///
    /// # Errors
    /// `Option`: there are `lr_mult` and `wd_mult`, numbers from 0.
    pub(crate) fn with_key(&self, key: Key, name: &str, value: f64) -> Result<Self> {
        const LR: Spec = Spec::number("lr_mult", 1.0, 0.0..=f64::MAX);
        const WD: Spec = Spec::number("wd_mult", 1.0, 0.0..=f64::MAX);
        let mut changed = self.clone();
        let multipliers = changed.multipliers.entry(key).or_default();
        let (spec, field) = match name {
            "lr_mult" => (LR, &mut multipliers.lr),
            "wd_mult" => (WD, &mut multipliers.wd),
            _ => {
                return Err(fail!(
                    Option,
                    "there is no option {name:?} of single keys; there are lr_mult and wd_mult"
                ));
            }
        };
        spec.check(value)?;
        *field = value;
        Ok(changed)
    }

    /// Refuses a key whose elements the rule cannot calculate with.
    pub(crate) fn check(&self, dtype: DType) -> std::result::Result<(), String> {
        if dtype.is_float() {
            return Ok(());
        }
        Err(format!("the optimizer {} cannot change {}", self.name(), dtype.name()))
    }

    /// Makes sure that a key has the state that its next push needs; gives its arrays.
    ///
    /// # Errors
    /// `OutOfMemory`: the state is as it was.
    pub(crate) fn prepare(
        &self,
        isa: Isa,
        stored: &Array,
        count: usize,
        state: &mut Option<Box<State>>,
    ) -> Result<Arrays> {
        let fresh = || Box::new(State::new(self.serial));
        let state = match state {
            Some(state) if state.belongs_to(self.serial) => state,
            other => other.insert(fresh()),
        };
        let master = self.options.multi_precision() && stored.dtype().is_half();
        state.grow(self.method.states(&self.options), master, isa, stored, count)
    }

    /// Runs `apply` with the rule for the next push of a key, and counts the push if it succeeds.
    pub(crate) fn push(
        &self,
        key: Key,
        state: &mut Option<Box<State>>,
        apply: &mut dyn FnMut(&dyn Rule) -> Result<()>,
    ) -> Result<()> {
        let mut none = 0;
        let count = state.as_mut().map_or(&mut none, |state| &mut state.count);
        let multipliers = self.multipliers.get(&key).copied().unwrap_or_default();
        let push = Push::new(&self.options, *count + 1, multipliers.lr, multipliers.wd);
        self.method.with_rule(&push, apply)?;
        *count += 1;
        Ok(())
    }
}

fn prefix(method: &dyn Method, error: &Error) -> Error {
    Error::new(error.kind(), format!("optimizer {}: {}", method.name(), error.message()))
}
