//! Signum and signSGD (Bernstein et al., 2018): steps by the sign alone.
//!
//! ```text
//! m = momentum * m + (1 - momentum) * (clip(rescale * g) + wd * w)
//! w = (1 - lr * wd_lh) * w - lr * sign(m)
//! ```
//!
//! Without momentum all weight decay is decoupled, as in MXNet 1.9.1:
//!
//! ```text
//! w = (1 - lr * (wd + wd_lh)) * w - lr * sign(clip(rescale * g))
//! ```

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `signum`.
pub(super) struct Signum;

impl Method for Signum {
    fn name(&self) -> &'static str {
        "signum"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::decay("momentum", 0.9), ParamSpec::small("wd_lh", 0.0)])
    }

    fn states(&self, options: &RuleOptions) -> usize {
        let [momentum, _] = options.own();
        usize::from(momentum != 0.0)
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [momentum, wd_lh] = push.own();
        if momentum == 0.0 {
            let keep = 1.0 - lr * (gradient.wd + wd_lh);
            passes.merge(&Sign { lr, gradient, keep });
        } else {
            let keep = 1.0 - lr * wd_lh;
            passes.merge(&SignumMomentum { sign: Sign { lr, gradient, keep }, momentum });
        }
    }
}

#[derive(Clone, Copy)]
struct Sign {
    lr: f64,
    gradient: Gradient,
    /// Factor of the value under decoupled weight decay.
    keep: f64,
}

impl Sign {
    #[inline(always)]
    fn follow<N: Number>(self, direction: N, value: N) -> N {
        N::of(self.keep) * value - N::of(self.lr) * direction.sign()
    }
}

impl Formula for Sign {
    const NAME: &'static str = "signsgd";
    const STATES: usize = 0;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        self.follow(self.gradient.clipped(sum), value)
    }
}

#[derive(Clone, Copy)]
struct SignumMomentum {
    sign: Sign,
    momentum: f64,
}

impl Formula for SignumMomentum {
    const NAME: &'static str = "signum";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let gradient = self.sign.gradient.clipped_and_decayed(sum, value);
        states[0] = N::of(self.momentum) * states[0] + N::of(1.0 - self.momentum) * gradient;
        self.sign.follow(states[0], value)
    }
}
