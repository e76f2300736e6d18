//! DC-ASGD: delay-compensated asynchronous SGD (Zheng et al., 2017), with the value before the key's
//! last push as the one that the gradient was made for.
//!
//! ```text
//! g' = clip(rescale * g)
//! m = momentum * m - lr * (g' + wd * w + lamda * g'^2 * (w - w_before))
//! w_before = w; w += m
//! ```
//!
//! The state holds `w - w_before`, which is 0 before the first push. In MXNet 1.9.1 a push with
//! momentum fails without a sign of it.

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `dcasgd`.
pub(super) struct DcAsgd;

impl Method for DcAsgd {
    fn name(&self) -> &'static str {
        "dcasgd"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(
            0.01,
            0.0,
            &[ParamSpec::decay("momentum", 0.0), ParamSpec::small("lamda", 0.04)],
        )
    }

    fn states(&self, options: &RuleOptions) -> usize {
        let [momentum, _] = options.own();
        if momentum == 0.0 { 1 } else { 2 }
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [momentum, lamda] = push.own();
        let compensated = Compensated { lr, gradient, lamda };
        if momentum == 0.0 {
            passes.merge(&compensated);
        } else {
            passes.merge(&DcasgdMomentum { compensated, momentum });
        }
    }
}

#[derive(Clone, Copy)]
struct Compensated {
    lr: f64,
    gradient: Gradient,
    lamda: f64,
}

impl Compensated {
    #[inline(always)]
    fn downhill<N: Number>(self, sum: N, value: N, moved: N) -> N {
        let gradient = self.gradient.clipped(sum);
        let delay = N::of(self.lamda) * gradient * gradient * moved;
        N::of(self.lr) * (gradient + N::of(self.gradient.wd) * value + delay)
    }
}

impl Formula for Compensated {
    const NAME: &'static str = "dcasgd";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let new = value - self.downhill(sum, value, states[0]);
        states[0] = new - value;
        new
    }
}

#[derive(Clone, Copy)]
struct DcasgdMomentum {
    compensated: Compensated,
    momentum: f64,
}

impl Formula for DcasgdMomentum {
    const NAME: &'static str = "dcasgd_momentum";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let downhill = self.compensated.downhill(sum, value, states[0]);
        states[1] = N::of(self.momentum) * states[1] - downhill;
        let new = value + states[1];
        states[0] = new - value;
        new
    }
}
