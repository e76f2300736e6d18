//! FTML: follow the moving leader (Zheng and Kwok, 2017, algorithm 1).
//!
//! ```text
//! g' = clip(rescale * g + wd * w)
//! v = beta2 * v + (1 - beta2) * g'^2
//! d' = (1 - beta1^t) / lr * (sqrt(v / (1 - beta2^t)) + epsilon)
//! z = beta1 * z + (1 - beta1) * g' - (d' - beta1 * d) * w
//! d = d'; w = -z / d
//! ```
//!
//! With a learning rate of 0 nothing changes.

use super::ftrl::Frozen;
use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `ftml`.
pub(super) struct Ftml;

impl Method for Ftml {
    fn name(&self) -> &'static str {
        "ftml"
    }

    fn options(&self) -> Vec<ParamSpec> {
        let own = [
            ParamSpec::decay("beta1", 0.6),
            ParamSpec::decay("beta2", 0.999),
            ParamSpec::small("epsilon", 1e-8),
        ];
        with_common(0.01, 0.0, &own)
    }

    fn states(&self, _: &RuleOptions) -> usize {
        3
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [beta1, beta2, epsilon] = push.own();
        if lr == 0.0 {
            return passes.merge(&Frozen);
        }
        let (rate, bias2) = (push.bias(beta1) / lr, push.bias(beta2));
        passes.merge(&FtmlStep { rate, bias2, gradient, beta1, beta2, epsilon });
    }
}

#[derive(Clone, Copy)]
struct FtmlStep {
    /// (1 - beta1^t) / lr.
    rate: f64,
    bias2: f64,
    gradient: Gradient,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

impl Formula for FtmlStep {
    const NAME: &'static str = "ftml";
    const STATES: usize = 3;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let [old, squares, z, ..] = *states;
        let beta1 = N::of(self.beta1);
        let gradient = self.gradient.decayed_and_clipped(sum, value);
        let squares = N::of(self.beta2) * squares + N::of(1.0 - self.beta2) * (gradient * gradient);
        let size = (squares / N::of(self.bias2)).sqrt() + N::of(self.epsilon);
        let new = N::of(self.rate) * size;
        let z = beta1 * z + N::of(1.0 - self.beta1) * gradient - (new - beta1 * old) * value;
        *states = [new, squares, z];
        -z / new
    }
}
