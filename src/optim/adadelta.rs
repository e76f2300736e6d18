//! `AdaDelta` (Zeiler, 2012), which has no learning rate.
//!
//! ```text
//! g' = clip(rescale * g)
//! a = rho * a + (1 - rho) * g'^2
//! s = sqrt(d + epsilon) / sqrt(a + epsilon) * g'
//! d = rho * d + (1 - rho) * s^2
//! w -= s + wd * w
//! ```

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `adadelta`.
pub(super) struct AdaDelta;

impl Method for AdaDelta {
    fn name(&self) -> &'static str {
        "adadelta"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::decay("rho", 0.9), ParamSpec::small("epsilon", 1e-5)])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [rho, epsilon] = push.own();
        passes.merge(&AdaDeltaStep { gradient: push.gradient, rho, epsilon });
    }
}

#[derive(Clone, Copy)]
struct AdaDeltaStep {
    gradient: Gradient,
    rho: f64,
    epsilon: f64,
}

impl Formula for AdaDeltaStep {
    const NAME: &'static str = "adadelta";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let (rho, rest) = (N::of(self.rho), N::of(1.0 - self.rho));
        let epsilon = N::of(self.epsilon);
        let gradient = self.gradient.clipped(sum);
        states[0] = rho * states[0] + rest * (gradient * gradient);
        let step = (states[1] + epsilon).sqrt() / (states[0] + epsilon).sqrt() * gradient;
        states[1] = rho * states[1] + rest * (step * step);
        value - (step + N::of(self.gradient.wd) * value)
    }
}
