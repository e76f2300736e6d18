//! Options given as `name=value,...`: of optimizers, of codecs. Also called: hyperparameters.

mod spec;

pub(crate) use spec::ParamSpec;

use crate::error::{Result, fail};
use crate::suggest;

/// Options with values.
#[derive(Clone)]
pub(crate) struct Params {
    specs: Vec<ParamSpec>,
    values: Vec<f64>,
    /// The options that have been set.
    given: Vec<bool>,
    /// The list among them.
    counts: Vec<u64>,
    /// Names that resemble options, with a hint for each.
    strangers: &'static [(&'static str, &'static str)],
}

impl Params {
    pub(crate) fn new(
        specs: Vec<ParamSpec>,
        strangers: &'static [(&'static str, &'static str)],
    ) -> Self {
        let values = specs.iter().map(|spec| spec.default).collect();
        let given = vec![false; specs.len()];
        Self { specs, values, given, counts: Vec::new(), strangers }
    }

    /// Takes values from a list `name=value,...`; white space around names and values is allowed.
    pub(crate) fn parse(&mut self, params: &str) -> Result<()> {
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
                self.counts = spec.parse_counts(value)?;
            } else {
                self.values[at] = spec.parse(value)?;
            }
            self.given[at] = true;
        }
        Ok(())
    }

    /// Changes one number. After an error the options must not be used.
    pub(crate) fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let at = self.find(name)?;
        self.specs[at].check(value)?;
        self.values[at] = value;
        self.given[at] = true;
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.specs.iter().position(|spec| spec.answers_to(name)).ok_or_else(|| {
            if let Some((_, remark)) = self.strangers.iter().find(|(known, _)| *known == name) {
                return fail!(Option, "{name} {remark}");
            }
            if self.specs.is_empty() {
                return fail!(Option, "there is no option {name:?}; there are none");
            }
            let hint = suggest::near(name, "options", self.specs.iter().map(|spec| spec.name));
            fail!(Option, "there is no option {name:?}; {hint}")
        })
    }

    /// The values, in the order of the options.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// The value of the option that is a list.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The names of the options that have been set.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = self.specs.iter().zip(&self.given).filter(|(_, given)| **given);
        given.map(|(spec, _)| spec.name)
    }

    /// Every option that is no list, with its value, as [`Params::parse`] reads them.
    pub(crate) fn text(&self) -> String {
        let numbers = (0..self.specs.len()).filter(|&at| !self.specs[at].is_list());
        self.texts(numbers)
    }

    /// The options that have been set, as [`Params::parse`] reads them.
    pub(crate) fn given_text(&self) -> String {
        self.texts((0..self.specs.len()).filter(|&at| self.given[at]))
    }

    fn texts(&self, places: impl Iterator<Item = usize>) -> String {
        let option = |at: usize| {
            let spec = &self.specs[at];
            let value = if spec.is_list() {
                let counts: Vec<String> = self.counts.iter().map(ToString::to_string).collect();
                format!("[{}]", counts.join(","))
            } else {
                spec.text(self.values[at])
            };
            format!("{}={value}", spec.name)
        };
        places.map(option).collect::<Vec<_>>().join(",")
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

#[cfg(test)]
mod tests {
    use super::{ParamSpec, Params};

    fn params() -> Params {
        let specs = vec![
            ParamSpec::positive("threshold", 0.5),
            ParamSpec::finite("center", 0.0),
            ParamSpec::share("ratio", 0.01),
            ParamSpec::flag("feedback", true),
            ParamSpec::word("mode", &["linear", "constant"]),
            ParamSpec::count("seed"),
            ParamSpec::bound("clip"),
        ];
        Params::new(specs, &[("type", "is the name")])
    }

    #[test]
    fn the_text_of_options_is_read_back_as_it_was() {
        let mut given = params();
        given.parse("threshold=0.1,mode=constant,feedback=false,seed=9007199254740992").unwrap();
        let mut again = params();
        again.parse(&given.text()).unwrap();
        assert_eq!(again.values(), given.values());
        assert_eq!(
            given.text(),
            "threshold=0.1,center=0,ratio=0.01,feedback=false,mode=constant,seed=9007199254740992,clip=inf"
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for bad in [
            "threshold=0",
            "threshold=-1",
            "threshold=1e39",
            "threshold=1e-46",
            "threshold=nan",
            "center=1e39",
            "center=inf",
            "center=nan",
            "ratio=0",
            "ratio=1.1",
            "ratio=nan",
            "seed=-1",
            "seed=0.5",
            "type=2bit",
        ] {
            assert!(params().parse(bad).is_err(), "{bad}");
        }
        for good in [
            "threshold=1e-45",
            "threshold=3e38",
            "center=-3e38",
            "center=0",
            "center=-1e-300",
            "ratio=1",
            "ratio=1e-300",
        ] {
            assert!(params().parse(good).is_ok(), "{good}");
        }
    }
}
