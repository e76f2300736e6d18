//! Stochastic gradient descent (Robbins and Monro, 1951), and with momentum (Polyak, 1964).
//!
//! g' = clip(rescale * g) + wd * w. Without momentum: w -= lr * g'. With it: m = momentum * m -
//! lr * g'; w += m.

use super::method::{Method, Push};
use super::options::{Options, Spec, with_common};
use crate::error::Result;
use crate::kernel::{Formula, MAX_STATES, Number, Rule};

/// `sgd`: without momentum unless the option is set.
pub(super) struct Sgd;

/// `momentum`: the same with another default.
pub(super) struct Momentum;

impl Method for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn options(&self) -> Vec<Spec> {
        with_common(0.01, 0.0, &[Spec::decay("momentum", 0.0)])
    }

    fn states(&self, options: &Options) -> usize {
        usize::from(options.own() != [0.0])
    }

    fn with_rule(
        &self,
        push: &Push<'_>,
        apply: &mut dyn FnMut(&dyn Rule) -> Result<()>,
    ) -> Result<()> {
        let &Push { lr, wd, rescale, clip, .. } = push;
        let descent = Descent { lr, wd, rescale, clip };
        let [momentum] = push.own();
        if momentum == 0.0 { apply(&descent) } else { apply(&WithMomentum { descent, momentum }) }
    }
}

impl Method for Momentum {
    fn name(&self) -> &'static str {
        "momentum"
    }

    fn options(&self) -> Vec<Spec> {
        with_common(0.01, 0.0, &[Spec::decay("momentum", 0.9)])
    }

    fn states(&self, options: &Options) -> usize {
        Sgd.states(options)
    }

    fn with_rule(
        &self,
        push: &Push<'_>,
        apply: &mut dyn FnMut(&dyn Rule) -> Result<()>,
    ) -> Result<()> {
        Sgd.with_rule(push, apply)
    }
}

#[derive(Clone, Copy)]
struct Descent {
    lr: f64,
    wd: f64,
    rescale: f64,
    clip: f64,
}

impl Descent {
    /// lr * g'.
    #[inline(always)]
    fn downhill<N: Number>(self, gradient: N, value: N) -> N {
        let clipped = (N::of(self.rescale) * gradient).clip(N::of(self.clip));
        N::of(self.lr) * (clipped + N::of(self.wd) * value)
    }
}

impl Formula for Descent {
    const STATES: usize = 0;
    const FUSED: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, gradient: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        value - self.downhill(gradient, value)
    }
}

#[derive(Clone, Copy)]
struct WithMomentum {
    descent: Descent,
    momentum: f64,
}

impl Formula for WithMomentum {
    const STATES: usize = 1;
    const FUSED: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let downhill = self.descent.downhill(gradient, value);
        states[0] = N::of(self.momentum) * states[0] - downhill;
        value + states[0]
    }
}
