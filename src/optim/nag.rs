//! Nesterov's accelerated gradient (Nesterov, 1983), in the form of Sutskever et al., 2013.
//!
//! ```text
//! g' = clip(rescale * g)
//! m = momentum * m; a = m - lr * (g' + wd * w)
//! w = w - m + (1 + momentum) * a
//! m -= lr * (g' + wd * w)
//! ```
//!
//! The decay in the last line is that of the new value, as in MXNet 1.9.1. Without momentum the
//! rule is `sgd`.

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use super::sgd::{Sgd, descend};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `nag`.
pub(super) struct Nag;

impl Method for Nag {
    fn name(&self) -> &'static str {
        "nag"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::decay("momentum", 0.0)])
    }

    fn states(&self, options: &RuleOptions) -> usize {
        Sgd.states(options)
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [momentum] = push.own();
        if momentum == 0.0 {
            descend(gradient, lr, None, |rule| passes.merge(rule));
        } else {
            passes.merge(&Nesterov { lr, gradient, momentum });
        }
    }
}

#[derive(Clone, Copy)]
struct Nesterov {
    lr: f64,
    gradient: Gradient,
    momentum: f64,
}

impl Formula for Nesterov {
    const NAME: &'static str = "nag";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let (lr, momentum) = (N::of(self.lr), N::of(self.momentum));
        let clipped = self.gradient.clipped(sum);
        let wd = N::of(self.gradient.wd);
        let kept = momentum * states[0];
        let downhill = lr * (clipped + wd * value);
        let new = value + (momentum * (kept - downhill) - downhill);
        states[0] = kept - lr * (clipped + wd * new);
        new
    }
}
