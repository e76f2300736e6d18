//! LAMB (You et al., 2020): the direction of `adamw`, scaled to the value's norm.
//!
//! ```text
//! u = m' / (sqrt(v') + epsilon) + wd * w       m, v without bias_correction
//! r = clamp(|w|, lower_bound, upper_bound) / |u|, or 1 if either is 0
//! w -= lr * r * u
//! ```

use super::adam::{Moments, moments};
use super::adamw::Direction;
use super::method::{KeyRule, Method, Passes, PushNumbers, RuleScope};
use super::options::{RuleOptions, with_common};
use crate::error::{Result, fail};
use crate::kernel::{Formula, MAX_STATES, Measure, Measuring, Meter, NormRule, Number, Rule};
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
        let rate = LambRate { lr: push.lr, lower, upper };
        passes.merge_key(&LambPush { length: Measuring(Length(direction)), rate });
    }
}

struct LambPush {
    length: Measuring<Length>,
    rate: LambRate,
}

impl KeyRule for LambPush {
    fn meter(&self) -> &dyn Meter {
        &self.length
    }

    fn norm(&self) -> &dyn NormRule {
        &self.rate
    }

    fn merge(&self, number: f64, merge: &mut dyn FnMut(&dyn Rule)) {
        merge(&LambStep { rate: number, direction: self.length.0.0 });
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

/// lr * r.
#[derive(Clone, Copy)]
struct LambRate {
    lr: f64,
    lower: f64,
    upper: f64,
}

impl Formula for LambRate {
    const NAME: &'static str = "lamb_rate";
    const STATES: usize = 0;

    #[inline(always)]
    fn step<N: Number>(self, length: N, value: N, _: &mut [N; MAX_STATES]) -> N {
        let (lower, upper) = (N::of(self.lower), N::of(self.upper));
        // Norms are not negative: below the least positive number is 0, a NaN is not.
        let (one, least) = (N::of(1.0), N::of(f64::from_bits(1)));
        let (length, norm) = (length.sqrt(), value.sqrt());
        let above = lower.if_greater(norm, lower, norm);
        let norm = above.if_greater(upper, upper, above);
        let ratio = least.if_greater(length, one, norm / length);
        N::of(self.lr) * least.if_greater(norm, one, ratio)
    }
}

/// The second pass, which finds the direction in the states again.
#[derive(Clone, Copy)]
struct LambStep {
    rate: f64,
    direction: Direction,
}

impl Formula for LambStep {
    const NAME: &'static str = "lamb";
    const STATES: usize = 2;

    #[inline(always)]
    fn step<N: Number>(self, _: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        value - N::of(self.rate) * self.direction.of(value, states)
    }
}
