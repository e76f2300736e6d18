//! `AdaGrad` (Duchi, Hazan and Singer, 2011).
//!
//! ```text
//! g' = clip(rescale * g)
//! h += g'^2
//! w -= lr * (g' / sqrt(h + eps) + wd * w)
//! ```

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `adagrad`.
pub(super) struct Adagrad;

impl Method for Adagrad {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::small("eps", 1e-7).or("float_stable_eps")])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        1
    }

    fn rests(&self, options: &RuleOptions, wd: f64) -> bool {
        let [eps] = options.own();
        eps > 0.0 && wd == 0.0
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [eps] = push.own();
        passes.merge(&AdaGradStep { lr: push.lr, gradient: push.gradient, eps });
    }
}

#[derive(Clone, Copy)]
pub(super) struct AdaGradStep {
    pub(super) lr: f64,
    pub(super) gradient: Gradient,
    pub(super) eps: f64,
}

impl Formula for AdaGradStep {
    const NAME: &'static str = "adagrad";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let gradient = self.gradient.clipped(sum);
        states[0] = states[0] + gradient * gradient;
        let scaled = gradient / (states[0] + N::of(self.eps)).sqrt();
        value - N::of(self.lr) * (scaled + N::of(self.gradient.wd) * value)
    }
}
