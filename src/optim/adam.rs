//! Adam (Kingma and Ba, 2015), with the bias correction in the learning rate, as in the paper's
//! section 2.
//!
//! g' = clip(rescale * g + wd * w); m = beta1 * m + (1 - beta1) * g'; v = beta2 * v + (1 - beta2)
//! * g'^2; w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).

use super::method::{Method, Push};
use super::options::{Options, Spec, with_common};
use crate::error::Result;
use crate::kernel::{Formula, MAX_STATES, Number, Rule};

/// `adam`.
pub(super) struct Adam;

impl Method for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn options(&self) -> Vec<Spec> {
        let own = [
            Spec::decay("beta1", 0.9),
            Spec::decay("beta2", 0.999),
            Spec::number("epsilon", 1e-8, 0.0..=f64::MAX),
        ];
        with_common(0.001, 0.0, &own)
    }

    fn states(&self, _: &Options) -> usize {
        2
    }

    fn with_rule(
        &self,
        push: &Push<'_>,
        apply: &mut dyn FnMut(&dyn Rule) -> Result<()>,
    ) -> Result<()> {
        let [beta1, beta2, epsilon] = push.own();
        let t = i32::try_from(push.t).unwrap_or(i32::MAX);
        let correction = (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t));
        let &Push { lr, wd, rescale, clip, .. } = push;
        apply(&Moments { lr: lr * correction, wd, rescale, clip, beta1, beta2, epsilon })
    }
}

#[derive(Clone, Copy)]
struct Moments {
    lr: f64,
    wd: f64,
    rescale: f64,
    clip: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

impl Formula for Moments {
    const STATES: usize = 2;
    const FUSED: bool = true;

    #[inline(always)]
    fn step<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let decayed = N::of(self.rescale) * gradient + N::of(self.wd) * value;
        let gradient = decayed.clip(N::of(self.clip));
        let (beta1, beta2) = (N::of(self.beta1), N::of(self.beta2));
        states[0] = beta1 * states[0] + N::of(1.0 - self.beta1) * gradient;
        states[1] = beta2 * states[1] + N::of(1.0 - self.beta2) * (gradient * gradient);
        value - N::of(self.lr) * states[0] / (states[1].sqrt() + N::of(self.epsilon))
    }
}
