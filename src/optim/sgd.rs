//! Stochastic gradient descent (Robbins and Monro, 1951), and with momentum (Polyak, 1964).
//!
//! ```text
//! g' = clip(rescale * g) + wd * w
//! w -= lr * g'                           without momentum
//! m = momentum * m - lr * g'; w += m     with it
//! ```

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number, Rule};
use crate::params::ParamSpec;

/// `sgd`: without momentum unless the option is set.
pub(super) struct Sgd;

/// `momentum`: `sgd` with another default.
pub(super) struct Momentum;

impl Method for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::decay("momentum", 0.0)])
    }

    fn states(&self, options: &RuleOptions) -> usize {
        usize::from(options.own() != [0.0])
    }

    fn rests(&self, options: &RuleOptions, wd: f64) -> bool {
        self.states(options) == 0 && wd == 0.0
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [momentum] = push.own();
        let momentum = (momentum != 0.0).then_some(momentum);
        descend(push.gradient, push.lr, momentum, |rule| passes.merge(rule));
    }
}

impl Method for Momentum {
    fn name(&self) -> &'static str {
        "momentum"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::decay("momentum", 0.9)])
    }

    fn states(&self, options: &RuleOptions) -> usize {
        Sgd.states(options)
    }

    fn rests(&self, options: &RuleOptions, wd: f64) -> bool {
        Sgd.rests(options, wd)
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        Sgd.push(push, passes);
    }
}

/// The step of `sgd` with a learning rate, and with a momentum if there is a state for it.
pub(super) fn descend(
    gradient: Gradient,
    lr: f64,
    momentum: Option<f64>,
    merge: impl FnOnce(&dyn Rule),
) {
    let descent = Descent { lr, gradient };
    match momentum {
        Some(momentum) => merge(&SgdMomentum { descent, momentum }),
        None => merge(&descent),
    }
}

#[derive(Clone, Copy)]
struct Descent {
    lr: f64,
    gradient: Gradient,
}

impl Descent {
    /// lr * g'.
    #[inline(always)]
    fn downhill<N: Number>(self, sum: N, value: N) -> N {
        N::of(self.lr) * self.gradient.clipped_and_decayed(sum, value)
    }
}

impl Formula for Descent {
    const NAME: &'static str = "sgd";
    const STATES: usize = 0;
    const FUSED: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        value - self.downhill(sum, value)
    }
}

#[derive(Clone, Copy)]
struct SgdMomentum {
    descent: Descent,
    momentum: f64,
}

impl Formula for SgdMomentum {
    const NAME: &'static str = "sgd_momentum";
    const STATES: usize = 1;
    const FUSED: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let downhill = self.descent.downhill(sum, value);
        states[0] = N::of(self.momentum) * states[0] - downhill;
        value + states[0]
    }
}
