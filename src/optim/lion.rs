//! Lion (Chen et al., 2023, algorithm 2).
//!
//! ```text
//! g' = clip(rescale * g)
//! c = beta1 * m + (1 - beta1) * g'
//! w -= lr * (sign(c) + wd * w)
//! m = beta2 * m + (1 - beta2) * g'
//! ```

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `lion`.
pub(super) struct Lion;

impl Method for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.0001, 0.0, &[ParamSpec::decay("beta1", 0.9), ParamSpec::decay("beta2", 0.99)])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        1
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [beta1, beta2] = push.own();
        passes.merge(&LionStep { lr: push.lr, gradient: push.gradient, beta1, beta2 });
    }
}

#[derive(Clone, Copy)]
struct LionStep {
    lr: f64,
    gradient: Gradient,
    beta1: f64,
    beta2: f64,
}

impl Formula for LionStep {
    const NAME: &'static str = "lion";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let (mean, gradient) = (states[0], self.gradient.clipped(sum));
        let blend = |beta: f64| N::of(beta) * mean + N::of(1.0 - beta) * gradient;
        states[0] = blend(self.beta2);
        value - N::of(self.lr) * (blend(self.beta1).sign() + N::of(self.gradient.wd) * value)
    }
}
