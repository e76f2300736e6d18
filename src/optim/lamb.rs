//! LAMB (You et al., 2020): the direction of `adamw`, scaled to the value's norm.
//!
//! ```text
//! u = m' / (sqrt(v') + epsilon) + wd * w       m, v without bias_correction
//! r = clamp(|w|, lower_bound, upper_bound) / |u|, or 1 if either is 0
//! w -= lr * r * u
//! ```

use super::adam::{Moments, moments};
use super::adamw::Direction;
use super::method::{Method, Passes, PushNumbers, RuleScope};
use super::options::{RuleOptions, with_common};
use crate::error::{Result, fail};
use crate::kernel::{Formula, MAX_STATES, Measure, Number};
use crate::params::ParamSpec;

/// `lamb`.
pub(super) struct Lamb;

impl Method for Lamb {
    fn name(&self) -> &'static str {
        "lamb"
    }

    fn options(&self) -> Vec<ParamSpec> {
        let [beta1, beta2, epsilon] = moments(1e-6);
        let own = [
            beta1,
            beta2,
            epsilon,
            ParamSpec::small("lower_bound", 0.0),
            ParamSpec::bound("upper_bound"),
            ParamSpec::flag("bias_correction", true),
        ];
        with_common(0.001, 0.0, &own)
    }

    fn check(&self, options: &RuleOptions) -> Result<()> {
        let [.., lower, upper, _] = options.own::<6>();
        if lower <= upper {
            return Ok(());
        }
        Err(fail!(Option, "lower_bound is {lower}; it must not be above upper_bound, {upper}"))
    }

    fn states(&self, _: &RuleOptions) -> usize {
        2
    }

    fn scope(&self) -> RuleScope {
        RuleScope::Key
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [beta1, beta2, epsilon, lower, upper, corrects] = push.own();
        let bias = |beta| if corrects == 0.0 { 1.0 } else { push.bias(beta) };
        let direction = Direction {
            gradient: push.gradient,
            moments: Moments { beta1, beta2 },
            bias1: bias(beta1),
            bias2: bias(beta2),
            epsilon,
        };
        let squares = passes.measure(&Length(direction));
        let (value, length) = (squares.value.sqrt().clamp(lower, upper), squares.measured.sqrt());
        let ratio = if value == 0.0 || length == 0.0 { 1.0 } else { value / length };
        passes.merge(&LambStep { lr: push.lr * ratio, direction });
    }
}

/// The first pass, which changes the states.
#[derive(Clone, Copy)]
struct Length(Direction);

impl Measure for Length {
    const NAME: &'static str = "lamb_measure";
    const STATES: usize = 2;
    const WITH_VALUE: bool = true;

    #[inline(always)]
    fn measured<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        self.0.follow(sum, states);
        self.0.of(value, states)
    }
}

/// The second pass, which finds the direction in the states again.
#[derive(Clone, Copy)]
struct LambStep {
    lr: f64,
    direction: Direction,
}

impl Formula for LambStep {
    const NAME: &'static str = "lamb";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, _: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        value - N::of(self.lr) * self.direction.of(value, states)
    }
}
