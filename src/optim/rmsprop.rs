//! `RMSProp` (Tieleman and Hinton, 2012), and its centered form with momentum (Graves, 2013,
//! equations 38 to 45).
//!
//! ```text
//! g' = clip(rescale * g + wd * w)
//! n = gamma1 * n + (1 - gamma1) * g'^2
//! w -= lr * g' / sqrt(n + epsilon)                                        plain
//! a = gamma1 * a + (1 - gamma1) * g'                                      centered
//! d = gamma2 * d - lr * g' / sqrt(max(n - a^2, 0) + epsilon); w += d
//! w = clip(w, clip_weights)                                               both
//! ```
//!
//! Rounding can make n - a^2 a little negative, of which MXNet 1.9.1 takes the root.

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `rmsprop`.
pub(super) struct RmsProp;

impl Method for RmsProp {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn options(&self) -> Vec<ParamSpec> {
        let own = [
            ParamSpec::decay("gamma1", 0.9),
            ParamSpec::decay("gamma2", 0.9),
            ParamSpec::small("epsilon", 1e-8),
            ParamSpec::bound("clip_weights"),
            ParamSpec::flag("centered", false),
        ];
        with_common(0.001, 0.0, &own)
    }

    fn states(&self, options: &RuleOptions) -> usize {
        let [.., centered] = options.own::<5>();
        if centered == 0.0 { 1 } else { 3 }
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [gamma1, gamma2, epsilon, clip_weights, centered] = push.own();
        let plain = PlainRmsProp { lr, gradient, gamma1, epsilon, clip_weights };
        if centered == 0.0 {
            passes.merge(&plain);
        } else {
            passes.merge(&CenteredRmsProp { plain, gamma2 });
        }
    }
}

#[derive(Clone, Copy)]
struct PlainRmsProp {
    lr: f64,
    gradient: Gradient,
    gamma1: f64,
    epsilon: f64,
    clip_weights: f64,
}

impl PlainRmsProp {
    /// A moving average.
    #[inline(always)]
    fn average<N: Number>(self, old: N, new: N) -> N {
        N::of(self.gamma1) * old + N::of(1.0 - self.gamma1) * new
    }

    /// lr * g' / sqrt(variance + epsilon).
    #[inline(always)]
    fn downhill<N: Number>(self, gradient: N, variance: N) -> N {
        N::of(self.lr) * (gradient / (variance + N::of(self.epsilon)).sqrt())
    }
}

impl Formula for PlainRmsProp {
    const NAME: &'static str = "rmsprop";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let gradient = self.gradient.decayed_and_clipped(sum, value);
        states[0] = self.average(states[0], gradient * gradient);
        (value - self.downhill(gradient, states[0])).clip(N::of(self.clip_weights))
    }
}

#[derive(Clone, Copy)]
struct CenteredRmsProp {
    plain: PlainRmsProp,
    gamma2: f64,
}

impl Formula for CenteredRmsProp {
    const NAME: &'static str = "rmsprop_centered";
    const STATES: usize = 3;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let (plain, zero) = (self.plain, N::of(0.0));
        let gradient = plain.gradient.decayed_and_clipped(sum, value);
        states[0] = plain.average(states[0], gradient * gradient);
        states[1] = plain.average(states[1], gradient);
        let variance = states[0] - states[1] * states[1];
        // A NaN stays one.
        let variance = zero.if_greater(variance, zero, variance);
        states[2] = N::of(self.gamma2) * states[2] - plain.downhill(gradient, variance);
        (value + states[2]).clip(N::of(plain.clip_weights))
    }
}
