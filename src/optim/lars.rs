//! LARS (You, Gitman and Ginsburg, 2017): momentum with a learning rate for each key, by norms.
//!
//! ```text
//! lr' = lr * eta * |w| / (|rescale * g| + wd * |w| + eps), or lr if either norm is 0
//! ```
//!
//! Then as `sgd` with lr'. Momentum holds steps; `momentum_correction` scales it by the ratio of
//! the learning rates of this push and the key's last one.

use super::method::{Method, Passes, PushNumbers, RuleScope};
use super::options::{RuleOptions, with_common};
use super::sgd::{Sgd, descend};
use crate::kernel::{MAX_STATES, Measure, Number};
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
        let squares = passes.measure(&Rescaled(push.gradient.rescale));
        let (value, gradient) = (squares.value.sqrt(), squares.measured.sqrt());
        let mut lr = push.lr;
        if value > 0.0 && gradient > 0.0 {
            lr *= eta * value / (gradient + push.gradient.wd * value + eps);
        }
        let last = std::mem::replace(&mut push.carried, push.lr);
        let change = if corrects != 0.0 && last != 0.0 { push.lr / last } else { 1.0 };
        descend(push, lr, (momentum != 0.0).then_some(momentum * change), passes);
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
