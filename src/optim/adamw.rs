//! `AdamW`: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
//!
//! ```text
//! g' = clip(rescale * g)
//! m = beta1 * m + (1 - beta1) * g'
//! v = beta2 * v + (1 - beta2) * g'^2
//! m' = m / (1 - beta1^t); v' = v / (1 - beta2^t)
//! w -= lr * (m' / (sqrt(v') + epsilon) + wd * w)
//! ```

use super::adam::{Moments, moments};
use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `adamw`.
pub(super) struct AdamW;

impl Method for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.001, 0.01, &moments(1e-8))
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let &mut PushNumbers { lr, gradient, .. } = push;
        let [beta1, beta2, epsilon] = push.own();
        let direction = Direction {
            gradient,
            moments: Moments { beta1, beta2 },
            bias1: push.bias(beta1),
            bias2: push.bias(beta2),
            epsilon,
        };
        passes.merge(&AdamWStep { lr, direction });
    }
}

/// m' / (sqrt(v') + epsilon) + wd * w.
#[derive(Clone, Copy)]
pub(super) struct Direction {
    pub(super) gradient: Gradient,
    pub(super) moments: Moments,
    pub(super) bias1: f64,
    pub(super) bias2: f64,
    pub(super) epsilon: f64,
}

impl Direction {
    /// Brings the two states up to date.
    #[inline(always)]
    pub(super) fn follow<N: Number>(self, sum: N, states: &mut [N; MAX_STATES]) {
        self.moments.follow(self.gradient.clipped(sum), states);
    }

    /// The direction of the states.
    #[inline(always)]
    pub(super) fn of<N: Number>(self, value: N, states: &[N; MAX_STATES]) -> N {
        let mean = states[0] / N::of(self.bias1);
        let size = (states[1] / N::of(self.bias2)).sqrt() + N::of(self.epsilon);
        mean / size + N::of(self.gradient.wd) * value
    }
}

#[derive(Clone, Copy)]
struct AdamWStep {
    lr: f64,
    direction: Direction,
}

impl Formula for AdamWStep {
    const NAME: &'static str = "adamw";
    const STATES: usize = 2;
    const STREAMS: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        self.direction.follow(sum, states);
        value - N::of(self.lr) * self.direction.of(value, states)
    }
}
