//! The domains of options: numbers, words and lists by name.

use std::ops::RangeInclusive;

use crate::error::{Result, fail};

/// An option: its name, its default, and its domain.
#[derive(Clone)]
pub(crate) struct ParamSpec {
    pub(crate) name: &'static str,
    /// A second name of it, or its own name again.
    alias: &'static str,
    pub(crate) default: f64,
    form: ParamForm,
}

/// The domain of an option.
#[derive(Clone)]
enum ParamForm {
    Number(RangeInclusive<f64>),
    /// From 0 up to below 1.
    Decay,
    /// Above 0; infinity is no bound.
    Bound,
    /// Finite, also as f32.
    Finite,
    /// Above 0 and finite, also as f32.
    Positive,
    /// Above 0, up to 1.
    Share,
    /// A whole number from 0.
    Count,
    Flag,
    /// One of these words, kept as its position.
    Word(&'static [&'static str]),
    /// Whole numbers from 1, ascending.
    Counts,
}

/// The largest count: up to it, every whole number is one of f64.
const MOST_COUNT: f64 = 9_007_199_254_740_992.0;

impl ParamSpec {
    const fn new(name: &'static str, default: f64, form: ParamForm) -> Self {
        Self { name, alias: name, default, form }
    }

    pub(crate) const fn number(
        name: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Self {
        Self::new(name, default, ParamForm::Number(range))
    }

    /// A number from 0, for terms added to a divisor.
    pub(crate) const fn small(name: &'static str, default: f64) -> Self {
        Self::number(name, default, 0.0..=f64::MAX)
    }

    /// A number from 0 up to below 1, for decay rates.
    pub(crate) const fn decay(name: &'static str, default: f64) -> Self {
        Self::new(name, default, ParamForm::Decay)
    }

    /// A bound; infinity is no bound.
    pub(crate) const fn bound(name: &'static str) -> Self {
        Self::new(name, f64::INFINITY, ParamForm::Bound)
    }

    /// A number that f32 can hold.
    pub(crate) const fn finite(name: &'static str, default: f64) -> Self {
        Self::new(name, default, ParamForm::Finite)
    }

    /// A number above 0 that f32 can hold.
    pub(crate) const fn positive(name: &'static str, default: f64) -> Self {
        Self::new(name, default, ParamForm::Positive)
    }

    /// A fraction of a whole.
    pub(crate) const fn share(name: &'static str, default: f64) -> Self {
        Self::new(name, default, ParamForm::Share)
    }

    pub(crate) const fn count(name: &'static str) -> Self {
        Self::new(name, 0.0, ParamForm::Count)
    }

    /// A list of counts, kept apart from the numbers.
    pub(crate) const fn counts(name: &'static str) -> Self {
        Self::new(name, 0.0, ParamForm::Counts)
    }

    /// `true` or `false`.
    pub(crate) const fn flag(name: &'static str, default: bool) -> Self {
        Self::new(name, if default { 1.0 } else { 0.0 }, ParamForm::Flag)
    }

    /// One of some words; the first is the default.
    pub(crate) const fn word(name: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(name, 0.0, ParamForm::Word(words))
    }

    /// The option with an alias.
    pub(crate) const fn or(mut self, alias: &'static str) -> Self {
        self.alias = alias;
        self
    }

    pub(crate) fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.alias == name
    }

    /// Whether its value is a list of numbers, not one.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.form, ParamForm::Counts)
    }

    /// Refuses a number outside of the option's domain.
    #[allow(clippy::cast_possible_truncation, reason = "rounding is the question")]
    pub(crate) fn check(&self, value: f64) -> Result<()> {
        let fits = match &self.form {
            ParamForm::Number(range) => range.contains(&value),
            ParamForm::Decay => (0.0..1.0).contains(&value),
            ParamForm::Bound => value > 0.0,
            ParamForm::Finite => (value as f32).is_finite(),
            ParamForm::Positive => value as f32 > 0.0 && (value as f32).is_finite(),
            ParamForm::Share => value > 0.0 && value <= 1.0,
            ParamForm::Count => (0.0..=MOST_COUNT).contains(&value) && value.fract() == 0.0,
            ParamForm::Flag => matches!(value, 0.0 | 1.0),
            ParamForm::Word(_) | ParamForm::Counts => false,
        };
        if fits { Ok(()) } else { Err(self.refused(value)) }
    }

    fn refused(&self, value: impl std::fmt::Display) -> crate::Error {
        let wanted = match &self.form {
            ParamForm::Number(range) => {
                let (least, most) = (range.start(), range.end());
                match (*least > -f64::MAX, *most < f64::MAX) {
                    (true, true) => format!("a number from {least} to {most}"),
                    (true, false) => format!("a number from {least}"),
                    _ => "a number".to_owned(),
                }
            }
            ParamForm::Decay => "a number from 0 to below 1".to_owned(),
            ParamForm::Bound => "a number above 0".to_owned(),
            ParamForm::Finite => "a number that float32 can hold".to_owned(),
            ParamForm::Positive => "a number above 0 that float32 can hold".to_owned(),
            ParamForm::Share => "a number above 0 and up to 1".to_owned(),
            ParamForm::Count => "a whole number from 0".to_owned(),
            ParamForm::Flag => "true (1) or false (0)".to_owned(),
            ParamForm::Word(words) => format!("{}, set with the optimizer", words.join(" or ")),
            ParamForm::Counts => {
                "a list like [30,60], ascending, set with the optimizer".to_owned()
            }
        };
        fail!(Option, "{} is {value}; it must be {wanted}", self.name)
    }

    /// The value that a text stands for; not of lists.
    pub(crate) fn parse(&self, text: &str) -> Result<f64> {
        let lower = text.to_ascii_lowercase();
        let number = match (&self.form, lower.as_str()) {
            (ParamForm::Flag, "true") => Some(1.0),
            (ParamForm::Flag, "false") => Some(0.0),
            (ParamForm::Word(words), word) => {
                let places = (0..).map(f64::from);
                let found = words.iter().zip(places).find(|(known, _)| **known == word);
                return found.map(|(_, place)| place).ok_or_else(|| self.refused(text));
            }
            _ => text.parse().ok(),
        };
        let number = number.ok_or_else(|| self.refused(format_args!("{text:?}")))?;
        self.check(number)?;
        Ok(number)
    }

    /// The text that stands for a value; not of lists.
    pub(crate) fn text(&self, value: f64) -> String {
        match self.form {
            ParamForm::Flag => (value != 0.0).to_string(),
            ParamForm::Word(words) => {
                let places = (0..).map(f64::from);
                let word = words.iter().zip(places).find(|(_, place)| *place >= value);
                word.map_or_else(String::new, |(word, _)| (*word).to_owned())
            }
            _ => value.to_string(),
        }
    }

    /// The list that a text stands for.
    pub(crate) fn parse_counts(&self, text: &str) -> Result<Vec<u64>> {
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let counts: Option<Vec<u64>> =
            inner.and_then(|inner| inner.split(',').map(|it| it.trim().parse().ok()).collect());
        counts
            .filter(|counts| counts[0] > 0 && counts.is_sorted_by(|a, b| a < b))
            .ok_or_else(|| self.refused(text))
    }
}
