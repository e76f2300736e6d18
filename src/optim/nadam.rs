//! Nadam: Adam with Nesterov's momentum (Dozat, 2016), on a schedule of the momentum.
//!
//! ```text
//! c(t) = beta1 * (1 - 0.96^(t * schedule_decay) / 2); p(t) = c(1) * ... * c(t)
//! g' = clip(rescale * g + wd * w)
//! m = beta1 * m + (1 - beta1) * g'
//! v = beta2 * v + (1 - beta2) * g'^2
//! a = (1 - c(t)) * g' / (1 - p(t)) + c(t + 1) * m / (1 - p(t + 1))
//! w -= lr * a / (sqrt(v / (1 - beta2^t)) + epsilon)
//! ```
//!
//! The product is the key's own. In MXNet 1.9.1 all keys share one, so that a result depends on how
//! many keys there are.

use super::adam::{Moments, moments};
use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Number};
use crate::params::ParamSpec;

/// `nadam`.
pub(super) struct Nadam;

impl Method for Nadam {
    fn name(&self) -> &'static str {
        "nadam"
    }

    fn options(&self) -> Vec<ParamSpec> {
        let [beta1, beta2, epsilon] = moments(1e-8);
        let own = [beta1, beta2, epsilon, ParamSpec::small("schedule_decay", 0.004)];
        with_common(0.001, 0.0, &own)
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [beta1, beta2, epsilon, decay] = push.own();
        let momentum = |t: f64| beta1 * (1.0 - 0.5 * 0.96f64.powf(t * decay));
        let (now, next) = (momentum(push.t), momentum(push.t + 1.0));
        // The carried number is 1 minus the product, which is 0 at first.
        let product = (1.0 - push.carried) * now;
        push.carried = 1.0 - product;
        passes.merge(&NadamStep {
            lr: push.lr,
            gradient: push.gradient,
            moments: Moments { beta1, beta2 },
            of_gradient: (1.0 - now) / (1.0 - product),
            of_mean: next / (1.0 - product * next),
            bias2: push.bias(beta2),
            epsilon,
        });
    }
}

#[derive(Clone, Copy)]
struct NadamStep {
    lr: f64,
    gradient: Gradient,
    moments: Moments,
    of_gradient: f64,
    of_mean: f64,
    bias2: f64,
    epsilon: f64,
}

impl Formula for NadamStep {
    const NAME: &'static str = "nadam";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let gradient = self.gradient.decayed_and_clipped(sum, value);
        self.moments.follow(gradient, states);
        let ahead = N::of(self.of_gradient) * gradient + N::of(self.of_mean) * states[0];
        let size = (states[1] / N::of(self.bias2)).sqrt() + N::of(self.epsilon);
        value - N::of(self.lr) * ahead / size
    }
}
