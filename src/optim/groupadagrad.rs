//! `AdaGrad` (Duchi, Hazan and Singer, 2011) with one learning rate for each row.
//!
//! ```text
//! g' = clip(rescale * g)
//! h += mean(g'^2)                             of a row
//! w -= lr * (g' / sqrt(h + eps) + wd * w)
//! ```
//!
//! A row is everything below one index of the first axis.

use super::adagrad;
use super::gradient::Gradient;
use super::method::{Method, Passes, PushNumbers, RowRule, RuleScope};
use super::options::{RuleOptions, with_common};
use crate::kernel::{Formula, MAX_STATES, Measure, Measuring, Meter, NormRule, Number, Rule};
use crate::params::ParamSpec;

/// `groupadagrad`.
pub(super) struct GroupAdagrad;

impl Method for GroupAdagrad {
    fn name(&self) -> &'static str {
        "groupadagrad"
    }

    fn options(&self) -> Vec<ParamSpec> {
        with_common(0.01, 0.0, &[ParamSpec::small("eps", 1e-5).or("float_stable_eps")])
    }

    fn states(&self, _: &RuleOptions) -> usize {
        1
    }

    fn rests(&self, options: &RuleOptions, wd: f64) -> bool {
        let [eps] = options.own();
        eps > 0.0 && wd == 0.0
    }

    fn scope(&self) -> RuleScope {
        RuleScope::Row
    }

    fn push(&self, push: &mut PushNumbers<'_>, passes: &mut dyn Passes) {
        let [eps] = push.own();
        let &mut PushNumbers { lr, gradient, .. } = push;
        if passes.has_rows() {
            let (clipped, step) = (Clipped(gradient), GroupAdaGradStep { lr, gradient });
            passes.merge_rows(&Groups { clipped: Measuring(clipped), root: Root { eps }, step });
        } else {
            passes.merge(&adagrad::AdaGradStep { lr, gradient, eps });
        }
    }
}

struct Groups {
    clipped: Measuring<Clipped>,
    root: Root,
    step: GroupAdaGradStep,
}

impl RowRule for Groups {
    fn meter(&self) -> &dyn Meter {
        &self.clipped
    }

    fn norm(&self) -> &dyn NormRule {
        &self.root
    }

    fn rule(&self) -> &dyn Rule {
        &self.step
    }
}

/// g'.
#[derive(Clone, Copy)]
struct Clipped(Gradient);

impl Measure for Clipped {
    const NAME: &'static str = "groupadagrad_measure";
    const STATES: usize = 0;
    const WITH_VALUE: bool = false;

    #[inline(always)]
    fn measured<N: Number>(self, sum: N, _: N, _: &mut [N; MAX_STATES]) -> N {
        self.0.clipped(sum)
    }
}

/// sqrt(h + eps) of a row, with h as its state.
#[derive(Clone, Copy)]
struct Root {
    eps: f64,
}

impl Formula for Root {
    const NAME: &'static str = "groupadagrad_root";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, mean: N, _: N, history: &mut [N; MAX_STATES]) -> N {
        history[0] = history[0] + mean;
        (history[0] + N::of(self.eps)).sqrt()
    }
}

/// The step of an element, with sqrt(h + eps) of its row as the state.
#[derive(Clone, Copy)]
struct GroupAdaGradStep {
    lr: f64,
    gradient: Gradient,
}

impl Formula for GroupAdaGradStep {
    const NAME: &'static str = "groupadagrad";
    const STATES: usize = 1;

    #[inline(always)]
    fn step<N: Number>(self, sum: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let scaled = self.gradient.clipped(sum) / states[0];
        value - N::of(self.lr) * (scaled + N::of(self.gradient.wd) * value)
    }
}
