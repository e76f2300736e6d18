//! Options of optimizers, with values.

use super::gradient::Gradient;
use super::schedule::{self, Schedule};
use super::spec::Spec;
use crate::error::{Result, fail};
use crate::suggest;

/// The options that all rules have.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) lr: f64,
    pub(super) gradient: Gradient,
    /// What is added to a key's count of updates.
    pub(super) begin: f64,
    multi_precision: f64,
}

/// How many options all rules have, in this order, before those of the schedule and their own.
const COMMON: usize = 6;

/// The options that all rules have, with a rule's own default of the learning rate and the weight
/// decay, then its own options.
pub(super) fn with_common(learning_rate: f64, wd: f64, own: &[Spec]) -> Vec<Spec> {
    let mut all = vec![
        Spec::small("learning_rate", learning_rate),
        Spec::small("wd", wd),
        Spec::number("rescale_grad", 1.0, -f64::MAX..=f64::MAX),
        Spec::bound("clip_gradient"),
        Spec::flag("multi_precision", false),
        Spec::count("begin_num_update"),
    ];
    all.extend(schedule::options());
    all.extend_from_slice(own);
    all
}

/// The options of a rule, with values.
#[derive(Clone)]
pub(super) struct Options {
    specs: Vec<Spec>,
    values: Vec<f64>,
    /// Which have been set.
    given: Vec<bool>,
    /// The list among them.
    steps: Vec<u64>,
}

impl Options {
    pub(super) fn new(specs: Vec<Spec>) -> Self {
        let values = specs.iter().map(|spec| spec.default).collect();
        let given = vec![false; specs.len()];
        Self { specs, values, given, steps: Vec::new() }
    }

    /// Takes values from a list `name=value,...`; white space around names and values is allowed.
    pub(super) fn parse(&mut self, params: &str) -> Result<()> {
        for pair in pairs(params).map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(fail!(Option, "{pair:?} is not of the form name=value"));
            };
            let (name, value) = (name.trim(), value.trim());
            let at = self.find(name)?;
            if self.given[at] {
                return Err(fail!(Option, "{name} is given twice"));
            }
            let spec = &self.specs[at];
            if spec.is_list() {
                self.steps = spec.parse_counts(value)?;
            } else {
                self.values[at] = spec.parse(value)?;
            }
            self.given[at] = true;
        }
        self.check()
    }

    /// The options that have been set, as [`Options::parse`] takes them.
    pub(super) fn text(&self) -> String {
        let all = self.specs.iter().zip(&self.values).zip(&self.given);
        let given = all.filter(|(_, given)| **given).map(|((spec, value), _)| {
            let value = if spec.is_list() {
                let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
                format!("[{}]", steps.join(","))
            } else {
                spec.text(*value)
            };
            format!("{}={value}", spec.name)
        });
        given.collect::<Vec<_>>().join(",")
    }

    /// Changes one number. After an error the options are not to be used.
    pub(super) fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let at = self.find(name)?;
        self.specs[at].check(value)?;
        self.values[at] = value;
        self.given[at] = true;
        self.check()
    }

    /// Refuses options that do not go together.
    fn check(&self) -> Result<()> {
        let given = self.specs.iter().zip(&self.given).filter(|(_, given)| **given);
        self.schedule().check(self.common().lr, given.map(|(spec, _)| spec.name))
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.specs.iter().position(|spec| spec.answers_to(name)).ok_or_else(|| {
            if name == "lr_mult" || name == "wd_mult" {
                return fail!(Option, "{name} is set for single keys, after the optimizer");
            }
            let hint = suggest::near(name, "options", self.specs.iter().map(|spec| spec.name));
            fail!(Option, "there is no option {name:?}; {hint}")
        })
    }

    pub(super) fn common(&self) -> Common {
        // All rules have them.
        let &[lr, wd, rescale, clip, multi_precision, begin] =
            self.values.first_chunk::<COMMON>().expect("made by with_common");
        Common { lr, gradient: Gradient { rescale, clip, wd }, begin, multi_precision }
    }

    pub(super) fn multi_precision(&self) -> bool {
        self.common().multi_precision != 0.0
    }

    pub(super) fn schedule(&self) -> Schedule<'_> {
        let values = self.values[COMMON..].first_chunk().expect("made by with_common");
        Schedule::new(values, &self.steps)
    }

    /// The rule's own options, in order.
    pub(super) fn own<const N: usize>(&self) -> [f64; N] {
        let own = &self.values[COMMON + schedule::OPTIONS..];
        *own.first_chunk::<N>().expect("a rule asks for the options it has")
    }
}

/// The pairs of a list; commas between brackets belong to a value.
fn pairs(params: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    params.split(move |letter| {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        letter == ',' && !inside
    })
}
