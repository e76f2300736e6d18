//! Learning rates that follow the count of a key's updates.
//!
//! The schedules are those of MXNet 1.9.1, except that the count is the key's own: the order in
//! which keys are pushed cannot change a result. With t updates including this one:
//!
//! - factor: lr * factor^floor((t - 1) / step), not below `stop_factor_lr`
//! - multifactor: lr * factor^(how many of `steps` are below t)
//! - poly: final + (lr - final) * (1 - p)^pwr with p = (t - warmup) / (max - warmup)
//! - cosine (Loshchilov and Hutter, 2017): final + (lr - final) * (1 + cos(pi * p)) / 2
//!
//! While t is below `warmup_steps`, the rate rises from `warmup_begin_lr` in a line, or stays there.

use std::f64::consts::PI;

use crate::error::{Result, fail};
use crate::params::ParamSpec;

/// How many options a schedule has.
pub(super) const OPTIONS: usize = 11;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScheduleKind {
    Constant,
    Factor,
    Multifactor,
    Poly,
    Cosine,
}

use ScheduleKind::{Constant, Cosine, Factor, Multifactor, Poly};

const KINDS: [ScheduleKind; 5] = [Constant, Factor, Multifactor, Poly, Cosine];
const NAMES: &[&str] = &["constant", "factor", "multifactor", "poly", "cosine"];
const MODES: &[&str] = &["linear", "constant"];

/// The options that only some schedules have.
const OWNERS: &[(&str, &[ScheduleKind])] = &[
    ("step", &[Factor]),
    ("steps", &[Multifactor]),
    ("factor", &[Factor, Multifactor]),
    ("stop_factor_lr", &[Factor]),
    ("max_update", &[Poly, Cosine]),
    ("final_lr", &[Poly, Cosine]),
    ("pwr", &[Poly]),
];

pub(super) fn options() -> [ParamSpec; OPTIONS] {
    [
        ParamSpec::word("lr_scheduler", NAMES),
        ParamSpec::count("step"),
        ParamSpec::number("factor", 1.0, 0.0..=1.0),
        ParamSpec::small("stop_factor_lr", 1e-8),
        ParamSpec::count("max_update"),
        ParamSpec::small("final_lr", 0.0),
        ParamSpec::small("pwr", 2.0),
        ParamSpec::count("warmup_steps"),
        ParamSpec::small("warmup_begin_lr", 0.0),
        ParamSpec::word("warmup_mode", MODES),
        ParamSpec::counts("steps"),
    ]
}

/// A schedule with its options.
#[derive(Clone, Copy)]
pub(super) struct Schedule<'a> {
    kind: ScheduleKind,
    step: f64,
    factor: f64,
    stop: f64,
    max: f64,
    last: f64,
    power: f64,
    warmup: f64,
    warmup_begin: f64,
    rises: bool,
    steps: &'a [u64],
}

impl<'a> Schedule<'a> {
    /// From values in the order of [`options`]; that of the list is not used.
    pub(super) fn new(values: &[f64; OPTIONS], steps: &'a [u64]) -> Self {
        let &[kind, step, factor, stop, max, last, power, warmup, warmup_begin, mode, _] = values;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the position of a word"
        )]
        let (kind, rises) = (KINDS[kind as usize], mode == 0.0);
        Self { kind, step, factor, stop, max, last, power, warmup, warmup_begin, rises, steps }
    }

    /// The learning rate of update `t`, from 1, that begins as `lr`.
    pub(super) fn rate(&self, lr: f64, t: f64) -> f64 {
        if t < self.warmup {
            let rise = if self.rises { t / self.warmup } else { 0.0 };
            return self.warmup_begin + (lr - self.warmup_begin) * rise;
        }
        let left = || 1.0 - ((t - self.warmup) / (self.max - self.warmup)).min(1.0);
        let fall = match self.kind {
            Factor => {
                let rate = lr * self.factor.powf(((t - 1.0) / self.step).floor());
                return rate.max(self.stop.min(lr));
            }
            #[allow(clippy::cast_precision_loss, reason = "a step far beyond every count")]
            Multifactor => {
                let passed = self.steps.iter().filter(|step| t > **step as f64).count();
                return lr * self.factor.powf(passed as f64);
            }
            Poly => left().powf(self.power),
            Cosine => (1.0 - (PI * left()).cos()) / 2.0,
            Constant => return lr,
        };
        self.last + (lr - self.last) * fall
    }

    /// Refuses options that contradict each other.
    pub(super) fn check(
        &self,
        lr: f64,
        mut given: impl Iterator<Item = &'static str>,
    ) -> Result<()> {
        let kind = NAMES[self.kind as usize];
        let stray = given.find(|name| {
            OWNERS.iter().any(|(owned, kinds)| owned == name && !kinds.contains(&self.kind))
        });
        if let Some(name) = stray {
            return Err(fail!(Option, "{name} is no option of lr_scheduler={kind}"));
        }
        let missing = match self.kind {
            Factor if self.step == 0.0 => Some("step"),
            Multifactor if self.steps.is_empty() => Some("steps"),
            Poly | Cosine if self.max == 0.0 => Some("max_update"),
            _ => None,
        };
        if let Some(name) = missing {
            return Err(fail!(Option, "lr_scheduler={kind} needs {name}"));
        }
        if matches!(self.kind, Poly | Cosine) && self.max <= self.warmup {
            let (max, warmup) = (self.max, self.warmup);
            return Err(fail!(
                Option,
                "max_update is {max}; it must be above warmup_steps, which is {warmup}"
            ));
        }
        if self.warmup > 0.0 && self.warmup_begin > lr {
            let begin = self.warmup_begin;
            return Err(fail!(
                Option,
                "warmup_begin_lr is {begin}; it must not be above the learning rate, which is {lr}"
            ));
        }
        Ok(())
    }
}
