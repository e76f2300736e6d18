//! `AdaMax` (Kingma and Ba, 2015, section 7): Adam by the infinity norm.
//!
//! ```text
//! g' = clip(rescale * g + wd * w)
//! m = beta1 * m + (1 - beta1) * g'
//! u = max(beta2 * u, |g'|)
//! w -= lr / (1 - beta1^t) * m / u
//! ```
//!
//! Where u is 0 all gradients were, and the value stays; MXNet 1.9.1 makes it a NaN.

use super::adam::moments;
use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `adamax`.
pub(super) struct Adamax;

impl Method for Adamax {
    fn name(&self) -> &'static str {
        "adamax"
    }

    fn options(&self) -> Vec<ParamSpec> {
        let [beta1, beta2, _] = moments(0.0);
        with_common(0.002, 0.0, &[beta1, beta2])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [beta1, beta2] = push.own();
        let lr = push.lr / push.bias(beta1);
        passes.merge(&AdamaxStep { lr, gradient: push.gradient, beta1, beta2 });
    }
}

#[derive(Clone, Copy)]
struct AdamaxStep {
    lr: f64,
    gradient: Gradient,
    beta1: f64,
    beta2: f64,
}

impl Formula for AdamaxStep {
    const NAME: &'static str = "adamax";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let gradient = self.gradient.decayed_and_clipped(sum, value);
        let (size, decayed) = (gradient.abs(), N::of(self.beta2) * states[1]);
        let mean = N::of(self.beta1) * states[0] + N::of(1.0 - self.beta1) * gradient;
        let most = decayed.if_greater(size, decayed, size);
        (states[0], states[1]) = (mean, most);
        // A NaN is in the mean too.
        let step = most.if_greater(N::of(0.0), mean / most, mean);
        value - N::of(self.lr) * step
    }
}
