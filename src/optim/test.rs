//! `test`: adds gradients up, for tests. w += rescale * g.

use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `test`.
pub(super) struct Test;

impl Method for Test {
    fn name(&self) -> &'static str {
        "test"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        0
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        passes.merge(&TestStep { rescale: push.gradient.rescale });
    }
}

#[derive(Clone, Copy)]
struct TestStep {
    rescale: f64,
}

impl Formula for TestStep {
    const NAME: &'static str = "test";
    const STATES: usize = 0;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        value + N::of(self.rescale) * sum
    }
}
