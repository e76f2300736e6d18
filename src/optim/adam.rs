//! Adam (Kingma and Ba, 2015), with the bias correction in the learning rate, as in the paper's
//! section 2.
//!
//! ```text
//! g' = clip(rescale * g + wd * w)
//! m = beta1 * m + (1 - beta1) * g'
//! v = beta2 * v + (1 - beta2) * g'^2
//! w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)
//! ```

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `adam`.
pub(super) struct Adam;

/// The options of the moments: `beta1`, `beta2`, `epsilon`.
pub(super) fn moments(epsilon: f64) -> [ParamSpec; 3] {
    [
        ParamSpec::decay("beta1", 0.9),
        ParamSpec::decay("beta2", 0.999),
        ParamSpec::small("epsilon", epsilon),
    ]
}

impl Method for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.001, 0.0, &moments(1e-8))
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [beta1, beta2, epsilon] = push.own();
        let lr = push.lr * push.bias(beta2).sqrt() / push.bias(beta1);
        let moments = Moments { beta1, beta2 };
        passes.merge(&AdamStep { lr, gradient: push.gradient, moments, epsilon });
    }
}

/// Averages of the gradients and of their squares.
#[derive(Clone, Copy)]
pub(super) struct Moments {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
}

impl Moments {
    /// Brings the two states up to date.
    #[inline(always)]
    pub(super) fn follow<N: Number>(self, gradient: N, states: &mut [N; MAX_STATES]) {
        let (beta1, beta2) = (N::of(self.beta1), N::of(self.beta2));
        states[0] = beta1 * states[0] + N::of(1.0 - self.beta1) * gradient;
        states[1] = beta2 * states[1] + N::of(1.0 - self.beta2) * (gradient * gradient);
    }
}

#[derive(Clone, Copy)]
struct AdamStep {
    lr: f64,
    gradient: Gradient,
    moments: Moments,
    epsilon: f64,
}

impl Formula for AdamStep {
    const NAME: &'static str = "adam";
    const STATES: usize = 2;
    const FUSED: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        self.moments.follow(self.gradient.decayed_and_clipped(sum, value), states);
        value - N::of(self.lr) * states[0] / (states[1].sqrt() + N::of(self.epsilon))
    }
}
