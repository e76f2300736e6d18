//! Options of optimizers, with values.

use super::gradient::Gradient;
use super::schedule::{self, Schedule};
use crate::error::Result;
use crate::params::{ParamSpec, Params};

/// The options that all rules have.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) lr: f64,
    pub(super) gradient: Gradient,
    /// Offset of a key's count of updates.
    pub(super) begin: f64,
    multi_precision: f64,
    lazy: f64,
}

/// How many options all rules have, in this order, before those of the schedule and their own.
const COMMON: usize = 7;

/// The options that all rules have, with a rule's own default of the learning rate and the weight
/// decay, then its own options.
pub(super) fn with_common(learning_rate: f64, wd: f64, own: &[ParamSpec]) -> Vec<ParamSpec> {
    let mut all = vec![
        ParamSpec::small("learning_rate", learning_rate).or("lr"),
        ParamSpec::small("wd", wd),
        ParamSpec::number("rescale_grad", 1.0, -f64::MAX..=f64::MAX),
        ParamSpec::bound("clip_gradient"),
        ParamSpec::flag("multi_precision", false),
        ParamSpec::count("begin_num_update"),
        ParamSpec::flag("lazy_update", false),
    ];
    all.extend(schedule::options());
    all.extend_from_slice(own);
    all
}

/// Hints for options that are set elsewhere.
const STRANGERS: &[(&str, &str)] = &[
    ("lr_mult", "is set for single keys, after the optimizer"),
    ("wd_mult", "is set for single keys, after the optimizer"),
];

/// The options of a rule, with values.
#[derive(Clone)]
pub(super) struct RuleOptions(Params);

impl RuleOptions {
    pub(super) fn new(specs: Vec<ParamSpec>) -> Self {
        Self(Params::new(specs, STRANGERS))
    }

    /// Takes values from a list `name=value,...`; white space around names and values is allowed.
    pub(super) fn parse(&mut self, params: &str) -> Result<()> {
        self.0.parse(params)?;
        self.check()
    }

    /// The options that have been set, as [`RuleOptions::parse`] takes them.
    pub(super) fn text(&self) -> String {
        self.0.given_text()
    }

    /// Changes one number. After an error the options must not be used.
    pub(super) fn set(&mut self, name: &str, value: f64) -> Result<()> {
        self.0.set(name, value)?;
        self.check()
    }

    /// Refuses options that contradict each other.
    fn check(&self) -> Result<()> {
        self.schedule().check(self.common().lr, self.0.given())
    }

    pub(super) fn common(&self) -> Common {
        // All rules have them.
        let &[lr, wd, rescale, clip, multi_precision, begin, lazy] =
            self.0.values().first_chunk::<COMMON>().expect("made by with_common");
        Common { lr, gradient: Gradient { rescale, clip, wd }, begin, multi_precision, lazy }
    }

    /// Whether a push of rows changes no other rows.
    pub(super) fn lazy(&self) -> bool {
        self.common().lazy != 0.0
    }

    pub(super) fn multi_precision(&self) -> bool {
        self.common().multi_precision != 0.0
    }

    pub(super) fn schedule(&self) -> Schedule<'_> {
        let values = self.0.values()[COMMON..].first_chunk().expect("made by with_common");
        Schedule::new(values, self.0.counts())
    }

    /// The rule's own options, in order.
    pub(super) fn own<const N: usize>(&self) -> [f64; N] {
        let own = &self.0.values()[COMMON + schedule::OPTIONS..];
        *own.first_chunk::<N>().expect("a rule asks for the options it has")
    }
}
