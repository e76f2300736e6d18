//! The interface of a rule, and its inputs.

use super::gradient::Gradient;
use super::options::RuleOptions;
use crate::error::Result;
use crate::kernel::{Meter, NormRule, Rule};
use crate::params::ParamSpec;

/// A rule by name.
pub(super) trait Method: Sync {
    fn name(&self) -> &'static str;

    /// Its options: the common ones with the rule's own defaults, then its own.
    fn options(&self) -> Vec<ParamSpec>;

    /// Refuses options of its own that contradict each other.
    fn check(&self, _: &RuleOptions) -> Result<()> {
        Ok(())
    }

    /// How many arrays of state it keeps.
    fn states(&self, options: &RuleOptions) -> usize;

    /// Whether an element and its state stay unchanged where the sum is zero, with a key's weight
    /// decay.
    fn rests(&self, _: &RuleOptions, _wd: f64) -> bool {
        false
    }

    /// The scope of one step.
    fn scope(&self) -> RuleScope {
        RuleScope::Element
    }

    /// Makes the passes of one push.
    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes);
}

/// The part of a key that a rule needs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleScope {
    /// State has the value's shape.
    Element,
    /// A row of the first axis; state has one number for each.
    Row,
    /// The whole key; state has the value's shape.
    Key,
}

/// The numbers of one push of one key.
pub(super) struct PushNumbers<'a> {
    /// Learning rate by the schedule, with the key's multiplier.
    pub(super) lr: f64,
    /// Preprocessing of the sum, with weight decay by the key's multiplier.
    pub(super) gradient: Gradient,
    /// Number of this update of the key, from 1.
    pub(super) t: f64,
    /// A number that the key carries from push to push, 0 at first.
    pub(super) carried: f64,
    options: &'a RuleOptions,
}

impl<'a> PushNumbers<'a> {
    pub(super) fn new(options: &'a RuleOptions, count: u64, lr_mult: f64, wd_mult: f64) -> Self {
        let common = options.common();
        #[allow(clippy::cast_precision_loss, reason = "far beyond what can be counted")]
        let t = common.begin + count as f64 + 1.0;
        let lr = options.schedule().rate(common.lr, t) * lr_mult;
        let gradient = Gradient { wd: common.gradient.wd * wd_mult, ..common.gradient };
        Self { lr, gradient, t, carried: 0.0, options }
    }

    /// The rule's own options, in the order of [`Method::options`].
    pub(super) fn own<const N: usize>(&self) -> [f64; N] {
        self.options.own()
    }

    /// Bias correction of an average that began as zero and decays by `beta`: 1 - beta^t.
    pub(super) fn bias(&self, beta: f64) -> f64 {
        1.0 - beta.powf(self.t)
    }
}

/// The passes that a rule may make over a key. All memory is allocated, so that no pass can fail.
pub(crate) trait Passes {
    /// Merges the sum by an element-wise rule, which ends the push.
    fn merge(&mut self, rule: &dyn Rule);

    /// Measures the whole key and merges the sum by the number that follows, which ends the push.
    fn merge_key(&mut self, key: &dyn KeyRule);

    /// Whether rows have more than one element; otherwise their state has the value's shape.
    fn has_rows(&self) -> bool;

    /// Merges the sum row by row, which ends the push.
    fn merge_rows(&mut self, rows: &dyn RowRule);
}

/// A rule with a number that follows from norms of the whole key.
pub(crate) trait KeyRule: Sync {
    /// The measured quantity.
    fn meter(&self) -> &dyn Meter;

    /// The number, from the sums of squares of what is measured and of the value.
    fn norm(&self) -> &dyn NormRule;

    /// Passes the rule of a number to `merge`. The number is one of the rule's constants.
    fn merge(&self, number: f64, merge: &mut dyn FnMut(&dyn Rule));
}

/// A rule that differs from row to row.
pub(crate) trait RowRule: Sync {
    /// The measured quantity of each row.
    fn meter(&self) -> &dyn Meter;

    /// The number of a row, from the mean of the squares of what is measured; its first state is
    /// that of the row.
    fn norm(&self) -> &dyn NormRule;

    /// The rule, which finds the number of an element's row in its only state.
    fn rule(&self) -> &dyn Rule;
}
