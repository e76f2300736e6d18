//! Optimizers: how a merged gradient changes a stored value, by name and options. Also called:
//! update rules.
//!
//! Each file but these holds one rule: its options, its states, its formula. A rule knows neither
//! where it runs nor how its arrays lie in memory; the kernels see to that.
#![allow(
    clippy::inline_always,
    reason = "formulas are built inside the entry point of each instruction set"
)]

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod dcasgd;
mod ftml;
mod ftrl;
mod gradient;
mod groupadagrad;
mod lamb;
mod lars;
mod lion;
mod method;
mod nadam;
mod nag;
mod options;
mod rmsprop;
mod saved;
mod schedule;
mod sgd;
mod signum;
mod state;
mod test;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use method::{KeyRule, Passes, RowRule};
pub(crate) use saved::KeptArrays;
#[cfg(feature = "cuda")]
pub(crate) use state::ArraysElsewhere;
pub(crate) use state::{NORM_BLOCK, OptimizerState, StateArrays, Stored};

use crate::error::{Result, fail};
use crate::kernel::Isa;
use crate::key::Key;
use crate::params::ParamSpec;
use crate::suggest;
use crate::tensor::DType;

use method::{Method, PushNumbers, RuleScope};
use options::RuleOptions;
use state::WantedArrays;

/// Every rule there is.
const METHODS: &[&dyn Method] = &[
    &sgd::Sgd,
    &sgd::Momentum,
    &nag::Nag,
    &adam::Adam,
    &adamw::AdamW,
    &adamax::Adamax,
    &nadam::Nadam,
    &adagrad::Adagrad,
    &groupadagrad::GroupAdagrad,
    &rmsprop::RmsProp,
    &adadelta::AdaDelta,
    &ftrl::Ftrl,
    &ftml::Ftml,
    &signum::Signum,
    &lamb::Lamb,
    &lars::Lars,
    &dcasgd::DcAsgd,
    &lion::Lion,
    &test::Test,
];

/// Names of MXNet's that are refused, and what to do.
const ABSENT: &[(&str, &str)] = &[
    ("ccsgd", "it was another name of sgd"),
    ("lbsgd", "use lars, or sgd with warmup_steps"),
    ("sgld", "its noise needs an updater of your own"),
];

/// Serial numbers of optimizers, so that a key's state is known to be another optimizer's.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A rule with its options; a changed copy has an equal serial number.
#[derive(Clone)]
pub(crate) struct Optimizer {
    serial: NonZeroU64,
    method: &'static dyn Method,
    options: RuleOptions,
    /// By method and options.
    wanted: WantedArrays,
    /// Settings of single keys.
    multipliers: HashMap<Key, Multipliers>,
}

/// Multipliers of a key's learning rate and weight decay.
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
        let method = find(name)?;
        let mut options = RuleOptions::new(method.options());
        options
            .parse(params)
            .and_then(|()| check(method, &options))
            .map_err(|error| error.at(place(method)))?;
        // Relaxed: it only has to be a distinct number.
        let serial = NonZeroU64::MIN.saturating_add(MADE.fetch_add(1, Ordering::Relaxed));
        let wanted = wanted(method, &options);
        Ok(Self { serial, method, options, wanted, multipliers: HashMap::new() })
    }

    /// The canonical name of the rule.
    pub(crate) fn name(&self) -> &'static str {
        self.method.name()
    }

    /// A copy with one option changed.
    ///
    /// # Errors
    /// `Option`, as for [`Optimizer::new`].
    pub(crate) fn with(&self, name: &str, value: f64) -> Result<Self> {
        let mut changed = self.clone();
        changed
            .options
            .set(name, value)
            .and_then(|()| check(self.method, &changed.options))
            .map_err(|error| error.at(place(self.method)))?;
        changed.wanted = wanted(self.method, &changed.options);
        Ok(changed)
    }

    /// A copy with a multiplier of one key changed.
    ///
    /// # Errors
    /// `Option`: there are `lr_mult` and `wd_mult`, numbers from 0.
    pub(crate) fn with_key(&self, key: Key, name: &str, value: f64) -> Result<Self> {
        let mut changed = self.clone();
        changed.set_key(key, name, value)?;
        Ok(changed)
    }

    /// A copy with an option changed, or a multiplier of one key, which is the only one of the rule.
    ///
    /// # Errors
    /// `Option`, as for [`Optimizer::new`].
    pub(crate) fn with_own(&self, key: Key, name: &str, value: f64) -> Result<Self> {
        let is_multiplier = ["lr_mult", "wd_mult"].contains(&name);
        if is_multiplier { self.with_key(key, name, value) } else { self.with(name, value) }
    }

    /// Changes a multiplier of one key. After an error the optimizer is not to be used.
    ///
    /// # Errors
    /// As [`Optimizer::with_key`].
    pub(crate) fn set_key(&mut self, key: Key, name: &str, value: f64) -> Result<()> {
        const LR: ParamSpec = ParamSpec::small("lr_mult", 1.0);
        const WD: ParamSpec = ParamSpec::small("wd_mult", 1.0);
        let multipliers = self.multipliers.entry(key).or_default();
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
        Ok(())
    }

    /// Refuses a key whose elements the rule cannot calculate with.
    pub(crate) fn check(&self, dtype: DType) -> std::result::Result<(), String> {
        if dtype.is_float() {
            return Ok(());
        }
        Err(format!("the optimizer {} cannot change {}", self.name(), dtype.name()))
    }

    /// Whether a push of rows of a key skips the other rows: on request, or because they would not
    /// change.
    pub(crate) fn is_lazy(&self, key: Key) -> bool {
        let wd_mult = self.multipliers.get(&key).map_or(1.0, |multipliers| multipliers.wd);
        let wd = self.options.common().gradient.wd * wd_mult;
        self.options.lazy() || self.method.rests(&self.options, wd)
    }

    /// Most arrays that it keeps for a key: its states, and the master of a half.
    pub(crate) fn most_arrays(&self) -> usize {
        self.wanted.states + usize::from(self.wanted.masters)
    }

    /// Whether its pushes are one pass, in which each element is independent of the others.
    pub(crate) fn is_elementwise(&self) -> bool {
        self.wanted.scope == RuleScope::Element
    }

    /// Whether a key has a state of this optimizer.
    pub(crate) fn has_state(&self, state: Option<&OptimizerState>) -> bool {
        state.is_some_and(|state| state.belongs_to(self.serial))
    }

    /// Ensures that a key has a state of this optimizer; returns it, and whether it replaces that of
    /// another one.
    #[inline]
    fn own_state<'a>(
        &self,
        state: &'a mut Option<OptimizerState>,
    ) -> (&'a mut OptimizerState, bool) {
        let is_stale = state.as_ref().is_some_and(|state| !state.belongs_to(self.serial));
        if is_stale {
            *state = None;
        }
        (state.get_or_insert_with(|| OptimizerState::new(self.serial)), is_stale)
    }

    /// Ensures that a key has the state for its next push; returns it and its arrays. The push may
    /// be `scattered` over few rows.
    ///
    /// # Errors
    /// `OutOfMemory`: the key's value is as it was.
    #[inline]
    pub(crate) fn prepare<'a>(
        &self,
        isa: Isa,
        stored: &Stored,
        state: &'a mut Option<OptimizerState>,
        scattered: bool,
    ) -> Result<(&'a mut OptimizerState, StateArrays)> {
        let (state, _) = self.own_state(state);
        let arrays = state.grow(self.wanted, isa, stored, scattered)?;
        Ok((state, arrays))
    }

    /// Ensures that a key of so many elements in so many rows, whose arrays are on a device, has a
    /// state for its next push; returns it, and the arrays that it needs.
    #[cfg(feature = "cuda")]
    pub(crate) fn prepare_elsewhere<'a>(
        &self,
        dtype: DType,
        (count, rows): (usize, usize),
        state: &'a mut Option<OptimizerState>,
    ) -> (&'a mut OptimizerState, ArraysElsewhere) {
        let (state, is_stale) = self.own_state(state);
        let WantedArrays { states, scope, masters } = self.wanted;
        let length = if scope == RuleScope::Row { rows } else { count };
        let wanted = ArraysElsewhere {
            is_stale,
            states,
            length,
            rows: (length < count).then_some(length),
            measures_key: scope == RuleScope::Key,
            has_master: masters && dtype.is_half(),
        };
        (state, wanted)
    }

    /// The factor of gradients.
    pub(crate) fn rescale(&self) -> f64 {
        self.options.common().gradient.rescale
    }

    /// Makes the passes of the next push of a key, whose state has been prepared. The factor of its gradients is
    /// multiplied by `scale`.
    pub(crate) fn push(
        &self,
        key: Key,
        scale: f64,
        state: &mut OptimizerState,
        passes: &mut dyn Passes,
    ) {
        let multipliers = self.multipliers.get(&key).copied().unwrap_or_default();
        let mut push = PushNumbers::new(&self.options, state.count, multipliers.lr, multipliers.wd);
        push.gradient.rescale *= scale;
        push.carried = state.carried;
        self.method.push(&mut push, passes);
        (state.carried, state.count) = (push.carried, state.count + 1);
    }
}

/// The arrays that a rule needs with its options.
fn wanted(method: &dyn Method, options: &RuleOptions) -> WantedArrays {
    let (states, scope) = (method.states(options), method.scope());
    WantedArrays { states, scope, masters: options.multi_precision() }
}

/// The rule of a name.
fn find(name: &str) -> Result<&'static dyn Method> {
    let lower = name.to_ascii_lowercase();
    if let Some(&method) = METHODS.iter().find(|method| method.name() == lower) {
        return Ok(method);
    }
    if let Some((_, instead)) = ABSENT.iter().find(|(absent, _)| *absent == lower) {
        return Err(fail!(Option, "the optimizer {lower} is not offered; {instead}"));
    }
    let hint = suggest::near(name, "optimizers", METHODS.iter().map(|method| method.name()));
    Err(fail!(Option, "there is no optimizer {name:?}; {hint}"))
}

/// Refuses options that do not go together.
fn check(method: &dyn Method, options: &RuleOptions) -> Result<()> {
    if options.lazy() && method.scope() == RuleScope::Key {
        return Err(fail!(Option, "lazy_update: it measures whole keys, so all rows change"));
    }
    method.check(options)
}

/// The place at which an option was refused.
fn place(method: &dyn Method) -> String {
    format!("optimizer {}", method.name())
}

#[cfg(test)]
mod tests;
