//! FTRL-Proximal (`McMahan` et al., 2013, algorithm 1).
//!
//! ```text
//! g' = clip(rescale * g)
//! z += g' - (sqrt(n + g'^2) - sqrt(n)) * w / lr
//! n += g'^2
//! w = (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd), or 0 where |z| <= lamda1
//! ```
//!
//! With a learning rate of 0 nothing changes.

use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `ftrl`.
pub(super) struct Ftrl;

impl Method for Ftrl {
    fn name(&self) -> &'static str {
        "ftrl"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.1, 0.0, &[ParamSpec::small("lamda1", 0.01), ParamSpec::small("beta", 1.0)])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [lamda1, beta] = push.own();
        if lr == 0.0 {
            passes.merge(&Frozen);
        } else {
            passes.merge(&FtrlStep { lr, gradient, lamda1, beta });
        }
    }
}

/// Keeps the value: for rules that divide by the learning rate.
#[derive(Clone, Copy)]
pub(super) struct Frozen;

impl Formula for Frozen {
    const NAME: &'static str = "frozen";
    const STATES: usize = 0;

    #[inline(always)]
    fn step<N: Number>(self, _: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        value
    }
}

#[derive(Clone, Copy)]
struct FtrlStep {
    lr: f64,
    gradient: Gradient,
    lamda1: f64,
    beta: f64,
}

impl Formula for FtrlStep {
    const NAME: &'static str = "ftrl";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let (lr, lamda1) = (N::of(self.lr), N::of(self.lamda1));
        let gradient = self.gradient.clipped(sum);
        let squares = states[1] + gradient * gradient;
        let root = squares.sqrt();
        let z = states[0] + (gradient - (root - states[1].sqrt()) * value / lr);
        (states[0], states[1]) = (z, squares);
        let size = (N::of(self.beta) + root) / lr + N::of(self.gradient.wd);
        // A NaN is not greater, and stays one in the product.
        z.abs().if_greater(lamda1, (z.sign() * lamda1 - z) / size, z * N::of(0.0))
    }
}
