//! What a file of a rule gives.

use super::options::{Options, Spec};
use crate::error::Result;
use crate::kernel::Rule;

/// A rule by name.
pub(super) trait Method: Sync {
    fn name(&self) -> &'static str;

    /// Its options: the common ones with the rule's own defaults, then its own.
    fn options(&self) -> Vec<Spec>;

    /// How many arrays of the value's shape it keeps.
    fn states(&self, options: &Options) -> usize;

    /// Calls `apply` with the rule that has the numbers of one push.
    fn with_rule(
        &self,
        push: &Push<'_>,
        apply: &mut dyn FnMut(&dyn Rule) -> Result<()>,
    ) -> Result<()>;
}

/// The numbers of one push of one key.
pub(super) struct Push<'a> {
    /// Learning rate, with the key's multiplier.
    pub(super) lr: f64,
    /// Weight decay, with the key's multiplier.
    pub(super) wd: f64,
    /// What gradients are multiplied by.
    pub(super) rescale: f64,
    /// What gradients are clipped to; infinite if they are not.
    pub(super) clip: f64,
    /// Number of this push of the key, from 1.
    pub(super) t: u64,
    options: &'a Options,
}

impl<'a> Push<'a> {
    pub(super) fn new(options: &'a Options, t: u64, lr_mult: f64, wd_mult: f64) -> Self {
        let common = options.common();
        Self {
            lr: common.lr * lr_mult,
            wd: common.wd * wd_mult,
            rescale: common.rescale,
            clip: common.clip,
            t,
            options,
        }
    }

    /// The rule's own options, in the order of [`Method::options`].
    pub(super) fn own<const N: usize>(&self) -> [f64; N] {
        self.options.own()
    }
}
