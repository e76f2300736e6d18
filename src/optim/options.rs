//! Options of optimizers: numbers by name.

use std::ops::RangeInclusive;

use crate::error::{Result, fail};
use crate::suggest;

/// An option: its name, what it is when not set, and what it may be.
#[derive(Clone)]
pub(super) struct Spec {
    name: &'static str,
    default: f64,
    least: f64,
    most: f64,
    flag: bool,
}

impl Spec {
    pub(super) const fn number(
        name: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Self {
        Self { name, default, least: *range.start(), most: *range.end(), flag: false }
    }

    /// `true` or `false`.
    pub(super) const fn flag(name: &'static str, default: bool) -> Self {
        let default = if default { 1.0 } else { 0.0 };
        Self { name, default, least: 0.0, most: 1.0, flag: true }
    }

    /// A number from 0 up to below 1, as decay rates are.
    pub(super) const fn decay(name: &'static str, default: f64) -> Self {
        Self::number(name, default, 0.0..=1.0 - f64::EPSILON)
    }

    pub(super) fn check(&self, value: f64) -> Result<()> {
        let name = self.name;
        if self.flag {
            return match value {
                0.0 | 1.0 => Ok(()),
                _ => Err(fail!(Option, "{name} is {value}; it must be true (1) or false (0)")),
            };
        }
        if (self.least..=self.most).contains(&value) {
            return Ok(());
        }
        let (least, most) = (self.least, self.most);
        let range = if most >= f64::MAX {
            format!("a number from {least}")
        } else {
            format!("a number from {least} to {most}")
        };
        Err(fail!(Option, "{name} is {value}; it must be {range}"))
    }

    fn parse(&self, text: &str) -> Result<f64> {
        let number = match text {
            "true" if self.flag => Some(1.0),
            "false" if self.flag => Some(0.0),
            _ => text.parse().ok(),
        };
        number.ok_or_else(|| fail!(Option, "{} is {text:?}; it must be a number", self.name))
    }
}

/// The options that all rules have.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) lr: f64,
    pub(super) wd: f64,
    pub(super) rescale: f64,
    pub(super) clip: f64,
    multi_precision: f64,
}

/// How many options all rules have, in this order, before their own.
const COMMON: usize = 5;

/// The options that all rules have, with a rule's own default of the learning rate and the weight
/// decay, then its own options.
pub(super) fn with_common(learning_rate: f64, wd: f64, own: &[Spec]) -> Vec<Spec> {
    let mut all = vec![
        Spec::number("learning_rate", learning_rate, 0.0..=f64::MAX),
        Spec::number("wd", wd, 0.0..=f64::MAX),
        Spec::number("rescale_grad", 1.0, -f64::MAX..=f64::MAX),
        Spec::number("clip_gradient", f64::INFINITY, f64::MIN_POSITIVE..=f64::INFINITY),
        Spec::flag("multi_precision", false),
    ];
    all.extend_from_slice(own);
    all
}

/// The options of a rule, with values.
#[derive(Clone)]
pub(super) struct Options {
    specs: Vec<Spec>,
    values: Vec<f64>,
}

impl Options {
    pub(super) fn new(specs: Vec<Spec>) -> Self {
        let values = specs.iter().map(|spec| spec.default).collect();
        Self { specs, values }
    }

    /// Takes values from a list `name=value,...`; white space around names and values is allowed.
    pub(super) fn parse(&mut self, params: &str) -> Result<()> {
        let mut seen = Vec::new();
        for pair in params.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(fail!(Option, "{pair:?} is not of the form name=value"));
            };
            let (name, value) = (name.trim(), value.trim());
            let at = self.find(name)?;
            if seen.contains(&at) {
                return Err(fail!(Option, "{name} is given twice"));
            }
            seen.push(at);
            let value = self.specs[at].parse(value)?;
            self.put(at, value)?;
        }
        Ok(())
    }

    pub(super) fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let at = self.find(name)?;
        self.put(at, value)
    }

    fn put(&mut self, at: usize, value: f64) -> Result<()> {
        self.specs[at].check(value)?;
        self.values[at] = value;
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.specs.iter().position(|spec| spec.name == name).ok_or_else(|| {
            if name == "lr_mult" || name == "wd_mult" {
                return fail!(Option, "{name} is set for single keys, after the optimizer");
            }
            let hint = suggest::near(name, "options", self.specs.iter().map(|spec| spec.name));
            fail!(Option, "there is no option {name:?}; {hint}")
        })
    }

    pub(super) fn common(&self) -> Common {
        // All rules have them.
        let &[lr, wd, rescale, clip, multi_precision] =
            self.values.first_chunk::<COMMON>().expect("made by with_common");
        Common { lr, wd, rescale, clip, multi_precision }
    }

    pub(super) fn multi_precision(&self) -> bool {
        self.common().multi_precision != 0.0
    }

    /// The rule's own options, in order.
    pub(super) fn own<const N: usize>(&self) -> [f64; N] {
        *self.values[COMMON..].first_chunk::<N>().expect("a rule asks for the options it has")
    }
}
