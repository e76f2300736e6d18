//! LARS (You, Gitman and Ginsburg, 2017): momentum with a learning rate for each key, by norms.
//!
//! ```text
//! lr' = lr * eta * |w| / (|rescale * g| + wd * |w| + eps), or lr if either norm is 0
//! ```
//!
//! Then as `sgd` with lr'. Momentum holds steps; `momentum_correction` scales it by the ratio of
//! the learning rates of this push and the key's last one.

use super::gradient::Gradient;
use super::method::{KeyRule, Method, Passes, PushNumbers, RuleScope};
use super::options::{RuleOptions, with_common};
use super::sgd::{Sgd, descend};
use crate::kernel::{Formula, MAX_STATES, Measure, Measuring, Meter, NormRule, Number, Rule};
use crate::params::ParamSpec;

/// `lars`.
pub(super) struct Lars;

impl Method for Lars {
    fn name(&self) -> &'static str {
        "lars"
    }

    fn options(&self) -> Vec<ParamSpec> {
        let own = [
            ParamSpec::decay("momentum", 0.0),
            ParamSpec::small("eta", 0.001),
            ParamSpec::small("eps", 0.0),
            ParamSpec::flag("momentum_correction", true),
        ];
        with_common(0.01, 0.0, &own)
    }

    fn states(&self, options: &RuleOptions) -> usize {
        Sgd.states(options)
    }

    fn scope(&self) -> RuleScope {
        RuleScope::Key
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [momentum, eta, eps, corrects] = push.own();
        let last = std::mem::replace(&mut push.carried, push.lr);
        let change = if corrects != 0.0 && last != 0.0 { push.lr / last } else { 1.0 };
        let &mut PushNumbers { lr, gradient, .. } = push;
        passes.merge_key(&LarsPush {
            rescaled: Measuring(Rescaled(gradient.rescale)),
            rate: LarsRate { lr, eta, wd: gradient.wd, eps },
            gradient,
            momentum: (momentum != 0.0).then_some(momentum * change),
        });
    }
}

struct LarsPush {
    rescaled: Measuring<Rescaled>,
    rate: LarsRate,
    gradient: Gradient,
    momentum: Option<f64>,
}

impl KeyRule for LarsPush {
    fn meter(&self) -> &dyn Meter {
        &self.rescaled
    }

    fn norm(&self) -> &dyn NormRule {
        &self.rate
    }

    fn merge(&self, number: f64, merge: &mut dyn FnMut(&dyn Rule)) {
        descend(self.gradient, number, self.momentum, merge);
    }
}

/// rescale * g.
#[derive(Clone, Copy)]
struct Rescaled(f64);

impl Measure for Rescaled {
    const NAME: &'static str = "lars_measure";
    const STATES: usize = 0;
    const WITH_VALUE: bool = true;

    #[inline(always)]
    fn measured<N: Number>(self, sum: N, _: N, _: &mut [N; MAX_STATES]) -> N {
        N::of(self.0) * sum
    }
}

/// lr'.
#[derive(Clone, Copy)]
struct LarsRate {
    lr: f64,
    eta: f64,
    wd: f64,
    eps: f64,
}

impl Formula for LarsRate {
    const NAME: &'static str = "lars_rate";
    const STATES: usize = 0;

    #[inline(always)]
    fn step<N: Number>(self, gradient: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        let (lr, zero) = (N::of(self.lr), N::of(0.0));
        let (gradient, value) = (gradient.sqrt(), value.sqrt());
        let length = gradient + N::of(self.wd) * value + N::of(self.eps);
        let scaled = lr * (N::of(self.eta) * value / length);
        value.if_greater(zero, gradient.if_greater(zero, scaled, lr), lr)
    }
}
